"""Request, list and cancel replays.

A replay delivers events again: the events of a time range that are due to an endpoint, or the event of one attempt (a resend).
Runs in the API, which only stores the request. `fanout archive` carries out the replays. `fanout` commands call `shown` too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from delivery import errors
from subscriptions_db.api.contract import crud, cursors, expansion, problems, request_audit, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, ListQuery, NoParameters, Route
from subscriptions_db.api.deliveries import dead_letters
from subscriptions_db.api.deliveries.dead_letters import Text
from subscriptions_db.archive.search import archive_positions, attempts
from subscriptions_db.manifest import manifest
from subscriptions_db.replays import requests
from subscriptions_db.replays.requests import ReplayOne, ReplayRange, ReplaySearch, ReplayState

MAX_UNFINISHED = 1000
"""Maximum unfinished replays of one customer. The resend of one delivery counts as one replay."""
NEWEST = 2**62
"""A number above all replay numbers: where a list without a cursor begins."""


class NewReplay(NoParameters):
    """The events of a time range in Kafka that match the endpoint's subscriptions at the time of the replay."""

    since: AwareDatetime
    """Events appended to Kafka at this time or later."""
    until: AwareDatetime | None = None
    """Events appended before this time. Null: until now."""
    event_types: Annotated[list[Text], Field(min_length=1, max_length=50)] | None = None
    """Exact types, or prefix wildcards such as `order.*`. Null: all."""


class Replay(expansion.Expandable):
    """A replay and its progress. A time range has `since` and `until`; a resent delivery has `webhook_id`."""

    id: str
    """The id."""
    endpoint: str
    """The id of the endpoint that gets the deliveries."""
    since: dt.datetime | None
    """Beginning of the time range. Null: a resent delivery."""
    until: dt.datetime | None
    """End of the time range. Null: a resent delivery."""
    event_types: list[str] | None
    """The event types to which the replay of a time range is limited. Null: all types, or a resent delivery."""
    webhook_id: str | None
    """The resent delivery. Null: a time range."""
    state: ReplayState
    """`done`: every delivery is enqueued in the retry lane. The outcomes of the deliveries are still counted."""
    reason: str | None
    """The reason why the replay failed: `endpoint_deleted`, `event_gone` or `attempts_not_archived`. Null: it has not
    failed."""
    is_whole: bool
    """False: Kafka may no longer hold some of the requested events."""
    created_at: dt.datetime
    """When the replay was requested."""
    state_since: dt.datetime
    """When the replay came into this state."""
    handed_over: int
    """Deliveries enqueued in the retry lane. Each waits in the lane until one of the three counts below includes it."""
    delivered: int
    """Deliveries that the endpoint accepted."""
    dead_lettered: int
    """Deliveries of the replay that were given up and became dead letters, except dead letters that were redriven since."""
    skipped: int
    """Deliveries that ended as skipped, without an attempt or after failed attempts. A resend of a delivery that waits counts
    here: the next attempt of the delivery is brought forward."""


class Replays(routes.ListPage):
    """A page of replays, the newest first."""

    items: list[Replay]
    """The replays of the page."""


class ReplayQuery(CustomerQuery, ListQuery, expansion.ExpandQuery):
    """Search criteria for the replays of one customer. An omitted criterion matches everything."""

    endpoint: manifest.Id | None = None
    """Only replays for this endpoint."""
    # A Literal instead of the enum: OpenAPI describes query parameters inline, and an enum would become a reference.
    state: (
        Literal[ReplayState.WAITING, ReplayState.RUNNING, ReplayState.DONE, ReplayState.FAILED, ReplayState.CANCELLED] | None
    ) = None
    """Only replays in this state."""
    since: AwareDatetime | None = None
    """Only replays that were requested at this time or later."""
    until: AwareDatetime | None = None
    """Only replays that were requested before this time."""


def create(call: Call) -> Replay:
    """Request the replay of a time range for an endpoint.

    Raise RegistrationError if the time range is not allowed. Raise Refused:

    * 404: there is no such endpoint.
    * 409: another replay of a time range for the endpoint is unfinished, or the customer has MAX_UNFINISHED unfinished replays.
    * 429: the customer's quota of dead letters is used up. An operator's key gets no 429.
    """
    wanted, endpoint_id, now = call.body_as(NewReplay), call.path["endpoint_id"], dt.datetime.now(dt.UTC)
    endpoint = crud.existing_row(call, "endpoint", endpoint_id)
    asked = requests.range_of(wanted.since, wanted.until, wanted.event_types, now=now)
    return _ask(
        call,
        endpoint["customer"],
        endpoint_id,
        asked,
        "another replay of this endpoint is unfinished, so no replay was requested: wait for it, or cancel it",
    )


