"""Put the version of a format in front of stored bytes, and refuse bytes of versions that the reader does not read.

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
    if not stored:
        raise errors.StateUnreadable(
            f"{name} is empty, and no version of fanout writes that. Nothing was changed. Send this message to the "
            "maintainers of the platform, with the log of this process"
        )
    oldest = version if oldest is None else oldest
    if not oldest <= stored[0] <= version:
        read_here = f"format {version}" if oldest == version else f"formats {oldest} to {version}"
        raise errors.StateUnreadable(
            f"{name} has format {stored[0]}, and this version of fanout reads {read_here}. Nothing was changed. Start again "
            "the version of fanout that wrote it"
        )
    return memoryview(stored)[1:]
