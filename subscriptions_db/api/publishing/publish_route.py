"""Define the route by which producers without a Kafka client publish events, and the types of its bodies and its answer.

Runs in the API. The types of bodies and of the answer are for the OpenAPI document only. The job's parser decides what an event
is (checks.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from subscriptions_db import described
from subscriptions_db.api.contract import routes
from subscriptions_db.api.contract.principals import Scope
from subscriptions_db.api.contract.routes import NoParameters, Route
from subscriptions_db.api.publishing import bodies
from subscriptions_db.manifest import mistakes


class CloudEvent(described.DescribedModel):
    """A CloudEvent (version 1.0) in JSON. Further attributes (`subject`, `dataschema`, extensions) are delivered too."""

    model_config = pydantic.ConfigDict(extra="allow")

    specversion: Literal["1.0"]
    """The version of CloudEvents."""
    id: str
    """The id, which identifies the event together with `source`. If you send an event again, keep its id."""
    source: str
    """The system in which the event happened, as a URI reference."""
    type: str
    """The type. The topic is the setting `source.topic_prefix` followed by the type, unless the parameter `topic` names another
    topic."""
    tenantid: str
    """The tenant at which the event happened."""
    subtenantid: str | None = None
    """The sub-tenant at which the event happened."""
    partitionkey: str | None = None
    """The key of the record: events with one key keep their order."""
    time: str | None = None
    """The time of the event, by RFC 3339. Null: the time when Kafka appended the event."""
    data: Any = None
    """The payload, which is delivered byte for byte. `data_base64` takes its place for a payload of bytes."""


class CloudEventBatch(pydantic.RootModel[Annotated[list[CloudEvent], Field(max_length=bodies.MAX_EVENTS)]]):
    """CloudEvents in the JSON batch format."""


class PlainEvents(pydantic.RootModel[dict[str, Any] | Annotated[list[dict[str, Any]], Field(max_length=bodies.MAX_EVENTS)]]):
    """One plain JSON event, or an array of them. The settings `source.*_field` name the event's fields, such as id and tenant.

    With `ce-` headers: the payload of a CloudEvent in binary mode.
    """


class PublishQuery(NoParameters):
    """The topic of the events."""

    topic: Annotated[str, Field(pattern=mistakes.TOPIC_NAME_PATTERN)] | None = None
    """Topic of all events of the request. Null: the topic of each event is the setting `source.topic_prefix` followed by the
    event's type."""


class PublishedEvents(described.DescribedModel):
    """The events that Kafka has confirmed: all events of the request."""

    accepted: list[str]
    """Ids of the events, in the order of the request."""


ROUTES = (
    Route(
        method="POST", path="/v1/events", name="publishEvents",
        summary="Publish events: CloudEvents (structured, batch, binary) or plain JSON. A failed request may publish some.",
        scopes=routes.OPERATOR | {Scope.PUBLISHER}, handler=None, query=PublishQuery, answer=PublishedEvents, status=202,
        bodies=((bodies.PLAIN, PlainEvents), (bodies.STRUCTURED, CloudEvent), (bodies.BATCH, CloudEventBatch)),
    ),
)  # fmt: skip
