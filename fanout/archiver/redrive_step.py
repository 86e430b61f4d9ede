"""Hand over the letters of the archive whose redrive was asked for, as `fanout dead-letters redrive` does.

Runs in `fanout archive`. The letters of one turn go over together, so that those of one batch make one request again.
"""

from __future__ import annotations

import datetime as dt

from delivery.config import settings
from delivery.webhooks.results import dead_letter_records
from delivery.webhooks.results.dead_letter_records import DeadLetter
from fanout.kafka.places import Place
from fanout.redrive import enqueue, redrive_plan
from fanout.redrive.selection import Selection
from subscriptions_db.archive.search import redrive_requests as archive
from subscriptions_db.postgres import connect


def redrive(config: settings.Settings, connection: connect.Connection, *, now: dt.datetime) -> int:
    """Hand over a turn of letters, and return how many; of each delivery only the newest."""
    with archive.claim_page(connection, now=now) as asked:
        if not asked:
            return 0
        plan = redrive_plan.Plan(Selection(), redrive_plan.Redriven())
        read = {(Place(one.topic, one.partition), one.offset): dead_letter_records.decode(one.written) for one in asked}
        for (place, offset), letter in read.items():
            plan.take(letter, place, offset)
        return _hand_over(config, plan, read, now_ms=round(now.timestamp() * 1000))


def _hand_over(
    config: settings.Settings, plan: redrive_plan.Plan, read: dict[tuple[Place, int], DeadLetter], *, now_ms: int
) -> int:
    chosen = plan.chosen()
    hands = enqueue.Handing(config, chosen.values(), now_ms=now_ms, dry_run=False)
    for at, letter in read.items():
        if at in chosen:
            hands.take(letter)
    hands.finish()
    return hands.summary.letters
