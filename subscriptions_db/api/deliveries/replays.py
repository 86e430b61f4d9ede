"""Deliveries again: all of a time to an endpoint, or the one of an attempt; seen, and cancelled.

Runs in the API. A replay is asked for here, and carried out by `fanout archive`.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import pydantic
from pydantic import AwareDatetime, Field

from delivery import errors
from subscriptions_db.api.contract import audit, crud, cursors, problems, routes
from subscriptions_db.api.contract.routes import Call, Nothing, Page, Route, Whose
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import Text
from subscriptions_db.archive.search import attempts, cursor
from subscriptions_db.manifest import manifest
from subscriptions_db.replays import requests
from subscriptions_db.replays.requests import One, Range, State

MAX_DAYS = 31
"""Of one replay."""
MAX_UNDER_WAY = 1000
"""Of one customer. Each delivery that is sent again is one."""
NEWEST = 2**62


class NewReplay(Nothing):
    """What is to be delivered again: what Kafka took in a time, by what is subscribed now."""

    since: AwareDatetime
    """At this time or later …"""
    until: AwareDatetime | None = None
    """… and before this one; null: until now."""
    event_types: Annotated[list[Text], Field(min_length=1, max_length=50)] | None = None
    """Exact types, or prefix wildcards such as `order.*`. Null: all."""


class Replay(pydantic.BaseModel):
    """What was asked for, and how far it is. Of a time, `since` and `until` are set; of one delivery, `webhook_id` is."""

    id: str
    endpoint: str
    since: dt.datetime | None
    until: dt.datetime | None
    event_types: list[str] | None
    webhook_id: str | None
    state: State
    """`done`: all is handed over, and what becomes of it goes on being counted."""
    reason: str | None
    """Why it failed: `endpoint_deleted`, `event_gone`, `attempts_not_archived`."""
    is_whole: bool
    """False: Kafka may hold no more of all that was asked for."""
    created_at: dt.datetime
    state_since: dt.datetime
    handed_over: int
    """Deliveries that the retry lane got. Those that are in none of the next three wait there."""
    delivered: int
    dead_lettered: int
    skipped: int


class Replays(pydantic.BaseModel):
    """A page of replays, the newest first."""

    items: list[Replay]
    next_cursor: str | None


class Which(Whose, Page):
    """Which replays."""

    endpoint: manifest.Id | None = None


def create(call: Call) -> Replay:
    """Ask for a time of an endpoint again."""
    wanted, endpoint_id, now = call.body_as(NewReplay), call.path["endpoint_id"], dt.datetime.now(dt.UTC)
    endpoint = crud.found(call, "endpoint", endpoint_id)
    until = wanted.until or now
    if until > now:
        raise problems.invalid(("until", "is still to come: what comes then is delivered by itself"))
    if wanted.since >= until:
        raise problems.invalid(("since", "is not before until"))
    if until - wanted.since > dt.timedelta(days=MAX_DAYS):
        raise problems.invalid(("since", f"is more than {MAX_DAYS} days before until: ask for one part after the other"))
    asked = Range(since=wanted.since, until=until, event_types=wanted.event_types)
    return _ask(call, endpoint["customer"], endpoint_id, asked, "a time of this endpoint is being replayed: wait, or cancel it")


def resend(call: Call) -> Replay:
    """Ask for the delivery of an attempt again, whatever has become of it."""
    customer_id = dead_letters.whose(call)
    attempt = attempts.get(call.connection, customer_id, _place(call))
    if attempt is None:
        raise problems.not_found("attempt")
    if attempt.events > 1 or attempt.subscription_id is None:
        raise problems.Refused(409, "it was a batch, which is never made the same again: replay its time")
    if attempt.topic is None or attempt.partition is None or attempt.offset is None:
        raise problems.Refused(409, "where its event is was not archived yet by then: replay its time")
    crud.found(call, "endpoint", attempt.endpoint_id)
    asked = One(
        webhook_id=attempt.webhook_id,
        subscription_id=attempt.subscription_id,
        topic=attempt.topic,
        partition=attempt.partition,
        offset=attempt.offset,
    )
    return _ask(call, customer_id, attempt.endpoint_id, asked, "it is being sent again")


def list_(call: Call) -> Replays:
    """Return a page of replays."""
    wanted = call.query_as(Which)
    last = cursors.decode(wanted.cursor)
    if last and not last.isdecimal():
        raise errors.RegistrationError("cursor", "is no cursor of this list")
    found = requests.page(
        call.connection,
        dead_letters.whose(call),
        endpoint_id=wanted.endpoint,
        before=min(int(last or NEWEST), NEWEST),
        limit=wanted.limit + 1,
    )
    items = routes.fitting_part([shown(one) for one in found[: wanted.limit]])
    more = len(found) > len(items)
    return Replays(items=items, next_cursor=cursors.encode(str(found[len(items) - 1].number)) if more else None)


def get(call: Call) -> Replay:
    """Return a replay."""
    return shown(_found(call))


def cancel(call: Call) -> Replay:
    """Hand nothing more over."""
    before = _found(call)
    if not requests.cancel(call.connection, before.customer_id, before.replay_id, now=dt.datetime.now(dt.UTC)):
        raise problems.Refused(409, f"the replay is {_found(call).state}: there is nothing to cancel")
    told = {"before": {"state": before.state}, "after": {"state": State.CANCELLED}}
    audit.write(call, "cancel", "replay", before.replay_id, customer_id=before.customer_id, **told)
    return get(call)


def _ask(call: Call, customer_id: str, endpoint_id: str, asked: Range | One, otherwise: str) -> Replay:
    if requests.count_under_way(call.connection, customer_id) >= MAX_UNDER_WAY:
        raise problems.Refused(409, f"{MAX_UNDER_WAY} replays are under way, the most there may be: wait, or cancel some")
    made = requests.ask(call.connection, customer_id, endpoint_id, asked)
    if made is None:
        raise problems.Refused(409, otherwise)
    answer = shown(made)
    told = answer.model_dump(
        mode="json", include={"endpoint", "since", "until", "event_types", "webhook_id"}, exclude_none=True
    )
    audit.write(call, "create", "replay", answer.id, customer_id=customer_id, after=told)
    return answer


def _place(call: Call) -> cursor.Moment:
    try:
        return cursor.Moment.read(call.path["attempt_id"])
    except errors.RegistrationError:
        raise problems.not_found("attempt") from None


def _found(call: Call) -> requests.Replay:
    found = requests.get(call.connection, dead_letters.whose(call), call.path["replay_id"])
    if found is None:
        raise problems.not_found("replay")
    return found


def shown(replay: requests.Replay) -> Replay:
    """Return a replay as the API answers it."""
    asked = {name: getattr(replay.asked, name, None) for name in ("since", "until", "event_types", "webhook_id")}
    return Replay(
        id=replay.replay_id,
        endpoint=replay.endpoint_id,
        **asked,
        state=replay.state,
        reason=replay.reason,
        is_whole=replay.is_whole,
        created_at=replay.created_at,
        state_since=replay.state_since,
        handed_over=replay.handed_over,
        delivered=replay.delivered,
        dead_lettered=replay.dead_lettered,
        skipped=replay.skipped,
    )


ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/replays", name="createReplay",
        summary="Have all that Kafka took in a time delivered to an endpoint again, by what is subscribed now.",
        scopes=routes.ADMINS, handler=create, body=NewReplay, answer=Replay, status=201, is_change=True,
    ),
    Route(
        method="POST", path="/v1/attempts/{attempt_id}/resend", name="resendAttempt",
        summary="Have the delivery of an attempt made again, whatever has become of it.",
        scopes=routes.ADMINS, handler=resend, query=Whose, answer=Replay, status=201, is_change=True,
    ),
    Route(
        method="GET", path="/v1/replays", name="listReplays", summary="What was asked for again, the newest first.",
        scopes=routes.READERS, handler=list_, query=Which, answer=Replays,
    ),
    Route(
        method="GET", path="/v1/replays/{replay_id}", name="getReplay", summary="How far a replay is.",
        scopes=routes.READERS, handler=get, query=Whose, answer=Replay,
    ),
    Route(
        method="POST", path="/v1/replays/{replay_id}/cancel", name="cancelReplay",
        summary="Hand nothing more of a replay over. What was handed over is delivered.",
        scopes=routes.ADMINS, handler=cancel, query=Whose, answer=Replay, is_change=True,
    ),
)  # fmt: skip
