"""Warn about subscriptions that are allowed but are probably mistakes.

Runs in `fanout` commands and in the API. With the option `strict`, `fanout apply` and the API refuse such subscriptions.

1. A filter names a top-level field that not every event has.
2. A subscription names a tenant or sub-tenant that is not registered. The job rejects the events of an unregistered tenant, and
   delivers the events of an unregistered sub-tenant.
3. A subscription has an event type that matches neither the catalogue nor a known topic. The API knows no topics. `fanout`
   commands know no topics while Kafka does not answer.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from delivery import errors
from delivery.registry_model import PLATFORM
from delivery.webhooks.events import attributes
from delivery.webhooks.routing import matching
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

ROOTS = ("id", "type", "source", "tenant_id", "sub_tenant_id", "time", "data")
"""The top-level fields that every event has in the document that filters match (matching.filter_document)."""
_LISTS = {("include", True): "tenants", ("include", False): "sub_tenants",
          ("exclude", True): "except_tenants", ("exclude", False): "except_sub_tenants"}  # fmt: skip


def subscriptions(
    connection: connect.Connection, paths: Mapping[str, str] | None, types: Collection[str] = ()
) -> list[errors.RegistrationError]:
    """Return the warnings about registered subscriptions.

    The warnings about event types and filters come first, then at most 10,000 about tenants. Each group is sorted by
    subscription id. A login that may not read tenants gets no warnings about tenants. `paths` is subscription id → path in a
    document, and only these subscriptions are checked. None: all are checked, with the id as path. `types` are the event types
    that have a topic; empty if the topics are unknown.
    """
    if paths is not None and not paths:
        return []
    ids = None if paths is None else list(paths)
    known = frozenset(types) | {row["event_type"] for row in connection.execute(query("catalogue"))}
    found: list[errors.RegistrationError] = []
    doubts: dict[str, list[errors.RegistrationError]] = {}
    for row in connection.execute(query("lint_subscriptions"), {"ids": ids}):
        at = row["id"] if paths is None else paths[row["id"]]
        wanted = row["event_type"]  # most of 100,000 subscriptions share an event type
        if wanted not in doubts:
            doubts[wanted] = list(event_type(wanted, known, has_topics=bool(types)))
        found += (problem.within(at) for problem in doubts[wanted])
        found += (problem.within(at) for problem in filter_roots(_parsed(row["filter"])))
    if not connection.execute(query("reads_tenants")).fetchall()[0]["reads_tenants"]:
        return found  # a customer's request: it may not read the tenants, and can only name granted ones
    for row in connection.execute(query("lint_scopes"), {"ids": ids}):
        at = row["id"] if paths is None else paths[row["id"]]
        found.append(_unregistered(row).within(at))
    return found


def event_type(wanted: str, known: Collection[str], *, has_topics: bool) -> Iterator[errors.RegistrationError]:
    """Yield a warning if `wanted`, the event type or prefix wildcard of a subscription, matches no type in `known`.

    Types of operational events get no warning. While `known` is empty, no type gets a warning. With `has_topics`, `known`
    includes the event types of the topics, and the warning says so.
    """
    is_own = wanted.startswith(f"{PLATFORM}.")  # operational events are in no catalogue
    if is_own or not known or any(matching.takes_type(wanted, known_type) for known_type in known):
        return
    close = difflib.get_close_matches(wanted, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ": correct it, or register the type"
    no_topic = " and no topic" if has_topics else ""
    yield errors.RegistrationError("event_type", f"{wanted} matches no event type of the catalogue{no_topic}{meant}")


def _parsed(text: str | None) -> Any:
    """Return a parsed filter; None without a filter, or if its text cannot be parsed: the job quarantines that subscription."""
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def filter_roots(pattern: Any, path: str = "filter") -> Iterator[errors.RegistrationError]:
    """Yield a warning for each top-level field of a filter pattern, or of its `$or` branches, that not every event has."""
    if not isinstance(pattern, dict):  # no filter, or one that plain SQL wrote; the snapshot quarantines that
        return
    for name, wanted in pattern.items():
        if name == "$or":
            for number, branch in enumerate(wanted if isinstance(wanted, list) else ()):
                yield from filter_roots(branch, f"{path}.$or[{number}]")
        elif name not in ROOTS:
            yield errors.RegistrationError(f"{path}.{name}", _root_meant(name, wanted))


def _root_meant(name: str, wanted: Any) -> str:
    close = difflib.get_close_matches(name, ROOTS, n=1, cutoff=0.75)
    meant = f"{close[0]}?" if close else f"data.{name}? Payload fields are under data"
    if attributes.is_name(name) and not isinstance(wanted, dict):
        return f"matches only events that have the CloudEvents attribute {name}; did you mean {meant}"
    return f"is not a field of an event ({', '.join(ROOTS)}); did you mean {meant}"


def _unregistered(row: Mapping[str, Any]) -> errors.RegistrationError:
    is_tenant = row["sub_tenant_id"] is None
    field = _LISTS[row["effect"], is_tenant]
    path = field if is_tenant else f"{field}.{row['tenant_id']}"
    if is_tenant or not row["has_tenant"]:
        return errors.RegistrationError(path, f"tenant {row['tenant_id']} is not registered: register it, or correct the id")
    return errors.RegistrationError(
        path,
        f"sub-tenant {row['sub_tenant_id']} of tenant {row['tenant_id']} is not registered: register it, or correct the id",
    )
