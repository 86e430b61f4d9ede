"""Mark what is kept over restarts and upgrades with the version of its layout, and refuse what another version wrote.

Runs in the executors and in the command. Must not import pyspark or psycopg. Each layout has a version of its own, in front.
"""

from __future__ import annotations

from delivery import errors


def marked(version: int, written: bytes) -> bytes:
    """Return the bytes as they are kept."""
    return bytes((version,)) + written


def read(kept: bytes, version: int, what: str, *, oldest: int | None = None) -> memoryview:
    """Return the bytes behind the mark; raise StateUnreadable, saying of `what`, when another version wrote them.

    `oldest` is the first version whose layout can be read as this one's, by default this one.
    """
    if not kept or not (version if oldest is None else oldest) <= kept[0] <= version:
        form = f"in format {kept[0]}" if kept else "without a format"
        raise errors.StateUnreadable(
            f"{what} was written {form} by another version, and this one knows {version}: start that version again"
        )
    return memoryview(kept)[1:]
