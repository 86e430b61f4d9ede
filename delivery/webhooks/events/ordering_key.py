"""Compute the order key of an event: the value of a field of its payload, as text.

Pure. Runs in the executors and the archive.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

MISSING = ""
"""Key of events without a usable field. All these events stay in order with each other. No value of the field has this key,
because the JSON of a value is never empty."""
MAX_BYTES = 128
"""Most bytes of a value in a key, because keys are in the retry lane's state. A longer value is replaced by its digest."""


def key_of(content: Any, order_by: str) -> str:
    """Return the value at the dotted path `order_by` of a payload as canonical JSON, or its digest if it has over MAX_BYTES.

    `content` is the parsed payload. Return MISSING if the payload has no such field, or if the value is nested too deeply.
    """
    for name in order_by.split("."):
        if not isinstance(content, dict) or name not in content:
            return MISSING
        content = content[name]
    try:
        key = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested deeper than orjson can write, though it could read it
        return MISSING
    return key.decode() if len(key) <= MAX_BYTES else hashlib.blake2b(key, digest_size=16).hexdigest()
