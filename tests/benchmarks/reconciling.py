"""Measure what `fanout reconcile` takes for a million deliveries, Kafka aside: CPU time and memory.

Run: `python -m tests.benchmarks.reconciling [deliveries]`. Rows as the job writes them, a hundred entries in each, of 200
endpoints; runs of 1,000 events in ten partitions, each due to two subscriptions. Of a hundred deliveries two fail at first.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator

import orjson

from delivery.webhooks.results import log_records
from fanout.kafka.places import Place
from fanout.reconcile import accounting, evidence

PARTITIONS, RUN, SUBSCRIPTIONS, IN_A_ROW = 10, 1000, 2, 100


def entry(place: Place, offset: int, subscription: int, error_class: str | None) -> dict[str, object]:
    return {
        "kind": "attempt", "webhook_id": f"msg_{offset:032x}", "event_id": f"event-{offset}", "event_type": "order.created",
        "tenant_id": "tenant-1", "subscription_id": f"s{subscription}", "topic": place.topic, "partition": place.partition,
        "offset": offset, "appended_at_ms": 1_800_000_000_000, "attempt": 1, "started_at_ms": 1_800_000_000_100,
        "duration_ms": 12.5, "status": 200, "error_class": error_class, "detail": "", "retry_after_s": None,
    }  # fmt: skip


def rows(place: Place, first: int) -> Iterator[bytes]:
    for subscription in range(SUBSCRIPTIONS):
        for start in range(first, first + RUN, IN_A_ROW):
            entries = [entry(place, offset, subscription, None) for offset in range(start, start + IN_A_ROW)]
            entries += [entry(place, offset, subscription, "server_error") for offset in range(start, start + IN_A_ROW, 50)]
            head = {
                "kind": "outcomes",
                "endpoint_id": f"ep{start // IN_A_ROW % 100}-{subscription}",
                "customer_id": "c1",
                "mode": "direct",
            }
            yield orjson.dumps(head | {"entries": entries})
    receipt = {"kind": "receipt", "lane": "direct", "topic": place.topic, "partition": place.partition, "revision": 1}
    counts = {"first_offset": first, "last_offset": first + RUN - 1, "records": RUN, "rejected": 0, "due": RUN * SUBSCRIPTIONS}
    yield orjson.dumps(receipt | counts)


def main(deliveries: int) -> None:
    began_mib, made_s, took_s = peak_mib(), 0.0, 0.0
    found = evidence.Evidence()
    for number in range(deliveries // SUBSCRIPTIONS // RUN):
        place, first = Place("events.order.created", number % PARTITIONS), number // PARTITIONS * RUN
        found.events.setdefault(place, evidence.Events(0))
        began = time.process_time()
        written = list(rows(place, first))
        made = time.process_time()
        for row in written:
            found.add_log_record(log_records.decode(row), 1_800_000_000_000)
        for offset in range(first, first + RUN):
            found.add_event(place, offset, "order.created")
        made_s, took_s = made_s + made - began, took_s + time.process_time() - made
    began = time.process_time()
    read_mib = peak_mib()
    account = accounting.account(found, accounting.Terms(now_ms=1_800_000_000_000, until_ms=2**62))
    judged_s = time.process_time() - began
    assert account.holds
    print(f"{account.lanes['direct'].counts.delivered} deliveries: CPU s {took_s:.1f} to take, {judged_s:.1f} to judge")
    print(f"memory: {began_mib:.0f} MiB before, {read_mib:.0f} MiB with all of it, {peak_mib():.0f} MiB at most")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
