"""Any bytes in a frame are an event, or the record is rejected. Nothing else is raised, and no process ends."""

import hypothesis
from hypothesis import strategies as st

from delivery import errors
from delivery.webhooks.events import content_encoding, parsing
from delivery.webhooks.formats import decoder
from tests.support import builders, framing

TREE = {
    "type": "record", "name": "Tree",
    "fields": [
        {"name": "children", "type": {"type": "array", "items": "Tree"}},
        {"name": "note", "type": ["null", "string", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}  # fmt: skip
LINE = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}
FLAT = {
    "type": "record", "name": "Flat",
    "fields": [
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}  # fmt: skip
ORDER = framing.proto("order.proto", Order={"tenant_id": (1, 9, ""), "number": (2, 3, ""), "parent": (3, 11, ".shop.Order")})
SCHEMAS = [framing.avro_schema(TREE), framing.avro_schema(FLAT), framing.protobuf_schema(ORDER)]
HERE = decoder.Decoder(framing.FORMATS, parsing.Layout(), framing.Reader(*SCHEMAS))
BODIES = st.one_of(
    st.binary(max_size=60), st.lists(st.sampled_from([b"\0", b"\x01", b"\x02", b"\x0a\x02", b"\xff", b"\x1a"])).map(b"".join)
)


@hypothesis.given(schema_id=st.integers(1, len(SCHEMAS) + 1), body=BODIES)
def test_any_bytes_in_a_frame_are_an_event_or_rejected(schema_id, body):
    try:
        event = HERE.event_now(builders.record(value=framing.framed(schema_id, body)))
    except errors.EventRejected as rejected:
        assert rejected.reason in {"bad_frame", "unknown_schema", "undecodable", "missing_attribute", "bad_attribute"}  # noqa: PT017
    else:
        assert event.tenant_id


@hypothesis.given(
    encoding=st.sampled_from([b"gzip", b"deflate", b"zstd"]),
    value=st.builds(
        bytes.__add__, st.sampled_from([b"", b"\x1f\x8b\x08", b"\x78\x9c", b"\x28\xb5\x2f\xfd"]), st.binary(max_size=60)
    ),
)
def test_any_compressed_bytes_are_bounded_or_rejected(encoding, value):
    try:
        assert len(content_encoding.decoded(value, encoding, 100)) <= 100
    except errors.EventRejected as rejected:
        assert rejected.reason in {"undecodable", "too_large"}  # noqa: PT017
