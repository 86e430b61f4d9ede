"""Create, list, change, seek and delete consumers of dead letters.

Runs in the API; `shown` also in `fanout` commands.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from subscriptions_db import described
from subscriptions_db.api.contract import crud, problems, request_audit, routes
from subscriptions_db.api.contract.routes import Call, CustomerQuery, NoParameters, Route
from subscriptions_db.api.deliveries.dead_letters import Cursor, DeadLetterQuery, customer_of, selection
from subscriptions_db.archive.search import archive_positions, consumers, counts
from subscriptions_db.manifest import mistakes
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

ConsumerName = Annotated[str, Field(pattern=mistakes.CONSUMER_NAME_PATTERN)]
MaxReceives = Annotated[int, Field(ge=1, le=1000)]


class SeekTarget(NoParameters):
    """The place in the archive from which a consumer reads on. Give exactly one field."""

    to: Literal["beginning", "end"] | None = None
    """`beginning`: the oldest dead letter. `end`: only dead letters that are archived from now on."""
    cursor: Cursor | None = None
    """Read on after the page of `GET /v1/dead-letters` that returned this cursor."""
    since: AwareDatetime | None = None
    """Read on at the first waiting dead letter that was archived at this time or later. If there is none, read on as with `to:
    end`."""


class NewConsumer(SeekTarget, DeadLetterQuery):
    """A consumer to create. Its search criteria cannot change later.

    Without `to`, `cursor` and `since`, the consumer begins at the oldest dead letter.
    """

    name: ConsumerName
    """The name, unique for the customer."""
    max_receives: MaxReceives | None = None
    """Park a dead letter that was leased this often without an ack. Null: lease it again without end."""


class ConsumerChange(NoParameters):
    """The new `max_receives` of a consumer. Dead letters that are parked already stay parked."""

    max_receives: MaxReceives | None
    """Park a dead letter that was leased this often without an ack. Null: lease it again without end."""


class Consumer(described.DescribedModel):
    """A named group of pollers that share the dead letters that match the consumer's search criteria."""

    name: str
    """The name, unique for the customer."""
    endpoint: str | None
    """Only dead letters of this endpoint. Null: of all endpoints."""
    event_type: str | None
    """Only dead letters of this event type. Null: of all types."""
    tenant: str | None
    """Only dead letters of this tenant. Null: of all tenants."""
    reason: str | None
    """Only dead letters with this reason. Null: with all reasons."""
    cursor: str
    """The place up to which the consumer has read. Only dead letters after this place are leased for the first time."""
    unacknowledged: int
    """Dead letters that were leased and not acked yet, also nacked ones and ones with an expired lease. Parked ones do not
    count."""
    max_receives: int | None
    """Number of leases without an ack after which a dead letter is parked. Null: never."""
    waiting: int
    """Dead letters that are not leased yet, were nacked or unparked, or have an expired lease. Polls lease them, or park them
    after `max_receives` leases. Discarded and redriven ones do not count."""
    waiting_is_exact: bool
    """False: `waiting` is a lower bound. The count examines only the oldest 10,000 dead letters that were not leased yet, and
    the oldest 10,000 that were nacked, unparked or have an expired lease. In a list of several consumers, each of these two
    bounds is 1,000."""
    leased: int
    """Dead letters with a lease that has not expired, also those that were discarded or redriven since."""
    parked: int
    """Parked dead letters that were not discarded or redriven since."""
    parked_is_exact: bool
    """False: `parked` is a lower bound, because the count examines only the oldest 10,000 parked dead letters. In a list of
    several consumers, the count examines 1,000 for each consumer."""
    created_at: dt.datetime
    """When the consumer was created."""


class Consumers(described.DescribedModel):
    """A customer's consumers."""

    items: list[Consumer]
    """The consumers, sorted by name."""


def existing_consumer(call: Call) -> consumers.ConsumerState:
    """Return the consumer that the request's path names.

    Raise Refused with 404 if it does not exist. Raise it with 422 if a request with an operator's key names no `customer`, or
    if one with a customer's key names another customer.
    """
    for state in consumers.list_consumers(call.connection, customer_of(call), call.path["consumer_id"]):
        return state
    raise problems.not_found("consumer")


