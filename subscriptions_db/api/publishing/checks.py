"""Check the events of a publishing request, and find their topics. Pure.

Runs in the API. The job's own parser checks each event. The job rejects an event that was accepted here in two cases only:

1. The tenant is not registered or not active. No check asks Postgres.
2. `source.reused_ids` is `rejected`, and an event with the same source and id had another payload.

Besides events that the request's API key may not publish, the API refuses two kinds of events that the job takes:

1. An event without an id: its publisher could not repeat it.
2. A payload that begins with a schema's id, in a topic that matches `schema_registry.topic_pattern`: no check asks the schema
   registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from delivery import errors
from delivery.config import lane_areas, plan_builder, settings, topic_pattern
from delivery.model import Event, EventId, Record
from delivery.registry_model import TenantId
from delivery.webhooks.events import attributes, parsing
from delivery.webhooks.formats import wire_format
from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing.bodies import EventsOfBody, Headers, UncheckedEvent

MAX_MISTAKES = 100
"""Most refused events that an answer names."""
PARTITION_KEY = "partitionkey"
"""The extension attribute of CloudEvents that becomes the key of the record (Kafka Protocol Binding, section 3.1)."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NOWHERE = -1
"""Partition and offset of a record that is not in Kafka yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that decide which events may be published."""

    layout: parsing.Layout
    topic_pattern: str
    """Pattern of the topics that the job reads."""
    own_topics: frozenset[str]
    """Topics that only the platform writes."""
    framed_topics: str
    """Pattern of the topics whose values may begin with a schema's id (the wire format of a schema registry). Empty: none."""
    publisher_sources: str
    """Text with which the source of an event must begin if the publisher's key is limited to tenants. `{tenant}` stands for the
    event's tenant. Empty: any source."""

    @classmethod
    def of(cls, config: settings.Settings) -> Rules:
        """Return the rules in the settings."""
        delivery = config.delivery
        own = {delivery.attempts_topic, delivery.dead_letter_topic, delivery.rejected_topic, delivery.retries_topic}
        return cls(
            layout=plan_builder.layout_of(config),
            topic_pattern=config.source.topic_pattern,
            own_topics=frozenset(own | {config.operations.topic} | lane_areas.wakeup_topics(config)),
            framed_topics=config.schema_registry.topic_pattern,
            publisher_sources=config.api.publisher_sources,
        )


class Publication(NamedTuple):
    """A checked event, as its record in Kafka."""

    topic: str
    value: bytes | None
    """None: a CloudEvent without a payload."""
    key: bytes | None
    headers: Headers
    tenant_id: TenantId
    event_id: EventId
    source: str
    place: str
    """Place of the event in the request's body, such as `[3]`. Empty: the body is the event."""


def checked(found: EventsOfBody, rules: Rules, *, topic: str | None, now_ms: int) -> list[Publication]:
    """Return the events with their topics.

    Raise Refused with 422 if any event is wrong. The refusal names the first MAX_MISTAKES wrong events.

    `topic` is the topic of all events. None: each event's type names its topic.
    """
    publications, wrong = [], []
    for index, event in enumerate(found.events):
        place = f"[{index}]" if found.is_batch else ""
        try:
            publications.append(_checked(event, rules, topic, now_ms, place))
        except errors.EventRejected as exc:
            wrong.append((place, f"{exc.reason}: {exc.detail}"))
    if wrong:
        raise _refused(422, wrong)
    return publications


def require_tenants(publications: list[Publication], tenants: frozenset[TenantId] | None, rules: Rules) -> None:
    """Raise Refused with 403 if an event's tenant is not one of `tenants`, or if its source does not fit its tenant.

    `Rules.publisher_sources` says which sources fit. `tenants` None: the key may publish for every tenant, with any source.
    """
    if tenants is not None:
        wrong = _named(publications, lambda event: _tenant_problem(event, tenants, rules))
        if wrong:
            raise _refused(403, wrong)


def require_topics(publications: list[Publication], missing: frozenset[str]) -> None:
    """Raise Refused with 422 if an event's topic is one of `missing`, the topics that Kafka did not list."""
    if missing:
        wrong = _named(
            publications,
            lambda event: (
                f"topic {event.topic} does not exist, or the platform may not write to it: ask the operator to create it "
                f"(kafka-topics --create --topic {event.topic})"
                if event.topic in missing
                else ""
            ),
        )
        raise _refused(422, wrong)


