"""docs/producing.md: its examples are events, and it explains every refusal."""

import datetime as dt
import decimal
import re

import orjson
import pytest

from delivery import errors
from delivery.webhooks.events import parsing
from delivery.webhooks.routing import intake
from tests.support import builders, framing
from tests.support.reading import ROOT, blocks

PAGE = "docs/producing.md"
LAYOUT = parsing.Layout()
STRUCTURED = (("content-type", b"application/cloudevents+json"),)
BINARY = tuple(
    (f"ce_{name}", b"1.0" if name == "specversion" else b"t1") for name in ("specversion", "id", "type", "source", "tenantid")
)
REFUSED = {
    "tombstone": builders.record(value=None),
    "empty": builders.record(value=b" "),
    "too_large": builders.record(value=b'{"tenant_id":"t1","x":"%s"}' % (b"x" * 262_144)),
    "not_json": builders.record(value=b"<order/>"),
    "missing_attribute": builders.record(value=b'{"id":"order-17"}'),
    "bad_attribute": builders.record(value=b"{}", headers=(*BINARY, ("ce_time", b"today"))),
    "undecodable": builders.record(value=b"\x1f\x8b", headers=(("content-encoding", b"gzip"),)),
    "unsupported": builders.record(value=b"[]", headers=(("content-type", b"application/cloudevents-batch+json"),)),
    "tenant_mismatch": builders.record(value=b'{"tenant_id":"fanout"}'),
}
"""A record for each reason of the parser."""
REFUSED_IN_FRAMES = {
    "bad_frame": builders.record(value=b"\0\0"),
    "unknown_schema": builders.record(value=framing.framed(7, b"")),
}
"""A record for each reason that only topics with a schema registry have."""


def parsed(value, headers=()):
    return parsing.parse(builders.record(value=value, headers=tuple(headers)), LAYOUT)


def by_regular_expression(block):
    """Return value and headers in the source text of an example."""
    headers = re.findall(r'"(ce_[a-z]+|content-type)"[^"\n]*"([^"]*)"', block)
    [value] = re.findall(r'(?:`|"""\s*)(\{.*?\})', block)
    return value.encode(), [(name, text.encode()) for name, text in headers]


def by_the_console(block):
    """Read what the console producer reads: headers, key and value with tabs between them, a header up to its first colon."""
    [line] = re.findall(r"printf '(.*)\\n'", block)
    headers, key, value = line.split(r"\t")
    assert key == "tenant-1"
    return value.encode(), [(name, text.encode()) for name, _, text in (pair.partition(":") for pair in headers.split(","))]


@pytest.mark.parametrize(
    ("language", "read"),
    [
        ("java", by_regular_expression),
        ("go", by_regular_expression),
        ("javascript", by_regular_expression),
        ("sh", by_the_console),
    ],
)
def test_each_language_writes_the_same_event(language, read):
    """tests/integration/test_producing_examples.py runs the examples. No jar of the project has the console producer."""
    [block] = [block for block in blocks(PAGE, language) if "SCHEMA" not in block]
    value, headers = read(block)
    event = parsed(value, headers)
    assert (event.event_id, event.event_type, event.source, event.tenant_id) == (
        "order-17",
        "order.created",
        "/shop",
        "tenant-1",
    )
    assert (event.content, event.opaque, event.attributes) == ({"amount": 700}, None, ())
    assert "events.order.created" in block


def test_the_documents_are_events():
    plain, structured = [
        parsed(text.encode(), STRUCTURED if "specversion" in text else ()) for text in blocks(PAGE, "json")[:2]
    ]
    assert (plain.source, structured.source) == ("events.order.created", "/shop")
    for event in (plain, structured):
        assert (event.event_id, event.tenant_id, event.time) == ("order-17", "tenant-1", "2026-05-01T10:00:00Z")
    assert structured.content == {"amount": 700}
    assert structured.attributes == (("subject", "orders/17"),)


@pytest.mark.parametrize(("reason", "record"), REFUSED.items())
def test_each_refusal_of_the_parser_can_happen(reason, record):
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(record, LAYOUT)
    assert rejected.value.reason == reason


@pytest.mark.parametrize(("reason", "record"), REFUSED_IN_FRAMES.items())
def test_each_refusal_of_a_frame_can_happen(reason, record):
    with pytest.raises(errors.EventRejected) as rejected:
        framing.event_of(record, framing.Reader())
    assert rejected.value.reason == reason


def test_the_schema_of_the_page_gives_the_event_below_it():
    """tests/integration/test_producing_examples.py runs the example itself."""
    [block] = [block for block in blocks(PAGE, "python") if "SCHEMA" in block]
    [document] = [orjson.loads(text) for text in blocks(PAGE, "json") if "placed_at" in text]
    text = re.search(r'SCHEMA = """(.*?)"""', block, re.DOTALL)[1]
    placed = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
    order = {"id": "order-17", "tenant_id": "tenant-1", "amount": decimal.Decimal(700), "placed_at": placed}
    value = framing.framed(1, framing.avro(orjson.loads(text), order))
    event = framing.event_of(builders.record(value=value), framing.Reader(framing.avro_schema(orjson.loads(text))))
    assert event.content == document
    assert "events.order.created" in block


def test_the_page_explains_every_refusal():
    explained = re.findall(r"^\| `(\w+)` \|", (ROOT / PAGE).read_text(), re.MULTILINE)
    modules = [
        *(ROOT / "delivery" / "webhooks" / "events").glob("*.py"),
        *(ROOT / "delivery" / "webhooks" / "formats").glob("*.py"),
        *(ROOT / "delivery" / "webhooks" / "routing").glob("*.py"),
    ]
    used = {reason for module in modules for reason in re.findall(r'EventRejected\(\s*"(\w+)"', module.read_text())}
    assert set(explained) == used | {intake.UNFORESEEN, intake.NOT_WRITTEN}
    assert set(explained) - set(REFUSED) - set(REFUSED_IN_FRAMES) == intake.LANE_SPECIFIC - {"unknown_schema"}
    assert len(explained) == len(set(explained))


def test_the_bounds_are_those_of_the_parser():
    page = (ROOT / PAGE).read_text()
    assert f"At most {LAYOUT.max_bytes:,} bytes with headers" in page
    assert f"at most {parsing.MAX_ATTRIBUTE_CHARS:,} characters" in page
    assert orjson.loads(blocks(PAGE, "json")[0])["time"] in page
