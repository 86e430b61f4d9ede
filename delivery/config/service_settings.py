"""The areas of settings for `fanout archive` and `fanout serve`. See `delivery.config.settings`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from delivery.config.setting_types import Area, Seconds


class Archive(Area):
    """What `fanout archive` keeps in Postgres for customers to poll and search."""

    retention_days: Annotated[int, Field(gt=0, le=3650)] = 30
    """A dead letter is kept for at least so many days after it was archived, whoever has or has not polled it."""
    attempts: bool = True
    """Whether attempts are archived, too: a row for each request to an endpoint, and for what was not attempted. Without, no
    deliveries are found either."""
    attempts_retention_days: Annotated[int, Field(gt=0, le=3650)] = 7
    """An attempt is kept for at least so many days after it began."""
    replay_max_pending: Annotated[int, Field(gt=0)] = 10_000
    """A replay hands nothing more over while so many of its deliveries wait in the retry lane. Below `retry.max_pending`, where
    live events of the endpoint need room as well."""


class Operations(Area):
    """Operational events: what `fanout archive` tells customers of their endpoints (docs/operational-events.md)."""

    topic: str = ""
    """Topic of operational events, such as `events.fanout.operational`; it must match `source.topic_pattern`. Empty: there are
    none. The job and `fanout archive` must have the same."""
    failing_after_s: Seconds = 300
    """An endpoint is told to be failing when it has only failed for so long, and five times or more."""
    backlog_events: Annotated[int, Field(gt=0)] = 1000
    """A backlog is told to be growing when so much is postponed for an endpoint, unattempted, within `quiet_s`."""
    quiet_s: Seconds = 3600
    """Of an endpoint, each kind of event comes at most once in this time."""


class Api(Area):
    """The HTTP API (`fanout serve`). It speaks plain HTTP: TLS belongs to what stands before it."""

    host: str = "127.0.0.1"
    """Address to serve on; `0.0.0.0` in a container."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8800
    """Port to serve on; 0 takes any that is free."""
    public_url: Annotated[str, Field(pattern=r"^(https?://[!-~]{1,200}[^/])?$")] = ""
    """Where receivers reach the API, such as `https://fanout.example.com`. Of endpoints with `validation` they may then permit
    deliveries later, by a URL below it. Empty: only at once, in their answer."""
    database_url: SecretStr = SecretStr("")
    """libpq URL of the API's own login: one that owns nothing and is a member of `fanout_api` and `fanout_operator`. Empty:
    `database.url`, for development."""
    max_connections: Annotated[int, Field(gt=0, le=1000)] = 4
    """At most so many connections to Postgres, and so many requests at work at once."""
    max_waiting: Annotated[int, Field(gt=0)] = 500
    """At most so many requests under way, less polls that wait; beyond it the answer is 503."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1024 * 1024
    """A larger request body is refused with 413."""
    request_timeout_s: Seconds = 10
    """Time for a whole request, from its first byte to the answer; who sends it more slowly is cut off."""
    max_endpoints_per_customer: Annotated[int, Field(gt=0)] = 1000
    """More than so many a customer cannot make by itself."""
    max_subscriptions_per_customer: Annotated[int, Field(gt=0)] = 10_000
    """As above."""
    max_consumers_per_customer: Annotated[int, Field(gt=0)] = 100
    """As above, of consumers of dead letters."""
    max_poll_s: Seconds = 30
    """A poll that finds no dead letter is answered after so long at the latest, however long it would wait."""
    max_polls: Annotated[int, Field(gt=0)] = 200
    """At most so many polls wait at once; beyond it the answer is 503."""
    max_polls_per_customer: Annotated[int, Field(gt=0)] = 10
    """At most so many polls of one customer wait at once; beyond it the answer is 429."""
    max_snapshot_polls: Annotated[int, Field(gt=0)] = 300
    """At most so many readers of the registry (`GET /v1/snapshot`) wait at once; beyond it the answer is 503."""
    max_requests_per_s: Seconds = 100
    """At most so many requests a second of one API key, in each process: a fifth of them at once, the rest evenly."""
