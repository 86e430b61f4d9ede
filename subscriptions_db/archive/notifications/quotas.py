"""Find reached quotas of customers and tenants, and make an operational event about each (docs/operational-events.md).

Runs in `fanout archive`. `after` decides, and is pure. A quota is reached when its customer or tenant has as much as the quota
allows. A quota of 0 never counts as reached. While a quota stays reached, at most one event is made about it. For a daily
quota, at most one event a day is made. The API reads `reached_quotas` to refuse replays
(subscriptions_db/api/deliveries/replays.py).
"""

from __future__ import annotations

import collections
import datetime as dt
import enum
import logging
from collections.abc import Mapping
from typing import NamedTuple

from subscriptions_db.archive.notifications import endpoint_health, outbox
from subscriptions_db.archive.notifications.endpoint_health import EventKind, OperationalEvent, Policy
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

log = logging.getLogger(__name__)

LOOK_TIMEOUT_S = 15.0
"""Maximum seconds of one statement of `record`; `database.statement_timeout_s` if that is shorter. Archiving waits for
`record`, which took 1.3 to 2.5 s with 10,000 customers and a million dead letters (docs/adr/0047-quotas.md)."""


class Quota(enum.StrEnum):
    """The quotas. A closed set. Postgres and operational events have these names."""

    ENDPOINTS = "endpoints"
    SUBSCRIPTIONS = "subscriptions"
    CONSUMERS = "consumers"
    """Consumers of dead letters."""
    DEAD_LETTERS = "dead_letters"
    """Dead letters that wait."""
    EVENTS_PER_DAY = "events_per_day"
    """Events of a tenant that were published over HTTP today. All other members are quotas of customers."""


class DefaultQuotas(NamedTuple):
    """The quotas of customers and tenants that have no quotas of their own (delivery.config.service_settings.ApiSettings)."""

    endpoints: int
    subscriptions: int
    consumers: int
    dead_letters: int
    """Waiting dead letters. 0: no quota."""
    events_per_day: int
    """Events of one tenant in a day of UTC. 0: no tenant has a quota, and a tenant's own quota does not apply."""


class ReachedQuota(NamedTuple):
    """A row of `reached_quotas`: a quota that a customer or tenant has reached.

    The row also stays until `quiet_s` seconds after the last event about the quota, because that event delays the next event.
    """

    quota: Quota
    subject_id: str
    """The customer, or the tenant for EVENTS_PER_DAY."""
    customer_id: str | None
    """None: the subject is a tenant."""
    most: int
    """The quota, as a number."""
    reached_at: dt.datetime | None = None
    """Since when the quota is reached. None: it is not reached now."""
    reported_at: dt.datetime | None = None
    """When the last event was made. None: there is none."""


Subject = tuple[Quota, str]
"""A quota, and the id of its customer or tenant."""


def after(
    known: ReachedQuota, *, most: int | None, policy: Policy | None, now: dt.datetime
) -> tuple[ReachedQuota | None, OperationalEvent | None]:
    """Return the row of a subject after a check of its quota, and the operational event that follows, if any.

    `known` is the stored row, or a row of `_found`. `most` is the quota if it is reached now, and else None. `policy` None: no
    event follows. If the returned row is None, the caller deletes the stored row.

    1. The quota is not reached: the row stays until `quiet_s` seconds after the last event, because it delays the next event.
       Without an event or without `policy`, the row is deleted at once.
    2. The quota is reached, and an event was made since it was reached: no event follows.
    3. The quota is reached, and no event was made since: an event follows, at least `quiet_s` seconds after the last event.

    A daily quota (EVENTS_PER_DAY) that stays reached at midnight UTC counts as reached again.
    """
    is_quiet = (
        policy is not None and known.reported_at is not None and (now - known.reported_at).total_seconds() < policy.quiet_s
    )
    if most is None:
        return (known._replace(reached_at=None) if is_quiet else None), None
    since = known.reached_at
    if since is None or (
        known.quota is Quota.EVENTS_PER_DAY and since.astimezone(dt.UTC).date() != now.astimezone(dt.UTC).date()
    ):
        since = now
    reached = known._replace(most=most, reached_at=since)
    is_reported = known.reported_at is not None and known.reported_at >= since
    if policy is None or is_reported or is_quiet:
        return reached, None
    return reached._replace(reported_at=now), _event(reached, since, now)


