"""A deprecation is announced in time, in the JSON Schema, and for the requests that have the deprecated field."""

import datetime as dt
from typing import Annotated

import pydantic
import pytest

from subscriptions_db.api.contract import deprecation, schemas
from subscriptions_db.api.contract.deprecation import Deprecation
from subscriptions_db.api.contract.routes import NoParameters
from subscriptions_db.manifest import parts

SINCE, SUNSET = dt.date(2027, 1, 1), dt.date(2027, 9, 1)
OLD = Deprecation(since=SINCE, sunset=SUNSET, link="https://docs.example.com/old")
LATER = Deprecation(since=dt.date(2027, 2, 1), sunset=dt.date(2027, 8, 15), link="https://docs.example.com/later")


class Part(pydantic.BaseModel):
    size: Annotated[int, LATER] = 0


class Body(NoParameters):
    name: str = ""
    colour: Annotated[str | None, OLD] = None
    parts: list[Part] = pydantic.Field(default=[])


def used(document):
    found = set()
    Body.model_validate(document, context=found)
    return found


def test_the_headers_have_the_forms_of_their_rfcs():
    """1798761600 is 2027-01-01T00:00:00Z, the example of docs/api.md."""
    assert deprecation.headers({OLD}) == {
        "deprecation": "@1798761600",
        "sunset": "Wed, 01 Sep 2027 00:00:00 GMT",
        "link": '<https://docs.example.com/old>; rel="deprecation"; type="text/html"',
    }


def test_several_deprecations_have_the_earliest_times_and_all_links():
    headers = deprecation.headers({LATER, OLD})
    assert (headers["deprecation"], headers["sunset"]) == ("@1798761600", "Sun, 15 Aug 2027 00:00:00 GMT")
    assert headers["link"].count('rel="deprecation"') == 2


def test_a_request_without_anything_deprecated_gets_no_headers():
    assert deprecation.headers(used({"name": "a", "parts": [{}]})) == {}


@pytest.mark.parametrize(
    ("document", "expected"),
    [({"colour": "red"}, {OLD}), ({"colour": None}, {OLD}), ({"parts": [{}, {"size": 1}]}, {LATER})],
)
def test_a_request_that_has_a_deprecated_field_is_noted(document, expected):
    assert used(document) == expected


def test_values_are_valid_outside_a_request_too():
    assert Body.model_validate({"colour": "red"}).colour == "red"


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_a_deprecated_field_is_deprecated_in_the_schema(mode):
    properties = Body.model_json_schema(mode=mode)["properties"]
    assert {name for name, part in properties.items() if part.get("deprecated")} == {"colour"}


class Fields(parts.ManifestPart):
    colour: Annotated[str, OLD] = "red"
    """A field."""
    size: Annotated[int, pydantic.Field(ge=1)] = 1
    """Another field."""


def test_a_deprecated_field_is_deprecated_in_the_body_of_a_patch():
    """The mark stood at the first alternative of `anyOf`, where no tool looks."""
    changes = schemas.changes_of(Fields, "FieldChanges", "Changes.")
    properties = changes.model_json_schema()["properties"]
    assert {name for name, part in properties.items() if part.get("deprecated")} == {"colour"}
    assert "deprecated" not in str(properties["colour"]["anyOf"])
    assert properties["size"]["anyOf"][0]["minimum"] == 1
    for document, expected in (({"colour": "red"}, {OLD}), ({"colour": None}, {OLD}), ({"size": 2}, set())):
        found = set()
        changes.model_validate(document, context=found)
        assert found == expected


@pytest.mark.parametrize("notice_days", [-1, 0, 183])
def test_a_removal_before_six_months_is_refused(notice_days):
    with pytest.raises(ValueError, match="at least 184 days"):
        Deprecation(since=SINCE, sunset=SINCE + dt.timedelta(days=notice_days), link="https://docs.example.com/old")
