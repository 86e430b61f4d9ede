"""Results of a lane, drawn by a seed. Tests compare their records with records of an earlier version.

`records.json.gz` in tests/unit/webhooks/results/data has topic, key and value of the records that commit 308613d wrote for
`results(seed)`, for each seed in SEEDS. The bytes in topics must not change, so the file is never made again. New fields get
samples of their own.
"""

from __future__ import annotations

import random
from typing import Any

from delivery.model import Attempt, EventId, LeaveReason, Outcome, OutcomeKind
from delivery.registry_model import DeliveryMode, Revision, SubscriptionId, SubTenantId, TenantId
from delivery.webhooks.batching import segment
from delivery.webhooks.results.task_results import Results
from delivery.webhooks.routing import intake
from delivery.webhooks.sending import batch_payload
from tests.support import builders

SEEDS = range(60)
NOW_MS = 1_800_000_000_500
"""Time of the dead letters."""
TEXTS = ("", "plain", "é\u2028\U0001f600", 'quote " and \\ back', "\0\t\n\x1f\x7f", "</script>", "a" * 300)
FLOATS = (0.0, 0.04, 0.06, 1.0, 12.345, 99_999.95, 1e9, 123456789.123)
BYTES = (b"", b"\xff\0", b"{}", "é".encode(), bytes(range(256)) * 5)
REASONS = ("server_error", "timeout", "expired", None)


def results(seed: int) -> Results:
    """Return results with some outcomes of every kind."""
    rng = random.Random(seed)
    outcomes = [_outcome(rng) for _ in range(rng.randrange(6))]
    batches = [_batch(rng) for _ in range(rng.randrange(3))]
    rejections = [_rejection(rng) for _ in range(rng.randrange(3))]
    receipts = [_receipt(rng) for _ in range(rng.randrange(3))]
    return Results(outcomes=outcomes, batches=batches, rejections=rejections, receipts=receipts)


def _attempts(rng: random.Random, count: int) -> tuple[Attempt, ...]:
    first = rng.choice([1, 1, 4])
    return tuple(
        Attempt(
            number=first + number,
            started_at_ms=rng.randrange(2**41),
            duration_ms=rng.choice(FLOATS),
            status=rng.choice([None, 200, 503]),
            error_class=rng.choice([None, "server_error", "timeout"]),
            detail=rng.choice(TEXTS),
            response=rng.choice(BYTES),
            retry_after_s=rng.choice([None, *FLOATS]),
        )
        for number in range(count)
    )


def _record(rng: random.Random) -> Any:
    headers = tuple((rng.choice(TEXTS), rng.choice(BYTES)) for _ in range(rng.randrange(3)))
    return builders.record(
        topic=f"events.{rng.choice('ab')}",
        partition=rng.randrange(3),
        offset=rng.randrange(2**40),
        value=rng.choice([None, *BYTES]),
        headers=headers,
    )


def _event(rng: random.Random) -> Any:
    attributes = (("subject", rng.choice(TEXTS)), ("sampled", True), ("rank", -7))
    return builders.event(
        event_id=EventId(f"e{rng.choice(TEXTS)}"),
        tenant_id=TenantId("t1"),
        sub_tenant_id=rng.choice([None, SubTenantId("100")]),
        data=rng.choice(BYTES),
        record=_record(rng),
        attributes=rng.choice([(), attributes]),
    )


def _end(rng: random.Random, delivery: Any) -> Outcome[Any]:
    kind = rng.choice(list(OutcomeKind))
    attempts = _attempts(rng, rng.randrange(1 if kind is OutcomeKind.DELIVERED else 0, 4))
    earlier = _attempts(rng, rng.randrange(3))
    replay = rng.choice([None, None, "rpl_1"])
    return Outcome(delivery, kind, attempts, rng.choice(REASONS), earlier=earlier, replay=replay)


def _endpoint(rng: random.Random) -> Any:
    name = f"ep{rng.randrange(3)}"
    return builders.endpoint(name, url=f"https://{name}.example.com:8443/path?token=x", mode=DeliveryMode.DIRECT)


def _outcome(rng: random.Random) -> Any:
    return _end(rng, builders.delivery(event=_event(rng), endpoint=_endpoint(rng)))


def _batch(rng: random.Random) -> Any:
    events = [segment.unpacked(segment.item(_event(rng), 0).packed) for _ in range(rng.randrange(1, 5))]
    through = [SubscriptionId(rng.choice(["s1", "s2"])) for _ in events]
    to = _endpoint(rng)
    webhook_id = batch_payload.webhook_id(to.endpoint_id, events, through)
    left_by = rng.choice(list(LeaveReason))
    outcome = _end(rng, batch_payload.BatchDelivery(to, webhook_id, b"", b"", b"", events, through, left_by))
    places = range(len(events)) if outcome.kind is OutcomeKind.DELIVERED else range(0)
    return batch_payload.BatchOutcome(outcome, {place: rng.choice(TEXTS) for place in places if rng.random() < 0.4})


def _rejection(rng: random.Random) -> Any:
    only_copy = rng.random() < 0.5
    return intake.Rejection(record=_record(rng), reason="not_json", detail=rng.choice(TEXTS), is_only_copy=only_copy)


def _receipt(rng: random.Random) -> Any:
    first = rng.randrange(2**40)
    return intake.Receipt(
        lane=rng.choice(list(DeliveryMode)), topic="events.a", partition=3, revision=Revision(7), first_offset=first,
        last_offset=first + 9, records=10, rejected=rng.randrange(10), due=rng.randrange(100),
        is_confirmed=True,
    )  # fmt: skip
