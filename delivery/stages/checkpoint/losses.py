"""Find records that a lane had not read and Kafka no longer holds, and the positions from which the lane can continue. Pure.

Runs in `fanout accept-loss`, while no job runs the lane. A position is the next offset of a partition. The lanes refuse to
continue where records are gone (`failOnDataLoss` of Spark, `kafka.offset_ranges`, `kafka.record_reader`). Gone records are lost
events, and an operator has to accept the loss.
Guarantee: no record that Kafka still holds is skipped, and the lane's state is untouched. One exception: a topic was deleted
and recreated, and now has at least as many records as were read of the old topic. The new topic looks like the old one, so its
first records are skipped.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from delivery.stages.checkpoint.offset_log import Positions


class LossReason(enum.StrEnum):
    """The reason why records are lost to a lane."""

    EXPIRED = "expired"
    DELETED = "deleted"
    """The partition no longer exists."""
    ENDS_BEFORE = "ends before"
    """The partition ends before the lane's position. The value has a space, as in the audit log since its first entries."""


class OffsetRange(NamedTuple):
    """The offsets that Kafka holds of one partition: the first, and the offset after the last."""

    low: int
    end: int


class Loss(NamedTuple):
    """Records of a partition that a lane had not read and Kafka no longer holds."""

    topic: str
    partition: int
    why: LossReason
    first: int
    """The first lost offset; with ENDS_BEFORE and DELETED the lane's position."""
    last: int | None
    """The last lost offset; None with ENDS_BEFORE and DELETED: the number of lost records is unknown."""


def moved(
    positions: Positions, held: Mapping[tuple[str, int], OffsetRange], *, has_committed: bool = True
) -> tuple[Positions, list[Loss]]:
    """Return the positions from which a lane at `positions` can continue, and the losses.

    `has_committed` is False if the lane has committed no micro-batch. `held` maps (topic, partition) to the offsets that Kafka
    holds now. A partition has a loss in each of four cases:

    1. The partition no longer exists: the new positions do not contain it.
    2. The partition ends before the position: its topic was deleted and recreated, or its log was truncated. The new position
       is the partition's first record.
    3. The partition begins after the position: the records in between have expired. The new position is the first record.
    4. The lane has committed a micro-batch, has no position for this partition, and the partition does not begin at 0: its
       first records have expired. The new position is the first record that Kafka still has.
    """
    kept: Positions = {}
    losses = []
    for topic, number, position in _partitions(positions):
        held_here = held.get((topic, int(number)))
        if held_here is None:
            losses.append(Loss(topic, int(number), LossReason.DELETED, position, None))
            continue
        if position > held_here.end:
            losses.append(Loss(topic, int(number), LossReason.ENDS_BEFORE, position, None))
        elif position < held_here.low:
            losses.append(Loss(topic, int(number), LossReason.EXPIRED, position, held_here.low - 1))
        is_held = held_here.low <= position <= held_here.end
        kept.setdefault(topic, {})[number] = position if is_held else held_here.low
    for (topic, partition), held_here in held.items():
        if has_committed and held_here.low > 0 and str(partition) not in positions.get(topic, {}):
            losses.append(Loss(topic, partition, LossReason.EXPIRED, 0, held_here.low - 1))
            kept.setdefault(topic, {})[str(partition)] = held_here.low
    return kept, losses


def clamped(ends: Positions, held: Mapping[tuple[str, int], OffsetRange]) -> Positions:
    """Return the end offsets of an interrupted micro-batch, limited to the offsets that Kafka holds.

    Partitions that no longer exist are left out. The micro-batch runs again after the positions were moved, and Spark would
    fail if Kafka did not have all of its records.
    """
    kept: Positions = {}
    for topic, number, end in _partitions(ends):
        if (held_here := held.get((topic, int(number)))) is not None:
            kept.setdefault(topic, {})[number] = min(max(end, held_here.low), held_here.end)
    return kept


def _partitions(positions: Positions) -> Iterator[tuple[str, str, int]]:
    for topic, partitions in positions.items():
        for number, position in partitions.items():
            yield topic, number, position
