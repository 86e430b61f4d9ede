"""Name a partition of a topic. Runs in the commands."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int
