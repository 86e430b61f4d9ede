"""Build Arrow arrays of bytes, texts and numbers. Runs in the executors.

pyarrow's own `pa.array` loads pandas in each worker, 48 MB, to check whether a list is a pandas series.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Sequence

import pyarrow as pa

MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Most bytes of values in one Arrow batch, unless one value is larger. Arrow's offsets are 32-bit, and the JVM and the worker
each hold a whole batch."""


def values(kind: pa.DataType, items: Sequence[bytes | None]) -> pa.Array:
    """Return an Arrow array of the type `kind`, binary or string, with these items. None becomes a null."""
    ends = array.array("i", itertools.accumulate((len(item or b"") for item in items), initial=0))
    present = None
    if None in items:
        bits = bytearray((len(items) + 7) // 8)
        for index, item in enumerate(items):
            if item is not None:
                bits[index // 8] |= 1 << index % 8
        present = pa.py_buffer(bits)
    return pa.Array.from_buffers(
        kind, len(items), [present, pa.py_buffer(ends), pa.py_buffer(b"".join(item or b"" for item in items))]
    )


def numbers(items: Sequence[int]) -> pa.Array:
    """Return an Arrow array of 32-bit integers."""
    return pa.Array.from_buffers(pa.int32(), len(items), [None, pa.py_buffer(array.array("i", items))])
