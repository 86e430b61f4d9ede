"""Describe the types of problems: the meaning of each code, what a client does about the problem, and an example. Pure.

Runs in the API, in `fanout openapi` and in `make docs`. The API answers each refused request with `document`. The API serves a
page for each type (documents/problem_pages.py), and `make docs` writes the same pages. `fanout openapi` prints the examples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from subscriptions_db.api.contract import problems

PATH = "/v1/problems"
"""The path of the page that lists all types. The page of a type is one level below."""

REQUEST_ID = "req_0123456789abcdef01234567"
"""The id of the request in the examples."""


class ProblemType(NamedTuple):
    """The meaning of a problem's code, what a client does about the problem, and an example."""

    meaning: str
    remedy: str
    example: problems.Refused


TYPES = {
    "invalid": ProblemType(
        "A field, a parameter or a header of the request is invalid, or the request is not valid HTTP.",
        "Correct the fields that errors names. The same request is refused again.",
        problems.invalid(("url", "the address is not allowed: an endpoint is a public https address")),
    ),
    "unauthenticated": ProblemType(
        "The request has no API key, or one that is unknown, revoked or expired. Or its token is not valid.",
        "Send the header Authorization: Bearer fk_… with a valid key, or a new token of the operator's identity provider.",
        problems.Refused(
            401, "the key is unknown, revoked or expired: send another one", headers={"www-authenticate": "Bearer"}
        ),
    ),
    "forbidden": ProblemType(
        "The scope of the API key or token, or the key's limit to endpoints, does not allow the request. Or an event is of a "
        "tenant for which the key may not publish.",
        "Use another key. GET /v1/openapi.json lists the scopes of each operation. The field errors names the refused events.",
        problems.Refused(403, "scope read_only does not allow this: use a key or token of another scope"),
    ),
    "not_found": ProblemType(
        "The path or the resource does not exist, or publishing over HTTP is off. Resources of other customers, and those "
        "beyond a key's limit to endpoints, do not exist for the key.",
        "Check the path and the id. Lists show the ids that the key may see. The operator turns publishing on with "
        "api.publishing.",
        problems.not_found("endpoint"),
    ),
    "method_not_allowed": ProblemType(
        "The path exists, but does not take this method.",
        "Use one of the methods in the header Allow.",
        problems.Refused(405, "the path does not take this method: use one in Allow", headers={"allow": "GET, HEAD, POST"}),
    ),
    "too_slow": ProblemType(
        "The body of events to publish did not arrive completely in time. Nothing was published.",
        "Send the events again, over a faster connection or in smaller parts.",
        problems.Refused(408, "the body did not arrive in 5 s, so nothing was published: send it faster, or in smaller parts"),
    ),
    "conflict": ProblemType(
        "The request is valid, but the present state does not allow it. For example, the endpoint is disabled, or the id is "
        "taken.",
        "Change the state that detail names, and repeat the request.",
        problems.Refused(409, "the endpoint is disabled, so nothing was changed: enable it first"),
    ),
    "precondition_failed": ProblemType(
        "The resource is not the one in If-Match, or it is the one in If-None-Match. Nothing was changed.",
        "Get the resource again, decide again on the change, and send the change with the new ETag.",
        problems.Refused(
            412, "the resource is not the one in If-Match, so nothing was changed: get it again, and decide again on the change"
        ),
    ),
    "too_large": ProblemType(
        "The body is larger than api.max_body_bytes, it has more than 1,000 events to publish, or one event is larger than its "
        "topic or the platform's Kafka client takes.",
        "Send less in one request, or a smaller event.",
        problems.Refused(413, "the body has more than 1048576 bytes: send less in one request"),
    ),
    "unsupported": ProblemType(
        "The content type of the body is missing, or the operation does not take it.",
        "Send Content-Type: application/json, or another type of the operation.",
        problems.Refused(415, "the body's content type is missing, or is not taken here: send content-type application/json"),
    ),
    "rate_limited": ProblemType(
        "One API key or token sent too many requests, bytes or events, or one customer has too many waiting "
        "requests. Or one endpoint got another test event or validation request within the last second. Or all clients "
        "together sent too many requests with unknown keys or tokens. Or all receivers together sent too many callbacks. "
        "Nothing was changed, sent or published.",
        "Repeat the request after the seconds in Retry-After. RateLimit-Remaining says how many requests may be sent at once. "
        "For requests that publish, it is the number of requests with one event each.",
        problems.Refused(429, "more than 50 requests a second with one key: try again in 1 s", headers={"retry-after": "1"}),
    ),
    problems.TENANT_RATE_LIMITED: ProblemType(
        "The API keys of all publishers together sent more than api.max_tenant_events_per_s events a second of one tenant, "
        "which detail names. No event of the request was published, also not those of other tenants.",
        "Repeat the request after the seconds in Retry-After, or send the events of other tenants in a request of their own. "
        "In answers to published events, RateLimit-Remaining shows this limit if it is nearer than the limits of the key.",
        problems.Refused(
            429,
            "more than 1000 events a second of tenant t1, by all keys together: nothing was published, try again in 1 s",
            headers={"retry-after": "1"},
            code=problems.TENANT_RATE_LIMITED,
        ),
    ),
    problems.QUOTA: ProblemType(
        "The request would give the customer more endpoints, subscriptions or consumers of dead letters than its quota allows, "
        "or its subscriptions more tenants and sub-tenants. "
        "Or the customer asks for a replay, and has as many waiting dead letters as its quota allows. Or a tenant of the "
        "request has published its events of the day (api.max_tenant_events_per_day). detail names the quota. Nothing was "
        "changed or published.",
        "Delete resources of the kind, redrive or discard dead letters, or ask the operator for a larger quota. For the quota "
        "of events, Retry-After has the seconds until the next day in UTC. For the other quotas waiting does not help.",
        problems.quota_reached(
            "you have 50 endpoints, and your quota is 50. Nothing was created: delete some, or ask the operator for a larger "
            "quota"
        ),
    ),
    "internal": ProblemType(
        "The platform failed in a way that it did not expect.",
        "Repeat the request later. Repeat a change with the same Idempotency-Key. If it fails again, send the operator the "
        "request_id.",
        problems.Refused(500, problems.INTERNAL),
    ),
    "unavailable": ProblemType(
        "The platform cannot answer now. Postgres is unavailable, a setting is wrong, the keys of the token's provider cannot "
        "be read, or the API is stopping. Or another change locked the same rows for more than a second. Or the request took "
        "too long, or too many requests or bytes of events are in flight or wait. Or Kafka does not answer, or has not "
        "confirmed all events to publish.",
        "Repeat the request after the seconds in Retry-After. Repeat a change with the same Idempotency-Key. Repeat events "
        "with the same ids, because Kafka may have some of the events.",
        problems.unavailable("too many requests are in flight, so this one was not executed: try again"),
    ),
}
"""The code of a problem document → its description."""


def uri(code: str, public_url: str) -> str:
    """Return the `type` of a problem document: a URL below `public_url`, or a path of the API if `public_url` is empty."""
    return f"{public_url}{PATH}/{code}"


def document(problem: problems.Problem, public_url: str, request_id: str) -> dict[str, Any]:
    """Return the problem document of a refused request. Its `type` is the result of `uri` for the problem's code."""
    return problem.model_dump() | {"type": uri(problem.code, public_url), "request_id": request_id}