def resend(call: Call) -> Replay:
    """Request to deliver the event of an attempt again, whatever the result of the attempt.

    Raise Refused:

    * 404: there is no such attempt, or its endpoint is deleted.
    * 409: the attempt sent a batch, or the position of its event in Kafka is not known.
    * 409: the delivery is being resent already, or the customer has MAX_UNFINISHED unfinished replays.
    * 422: a request with an operator's key names no `customer`, or one with a customer's key names another customer.
    * 429: the customer's quota of dead letters is used up. An operator's key gets no 429.
    """
    customer_id = dead_letters.customer_of(call)
    attempt = attempts.get(call.connection, customer_id, _place(call))
    if attempt is None:
        raise problems.not_found("attempt")
    if attempt.events > 1 or attempt.subscription_id is None:
        problem = "the attempt sent a batch, which cannot be built again, so no resend was requested: replay its time range"
        raise problems.Refused(409, problem)
    if attempt.topic is None or attempt.partition is None or attempt.offset is None:
        problem = "the archive does not know where the event is in Kafka, so no resend was requested: replay its time range"
        raise problems.Refused(409, problem)
    crud.existing_row(call, "endpoint", attempt.endpoint_id)
    asked = ReplayOne(
        webhook_id=attempt.webhook_id,
        subscription_id=attempt.subscription_id,
        topic=attempt.topic,
        partition=attempt.partition,
        offset=attempt.offset,
    )
    otherwise = "this delivery is being resent already, so no other resend was requested: wait for it"
    return _ask(call, customer_id, attempt.endpoint_id, asked, otherwise)


def list_(call: Call) -> Replays:
    """Return a page of replays, the newest first.

    Raise RegistrationError for an invalid cursor, and Refused with 422 as `cancel` does.
    """
    wanted, customer_id = call.query_as(ReplayQuery), dead_letters.customer_of(call)
    asked = ReplaySearch(endpoint_id=wanted.endpoint, state=wanted.state, since=wanted.since, until=wanted.until)
    place = cursors.place(wanted.cursor)
    number, is_newer = _number(place.row_id), place.is_end
    found = requests.nearest(call.connection, customer_id, asked, number=number, is_newer=is_newer, limit=wanted.limit + 1)
    endpoints = expansion.EndpointReader(call, wanted.expand)
    items = expansion.fitting_part(found[: wanted.limit], lambda part: _expanded(part, endpoints), wanted.expand)
    has_more, numbers = len(found) > len(items), [replay.number for replay in found[: len(items)]]
    first, last = (numbers[0], numbers[-1]) if numbers else (number + (1 if is_newer else -1), number)
    has_others = wanted.cursor is not None and bool(
        requests.nearest(call.connection, customer_id, asked, number=first, is_newer=not is_newer, limit=1)
    )
    oldest, newest = (first, last) if is_newer else (last, first)
    has_older, has_newer = (has_others, has_more) if is_newer else (has_more, has_others)
    return Replays(
        items=items[::-1] if is_newer else items,
        next_cursor=cursors.encode(str(oldest)) if has_older else None,
        previous_cursor=cursors.encode_previous(str(newest)) if has_newer else None,
        total=requests.count(call.connection, customer_id, asked) if wanted.total else None,
    )


def _number(text: str) -> int:
    """Return the replay number in the decoded cursor `text`; NEWEST if the text is empty.

    Raise RegistrationError if the text is no number.
    """
    if not text:
        return NEWEST
    if not text.isdecimal():
        raise errors.RegistrationError("cursor", "is not a cursor of this list: send a cursor of an answer, unchanged")
    return min(int(text), NEWEST)


def _expanded(found: Sequence[requests.ReplayRequest], endpoints: expansion.EndpointReader) -> list[Replay]:
    expanded = endpoints.expanded(replay.endpoint_id for replay in found)
    return [shown(replay).model_copy(update={"expanded": expanded.get(replay.endpoint_id)}) for replay in found]


