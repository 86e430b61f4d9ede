"""The areas of settings for `fanout archive` and `fanout serve`. See `delivery.config.settings`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from delivery.config.setting_types import Area, Matching, PerSecond, Seconds

_BASE_URL = Matching(r"(https?://[!-~]{1,200}[^/])?", "must be a URL with http:// or https:// that does not end in /")
_SOURCES = Matching(r"|[^{}]*\{tenant\}[/#][^{}]*", "must have {tenant} once, and a / or # after it, as in /{tenant}/")


class ArchiveSettings(Area):
    """The archive: dead letters and attempts that `fanout archive` stores in Postgres, for customers to poll and search."""

    retention_days: Annotated[int, Field(gt=0, le=3650)] = 30
    """Fewest days for which a dead letter is kept after it was archived. Polls do not change this time."""
    attempts: bool = True
    """If true, attempts are archived as well: a row for each request to an endpoint, and for each delivery without a request.
    If false, the API finds no deliveries either."""
    attempts_retention_days: Annotated[int, Field(gt=0, le=3650)] = 7
    """Fewest days for which an attempt is kept after it started."""
    statistics_retention_days: Annotated[int, Field(ge=0, le=3650)] = 90
    """Fewest days for which the statistics of an hour are kept: a row for each endpoint and hour with deliveries. 0: there are
    no statistics. If `attempts` is false, the statistics count dead letters only."""
    replay_max_pending: Annotated[int, Field(gt=0)] = 10_000
    """A replay pauses while this many of its deliveries wait in the retry lane. Keep this number below `retry.max_pending`,
    which the live events of the endpoint share."""


class OperationsSettings(Area):
    """Operational events: notifications of `fanout archive` to customers (docs/operational-events.md)."""

    topic: str = ""
    """Topic of operational events, such as `events.fanout.operational`. The topic must match `source.topic_pattern`. Empty:
    there are no operational events. The job and `fanout archive` must have the same value."""
    failing_after_s: Seconds = 300
    """An endpoint is reported as failing when it has accepted nothing for this time, and at least five attempts have failed."""
    backlog_events: Annotated[int, Field(gt=0)] = 1000
    """A backlog is reported as growing when this many deliveries to an endpoint are postponed unattempted within `quiet_s`."""
    quiet_s: Seconds = 3600
    """Each kind of operational event (failing, backlog, …) is sent at most once per endpoint, or per quota, in this time. One
    exception: `recovered` follows once after each `failing`."""
    key_expiring_days: Annotated[int, Field(gt=0, le=365)] = 14
    """A customer's API key that expires within this number of days is reported to the customer, once."""


