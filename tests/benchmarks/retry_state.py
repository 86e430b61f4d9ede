"""Measure what it costs the retry lane that much waits: bytes kept, and the CPU of a shard's decision, against an empty one.

Run: `python -m tests.benchmarks.retry_state [--parcels N] [--endpoints M] [--shards S] [--json FILE]`. One of the shards is
filled with its part. Half of it stands behind endpoints that are held, half in the wheel, for up to ten hours. Then rounds of
the same work are decided on, with all that waiting and with nothing: 200 parcels of 50 other endpoints come, leave in turns,
and are reported; and then no work at all.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import retry_messages, shard_backlog, shard_scheduler
from tests.support import retries
from tests.support.retries import NOW

FILLED_AT_ONCE = 2_000
BUSY_ENDPOINTS = 50
PARCELS_EACH = 4
TEN_HOURS_MS = 36_000_000


def fill(shard: retries.Shard, parcels: int, endpoints: int, event: bytes) -> int:
    """Let so much wait, as it arrives in micro-batches; return the time then."""
    rng, now_ms = random.Random(1), NOW
    for begun in range(0, parcels, FILLED_AT_ONCE):
        now_ms += 1
        arrived = []
        for number in range(begun, min(begun + FILLED_AT_ONCE, parcels), PARCELS_EACH):
            is_held = number // PARCELS_EACH % 2 == 0
            wait_ms = 0 if is_held else rng.randrange(300_000, TEN_HOURS_MS)
            reason = retry_reasons.CIRCUIT_OPEN if is_held else error_classes.SERVER_ERROR
            made = [
                retries.entry(since_ms=now_ms, again_at_ms=now_ms + wait_ms, reason=reason, packed=[event], history=STORY)
                for _ in range(PARCELS_EACH)
            ]
            arrived.append(retries.postponed(*made, endpoint=f"endpoint-{number // PARCELS_EACH % endpoints:05}"))
        shard.step(*arrived, now_ms=now_ms)
    return now_ms


STORY = (retries.failed_attempt(),)


def rounds(shard: retries.Shard, now_ms: int, event: bytes, count: int, *, is_busy: bool) -> tuple[float, float]:
    """Return the median and the mean CPU ms of a decision, its index read and written included."""
    spent: list[float] = []
    arrived: list[bytes] = []
    for _ in range(count):
        now_ms += 1  # no hold ends meanwhile: it is what waits that is measured
        if is_busy:
            arrived += [
                retries.postponed(
                    *(retries.entry(since_ms=now_ms, packed=[event], history=STORY) for _ in range(PARCELS_EACH)),
                    endpoint=f"busy-{number:05}",
                )
                for number in range(BUSY_ENDPOINTS)
            ]
        began = time.process_time()
        decided = shard_scheduler.decide(
            shard_scheduler.decoded(shard.index_bytes),
            map(retry_messages.message, arrived),
            shard.segments.__getitem__,
            shard.policy,
            now_ms=now_ms,
            look_ahead_ms=0,
        )
        shard_backlog.of(decided, now_ms)
        shard.index_bytes = shard_scheduler.encoded(decided.index)
        spent.append((time.process_time() - began) * 1000)
        for number in decided.drop:
            del shard.segments[number]
        shard.segments |= decided.append
        arrived = [retries.accepted(turn) for turn in map(retry_messages.lease, decided.leases) if turn.number]
    return statistics.median(spent), statistics.mean(spent)


def main() -> None:
    """Measure, print, and write the figures to the file that the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parcels", type=int, default=1_000_000)
    parser.add_argument("--endpoints", type=int, default=4_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    event = retries.packed(b'"' + b"x" * 200 + b'"')
    full, empty = retries.Shard(max_pending=asked.parcels), retries.Shard()
    began = time.process_time()
    parcels = asked.parcels // asked.shards
    now_ms = fill(full, parcels, asked.endpoints // asked.shards, event)
    figures: dict[str, float] = {
        "parcels": asked.parcels,
        "endpoints": asked.endpoints,
        "shards": asked.shards,
        "event_bytes": len(event),
        "fill_cpu_us_a_parcel": (time.process_time() - began) / parcels * 1e6,
        "shard_bytes_kept": full.bytes_kept(),
        "shard_bytes_written": full.bytes_written,
        "shard_segments": len(full.segments),
        "shard_index_bytes": len(full.index_bytes or b""),
    }
    for name, is_busy in (("busy", True), ("idle", False)):
        for which, shard in (("full", full), ("empty", empty)):
            median, mean = rounds(shard, now_ms, event, asked.rounds, is_busy=is_busy)
            figures |= {f"{name}_{which}_cpu_ms": median, f"{name}_{which}_mean_cpu_ms": mean}
        figures[f"{name}_ratio"] = figures[f"{name}_full_cpu_ms"] / figures[f"{name}_empty_cpu_ms"]
    for key, figure in figures.items():
        print(f"{key:28} {figure:14,.2f}")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