def list_(call: Call) -> Consumers:
    """Return a customer's consumers with their counts. A key limited to endpoints gets only the consumers of these endpoints.

    Raise Refused with 422 as `existing_consumer` does.
    """
    return Consumers(
        items=shown(call.connection, customer_of(call), consumers.list_consumers(call.connection, customer_of(call)))
    )


def get(call: Call) -> Consumer:
    """Return a consumer. Raise Refused as `existing_consumer` does."""
    [found] = shown(call.connection, customer_of(call), [existing_consumer(call)])
    return found


def create(call: Call) -> Consumer:
    """Create a consumer.

    Raise RegistrationError for an invalid cursor, and for a customer that does not exist. Raise Refused:

    * 409: the name is taken.
    * 422: the request names more than one place.
    * 422: a request with an operator's key names no `customer`, or one with a customer's key names another customer.
    * 422: the key is limited to endpoints, and `endpoint` is not one of them.
    * 429: the customer has the maximum of consumers. An operator's key may create more.
    """
    wanted, customer_id = call.body_as(NewConsumer), customer_of(call)
    own = call.principal.endpoints
    if own is not None and wanted.endpoint not in own:
        raise problems.invalid(("endpoint", "must be one of the endpoints to which the key is limited"))
    bound = call.bounds.max_consumers_per_customer
    call.connection.execute(query("lock_row"), {"kind": "quota of consumers", "id": customer_id})
    with crud.of_whole_customer(call):
        existing = len(consumers.list_consumers(call.connection, customer_id))
    if existing >= bound and call.principal.customer_id is not None:
        raise problems.quota_reached(
            f"the quota of the customer is {bound} consumers, and it is used up. Nothing was created: delete some, or ask the "
            "operator for a larger quota"
        )
    after = _position(call, customer_id, wanted) or 0
    limit = wanted.max_receives
    if not consumers.create(call.connection, customer_id, wanted.name, selection(wanted), after=after, max_receives=limit):
        raise problems.Refused(
            409, "a consumer with this name exists and is unchanged", ("name", "is already used: choose another name")
        )
    request_audit.write(
        call, "create", "consumer", wanted.name, customer_id=customer_id, after=wanted.model_dump(exclude_none=True)
    )
    [made] = shown(call.connection, customer_id, consumers.list_consumers(call.connection, customer_id, wanted.name))
    return made


def change(call: Call) -> Consumer:
    """Change the `max_receives` of a consumer. Raise Refused as `existing_consumer` does."""
    before, customer_id = existing_consumer(call), customer_of(call)
    consumers.set_max_receives(call.connection, customer_id, before.name, call.body_as(ConsumerChange).max_receives)
    changed = get(call)
    fields = {"before": {"max_receives": before.max_receives}, "after": {"max_receives": changed.max_receives}}
    request_audit.write(call, "update", "consumer", before.name, customer_id=customer_id, **fields)
    return changed


def delete(call: Call) -> None:
    """Delete a consumer and its leases. Dead letters stay unchanged. Raise Refused as `existing_consumer` does."""
    before, customer_id = existing_consumer(call), customer_of(call)
    consumers.delete(call.connection, customer_id, before.name)
    request_audit.write(call, "delete", "consumer", before.name, customer_id=customer_id, before=_fields(before))


def seek(call: Call) -> Consumer:
    """Move a consumer to another place. The consumer's leases end, and their receipt handles become invalid.

    Afterwards, polls lease the dead letters after the place, also parked ones. Parked dead letters up to the place stay parked.
    Polls do not lease the other dead letters up to the place, not even those without an ack.

    Raise Refused with 404 if there is no such consumer. Raise it with 422 if the request does not name exactly one place,
    and as `existing_consumer` does. Raise RegistrationError for an invalid cursor.
    """
    before, customer_id = existing_consumer(call), customer_of(call)
    after = _position(call, customer_id, call.body_as(SeekTarget))
    if after is None:
        raise problems.invalid(("", "give one of to, cursor and since"))
    consumers.seek(call.connection, customer_id, before.name, after=after)
    moved = get(call)
    change = {"before": {"cursor": archive_positions.letter_cursor(before.read_until)}, "after": {"cursor": moved.cursor}}
    request_audit.write(call, "seek", "consumer", before.name, customer_id=customer_id, **change)
    return moved


