"""Explain whether an event is due to a subscription, and which rule decides. Pure.

Runs in the API. `fanout filter try` uses only `filter_detail`. The rules are those of delivery.webhooks.routing.matching, here
evaluated one by one. A property test compares both modules.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from delivery.model import Event, SkipReason
from delivery.payload_form import PayloadForm
from delivery.registry_model import PLATFORM, Endpoint, EndpointStatus, Subscription
from delivery.webhooks.filters import event_pattern
from delivery.webhooks.routing import matching

MAX_PARTS = 30
"""Maximum of fields of a filter for which `differing_fields` names those that do not match. Each field is compiled as a filter
of its own, so the maximum limits the cost of a request to the API."""


class Rule(enum.StrEnum):
    """The rule that decided about an event at a subscription. A closed set: the API returns it."""

    EVENT_TYPE = "event_type"
    SCOPE = "scope"
    EXCLUSION = "exclusion"
    FILTER = "filter"
    QUARANTINED = "quarantined"
    SUBSCRIPTION_PAUSED = "subscription_paused"
    ENDPOINT_PAUSED = "endpoint_paused"
    ENDPOINT_DISABLED = "endpoint_disabled"
    MATCHES = "matches"


class Explanation(NamedTuple):
    """The verdict on one subscription: True if an event is due to it, and the reason."""

    is_due: bool
    """True also if the due event would be skipped or would wait. `rule` distinguishes these cases."""
    rule: Rule
    detail: str
    """The reason, for a person."""


def explain(event: Event, subscription: Subscription, endpoint: Endpoint) -> Explanation:
    """Return the verdict on `event` at `subscription`: whether it is due, and the first rule that decides.

    The rules are checked in this order. The status of the event's tenant is not checked.
    1. The type, the scope, an exclusion or the filter rules the event out: the event is not due.
    2. The subscription is quarantined or paused: the event is due, and would be skipped. The filter of a quarantined
       subscription is not evaluated.
    3. The endpoint is quarantined, paused or disabled: the event is due, and would wait.
    4. No rule above applies: the event is due, and would be sent.
    """
    pattern = subscription.event_type
    if not matching.takes_type(pattern, event.event_type):
        return Explanation(False, Rule.EVENT_TYPE, f"the type {event.event_type} does not match {pattern}")
    scope = subscription.scope
    pair = (event.tenant_id, event.sub_tenant_id)
    is_everything = scope.everything and event.tenant_id != PLATFORM
    if not (is_everything or event.tenant_id in scope.tenants or pair in scope.sub_tenants):
        return Explanation(False, Rule.SCOPE, "neither the tenant nor the sub-tenant is included")
    if matching.is_excluded(event, subscription):
        return Explanation(False, Rule.EXCLUSION, "the tenant or the sub-tenant is excluded")
    if subscription.filter_pattern is not None and not subscription.fault:
        document = matching.filter_document(event)
        if not event_pattern.compile_pattern(subscription.filter_pattern).matches(document):
            return Explanation(False, Rule.FILTER, filter_detail(subscription.filter_pattern, event, document))
    return _due(subscription, endpoint)


def _due(subscription: Subscription, endpoint: Endpoint) -> Explanation:
    match matching.skip_reason(subscription):
        case SkipReason.QUARANTINED:
            return Explanation(True, Rule.QUARANTINED, f"the event would be skipped: {subscription.fault}")
        case SkipReason.SUBSCRIPTION_PAUSED:
            return Explanation(True, Rule.SUBSCRIPTION_PAUSED, "the event would be skipped: the subscription is paused")
    if endpoint.fault:
        return Explanation(True, Rule.QUARANTINED, f"the event would wait: {endpoint.fault}")
    if endpoint.status is EndpointStatus.PAUSED:
        return Explanation(True, Rule.ENDPOINT_PAUSED, "the event would wait: the endpoint is paused")
    if endpoint.status is EndpointStatus.DISABLED:
        return Explanation(True, Rule.ENDPOINT_DISABLED, "the event would wait: the endpoint is disabled")
    return Explanation(True, Rule.MATCHES, "the event would be sent if its tenant is registered and active")


def filter_detail(pattern: Mapping[str, Any], event: Event, document: Mapping[str, Any]) -> str:
    """Return a sentence that says why a filter does not match an event. Call it only for a filter that does not match.

    `document` is the event's `matching.filter_document`.
    """
    detail = differing_fields(pattern, document)
    match event.opaque:
        case None:
            return detail
        case PayloadForm.NONE, _:
            return f"{detail}; the event has no payload"
        case PayloadForm.BYTES, media_type:
            return f"{detail}; the payload is {media_type}: a filter sees no field of it"
        case _, media_type:
            return f"{detail}; the payload is {media_type}: a filter sees it as one text, data"


def differing_fields(pattern: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return a sentence that names the fields of a filter that do not match `document`.

    A nested field is named by its path, such as `data.amount`. The branches of an `$or` are one field.
    The sentence names no field in three cases: the filter has more than MAX_PARTS fields, each field matches by itself, or the
    filter needs too many tests of array elements.
    """
    if event_pattern.compile_pattern(pattern).is_too_costly(document):
        return (
            f"the filter needs more than {event_pattern.MAX_ELEMENT_TESTS:,} tests of array elements for the event: "
            "use fewer branches, wildcards and anything-but for fields in long arrays"
        )
    conditions = list(itertools.islice(_parts(pattern), MAX_PARTS + 1))
    if len(conditions) > MAX_PARTS:
        return f"the filter does not take the event; the filter has more than {MAX_PARTS} fields, so none is named"
    failing = [".".join(path) for path, part in conditions if not event_pattern.compile_pattern(part).matches(document)]
    if not failing:
        return "each field matches somewhere, but no one element of an array matches all of them"
    return f"the filter does not take {', '.join(failing)}"


def _parts(pattern: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield each field of a filter with its path, as a filter of its own. The branches of `$or` stay together."""
    for name, wanted in pattern.items():
        if isinstance(wanted, dict):
            for path, part in _parts(wanted):
                yield (name, *path), {name: part}
        else:
            yield (name,), {name: wanted}
