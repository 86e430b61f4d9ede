"""Return SQL statements by name, from every queries.sql below subscriptions_db.

Runs wherever Postgres is used.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import LiteralString

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def query(name: str) -> LiteralString:
    """Return the statement `name`; raise KeyError for an unknown name.

    The type is LiteralString, because no statement contains input.
    """
    return _queries()[name]


@functools.cache
def _queries() -> dict[str, str]:
    queries: dict[str, str] = {}
    for path in sorted(Path(__file__).parents[1].rglob("queries.sql")):
        _, *parts = _NAME.split(path.read_text())
        queries |= dict(zip(parts[::2], parts[1::2], strict=True))
    return queries
