"""The matcher that AWS has published differs from ours in the examples that docs/filters.md lists, and in no others.

The other matcher is event-ruler, which AWS has published. Its jars are downloaded once, and compared with their digests.
"""

import hashlib
import json
from pathlib import Path
from urllib import request

import py4j.java_gateway
import pyspark
import pytest

from tests.support import filter_tables
from tests.support.filter_tables import matches, values

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FOLDER = Path.home() / ".cache" / "fanout" / "event-ruler-2.1.0"
MAVEN = "https://repo1.maven.org/maven2"
JARS = {
    "software/amazon/event/ruler/event-ruler/2.1.0/event-ruler-2.1.0.jar": (
        "0de916a30048f996f129d05eb3dc6871c89a462f1377c876fd2d34f2e04152fe"
    ),
    "ch/randelshofer/fastdoubleparser/1.0.1/fastdoubleparser-1.0.1.jar": (
        "9262ac51030c5b9bee0057d44765eea7357beaefaebdbb0aad330269407d7f87"
    ),
}
"""Path at Maven Central → SHA-256. Jackson, which event-ruler needs as well, is one of Spark's jars."""


def jars():
    """Return the paths of the jars; download them if they are missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, digest in JARS.items():
        path = FOLDER / Path(place).name
        if not path.is_file():
            with request.urlopen(f"{MAVEN}/{place}", timeout=60) as answer:  # noqa: S310  # a constant address
                path.write_bytes(answer.read())
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, f"{path} is not the jar of its digest: delete it"
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def event_ruler():
    """Yield a function that returns whether a filter matches an event in event-ruler."""
    of_spark = sorted((Path(pyspark.__file__).parent / "jars").glob("jackson-*.jar"))
    gateway = py4j.java_gateway.JavaGateway.launch_gateway(
        classpath=":".join(str(path) for path in (*jars(), *of_spark)), die_on_exit=True
    )

    def is_match(pattern, event):
        machine = gateway.jvm.software.amazon.event.ruler.Machine()
        machine.addRule("rule", json.dumps(pattern))
        return bool(machine.rulesForJSONEvent(json.dumps(event)))

    yield is_match
    gateway.shutdown()


def test_the_documented_differences_are_all_that_the_examples_show(event_ruler):
    listed = [(values(pattern)[0], values(event)[0]) for pattern, event, _, _ in filter_tables.differences()]
    found = [case for case in filter_tables.cases() if event_ruler(*case) is not matches(*case)]
    assert [case for case in found if case not in listed] == []


@pytest.mark.parametrize("row", filter_tables.differences())
def test_event_ruler_differs_as_documented(event_ruler, row):
    pattern, event, _, there = row
    assert event_ruler(values(pattern)[0], values(event)[0]) is there.startswith("matches")
