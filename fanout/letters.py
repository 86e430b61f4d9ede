"""A dead letter as it stands in its topic, and which of them somebody asks for. Pure, less the time that is now.

Runs in the command and the tests.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass

import msgspec

from delivery.model import (
    Attempt,
    Attribute,
    CustomerId,
    EndpointId,
    Event,
    EventId,
    Record,
    SubscriptionId,
    SubTenantId,
    TenantId,
)
from delivery.webhooks import matching
from fanout import times


class Header(msgspec.Struct, frozen=True):
    """A header of the event's record."""

    name: str
    value_base64: str


class Story(msgspec.Struct, frozen=True):
    """An attempt, as the letter tells of it."""

    attempt: int
    started_at_ms: int
    duration_ms: float
    status: int | None = None
    error_class: str | None = None
    detail: str = ""
    retry_after_s: float | None = None
    response: str = ""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that was given up: the fields of docs/delivery-contract.md."""

    webhook_id: str
    event_id: EventId
    event_type: str
    source: str
    time: str
    tenant_id: TenantId
    sub_tenant_id: SubTenantId | None
    subscription_id: SubscriptionId
    endpoint_id: EndpointId
    customer_id: CustomerId
    topic: str
    partition: int
    offset: int
    appended_at_ms: int
    reason: str | None
    dead_lettered_at_ms: int
    payload_base64: str
    headers: list[Header]
    attempts: list[Story]
    """The last ones."""
    attempts_omitted: int = 0
    """How many there were before them."""
    batch_webhook_id: str | None = None
    replay: str | None = None
    """The replay that had asked for it; None: it was due."""
    attributes: dict[str, Attribute] = {}
    """The event's CloudEvents attributes that have no field here."""

    @property
    def is_of_batch(self) -> bool:
        """Tell whether it was sent in a batch: its endpoint takes nothing else."""
        return self.batch_webhook_id is not None

    @property
    def last_attempt(self) -> int:
        """Return the number of the last attempt; 0: there was none."""
        return max((one.attempt for one in self.attempts), default=0)

    def event(self) -> Event:
        """Return the event, as it was before it was delivered."""
        headers = tuple((header.name, base64.b64decode(header.value_base64)) for header in self.headers)
        record = Record(self.topic, self.partition, self.offset, self.appended_at_ms, None, headers)
        data = base64.b64decode(self.payload_base64)
        return Event(
            event_id=self.event_id,
            event_type=self.event_type,
            source=self.source,
            tenant_id=self.tenant_id,
            sub_tenant_id=self.sub_tenant_id,
            time=self.time,
            data=data,
            content=None,
            record=record,
            attributes=tuple(self.attributes.items()),
        )

    def story(self) -> tuple[Attempt, ...]:
        """Return what was attempted."""
        return tuple(
            Attempt(
                number=one.attempt,
                started_at_ms=one.started_at_ms,
                duration_ms=one.duration_ms,
                status=one.status,
                error_class=one.error_class,
                detail=one.detail,
                response=one.response.encode(),
                retry_after_s=one.retry_after_s,
            )
            for one in self.attempts
        )


_letters = msgspec.json.Decoder(Letter)


def read(written: bytes) -> Letter:
    """Return the dead letter in a record of their topic; raise MsgspecError where it is none."""
    return _letters.decode(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters somebody asks for. What is None is not asked about."""

    endpoint_id: str | None = None
    event_type: str | None = None
    """An exact type, or a prefix wildcard such as `order.*`."""
    tenant_id: str | None = None
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @classmethod
    def of(
        cls,
        endpoint_id: str | None,
        event_type: str | None,
        tenant_id: str | None,
        reason: str | None,
        *,
        since: str | None,
        until: str | None,
    ) -> Selection:
        """Return what a person asks for who types these; raise SettingsError where a time is none."""
        now_ms = round(time.time() * 1000)
        return cls(
            endpoint_id=endpoint_id,
            event_type=event_type,
            tenant_id=tenant_id,
            reason=reason,
            since_ms=None if since is None else times.moment_ms("--since", since, now_ms=now_ms),
            until_ms=None if until is None else times.moment_ms("--until", until, now_ms=now_ms),
        )

    @property
    def is_everything(self) -> bool:
        """Tell whether nothing is asked about."""
        return self == Selection()

    def takes(self, letter: Letter) -> bool:
        """Tell whether a letter is meant."""
        return (
            self.endpoint_id in {None, letter.endpoint_id}
            and self.tenant_id in {None, letter.tenant_id}
            and self.reason in {None, letter.reason}
            and (self.since_ms is None or letter.dead_lettered_at_ms >= self.since_ms)
            and (self.until_ms is None or letter.dead_lettered_at_ms < self.until_ms)
            and (self.event_type is None or matching.takes_type(self.event_type, letter.event_type))
        )
