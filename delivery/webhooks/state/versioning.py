"""Put the version of a format in front of stored bytes, and refuse bytes of other versions.

Runs in the executors, on the driver, in the archive and in the commands. Each format counts its own versions.
"""

from __future__ import annotations

from delivery import errors


def versioned(version: int, written: bytes) -> bytes:
    """Return the bytes with the version of their format in front, as one byte."""
    return bytes((version,)) + written


def read(stored: bytes, version: int, name: str, *, oldest: int | None = None) -> memoryview:
    """Return the bytes behind the version. Raise StateUnreadable if `stored` is empty or of another version.

    `name` says in the error what the bytes are, such as "an index of the retry lane". Versions from `oldest` to `version` are
    accepted; by default only `version`.
    """
    if not stored or not (version if oldest is None else oldest) <= stored[0] <= version:
        form = f"has format {stored[0]}" if stored else "is empty"
        raise errors.StateUnreadable(
            f"{name} {form}, and this version of fanout reads format {version}. Nothing was changed. Start again the "
            "version of fanout that wrote it"
        )
    return memoryview(stored)[1:]
