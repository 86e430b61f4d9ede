"""A body is split into the values and headers of records, byte for byte; or it is refused as a whole."""

import pytest

from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing import bodies

CLOUD_EVENT = b'{"specversion": "1.0", "data": {"b":1, "a" : 2.50}}'
STRUCTURED = (("content-type", b"application/cloudevents+json"),)
NOT_TAKEN = "the body's content type is missing, or is not taken here"


def read(content_type, body, *headers):
    found = bodies.read(content_type, headers, body)
    return [tuple(event) for event in found.events], found.is_batch


@pytest.mark.parametrize(
    ("content_type", "body", "events", "is_batch"),
    [
        (bodies.STRUCTURED, CLOUD_EVENT, [(CLOUD_EVENT, STRUCTURED)], False),
        (bodies.BATCH, b" [%s ,\n{}]" % CLOUD_EVENT, [(CLOUD_EVENT, STRUCTURED), (b"{}", STRUCTURED)], True),
        (bodies.BATCH, b"[]", [], True),
        (bodies.PLAIN, b'{"id": 1}', [(b'{"id": 1}', ())], False),
        (bodies.PLAIN, b' [{"id": 1 },7]', [(b'{"id": 1 }', ()), (b"7", ())], True),
        (bodies.PLAIN, b"", [(b"", ())], False),  # the parser says what is wrong with it
    ],
)
def test_a_body_is_split_into_records_with_their_bytes(content_type, body, events, is_batch):
    assert read(content_type, body) == (events, is_batch)


def test_ce_headers_are_the_attributes_and_the_body_is_the_payload():
    given = [(b"Ce-SpecVersion", b"1.0"), (b"ce-id", b" e%201 "), (b"Content-Type", b"text/json"), (b"accept", b"*/*")]
    [(value, headers)], is_batch = read("text/json", b"[1]", *given)
    assert (value, is_batch) == (b"[1]", False)
    assert headers == (("ce_specversion", b"1.0"), ("ce_id", b"e 1"), ("content-type", b"text/json"))


@pytest.mark.parametrize(
    ("media_type", "value"),
    [
        (None, None),
        (b"application/json", None),
        (b"Application/JSON; charset=utf-8", None),
        (b"application/vnd.x+json", None),
        (b"text/plain", b""),
        (b"application/octet-stream", b""),
    ],
)
def test_an_empty_body_is_no_payload_unless_its_media_type_has_empty_ones(media_type, value):
    given = [(b"ce-specversion", b"1.0"), *([(b"content-type", media_type)] if media_type else [])]
    content_type = (media_type or b"application/octet-stream").decode().partition(";")[0].lower()
    assert read(content_type, b"", *given)[0][0][0] == value


@pytest.mark.parametrize("content_type", [bodies.STRUCTURED, bodies.BATCH, bodies.PLAIN, "text/plain"])
def test_a_repeated_content_type_is_refused(content_type):
    given = [(b"ce-specversion", b"1.0"), (b"Content-Type", content_type.encode()), (b"content-type", b"application/json")]
    with pytest.raises(problems.Refused) as refused:
        read(content_type, b"{}", *given)
    assert [error.field for error in refused.value.problem.errors] == ["content-type"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀".encode()),  # the example of the specification
        (b'"a \\"b\\" \\\\"', b'a "b" \\'),
        (b'"100%25"', b"100%"),
        ("€".encode(), "€".encode()),
        (b'"', b'"'),
        (b"50%", b"50%"),
    ],
)
def test_a_header_is_decoded_as_the_http_binding_says(header, value):
    [(_, headers)], _ = read(bodies.PLAIN, b"1", (b"ce-specversion", b"1.0"), (b"ce-subject", header))
    assert dict(headers)["ce_subject"] == value


@pytest.mark.parametrize(
    ("content_type", "body", "status", "text"),
    [
        ("text/plain", b"x", 415, f"{NOT_TAKEN}: send content-type application/json, application/cloudevents+json or"),
        ("application/octet-stream", b"{}", 415, f"{NOT_TAKEN}: send content-type"),  # also: no content type
        ("application/cloudevents+avro", b"x", 415, f"{NOT_TAKEN}: send content-type"),
        (bodies.BATCH, b"{}", 422, "the body must be a JSON array of events"),
        (bodies.BATCH, b"[{},]", 422, "the body is not JSON: "),
        (bodies.BATCH, b"", 422, "the body is not JSON: "),
        (bodies.PLAIN, b"[{}", 422, "the body is not JSON: "),
        (bodies.PLAIN, b"[" * 20_000, 422, "the body is nested too deeply"),
        (bodies.BATCH, b"[%s]" % b",".join([b"{}"] * 1001), 413, "the body has 1001 events: send at most 1000"),
    ],
)
def test_a_body_that_cannot_be_split_is_refused(content_type, body, status, text):
    with pytest.raises(problems.Refused) as refused:
        read(content_type, body)
    assert refused.value.problem.status == status
    assert refused.value.problem.detail.startswith(text)


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([(b"ce-id", b"1")], "ce-specversion"),
        ([(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"CE-ID", b"2")], "ce-id"),
    ],
)
def test_ambiguous_or_incomplete_ce_headers_are_refused(headers, field):
    with pytest.raises(problems.Refused) as refused:
        read(bodies.PLAIN, b"{}", *headers)
    assert [error.field for error in refused.value.problem.errors] == [field]
