"""Pack what the driver gives its workers, and unpack it there: the only place where anything is unpickled.

Must not import pyspark or psycopg. Nothing from Kafka, from state or from a request comes here: what is unpacked has come
from the driver, in a broadcast or sealed (delivery.stages.registry.task_delta).
"""

from __future__ import annotations

import pickle
import zlib
from typing import Any

QUICKLY = 1
"""zlib's level: a registry becomes a tenth of its size, and more effort brings little."""


def packed(value: Any) -> bytes:
    """Return `value` as bytes."""
    return zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), QUICKLY)


def unpacked(written: bytes) -> Any:
    """Return what was packed."""
    return pickle.loads(zlib.decompress(written))  # noqa: S301  # written by the driver, see above
