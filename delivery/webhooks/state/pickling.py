"""Pickle the values that the driver and its workers exchange. No other module unpickles.

The driver sends its values in a broadcast, or encrypted in a local property of Spark (delivery.stages.registry.task_delta). The
driver and the workers of the real-time lane encrypt their values in both directions (delivery.stages.realtime.channel). No byte
from Kafka, from a lane's state or from a request is unpickled.
"""

from __future__ import annotations

import pickle
import zlib
from typing import Any

ZLIB_LEVEL = 1
"""Compression level of zlib. A registry shrinks to a tenth of its size; higher levels gain little."""


def packed(value: Any) -> bytes:
    """Return `value` pickled and compressed."""
    return zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), ZLIB_LEVEL)


def size(value: Any) -> int:
    """Return the number of bytes of `value` pickled, without compression."""
    return len(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def unpacked(written: bytes) -> Any:
    """Return the value that `packed` wrote."""
    return pickle.loads(zlib.decompress(written))  # noqa: S301  # written by our own processes: see the module's docstring
