"""Define `Place`, a partition as topic and number. Runs in `fanout` commands, `fanout archive` and the load tests."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int
