"""Bring the newest registry to tasks whose closure is fixed: those of a streaming plan, which stand before the state.

`Carrier` runs on the driver, `CarriedSource` in the executors; neither may import psycopg or pydantic. Spark hands the local
properties of the thread that starts a micro-batch to each of its tasks, and it calls `foreachBatch` on that thread before the
first of them runs. So what is newer than the closure travels there, sealed: Spark writes local properties into event logs as
they are, and the registry holds customers' secrets. The key travels in the closure.
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
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedSource:
    """What a task gets when the query starts: the registry of then, and how to open what has come since."""

    source: registries.RefreshedSource
    key: bytes = field(repr=False)

    def registry(self, last: registries.Registry | None) -> registries.Registry:
        """Return the registry that the micro-batch of this task began with."""
        context = TaskContext.get()
        sealed = None if context is None else context.getLocalProperty(PROPERTY)
        if sealed is None:
            raise RuntimeError("no registry came with this micro-batch: it was not begun by foreachBatch")
        return replace(self.source, **{self.source.REFRESHED: _opened(self.key, sealed)}).registry(last)


class Carrier:
    """Seal what is newer than a query's closure, and put it where the tasks of the micro-batch find it."""

    def __init__(self, context: SparkContext, source: registries.RefreshedSource) -> None:
        self._context = context
        self._at_start = _without_news(source)
        self._key = AESGCM.generate_key(256)
        self._carried: Any = None
        self._sealed = ""
        self.source = CarriedSource(source=self._at_start, key=self._key)

    def can_carry(self, newest: registries.RefreshedSource) -> bool:
        """Tell whether `newest` differs from the closure only in what can be carried; else the query must start again."""
        return bool(_without_news(newest) == self._at_start)

    def carry(self, newest: registries.RefreshedSource) -> None:
        """Give `newest` to the tasks of this micro-batch. Call it on the thread on which foreachBatch was called."""
        news = getattr(newest, newest.REFRESHED)
        if not self._sealed or news is not self._carried:
            self._carried, self._sealed = news, _sealed(self._key, news)
        self._context.setLocalProperty(PROPERTY, self._sealed)


def _without_news(source: registries.RefreshedSource) -> registries.RefreshedSource:
    return replace(source, **{source.REFRESHED: None})


def _sealed(key: bytes, news: Any) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, pickling.packed(news), None)).decode()


@functools.lru_cache(maxsize=4)  # once a revision and worker process, however many tasks bring it
def _opened(key: bytes, sealed: str) -> Any:
    written = base64.b64decode(sealed)
    return pickling.unpacked(AESGCM(key).decrypt(written[:_NONCE_BYTES], written[_NONCE_BYTES:], None))
