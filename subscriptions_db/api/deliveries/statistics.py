"""Return statistics of deliveries: of one endpoint, or of all endpoints of a customer.

Runs in the API; `shown` also in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AwareDatetime

from subscriptions_db import described
from subscriptions_db.api.contract import crud, problems, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, NoParameters, Route
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.archive.ingest import hourly_counts
from subscriptions_db.archive.ingest.hourly_counts import Histogram, HourCounts
from subscriptions_db.archive.search import statistics
from subscriptions_db.archive.search.statistics import Granularity

DEFAULT_RANGE = dt.timedelta(days=1)
"""Length of the time range if a request does not name its beginning."""
STATISTICS_COST = 5
"""One request for statistics counts as this number of requests in the rate of its key. The longest range, 31 days, reads up to
768 rows, with histograms."""
FIRST, LAST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(9000, 1, 1, tzinfo=dt.UTC)
"""Bounds of a time range. Beyond them, arithmetic with times would leave the calendar."""


def _in_calendar(moment: dt.datetime) -> dt.datetime:
    if not FIRST <= moment <= LAST:
        raise ValueError(f"must be between the years {FIRST.year} and {LAST.year}")
    return moment


Moment = Annotated[AwareDatetime, pydantic.AfterValidator(_in_calendar)]


class StatisticsQuery(NoParameters):
    """The time range of statistics, and the length of their buckets."""

    since: Moment | None = None
    """Begin with the hour or day of this time. Default: 24 hours before `until`."""
    until: Moment | None = None
    """End with the last hour or day that begins before this time. Default: now."""
    by: Literal[Granularity.HOUR, Granularity.DAY] = Granularity.HOUR
    """`hour`, for at most 7 days, or `day` in UTC, for at most 31 days."""


class CustomerStatisticsQuery(CustomerQuery, StatisticsQuery):
    """The customer, the time range of its statistics, and the length of their buckets."""


class Percentiles(described.DescribedModel):
    """Times in milliseconds that 50 %, 90 % and 99 % of the values do not exceed.

    These times are estimates: at most 10 % off between 1 ms and 12 days.
    """

    p50: float
    """The time that half of the values do not exceed."""
    p90: float
    """The time that 90 % of the values do not exceed."""
    p99: float
    """The time that 99 % of the values do not exceed."""


class DeliveryCounts(described.DescribedModel):
    """Counts of deliveries and attempts in a time range.

    An attempt counts in the hour in which it started. A delivery that arrived counts in the hour of the attempt that delivered
    it. A skipped or dead-lettered delivery counts in the hour in which it was skipped or dead-lettered.
    """

    delivered: int
    """Deliveries that an endpoint accepted. A delivery that was accepted twice counts twice. In a batch, each event counts."""
    dead_lettered: int
    """Deliveries that were given up. A delivery that was redriven and given up again counts twice."""
    skipped: int
    """Deliveries that ended as skipped, without an attempt or after failed attempts."""
    attempts: int
    """Requests to endpoints. A request with a batch of events counts once."""
    failed_attempts: int
    """Attempts that the endpoint did not accept."""
    error_classes: dict[str, int]
    """The failed attempts by error class."""
    duration_ms: Percentiles | None
    """Duration of the attempts. Null: there were none."""
    latency_ms: Percentiles | None
    """Time from Kafka's append of an event to the response. Only accepted attempts count, without replays. A batch counts with
    its oldest event. Null: there were none."""


class StatisticsBucket(DeliveryCounts):
    """The counts of one hour or day."""

    start: dt.datetime
    """Beginning of the hour or day."""


class Statistics(described.DescribedModel):
    """The counts of a time range, in total and by hour or day."""

    since: dt.datetime
    """Beginning of the first hour or day of the range."""
    until: dt.datetime
    """End of the last hour or day of the range."""
    by: Granularity
    """The length of the buckets."""
    total: DeliveryCounts
    """The counts of the whole range."""
    items: list[StatisticsBucket]
    """The counts of each hour or day, the oldest first. Hours and days without deliveries and attempts are left out."""


def of_endpoint(call: Call) -> Statistics:
    """Return the statistics of an endpoint, for the time range in the request's query (StatisticsQuery).

    Raise Refused with 404 if there is no such endpoint, and with 422 for a time range that is not allowed.
    """
    endpoint_id = call.path["endpoint_id"]
    owner = crud.existing_row(call, "endpoint", endpoint_id)["customer"]
    return _read(call, owner, endpoint_id)


def of_customer(call: Call) -> Statistics:
    """Return the statistics of all endpoints of a customer, deleted ones included.

    Raise Refused:

    * 403: the key is limited to endpoints. Row-level security hides the sum over all endpoints, and the sum over the key's
      endpoints is not stored.
    * 422: the time range is not allowed.
    * 422: a request with an operator's key names no customer, or one with a customer's key names another customer.
    """
    if call.principal.endpoints is not None:
        raise problems.Refused(
            403,
            "a key that is limited to endpoints cannot read the statistics of the whole customer: use "
            "GET /v1/endpoints/{id}/statistics",
        )
    return _read(call, dead_letters.customer_of(call), None)


def _read(call: Call, customer_id: str, endpoint_id: str | None) -> Statistics:
    wanted = call.query_as(StatisticsQuery)
    until = wanted.until or dt.datetime.now(dt.UTC)
    since = wanted.since or until - DEFAULT_RANGE
    if not since < until:
        raise problems.invalid(("since", "must be before until, which is now if it is left out"))
    if until - since > wanted.by.longest:
        raise problems.invalid(("since", f"with by={wanted.by}, must be at most {wanted.by.longest.days} days before until"))
    return shown(statistics.read(call.connection, customer_id, endpoint_id, since=since, until=until, by=wanted.by), wanted.by)


def shown(found: statistics.FoundStatistics, by: Granularity) -> Statistics:
    """Convert statistics to the API's type."""
    return Statistics(
        since=found.since,
        until=found.until,
        by=by,
        total=DeliveryCounts(**_counts(found.total)),
        items=[StatisticsBucket(start=start, **_counts(counts)) for start, counts in found.buckets],
    )


def _counts(counts: HourCounts) -> dict[str, Any]:
    return {
        "delivered": counts.delivered,
        "dead_lettered": counts.dead_lettered,
        "skipped": counts.skipped,
        "attempts": counts.attempts,
        "failed_attempts": sum(counts.error_classes.values()),
        "error_classes": dict(sorted(counts.error_classes.items())),
        "duration_ms": _percentiles(counts.durations),
        "latency_ms": _percentiles(counts.latencies),
    }


def _percentiles(histogram: Histogram) -> Percentiles | None:
    p50, p90, p99 = (hourly_counts.percentile_ms(histogram, share) for share in (0.5, 0.9, 0.99))
    if p50 is None or p90 is None or p99 is None:
        return None
    return Percentiles(p50=round(p50, 1), p90=round(p90, 1), p99=round(p99, 1))


ROUTES = (
    Route(
        method="GET", path="/v1/endpoints/{endpoint_id}/statistics", name="getEndpointStatistics",
        summary="Count the deliveries and attempts of an endpoint by hour or day, with percentiles.",
        scopes=routes.READERS, handler=of_endpoint, query=StatisticsQuery, answer=Statistics, cost=STATISTICS_COST,
    ),
    Route(
        method="GET", path="/v1/statistics", name="getStatistics",
        summary="Count the deliveries and attempts of all endpoints of a customer by hour or day, with percentiles.",
        scopes=routes.READERS, handler=of_customer, query=CustomerStatisticsQuery, answer=Statistics, cost=STATISTICS_COST,
    ),
)  # fmt: skip