def _position(call: Call, customer_id: str, place: SeekTarget) -> int | None:
    """Return the position after which a consumer reads on; None if the request names no place.

    Raise Refused with 422 if the request names several places, and RegistrationError for an invalid cursor.
    """
    named = place.model_dump(include=set(SeekTarget.model_fields), exclude_none=True)
    if len(named) > 1:
        raise problems.invalid(*((name, "cannot be combined: give only one of to, cursor and since") for name in named))
    if place.cursor is not None:
        return archive_positions.letter_position(place.cursor)
    if place.since is not None:
        return consumers.position_before(call.connection, customer_id, place.since)
    if place.to is not None:
        return consumers.end(call.connection, customer_id) if place.to == "end" else 0
    return None


def shown(connection: connect.Connection, customer_id: str, states: list[consumers.ConsumerState]) -> list[Consumer]:
    """Convert consumers to the API's type, and count the waiting, leased and parked dead letters of each."""
    names, now = [state.name for state in states], dt.datetime.now(dt.UTC)
    found = counts.of_consumers(connection, customer_id, names, now=now) if names else {}
    return [
        Consumer(
            **_fields(state),
            waiting=found[state.name].waiting.letters,
            waiting_is_exact=found[state.name].waiting.is_exact,
            leased=found[state.name].leased,
            parked=found[state.name].parked.letters,
            parked_is_exact=found[state.name].parked.is_exact,
        )
        for state in states
    ]


def _fields(state: consumers.ConsumerState) -> dict[str, Any]:
    """Return the fields of the API's type Consumer, except the counts, which the function `shown` adds."""
    return {
        "name": state.name,
        "endpoint": state.selection.endpoint_id,
        "event_type": state.selection.event_type,
        "tenant": state.selection.tenant_id,
        "reason": state.selection.reason,
        "cursor": archive_positions.letter_cursor(state.read_until),
        "unacknowledged": state.unacknowledged,
        "max_receives": state.max_receives,
        "created_at": state.created_at,
    }


ROUTES = (
    Route(
        method="GET", path="/v1/dead-letter-consumers", name="listConsumers", summary="All consumers of dead letters.",
        scopes=routes.BROWSERS, handler=list_, query=CustomerQuery, answer=Consumers,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers", name="createConsumer", summary="Create a consumer of dead letters.",
        scopes=routes.WRITERS, handler=create, query=CustomerQuery, body=NewConsumer, answer=Consumer, status=201,
        is_change=True, location="/v1/dead-letter-consumers/{name}",
    ),
    Route(
        method="GET", path="/v1/dead-letter-consumers/{consumer_id}", name="getConsumer", summary="A consumer, by its name.",
        scopes=routes.BROWSERS, handler=get, query=CustomerQuery, answer=Consumer,
    ),
    Route(
        method="PATCH", path="/v1/dead-letter-consumers/{consumer_id}", name="updateConsumer",
        summary="Change after how many leases without an ack a consumer's dead letters are parked.",
        scopes=routes.WRITERS, handler=change, query=CustomerQuery, body=ConsumerChange, answer=Consumer, is_change=True,
    ),
    Route(
        method="DELETE", path="/v1/dead-letter-consumers/{consumer_id}", name="deleteConsumer",
        summary="Delete a consumer and its leases. Dead letters stay unchanged.",
        scopes=routes.WRITERS, handler=delete, query=CustomerQuery, status=204, is_change=True,
    ),
    Route(
        method="POST", path="/v1/dead-letter-consumers/{consumer_id}/seek", name="seekConsumer",
        summary="Move a consumer to another place. Earlier receipt handles become invalid.",
        scopes=routes.WRITERS, handler=seek, query=CustomerQuery, body=SeekTarget, answer=Consumer, is_change=True,
    ),
)  # fmt: skip
