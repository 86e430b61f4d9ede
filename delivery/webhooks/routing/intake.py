"""Take records in: parse, check the tenant, match; keep account of what was read. What every lane begins with.

Runs in the executors, inside the worker's event loop. Must not import pyspark or psycopg. Each lane reads every record and has
the endpoints of one delivery mode: what is due to the others is not its concern, and not in its account.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from delivery import errors
from delivery.model import PLATFORM, DeliveryMode, Event, Record, Revision, TenantStatus
from delivery.webhooks.events import parsing
from delivery.webhooks.routing import matching, registries

log = logging.getLogger(__name__)

Prepared = TypeVar("Prepared")
UNFORESEEN = "unforeseen"
"""The reason of a rejection that is a fault of ours."""
UNREADABLE = "unreadable"
"""The reason of a rejection that is what waited in the retry lane, is given up, and cannot be read: nobody knows which event it
was, so there is no dead letter."""
BY_THE_LANE = frozenset({"unknown_tenant", "suspended_tenant", UNFORESEEN})
"""Reasons that lie in a lane's registry, or in what it does. For the others every lane rejects the same records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A record that is not an event of a known tenant."""

    record: Record
    reason: str
    detail: str
    is_only_copy: bool = False
    """Whether it is found nowhere else: it is kept whole."""


@dataclass(slots=True, kw_only=True)
class Receipt:
    """What a lane did with one run of offsets, and by which revision of the registry: reconciling starts from these."""

    lane: DeliveryMode
    topic: str
    partition: int
    revision: Revision
    first_offset: int
    last_offset: int
    records: int = 0
    rejected: int = 0
    due: int = 0


class Intake(Generic[Prepared]):
    """What one lane has read in one task. Used once. `prepare` makes what the lane goes on with; it must touch nothing else."""

    def __init__(
        self,
        registry: registries.Registry,
        layout: parsing.Layout,
        mode: DeliveryMode,
        prepare: Callable[[Event, list[matching.Match]], Prepared],
    ) -> None:
        self._registry = registry
        self._layout = layout
        self._mode = mode
        self._prepare = prepare
        self._receipts: dict[tuple[str, int], Receipt] = {}

    async def take(self, record: Record, rejections: list[Rejection]) -> Prepared | None:
        """Return what is prepared of an event; None when it is due to nobody here, or is none and added to `rejections`."""
        receipt = self._receipt(record)
        try:
            event = parsing.parse(record, self._layout)
            router = await self._registry.router_for(event)
            _require_active(event, router)
            due = [match for match in router.matches(event) if match.endpoint.mode is self._mode]
            prepared = self._prepare(event, due) if due else None
        except errors.EventRejected as exc:
            receipt.rejected += 1
            rejections.append(Rejection(record=record, reason=exc.reason, detail=exc.detail))
            return None
        except Exception:
            # A surprise in one record must hurt that record alone. Raised, it would fail everybody's micro-batch for ever.
            log.exception("a record failed in an unforeseen way", extra={"topic": record.topic, "offset": record.offset})
            receipt.rejected += 1
            rejections.append(Rejection(record=record, reason=UNFORESEEN, detail="see the worker's log"))
            return None
        receipt.due += len(due)
        return prepared

    def receipts(self) -> list[Receipt]:
        """Return the account of all that was taken."""
        return list(self._receipts.values())

    def _receipt(self, record: Record) -> Receipt:
        key = (record.topic, record.partition)
        receipt = self._receipts.get(key)
        if receipt is None:
            receipt = self._receipts[key] = Receipt(
                lane=self._mode,
                topic=record.topic,
                partition=record.partition,
                revision=self._registry.revision,
                first_offset=record.offset,
                last_offset=record.offset,
            )
        receipt.last_offset = record.offset
        receipt.records += 1
        return receipt


def _require_active(event: Event, router: registries.Router) -> None:
    if event.tenant_id == PLATFORM:
        return
    status = router.tenant_status(event.tenant_id)
    if status is None:
        raise errors.EventRejected("unknown_tenant", f"tenant {event.tenant_id} is not registered")
    if status is TenantStatus.SUSPENDED:
        raise errors.EventRejected("suspended_tenant", f"tenant {event.tenant_id} is suspended")
