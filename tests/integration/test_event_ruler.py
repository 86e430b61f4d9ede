"""The matcher that AWS has published differs from ours in the examples that docs/filters.md lists, and in no others.

The other matcher is event-ruler, which AWS has published. Its jars are downloaded once, and compared with their digests.
"""

import hashlib
import json
import re
from pathlib import Path
from urllib import request

import py4j.java_gateway
import py4j.protocol
import pyspark
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.properties import test_filters as world
from tests.support import filter_combinations, filter_tables, published_patterns
from tests.support.filter_tables import code, verdict

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
    """Yield a function that returns the verdict of event-ruler on a filter and an event. None: the filter is refused."""
    of_spark = sorted((Path(pyspark.__file__).parent / "jars").glob("jackson-*.jar"))
    gateway = py4j.java_gateway.JavaGateway.launch_gateway(
        classpath=":".join(str(path) for path in (*jars(), *of_spark)), die_on_exit=True
    )

    def verdict(pattern, event):
        machine = gateway.jvm.software.amazon.event.ruler.Machine()
        try:
            machine.addRule("rule", pattern)
        except py4j.protocol.Py4JJavaError:
            return None
        return bool(machine.rulesForJSONEvent(event))

    yield verdict
    gateway.shutdown()


def test_the_documented_differences_are_all_that_the_examples_show(event_ruler):
    listed = [(code(pattern), code(event)) for pattern, event, _, _ in filter_tables.differences()]
    found = [case for case in filter_tables.cases() if event_ruler(*case) is not verdict(*case)]
    assert [case for case in found if case not in listed] == []


@pytest.mark.parametrize(("pattern", "event", "here", "there"), filter_tables.differences())
def test_event_ruler_differs_as_documented(event_ruler, pattern, event, here, there):
    expected = here if filter_tables.OF_THE_SERVICE in there else there
    assert event_ruler(code(pattern), code(event)) is filter_tables.said(expected)


def test_event_ruler_agrees_on_every_kind_of_value(event_ruler):
    found = [
        (alternative, event)
        for alternative, event, is_match in filter_combinations.cases()
        if event_ruler(f'{{"x": [{alternative}]}}', event) is not is_match
    ]
    assert found == []


def test_event_ruler_agrees_on_every_kind_of_operand(event_ruler):
    listed = {code(pattern) for pattern, *_ in filter_tables.differences()}
    patterns = {f'{{"x": [{alternative}]}}': is_accepted for alternative, is_accepted in filter_combinations.compilations()}
    found = [pattern for pattern, is_accepted in patterns.items() if (event_ruler(pattern, "{}") is None) is is_accepted]
    assert [pattern for pattern in found if pattern not in listed] == []


def shows_a_listed_difference(pattern, event):
    """Return True if random filters and events of this kind may show a difference that docs/filters.md lists."""
    return bool(
        re.search(r'"(prefix|suffix)": (\[[^]]*)?""', pattern)
        or ("equals-ignore-case" in pattern and "ß" in pattern + event)
        or ('"exists": false' in pattern and "[" in event)
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(world.patterns(world.present | st.just(world.ABSENT)).flatmap(world.with_document))
def test_event_ruler_agrees_on_random_filters(event_ruler, pattern_and_document):
    pattern, event = (json.dumps(part, ensure_ascii=False) for part in pattern_and_document)
    assume(not shows_a_listed_difference(pattern, event))

    assert event_ruler(pattern, event) is verdict(pattern, event)


@pytest.mark.skipif(not published_patterns.FOLDER, reason=published_patterns.MISSING)
def test_event_ruler_has_the_verdicts_of_the_service(event_ruler):
    """Hence event-ruler may stand for the service, except that the service refuses a complex wildcard."""
    cases = published_patterns.cases()
    differing = [name for name, (pattern, event, said) in cases.items() if event_ruler(pattern, event) is not said]
    assert differing == ["content_wildcard_complex_EXC"]
