"""Say what an event must stay in order with: the value of a field of its payload, as text.

Runs in the executors. Must not import pyspark or psycopg. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

MISSING = ""
"""The key of events that lack the field: they stay in order with each other. No value is written as this."""
MAX_CHARS = 128
"""Keys stand in the retry lane's state, each as long as anything waits under it; of a longer one a digest does."""


def key_of(content: Any, order_by: str) -> str:
    """Return the value at the dotted path as canonical JSON."""
    for name in order_by.split("."):
        if not isinstance(content, dict) or name not in content:
            return MISSING
        content = content[name]
    try:
        key = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested deeper than it writes, though it has read it
        return MISSING
    return key.decode() if len(key) <= MAX_CHARS else hashlib.blake2b(key, digest_size=16).hexdigest()
