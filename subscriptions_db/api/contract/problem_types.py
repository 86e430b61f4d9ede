"""Describe the types of problems, and render the page to which the `type` of a problem document leads. Pure.

Runs in the API, which serves the page as HTML, and in `make docs`, which writes docs/problems.md.
"""

from __future__ import annotations

import html
from typing import NamedTuple

from subscriptions_db.api.contract import problems

PATH = "/v1/problems"
"""The path of the page."""


class ProblemType(NamedTuple):
    """The meaning of a code of problem documents, and what a client does about the problem."""

    meaning: str
    remedy: str


TYPES = {
    "invalid": ProblemType(
        "A field, a parameter or a header of the request is invalid, or the request is not valid HTTP.",
        "Correct the fields that errors names. The same request is refused again.",
    ),
    "unauthenticated": ProblemType(
        "The request has no API key, or one that is unknown, revoked or expired. Or its token is not valid.",
        "Send the header Authorization: Bearer fk_… with a valid key, or a new token of the operator's provider.",
    ),
    "forbidden": ProblemType(
        "The scope of the API key or token, or the key's limit to endpoints, does not allow the request, or an event is of a "
        "tenant for which the key may not publish.",
        "Use another key. GET /v1/openapi.json lists the scopes of each operation, and errors names the events.",
    ),
    "not_found": ProblemType(
        "The path or the resource does not exist, the resource belongs to another customer, or publishing over HTTP is off.",
        "Check the path and the id. Lists show the ids that the key may see. The operator turns publishing on with "
        "api.publishing.",
    ),
    "method_not_allowed": ProblemType(
        "The path exists, but does not take this method.", "Use one of the methods in the header Allow."
    ),
    "too_slow": ProblemType(
        "The request, or the body of events to publish, did not arrive completely in time.",
        "Send it again, over a faster connection or in smaller parts.",
    ),
    "conflict": ProblemType(
        "The request is valid, but the present state does not allow it. For example, the endpoint is disabled, or the id is "
        "taken.",
        "Change the state that detail names, and repeat the request.",
    ),
    "precondition_failed": ProblemType(
        "The resource is not the one in If-Match, or it is the one in If-None-Match. Nothing was changed.",
        "Get the resource again, decide again on the change, and send the change with the new ETag.",
    ),
    "too_large": ProblemType(
        "The body is larger than api.max_body_bytes, it has more than 1,000 events to publish, or one event is larger than its "
        "topic takes.",
        "Send less in one request, or a smaller event.",
    ),
    "unsupported": ProblemType(
        "The body has a content type that the operation does not take.",
        "Send Content-Type: application/json, or another type of the operation.",
    ),
    "rate_limited": ProblemType(
        "One API key sent too many requests or events, one customer has too many waiting requests, or one endpoint got another "
        "test event or question within the last second. Nothing was changed.",
        "Repeat the request after the seconds in Retry-After. RateLimit-Remaining says how many requests may be sent at once. "
        "For requests that publish, it is the number of requests with one event each.",
    ),
    problems.TENANT_RATE_LIMITED: ProblemType(
        "The API keys of all publishers together sent more than api.max_tenant_events_per_s events a second of one tenant, "
        "which detail names. Nothing was published, also of the other tenants of the request.",
        "Repeat the request after the seconds in Retry-After, or send the events of other tenants in a request of their own.",
    ),
    problems.QUOTA: ProblemType(
        "The customer has as many endpoints, subscriptions or consumers of dead letters as its quota allows. detail names the "
        "quota. Nothing was changed.",
        "Delete some, or ask the operator for a larger quota. Waiting does not help, so the answer has no Retry-After.",
    ),
    "internal": ProblemType(
        "The platform failed in a way that it did not expect.",
        "Repeat the request later. Repeat a change with the same Idempotency-Key. If it fails again, send the operator the id.",
    ),
    "unavailable": ProblemType(
        "The platform cannot answer now: Postgres is unavailable, a setting is wrong, too many requests are in flight, the "
        "request took too long, Kafka has not confirmed all events to publish, or the provider of the token is away.",
        "Repeat the request after the seconds in Retry-After. Repeat a change with the same Idempotency-Key. Repeat events "
        "with the same ids, because Kafka may have some of the events.",
    ),
}
"""The code of a problem document → its description."""
HEAD = """\
# Problems

<!-- Generated from subscriptions_db/api/contract/problem_types.py by `make docs`. -->

Each refusal of the [HTTP API](api.md#refusals) is a problem document (RFC 9457). Its `type` leads to the section of its
`code` on a page that the API serves, `/v1/problems`. This document has the same text.
"""
_STYLE = "body{font-family:sans-serif;max-width:45em;margin:2em auto;padding:0 1em}"


def uri(code: str, public_url: str) -> str:
    """Return the `type` of a problem document: a URL below `public_url`, or a path of the API if `public_url` is empty."""
    return f"{public_url}{PATH}#{code}"


def document() -> str:
    """Return docs/problems.md."""
    sections = (
        f"\n## {code}\n\nStatus {_statuses(code)}. {described.meaning}\n\n**What to do:** {described.remedy}\n"
        for code, described in TYPES.items()
    )
    return HEAD + "".join(sections)


def page() -> str:
    """Return the page with all types, as HTML."""
    sections = (
        f'<h2 id="{code}">{code}</h2><p>Status {_statuses(code)}. {html.escape(described.meaning)}</p>'
        f"<p><b>What to do:</b> {html.escape(described.remedy)}</p>"
        for code, described in TYPES.items()
    )
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Problems</title><style>{_STYLE}</style><h1>Problems</h1>'
    )
    return head + "".join(sections)


def _statuses(code: str) -> str:
    if code in problems.OTHER_TITLES:
        return str(problems.OTHER_TITLES[code][0])
    return " or ".join(str(status) for status, (known, _) in problems.TITLES.items() if known == code)
