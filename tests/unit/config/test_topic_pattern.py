"""Topic patterns mean the same in Java, by which Spark matches, and in Python, by which `doctor` and `reconcile` match."""

import pytest

from delivery import errors
from delivery.config import settings_loader, topic_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"events\..+",
        r"^events\.[a-z_-]+(\.v\d{1,2})?$",
        r"events\.(?!internal\.).+|shop",
        r"(?:a|b)*?\-c",
        r"[^\.]+\.(?=[ab])x{2,}",
        "shop_[0-9]{4}",
    ],
)
def test_a_pattern_that_java_and_python_share_is_accepted(pattern):
    assert topic_pattern.checked(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("", "is empty"),
        (r"\Qevents.\E.+", r"has \Q at character 1"),
        (r"\p{Alpha}+", r"has \p at character 1"),
        (r"(?i)events\..+", "has (?i) at character 1"),
        (r"(?P<area>events)\..+", "has (?P< at character 1"),
        (r"(?<area>events)\..+", "has (?<a at character 1"),
        (r".+(?<=\.created)", "has (?<= at character 3"),
        (r"(a)\1", r"has \1 at character 4"),
        (r"events\Z", r"has \Z at character 7"),
        (r"events\.[a-z&&[^q]]+", "has && within […] at character 9"),
        (r"events\.[a-z[0-9]]+", "has [ within […] (write \\[) at character 9"),
        ("[]a]", "has ] first in […]"),
        ("[a-z", "has [ without ]"),
        ("a++", "has two quantifiers in a row, ++, at character 2"),
        ("a{,3}", "has { at character 2"),
        ("*.events", "repeats nothing by * at character 1"),
        ("événements", "has a character that no topic's name has"),
        ("events(", "is not a regular expression: missing ), unterminated subpattern"),
    ],
)
def test_a_construct_that_java_or_python_lacks_is_refused(pattern, said, tmp_path):
    with pytest.raises(errors.SettingsError) as refused:
        settings_loader.read({"FANOUT_SOURCE_TOPIC_PATTERN": pattern}, root=tmp_path)
    assert str(refused.value).startswith("setting source.topic_pattern (FANOUT_SOURCE_TOPIC_PATTERN): ")
    assert said in str(refused.value)


def test_a_pattern_matches_whole_topic_names_only():
    assert topic_pattern.matches("events|shop", "shop")
    assert not topic_pattern.matches("events|shop", "shops")