class ApiSettings(Area):
    """The HTTP API (`fanout serve`), served as plain HTTP: terminate TLS in a proxy in front of it."""

    host: str = "127.0.0.1"
    """Address to serve on. In a container, set `0.0.0.0` (IPv4) or `::` (IPv6). `::` serves IPv4 too if the system lets one
    socket take both."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8800
    """Port to serve on; 0 takes any free port."""
    public_url: Annotated[str, _BASE_URL] = ""
    """URL at which receivers reach the API, such as `https://fanout.example.com`. A receiver of an endpoint with `validation`
    may then permit deliveries later, by a request to a URL below this one. Empty: a receiver can permit deliveries only in its
    answer to the handshake."""
    database_url: SecretStr = SecretStr("")
    """libpq URL of the API's own login, which owns nothing and is a member of `fanout_api` and `fanout_operator`. Empty:
    `database.url`, for development."""
    max_connections: Annotated[int, Field(gt=0, le=1000)] = 4
    """Most connections of one process to Postgres, and most requests on which the process works at once. The requests of one
    customer leave at least one of these connections free for other customers."""
    max_waiting: Annotated[int, Field(gt=0)] = 500
    """Most requests in flight in one process; further requests are answered with 503. Neither waiting polls nor requests whose
    answers are being sent are in flight. Two further limits: (1) At most half of this number may be requests of one customer
    that wait, or whose bodies arrive. Further requests of this customer are answered with 429. The same holds for each key of
    an operator or publisher. (2) At most this many answers are sent at once to clients that read slowly. A further answer cuts
    off the oldest."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1024 * 1024
    """Largest request body; a larger one is refused with 413."""
    request_timeout_s: Seconds = 10
    """Time for a whole request, from its first byte to the answer. A slower client is disconnected. A request that sends a test
    event or a validation request may take `delivery.attempt_timeout_s` longer."""
    key_lifetime_days: Annotated[int, Field(gt=0, le=3650)] = 365
    """Days after which a new API key expires, unless `fanout api-keys create --expires` says otherwise."""
    max_endpoints_per_customer: Annotated[int, Field(gt=0)] = 1000
    """Most endpoints that a customer can create by itself, unless the customer has a quota of its own."""
    max_subscriptions_per_customer: Annotated[int, Field(gt=0)] = 10_000
    """Most subscriptions that a customer can create by itself, unless the customer has a quota of its own."""
    max_scopes_per_customer: Annotated[int, Field(gt=0)] = 100_000
    """Most tenants and sub-tenants that all subscriptions of a customer together name, included or excluded, in requests with
    the customer's keys. A job holds about 225 bytes for each named tenant or sub-tenant."""
    max_consumers_per_customer: Annotated[int, Field(gt=0)] = 100
    """Most consumers of dead letters that a customer can create by itself."""
    max_dead_letters_per_customer: Annotated[int, Field(ge=0)] = 0
    """Most waiting dead letters of a customer, unless the customer has a quota of its own. A customer with this many waiting
    dead letters cannot ask for replays. Further dead letters are stored all the same. 0: no quota. The API and `fanout archive`
    must have the same quotas."""
    max_poll_s: Seconds = 30
    """Longest wait of a poll that finds no dead letter, and of a reader of the registry that waits for a later revision. A
    request that asks for a longer wait gets this wait."""
    max_polls: Annotated[int, Field(gt=0)] = 200
    """Most polls that wait at once in one process; further polls are answered with 503."""
    max_polls_per_customer: Annotated[int, Field(gt=0)] = 10
    """Most polls of one customer that wait at once in one process; further polls are answered with 429."""
    max_snapshot_polls: Annotated[int, Field(gt=0)] = 300
    """Most readers of the registry (`GET /v1/snapshot`) that wait at once in one process; further readers are answered with
    503."""
    max_requests_per_s: PerSecond = 100
    """Most requests a second of one API key, in each process. A fifth of this number may come at once, the rest evenly.
    A request counts one more for each 4 KiB of its body. Requests that publish events do not count here."""
    publishing: bool = True
    """Take events from producers (`POST /v1/events`). False: such requests are answered with 404, and the API needs no login
    to Kafka."""
    publisher_sources: Annotated[str, _SOURCES] = ""
    """Beginning of the `source` of every event that a key limited to tenants publishes. `{tenant}` stands for the event's
    tenant. A `/` or `#` must follow it, as in `/{tenant}/`, so that no such key can use the source of another tenant. Empty:
    any source."""
    max_events_per_s: PerSecond = 10_000
    """Most events a second that one API key publishes, in each process. A fifth of this number may come at once, the rest
    evenly. A request that begins within the rate is accepted whole. Later requests are answered with 429 until the rate covers
    all accepted events. A request counts at least one event for each KiB of its body. If its checks take half a second of CPU
    time, it counts at least as many events as the rate permits in a second."""
    max_tenant_events_per_s: Annotated[float, Field(ge=0)] = 0
    """Most events a second that all API keys together publish for one tenant, in each process. A fifth of this number may come
    at once, the rest evenly. A request whose tenants are all within their rate is accepted whole. Later requests for these
    tenants are answered with 429 until the rate covers all accepted events. 0: no limit."""
    max_tenant_events_per_day: Annotated[int, Field(ge=0)] = 0
    """Most events that all API keys and all processes together publish for one tenant in a day of UTC. A tenant may have a
    quota of its own instead. The processes exchange their counts each second, so a tenant may exceed its quota by the events
    of about a second. Further events are answered with 429 until the day ends. 0: no tenant has a quota."""
    max_publishing_requests_per_s: PerSecond = 500
    """Most requests a second by which one API key publishes events, in each process. A fifth of this number may come at once,
    the rest evenly."""
