"""Java and Python agree on every topic pattern that is taken."""

import json
import random

from delivery.config import topic_pattern
from delivery.stages.kafka import topic_source

NAMES = ("events.order.created", "events.a1", "a", "a.b-c_9", "AA.aa", "events", "-._", "aab.", "x")
ATOMS = (*"aeAx9._-", r"\.", r"\-", r"\d", r"\D", r"\w", r"\W", r"\S", "[a-c]", "[^a.]", r"[\w.-]", "[-a]", "events", "^", "$")
GROUPS = ("(", "(?:", "(?=", "(?!")
QUANTIFIERS = ("", "", "", "*", "+", "?", "{1,3}", "{2}", "{1,}", "*?", "+?", "??", "{0,2}?")


def made(rng, depth=3):
    """Return a pattern: some that only one of the two has are among them."""
    pieces = []
    for _ in range(rng.randint(1, 4)):
        group = rng.choice(GROUPS) if depth and rng.random() < 0.3 else ""
        pieces.append(f"{group}{made(rng, depth - 1)})" if group else rng.choice(ATOMS))
        pieces.append(rng.choice(QUANTIFIERS))
    return "|".join(["".join(pieces), *([made(rng, depth - 1)] if depth and rng.random() < 0.2 else [])])


def is_taken(pattern):
    try:
        return bool(topic_pattern.checked(pattern))
    except ValueError:
        return False


def test_java_matches_what_python_matches(spark, tmp_path):
    """`doctor` and `reconcile` looked at other topics than the job read."""
    rng = random.Random(7)
    taken = [pattern for pattern in (made(rng) for _ in range(1500)) if is_taken(pattern)]
    assert len(taken) > 300
    file = tmp_path / "asked.json"
    file.write_text(
        "\n".join(
            json.dumps({"whole": topic_source.whole(pattern), "name": name, "by_python": topic_pattern.matches(pattern, name)})
            for pattern in taken
            for name in NAMES
        )
    )
    asked = spark.read.json(str(file), schema="whole string, name string, by_python boolean")
    assert asked.count() == len(taken) * len(NAMES)
    assert asked.where("(name rlike whole) != by_python").collect() == []
