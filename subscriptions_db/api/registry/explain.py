"""Explain whether an event would match subscriptions, and which rule decides.

Runs in the API. Sends and changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Self

import orjson
import pydantic
from pydantic import Field

from delivery import errors
from delivery.model import Attribute, Event, EventId, Record
from delivery.payload_form import Opaque, PayloadForm
from delivery.registry_model import EndpointId, SubscriptionId, SubTenantId, TenantId
from delivery.webhooks.events import attributes, opaque
from delivery.webhooks.routing import explain
from subscriptions_db import described
from subscriptions_db.api.contract import crud, problems, routes, schemas
from subscriptions_db.api.contract.routes import Call, Route
from subscriptions_db.api.registry import event_types
from subscriptions_db.manifest import manifest, parts
from subscriptions_db.postgres.sql import query
from subscriptions_db.snapshot import registry_reader

MAX_EXPLAINED = 100
"""Maximum subscriptions of an endpoint that one answer explains."""


def _checked(named: dict[str, Attribute]) -> dict[str, Attribute]:
    """Return the attributes in the form that an event would have; raise ValueError for an invalid one."""
    try:
        return dict(attributes.further_attributes(named, frozenset()))
    except errors.EventRejected as exc:
        raise ValueError(exc.detail) from None


def _opaque(media_type: str | None) -> str | None:
    """Return the media type unchanged; None stands for JSON. Raise ValueError for a JSON type, or a text that is no type."""
    if media_type is not None and (opaque.is_json(media_type) or not opaque.is_media_type(media_type)):
        raise ValueError("must be a media type other than JSON, such as text/xml; leave it out for JSON")
    return media_type


class ExplainedEvent(parts.ManifestPart):
    """A hypothetical event."""

    type: str = Field(min_length=1, max_length=1024)
    """The type, such as `order.created`."""
    tenant_id: manifest.Id
    """The tenant at which the event happens."""
    sub_tenant_id: manifest.Id | None = None
    """The sub-tenant at which the event happens."""
    id: str = Field("evt_1", max_length=1024)
    """The id."""
    source: str = Field("events", max_length=1024)
    """The source."""
    time: str = Field("2026-01-01T00:00:00Z", max_length=64)
    """The time, as RFC 3339 has it."""
    attributes: Annotated[dict[str, Attribute], pydantic.AfterValidator(_checked)] = Field(default_factory=dict)
    """CloudEvents attributes that have no field of their own, such as `subject`."""
    data: schemas.Payload = None
    """The payload. With `datacontenttype`: a text, or left out for bytes."""
    datacontenttype: Annotated[str | None, pydantic.AfterValidator(_opaque)] = None
    """Media type of a payload that is not JSON. A filter sees no field of such a payload."""

    @pydantic.model_validator(mode="after")
    def _check_payload(self) -> Self:
        if self.datacontenttype is not None and not isinstance(self.data, str | None):
            raise ValueError("data must be a text or left out where datacontenttype is not JSON")
        return self


class ExplainRequest(parts.ManifestPart):
    """The event to explain."""

    event: ExplainedEvent
    """The event."""


class Explanation(described.DescribedModel):
    """The verdict of one subscription on the event. The event's tenant counts as registered and active, without a check."""

    subscription: str
    """The id of the subscription."""
    endpoint: str
    """The id of the endpoint of the subscription."""
    is_due: bool
    """True: the subscription takes the event. Also true for an event that would be skipped or would wait: `rule` says so."""
    rule: explain.Rule
    """The rule that decides."""
    detail: str
    """The reason in words, for people."""


class Explanations(described.DescribedModel):
    """The verdicts of the subscriptions, at most 100, sorted by id, and what the catalogue says of the event."""

    items: list[Explanation]
    """The verdict of each subscription."""
    catalogue: event_types.CatalogueEntry
    """The comparison of the event with the catalogue."""


def for_endpoint(call: Call) -> Explanations:
    """Explain an event for the first MAX_EXPLAINED subscriptions of an endpoint, sorted by id.

    Raise Refused with 404 if there is no such endpoint.
    """
    endpoint_id = call.path["endpoint_id"]
    asked = {"endpoint_id": endpoint_id, "limit": MAX_EXPLAINED}
    ids = [row["id"] for row in call.connection.execute(query("subscriptions_to_endpoint"), asked)]
    return _explanations(call, endpoint_id, ids)


def for_subscription(call: Call) -> Explanations:
    """Explain an event for one subscription; raise Refused with 404 if there is no such subscription."""
    subscription_id = call.path["subscription_id"]
    row = crud.existing_row(call, "subscription", subscription_id)
    return _explanations(call, row["endpoint"], [subscription_id])


def _explanations(call: Call, endpoint_id: str, subscription_ids: list[str]) -> Explanations:
    wanted = call.body_as(ExplainRequest).event
    event = _event(wanted)
    read = registry_reader.read_rows(
        call.connection,
        call.ring,
        call.guard,
        endpoint_ids=[endpoint_id],
        subscription_ids=subscription_ids,
        tenant_id=event.tenant_id,
    )
    endpoint = read.endpoints.get(EndpointId(endpoint_id))
    if endpoint is None:
        raise problems.not_found("endpoint")
    items = []
    for subscription_id in map(SubscriptionId, subscription_ids):
        verdict = explain.explain(event, read.subscriptions[subscription_id], endpoint)
        items.append(Explanation(subscription=subscription_id, endpoint=endpoint_id, **verdict._asdict()))
    is_json = wanted.datacontenttype is None
    return Explanations(items=items, catalogue=event_types.explain(call, wanted.type, wanted.data, is_json=is_json))


def _event(wanted: ExplainedEvent) -> Event:
    data, content, kind = orjson.dumps(wanted.data), wanted.data, None
    if wanted.datacontenttype is not None:
        is_bytes = wanted.data is None
        kind = Opaque(PayloadForm.BYTES if is_bytes else PayloadForm.TEXT, wanted.datacontenttype)
        content = {} if is_bytes else wanted.data
    return Event(
        event_id=EventId(wanted.id),
        event_type=wanted.type,
        source=wanted.source,
        tenant_id=TenantId(wanted.tenant_id),
        sub_tenant_id=None if wanted.sub_tenant_id is None else SubTenantId(wanted.sub_tenant_id),
        time=wanted.time,
        data=data,
        content=content,
        record=Record(topic=wanted.source, partition=0, offset=0, appended_at_ms=0, value=data),
        attributes=tuple(wanted.attributes.items()),
        opaque=kind,
    )


ROUTES = (
    Route(
        method="POST", path="/v1/endpoints/{endpoint_id}/explain", name="explainForEndpoint",
        summary="Explain whether an event would go to an endpoint, by which subscription, and which rule decides.",
        scopes=routes.REGISTRY_READERS, handler=for_endpoint, body=ExplainRequest, answer=Explanations,
    ),
    Route(
        method="POST", path="/v1/subscriptions/{subscription_id}/explain", name="explainForSubscription",
        summary="Explain whether an event would match a subscription, and which rule decides.",
        scopes=routes.REGISTRY_READERS, handler=for_subscription, body=ExplainRequest, answer=Explanations,
    ),
)  # fmt: skip