def _checked(unchecked: UncheckedEvent, rules: Rules, topic: str | None, now_ms: int, place: str) -> Publication:
    """Return the event with its topic, and its place in the body.

    Raise EventRejected if the job would reject the event, or if nobody may publish to its topic. Raise it also for the two
    kinds of events that only the API refuses (the module's docstring lists these kinds).
    """
    layout = rules.layout
    wanted = topic or layout.topic_prefix + _type_of(unchecked, layout)
    record = Record(
        topic=wanted,
        partition=_NOWHERE,
        offset=_NOWHERE,
        appended_at_ms=now_ms,
        value=unchecked.value,
        headers=unchecked.headers,
    )
    if rules.framed_topics and re.fullmatch(rules.framed_topics, wanted) and wire_format.is_framed(unchecked.value or b""):
        raise errors.EventRejected(
            "bad_frame",
            "the value begins with a zero byte, as values in a schema registry's format do, and this API does not take them: "
            "send JSON, or write the value to Kafka",
        )
    event = parsing.parse(record, layout)
    if topic is None and wanted == layout.topic_prefix:
        raise errors.EventRejected(
            "missing_attribute",
            "the event has no type, and without ?topic= the type names the topic: add a type, or name a topic with ?topic=",
        )
    if problem := _topic_problem(wanted, rules):
        raise errors.EventRejected("bad_topic", problem)
    if event.event_id == f"{wanted}:{_NOWHERE}:{_NOWHERE}":
        name = ".".join(layout.id_path)
        raise errors.EventRejected(
            "missing_attribute",
            f"the event has no {name}: give each event one, so that a repeat after a lost answer is harmless",
        )
    return Publication(
        topic=wanted,
        value=unchecked.value,
        key=_key_of(event),
        headers=unchecked.headers,
        tenant_id=event.tenant_id,
        event_id=event.event_id,
        source=event.source,
        place=place,
    )


def _type_of(unchecked: UncheckedEvent, layout: parsing.Layout) -> str:
    """Return an event's type as text. Empty: the type is missing, or cannot be read.

    A type cannot be read in two cases:
    1. It is neither text, a whole number nor a boolean.
    2. No header has the type, and the record's value is missing or not JSON.

    The parser refuses these events. It also refuses a boolean type, returned as `True` or `False`.
    """
    headers = dict(unchecked.headers)
    if "ce_type" in headers:
        return headers["ce_type"].decode(errors="replace")
    if unchecked.value is None:
        return ""
    try:
        found: Any = orjson.loads(unchecked.value)
    except orjson.JSONDecodeError:
        return ""
    for key in ("type",) if headers else layout.type_path:
        found = found.get(key) if isinstance(found, dict) else None
    return str(found) if isinstance(found, str | int) else ""


def _tenant_problem(event: Publication, tenants: frozenset[TenantId], rules: Rules) -> str:
    """Return the reason why a key limited to `tenants` may not publish an event; empty if it may."""
    if event.tenant_id not in tenants:
        return f"the key may not publish for tenant {event.tenant_id}: use a key for this tenant"
    wanted = rules.publisher_sources.replace("{tenant}", event.tenant_id)
    if not event.source.startswith(wanted):
        return (
            f"the source of tenant {event.tenant_id}'s events begins with {wanted} (api.publisher_sources): "
            "publish a CloudEvent with such a source"
        )
    return ""


def _topic_problem(topic: str, rules: Rules) -> str:
    """Return the reason why nobody may publish to a topic; empty if publishers may."""
    if not _TOPIC.fullmatch(topic):
        return f"{topic[:80]!a} is no name of a topic: use 1 to 249 letters, digits, `.`, `_` or `-`"
    if topic in rules.own_topics:
        return f"topic {topic} is the platform's own: name another topic"
    if not topic_pattern.matches(rules.topic_pattern, topic):
        return f"topic {topic} does not match source.topic_pattern, so the platform would not read it: name another topic"
    return ""


def _key_of(event: Event) -> bytes | None:
    for name, value in event.attributes:
        if name == PARTITION_KEY:
            return attributes.as_text(value).encode() or None
    return None


def _named(publications: Iterable[Publication], problem_of: Callable[[Publication], str]) -> list[tuple[str, str]]:
    """Return the place in the body and the problem of each event that has a problem."""
    return [(event.place, problem) for event in publications if (problem := problem_of(event))]


def _refused(status: int, wrong: list[tuple[str, str]]) -> problems.Refused:
    """Return a refusal whose field `errors` has the first MAX_MISTAKES wrong events. Its `detail` has only the first event."""
    (place, problem), more = wrong[0], len(wrong) - 1
    first = (f"{place}: {problem}" if place else problem) + (f" ({more} more)" if more else "")
    return problems.Refused(status, f"{first}. Nothing was published", *wrong[:MAX_MISTAKES])
