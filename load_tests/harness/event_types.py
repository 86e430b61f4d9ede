"""Name the event types of a load test with words, as producers do.

Numbered names would measure a flaw of Kafka's Java client. The client puts the names of a list of topics into a hash table, and
then moves the names to a larger table. Names that differ only in a number fill neighbouring slots. The time of the move then
grows with the square of the number of topics: 6 ms of CPU for a list of 500. The job reads such lists several times a second.
"""

from __future__ import annotations

import itertools

PREFIX = "load."
"""First characters of each name."""
NOUNS = (
    "order", "invoice", "payment", "refund", "shipment", "parcel", "customer", "contract", "subscription", "product",
    "price", "stock", "cart", "coupon", "address", "account", "user", "team", "project", "task",
    "comment", "file", "message", "ticket", "appointment", "vehicle", "driver", "route", "supplier", "warehouse",
    "budget", "quote", "lead", "campaign", "survey", "employee", "shift", "payroll", "device", "sensor",
)  # fmt: skip
VERBS = (
    "created", "updated", "deleted", "archived", "restored", "approved", "rejected", "assigned", "paid", "failed",
    "expired", "renewed", "cancelled", "completed", "started", "paused", "resumed", "opened", "closed", "sent",
    "received", "merged", "split", "moved", "renamed", "locked", "unlocked", "shared", "viewed", "imported",
    "exported", "scheduled", "delayed", "returned", "reserved", "released", "verified", "flagged", "reviewed", "invited",
    "accepted", "declined", "linked", "unlinked", "counted", "priced", "signed", "printed", "scanned", "tagged",
)  # fmt: skip


def named(count: int) -> list[str]:
    """Return `count` names, such as `load.order.created`. Raise ValueError for a `count` above 2,000."""
    names = [f"{PREFIX}{noun}.{verb}" for verb, noun in itertools.product(VERBS, NOUNS)]
    if count > len(names):
        raise ValueError(
            f"there are names for {len(names)} event types, and {count} are wanted, so nothing was started: use fewer --topics"
        )
    return names[:count]
