"""Build Arrow arrays of bytes and numbers. Runs in the executors.

pyarrow's own `pa.array` loads pandas in each worker, 48 MB, to check whether a list is a pandas series.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Sequence

import pyarrow as pa

MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of values in one Arrow batch. Arrow's offsets are 32-bit, and the JVM and the worker each hold a whole batch."""


def values(kind: pa.DataType, of: Sequence[bytes | None]) -> pa.Array:
    """Return an array of values of type binary or string."""
    ends = array.array("i", itertools.accumulate((len(value or b"") for value in of), initial=0))
    present = None
    if None in of:
        bits = bytearray((len(of) + 7) // 8)
        for place, value in enumerate(of):
            if value is not None:
                bits[place // 8] |= 1 << place % 8
        present = pa.py_buffer(bits)
    return pa.Array.from_buffers(
        kind, len(of), [present, pa.py_buffer(ends), pa.py_buffer(b"".join(value or b"" for value in of))]
    )


def numbers(of: Sequence[int]) -> pa.Array:
    """Return an array of 32-bit integers."""
    return pa.Array.from_buffers(pa.int32(), len(of), [None, pa.py_buffer(array.array("i", of))])
