"""Decompress the value of a record by its header `content-encoding`, with a bound on the size. Pure.

Runs wherever records are parsed. Source: RFC 9110, section 8.4.1; RFC 1950 (deflate), RFC 1952 (gzip), RFC 8878 (zstd).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from delivery import errors

HEADER = "content-encoding"
"""Name of the header, in lower case."""
MAX_MEMBERS = 64
"""Most compressed parts (members) of a gzip or deflate value. Decompressing a part copies the rest of the value, so thousands
of empty parts would take long."""
_GZIP_WBITS = 16 + zlib.MAX_WBITS
"""Value of zlib's parameter `wbits` that makes it read the format gzip."""


def decoded(value: bytes, encoding: bytes, max_bytes: int) -> bytes:
    """Return the decompressed value; unchanged if `encoding` is unknown, or if the first bytes are not those of `encoding`.

    Some bridges decompress a value and keep its header, and some write a charset into this header. The value of such a record
    is read as if the header were missing. Raise EventRejected for a compressed value that is broken, or that has more than
    `max_bytes` when decompressed. Raise it too for a gzip or deflate value of more than MAX_MEMBERS parts.
    """
    known = _ENCODINGS.get(encoding.strip().lower())
    if known is None:
        return value
    is_compressed, decompress = known
    if not is_compressed(value):
        return value
    try:
        found = decompress(value, max_bytes + 1)
    except (zlib.error, EOFError, OSError) as exc:
        raise errors.EventRejected(
            "undecodable",
            f"the value does not decompress by {encoding.decode(errors='replace')[:20]} ({str(exc)[:100]}): compress the "
            "event again and publish it, or publish it uncompressed and without the header content-encoding",
        ) from exc
    if len(found) > max_bytes:
        raise errors.EventRejected(
            "too_large",
            f"the value has more than {max_bytes} bytes when decompressed (source.max_event_bytes): shorten the payload, or "
            "put a link in place of its large parts",
        )
    return found


def _is_gzip(value: bytes) -> bool:
    return value.startswith(b"\x1f\x8b")


def _is_zlib(value: bytes) -> bool:
    # RFC 1950, section 2.2: method 8, window of at most 32 KiB, and a check of the two bytes. No JSON object begins like this.
    return len(value) > 1 and value[0] & 15 == 8 and value[0] >> 4 <= 7 and (value[0] << 8 | value[1]) % 31 == 0  # noqa: PLR2004


def _is_zstd(value: bytes) -> bool:
    return value.startswith(b"\x28\xb5\x2f\xfd")


def _gunzip(value: bytes, at_most: int) -> bytes:
    return _inflate(value, at_most, _GZIP_WBITS)


def _inflate(value: bytes, at_most: int, wbits: int = zlib.MAX_WBITS) -> bytes:
    found, rest, members = b"", value, 0
    while rest and len(found) < at_most:  # a gzip file may have several members
        members += 1
        if members > MAX_MEMBERS:
            raise EOFError(f"it has more than {MAX_MEMBERS} members")
        part = zlib.decompressobj(wbits)
        found += part.decompress(rest, at_most - len(found))
        if len(found) < at_most and not part.eof:
            raise EOFError("it ends early")
        rest = part.unused_data
    return found


def _unzstd(value: bytes, at_most: int) -> bytes:
    import pyarrow as pa  # noqa: PLC0415  # only records with this encoding need it; every executor has it

    with pa.input_stream(pa.BufferReader(value), compression="zstd") as stream:
        found: bytes = stream.read(at_most)
        return found


_Known = tuple[Callable[[bytes], bool], Callable[[bytes, int], bytes]]
_ENCODINGS: dict[bytes, _Known] = {
    b"gzip": (_is_gzip, _gunzip),
    b"x-gzip": (_is_gzip, _gunzip),
    b"deflate": (_is_zlib, _inflate),
    b"zstd": (_is_zstd, _unzstd),
}
"""For each encoding, two functions. The first recognises a compressed value by its first bytes. The second decompresses a value
up to a number of bytes."""
