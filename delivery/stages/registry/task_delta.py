"""Send registry changes to tasks whose closure is fixed: tasks of a streaming plan that run before its operator with state.

`TaskDelta` runs on the driver, `TaskDeltaSource` in the executors; neither may import psycopg or pydantic. A delta holds the
changes of the registry since the broadcast snapshot; with look-ups, the registry's revision. The delta travels in a local
property of Spark. A thread of Spark starts each micro-batch, and calls `foreachBatch` before the first task runs. Spark copies
the local properties of this thread to each task of the micro-batch. The delta is encrypted: Spark writes local
properties into event logs in the clear, and the registry holds customers' secrets. The key travels in the tasks' closure.
"""

from __future__ import annotations

import base64
import functools
import os
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyspark import SparkContext, TaskContext

from delivery.webhooks.routing import registries
from delivery.webhooks.state import pickling

PROPERTY = "fanout.registry"
"""Name of the local property with the encrypted delta."""
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeltaSource:
    """The registry source in the closure of a long query's tasks. Each micro-batch adds the changes since the query's start."""

    source: registries.RefreshedSource
    """Source of the registry as it was when the query started."""
    key: bytes = field(repr=False)
    """Key that decrypts the changes, which are in the local property PROPERTY."""

    def registry(self, last: registries.Registry | None) -> registries.Registry:
        """Return the registry for this task: the registry of the closure's source, with the delta of the task's micro-batch.

        Update `last`, the registry of the last task in this process, and return it. If `last` is None or cannot be updated,
        return a new registry. Raise RuntimeError if the task has no delta.
        """
        context = TaskContext.get()
        sealed = None if context is None else context.getLocalProperty(PROPERTY)
        if sealed is None:
            raise RuntimeError(
                "this task has no delta of the registry, so the task fails: foreachBatch did not start its micro-batch. Send "
                "this traceback to the maintainers of the platform"
            )
        return replace(self.source, **{self.source.REFRESHED: _opened(self.key, sealed)}).registry(last)


class TaskDelta:
    """Send the tasks of each micro-batch the delta between the registry in their closure and the newest registry."""

    def __init__(self, context: SparkContext, source: registries.RefreshedSource) -> None:
        self._context = context
        self._at_start = _without_delta(source)
        self._key = AESGCM.generate_key(256)
        self._published: Any = None
        self._sealed = ""
        self.source = TaskDeltaSource(source=self._at_start, key=self._key)

    def fits(self, newest: registries.RefreshedSource) -> bool:
        """Return True if a delta can express the difference between the registry in the closure and `newest`.

        False: the driver has broadcast a new snapshot, so the query must restart.
        """
        return bool(_without_delta(newest) == self._at_start)

    def publish(self, newest: registries.RefreshedSource) -> None:
        """Send the delta up to `newest` to the tasks of this micro-batch.

        Called inside the function of `foreachBatch`, on the thread on which Spark calls that function.
        """
        delta = getattr(newest, newest.REFRESHED)
        if not self._sealed or delta is not self._published:
            self._published, self._sealed = delta, _sealed(self._key, delta)
        self._context.setLocalProperty(PROPERTY, self._sealed)


def _without_delta(source: registries.RefreshedSource) -> registries.RefreshedSource:
    return replace(source, **{source.REFRESHED: None})


def _sealed(key: bytes, delta: Any) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, pickling.packed(delta), None)).decode()


@functools.lru_cache(maxsize=4)  # opened once for each revision and worker process, not for each task
def _opened(key: bytes, sealed: str) -> Any:
    raw = base64.b64decode(sealed)
    return pickling.unpacked(AESGCM(key).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None))