def record(
    connection: connect.Connection,
    quotas: DefaultQuotas,
    policy: Policy | None,
    *,
    now: dt.datetime,
    look_timeout_s: float = LOOK_TIMEOUT_S,
) -> Mapping[Quota, int]:
    """Check all quotas in a transaction, store the events that follow, and return how many subjects have reached each quota.

    The cost grows with the numbers of endpoints, subscriptions and waiting dead letters. The dead letters of a customer are
    counted only up to the customer's quota. Raise RegistryUnavailable, and change nothing, if Postgres does not answer, a
    statement takes longer than `look_timeout_s`, or a right is missing. Raise RegistryOutdated if a table is missing.
    """
    with connect.translated_errors(), connection.transaction():
        connection.execute(query("bound_statements"), {"most_ms": round(look_timeout_s * 1000)})
        connection.execute(query("lock_reached_quotas"))
        known = {(row.quota, row.subject_id): row for row in _known(connection)}
        found = {(row.quota, row.subject_id): row for row in _found(connection, quotas, now)}
        events: list[OperationalEvent] = []
        changed: list[ReachedQuota] = []
        gone: list[Subject] = []
        for subject in sorted(known.keys() | found.keys()):
            before = known.get(subject) or found[subject]
            most = found[subject].most if subject in found else None
            row, event = after(before, most=most, policy=policy, now=now)
            events += [event] if event else []
            if row is None:
                gone.append(subject)
            elif row != known.get(subject):
                changed.append(row)
                if row.reached_at == now:
                    log.info(
                        "%s %s has reached its quota %s of %d: the API answers the customer's requests for more, or requests "
                        "to publish for the tenant, with 429. At the quota dead_letters, these are requests for replays. "
                        "docs/api.md says how to give a larger quota",
                        "tenant" if row.customer_id is None else "customer",
                        row.subject_id,
                        row.quota,
                        row.most,
                    )
        _put(connection, changed, gone)
        outbox.put_events(connection, events)
    return collections.Counter(quota for quota, _ in found)


def _event(reached: ReachedQuota, since: dt.datetime, now: dt.datetime) -> OperationalEvent:
    of_tenant = reached.customer_id is None
    data = {
        "quota": reached.quota.value,
        "tenant_id" if of_tenant else "customer_id": reached.subject_id,
        "limit": reached.most,
        "since": endpoint_health.rfc3339(since),
    }
    return OperationalEvent(EventKind.QUOTA_REACHED, reached.subject_id, reached.customer_id, now, data, about=reached.quota)


def _known(connection: connect.Connection) -> list[ReachedQuota]:
    return [ReachedQuota(**row | {"quota": Quota(row["quota"])}) for row in connection.execute(query("known_quotas"))]


def _found(connection: connect.Connection, quotas: DefaultQuotas, now: dt.datetime) -> list[ReachedQuota]:
    """Return the quotas that are reached now. `reached_at` and `reported_at` are None, for the function `after` to set."""
    asked = quotas._asdict() | {"today": now.astimezone(dt.UTC).date()}
    return [
        ReachedQuota(**row | {"quota": Quota(row["quota"])}) for row in connection.execute(query("quotas_reached_now"), asked)
    ]


def _put(connection: connect.Connection, changed: list[ReachedQuota], gone: list[Subject]) -> None:
    if changed:
        columns = {field: [getattr(row, field) for row in changed] for field in ReachedQuota._fields}
        connection.execute(query("put_reached_quotas"), columns)
    if gone:
        columns = {"quotas": [quota for quota, _ in gone], "subject_ids": [subject_id for _, subject_id in gone]}
        connection.execute(query("delete_reached_quotas"), columns)