def get(call: Call) -> Replay:
    """Return a replay. Raise Refused with 404 or 422 as `cancel` does."""
    return shown(_found(call))


def cancel(call: Call) -> Replay:
    """Cancel a replay: no further deliveries are enqueued. Deliveries that are enqueued already are still delivered.

    Raise Refused:

    * 404: there is no such replay.
    * 409: the replay is done, failed or cancelled.
    * 422: a request with an operator's key names no `customer`, or one with a customer's key names another customer.
    """
    before = _found(call)
    if not requests.cancel(call.connection, before.customer_id, before.replay_id, now=dt.datetime.now(dt.UTC)):
        problem = f"the replay is {_found(call).state}, and nothing was changed: only an unfinished replay can be cancelled"
        raise problems.Refused(409, problem)
    change = {"before": {"state": before.state}, "after": {"state": ReplayState.CANCELLED}}
    request_audit.write(call, "cancel", "replay", before.replay_id, customer_id=before.customer_id, **change)
    return get(call)


def _ask(call: Call, customer_id: str, endpoint_id: str, asked: ReplayRange | ReplayOne, otherwise: str) -> Replay:
    with crud.of_whole_customer(call):
        room = requests.room(call.connection, customer_id)
    if room.reached_dead_letters is not None and call.principal.customer_id is not None:
        raise problems.quota_reached(
            f"the quota of the customer is {room.reached_dead_letters} waiting dead letters, and it is used up. No replay was "
            "requested: redrive or discard some and repeat the request, or ask the operator for a larger quota"
        )
    if room.unfinished >= MAX_UNFINISHED:
        raise problems.Refused(
            409,
            f"the customer has {MAX_UNFINISHED} unfinished replays, the maximum. No replay was requested: wait, or cancel some",
        )
    made = requests.ask(call.connection, customer_id, endpoint_id, asked)
    if made is None:
        raise problems.Refused(409, otherwise)
    answer = shown(made)
    fields = answer.model_dump(
        mode="json", include={"endpoint", "since", "until", "event_types", "webhook_id"}, exclude_none=True
    )
    request_audit.write(call, "create", "replay", answer.id, customer_id=customer_id, after=fields)
    return answer


def _place(call: Call) -> archive_positions.RecordPosition:
    try:
        return archive_positions.RecordPosition.read(call.path["attempt_id"])
    except errors.RegistrationError:
        raise problems.not_found("attempt") from None


def _found(call: Call) -> requests.ReplayRequest:
    found = requests.get(call.connection, dead_letters.customer_of(call), call.path["replay_id"])
    if found is None:
        raise problems.not_found("replay")
    return found


def shown(replay: requests.ReplayRequest) -> Replay:
    """Convert a requested replay to the API's type."""
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
        # The count is below 0 if a dead letter was redriven twice, or if its redrive note was archived before the dead letter.
        dead_lettered=max(0, replay.dead_lettered),
        skipped=replay.skipped,
    )


ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/replays", name="createReplay",
        summary="Replay a time range for an endpoint, by its present subscriptions.",
        scopes=routes.WRITERS, handler=create, body=NewReplay, answer=Replay, status=201, is_change=True,
        location="/v1/replays/{id}",
    ),
    Route(
        method="POST", path="/v1/attempts/{attempt_id}/resend", name="resendAttempt",
        summary="Resend the delivery of an attempt, whatever the result of the attempt.",
        scopes=routes.WRITERS, handler=resend, query=CustomerQuery, answer=Replay, status=201, is_change=True,
        location="/v1/replays/{id}",
    ),
    Route(
        method="GET", path="/v1/replays", name="listReplays", summary="List replays, the newest first.",
        scopes=routes.READERS, handler=list_, query=ReplayQuery, answer=Replays,
    ),
    Route(
        method="GET", path="/v1/replays/{replay_id}", name="getReplay", summary="Get a replay and its progress.",
        scopes=routes.READERS, handler=get, query=CustomerQuery, answer=Replay,
    ),
    Route(
        method="POST", path="/v1/replays/{replay_id}/cancel", name="cancelReplay",
        summary="Cancel a replay. Deliveries that are enqueued already are still delivered.",
        scopes=routes.WRITERS, handler=cancel, query=CustomerQuery, answer=Replay, is_change=True,
    ),
)  # fmt: skip
