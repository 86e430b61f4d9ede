"""A compressed value is an event, a broken or exploding one is rejected, and a value that is not compressed stays as it is."""

import gzip
import zlib

import pyarrow as pa
import pytest

from delivery import errors
from delivery.model import Record
from delivery.webhooks.events import content_encoding, parsing
from tests.support import builders

DOCUMENT = builders.record().value
WRITERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": lambda value: pa.compress(value, codec="zstd", asbytes=True),
}


def compressed(encoding, value=DOCUMENT, **fields) -> Record:
    headers = (("Content-Encoding", encoding.encode()), *fields.pop("headers", ()))
    return builders.record(value=value, headers=headers, **fields)


@pytest.mark.parametrize("encoding", WRITERS)
def test_a_compressed_value_is_read_as_the_same_event(encoding):
    record = compressed(encoding.upper(), WRITERS[encoding](DOCUMENT))
    event = parsing.parse(record, parsing.Layout())
    assert event == parsing.parse(builders.record(), parsing.Layout())._replace(record=record)


@pytest.mark.parametrize("encoding", WRITERS)
def test_an_opaque_payload_is_decompressed_too(encoding):
    names = ("specversion", "id", "type", "source", "tenantid")
    binary = [(f"ce_{name}", b"1.0" if name == "specversion" else b"t1") for name in names]
    record = compressed(encoding, WRITERS[encoding](b"<order/>"), headers=(*binary, ("content-type", b"text/xml")))
    assert parsing.parse(record, parsing.Layout()).data == b'"<order/>"'


@pytest.mark.parametrize("encoding", [*WRITERS, "identity", "br", "UTF-8", "gzip, zstd"])
def test_a_value_that_is_not_compressed_stays_as_it_is(encoding):
    assert parsing.parse(compressed(encoding), parsing.Layout()).data == DOCUMENT


@pytest.mark.parametrize("encoding", WRITERS)
@pytest.mark.parametrize("broken", ["cut", "trailing bytes"])
def test_broken_compression_is_rejected(encoding, broken):
    value = WRITERS[encoding](DOCUMENT)
    record = compressed(encoding, value[:-3] if broken == "cut" else value + b"more")
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(record, parsing.Layout())
    assert rejected.value.reason == "undecodable"


@pytest.mark.parametrize("encoding", WRITERS)
def test_a_bomb_is_rejected_as_too_large(encoding):
    bomb = WRITERS[encoding](b"\0" * 50_000_000)
    assert len(bomb) < 262_144
    with pytest.raises(errors.EventRejected) as rejected:
        parsing.parse(compressed(encoding, bomb), parsing.Layout())
    assert rejected.value.reason == "too_large"


def test_headers_count_beside_the_decompressed_value():
    record = compressed("gzip", gzip.compress(DOCUMENT), headers=(("note", b"x" * 400),))
    assert parsing.parse(record, parsing.Layout(max_bytes=len(DOCUMENT) + 500))
    with pytest.raises(errors.EventRejected, match="too_large"):
        parsing.parse(record, parsing.Layout(max_bytes=len(DOCUMENT) + 470))


def test_the_members_of_a_gzip_value_are_joined_up_to_a_bound():
    members = gzip.compress(DOCUMENT[:9]) + gzip.compress(DOCUMENT[9:])
    assert content_encoding.decoded(members, b"gzip", 1000) == DOCUMENT
    with pytest.raises(errors.EventRejected, match="members"):
        content_encoding.decoded(gzip.compress(b"") * (content_encoding.MAX_MEMBERS + 1), b"gzip", 1000)
