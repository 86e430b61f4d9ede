"""Build the problem documents of refused requests (RFC 9457, problem+json), and translate the platform's errors into them.

Log the error behind a 503, or behind a 409 for a stored secret that cannot be opened. The client does not get the text of this
error.

Runs in the API. `fanout openapi` and `make docs` build problems too, for the examples.
"""

from __future__ import annotations

import collections
import logging
import math
import re
import time
from collections.abc import Callable

import pydantic

from delivery import errors
from subscriptions_db import described
from subscriptions_db.manifest import mistakes

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
ABOUT_NOTHING = "about:blank"
"""The `type` of a problem until `problem_types.document` sets the URL of its page."""
RETRY_AFTER_S = 2
"""Seconds in `Retry-After` of a 503, and of a 429 for too many waiting requests or bytes of events. A guess: the API cannot
know when the cause ends."""
LOG_EVERY_S = 1.0
"""Least seconds between two log lines about one kind of cause. While Postgres is away, each request has the same cause."""
_ROW = re.compile(r"^(tenants|customers|endpoints|subscriptions|event_types)\[0\]\.?")
"""The beginning of a path in the API's one-row manifest, such as `endpoints[0].`. Clients get paths without this beginning."""


class FieldError(described.DescribedModel):
    """One invalid field, parameter or header, or one refused event."""

    field: str
    """The path of the field in the request, such as `retry.schedule_s[2]`, or the name of the parameter or header. `[2]` is the
    third event of a body. Empty: the whole body."""
    problem: str
    """The mistake, and the correction."""


class Problem(described.DescribedModel):
    """The reason why a request was refused (RFC 9457)."""

    type: str
    """A URI that leads to the description of `code`. A path is relative to the API."""
    title: str
    """The meaning of the code, for people."""
    status: int
    """The HTTP status."""
    code: str
    """One of: unauthenticated, forbidden, not_found, method_not_allowed, too_slow, conflict, precondition_failed, too_large,
    unsupported, invalid, rate_limited, tenant_rate_limited, quota, internal, unavailable."""
    detail: str
    """The cause in this case, and the remedy, for people."""
    errors: list[FieldError] = pydantic.Field(default=[])
    """The invalid fields, or the refused events. Empty if the problem has another cause."""
    request_id: str | None = None
    """The `X-Request-Id` of the answer. The platform's log has the same id."""


TITLES = {
    400: ("invalid", "The request is not valid HTTP"),
    401: ("unauthenticated", "The request has no valid API key"),
    403: ("forbidden", "The API key does not allow this"),
    404: ("not_found", "The resource does not exist"),
    405: ("method_not_allowed", "The path does not allow this method"),
    408: ("too_slow", "The request arrived too slowly"),
    409: ("conflict", "The current state does not allow this"),
    412: ("precondition_failed", "The resource is not the expected one"),
    413: ("too_large", "The request is too large"),
    415: ("unsupported", "The body has another content type than the operation takes"),
    422: ("invalid", "The request is invalid"),
    429: ("rate_limited", "Too many requests"),
    500: ("internal", "Internal error"),
    503: ("unavailable", "The service is temporarily unavailable"),
}
"""HTTP status → code and title of its problem document."""
TENANT_RATE_LIMITED = "tenant_rate_limited"
QUOTA = "quota"
OTHER_TITLES = {
    TENANT_RATE_LIMITED: (429, "Too many events of one tenant"),
    QUOTA: (429, "A quota is used up"),
}
"""Code → status and title, for each code that shares its status with a code of TITLES."""
INTERNAL = (
    "the platform failed unexpectedly, and a change may have been made: repeat the request later. Repeat a change with the "
    "same Idempotency-Key. The platform's log has the cause"
)
"""The `detail` of the answer to a request that failed unexpectedly."""


class Refused(Exception):
    """Raised to refuse a request, with the problem document and the additional headers of the answer."""

    def __init__(
        self,
        status: int,
        detail: str,
        *wrong: tuple[str, str],
        headers: dict[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        """`wrong` has the path and the problem of each invalid field. `code` is a key of OTHER_TITLES.

        `code` None: the problem document has the code of `status` in TITLES.
        """
        super().__init__(status, detail)
        self.headers = headers or {}
        self.cause: errors.FanoutError | None = None
        """The error that CauseLog logs, and whose text the answer does not have. None: CauseLog logs nothing."""
        known, title = (code, OTHER_TITLES[code][1]) if code else TITLES[status]
        found = [FieldError(field=field, problem=problem) for field, problem in wrong]
        self.problem = Problem(type=ABOUT_NOTHING, title=title, status=status, code=known, detail=detail, errors=found)


def not_found(kind: str) -> Refused:
    """Return the 404 for a resource that does not exist, and for one that the principal may not see."""
    return Refused(404, f"there is no such {kind.replace('_', ' ')}, or the key may not see it: check the id")


def question_closed() -> Refused:
    """Return the 404 for a callback whose request for permission does not exist, or can no longer be answered."""
    return Refused(
        404,
        "there is no such validation request, or it can no longer be answered: let the owner of the endpoint send another one",
    )


def quota_reached(detail: str) -> Refused:
    """Return the 429 for a request beyond a customer's quota. It has no `Retry-After`, because waiting does not help."""
    return Refused(429, detail, code=QUOTA)


def invalid(*wrong: tuple[str, str]) -> Refused:
    """Return a 422 that names each invalid field. Each item of `wrong` has a field's path (empty: the body) and its problem."""
    return Refused(422, "; ".join(f"{field}: {problem}" if field else problem for field, problem in wrong), *wrong)


def unavailable(detail: str) -> Refused:
    """Return a 503 with `Retry-After`: the same request may succeed later."""
    return Refused(503, detail, headers={"retry-after": str(RETRY_AFTER_S)})


def not_ready(exc: errors.FanoutError) -> Refused:
    """Return a refusal with 503, the answer of `/readyz` while the registry cannot be used because of `exc`."""
    if isinstance(exc, errors.RegistryOutdated):
        return unavailable(
            "the registry's schema does not fit this version, so this process is not ready: the log says what to do, mostly "
            "`fanout db migrate`"
        )
    return unavailable("the registry cannot be read, so this process is not ready: the log of this process says why")


def from_validation(exc: pydantic.ValidationError, model: type[pydantic.BaseModel] | None = None) -> Refused:
    """Return the 422 for a body or a query that pydantic refuses.

    `model` is the type of the body or query. For an unknown field, the answer names the known field in the same object with
    the most similar name. If no name is similar, the answer lists all known fields of this object. `model` None: the answer
    names no known field.
    """
    return invalid(*((mistake.path, mistake.problem) for mistake in mistakes.found(exc, model)))


def from_error(exc: errors.FanoutError) -> Refused:
    """Return the refusal for an error of the platform (delivery/errors.py), with 422, 409 or 503.

    Each error is the `cause` of its refusal, except a RegistrationError, which the client can correct.
    """
    if isinstance(exc, errors.RegistrationError):
        found = exc.found if isinstance(exc, errors.ManifestRefused) else (exc,)
        return invalid(*((_ROW.sub("", mistake.path), mistake.problem) for mistake in found))
    if isinstance(exc, errors.SealError):
        refused = Refused(
            409,
            "a stored secret of the endpoint can no longer be opened, so nothing was changed: send auth and tls in full, or "
            "ask the operator",
        )
    elif isinstance(exc, errors.SettingsError):
        refused = unavailable(
            "the service is misconfigured, and nothing was changed: ask the operator, whose log names the setting, then try "
            "again"
        )
    else:
        # Without the text of Postgres, which may name hosts and roles.
        refused = unavailable(
            "the registry cannot be read or changed now, and a change may be stored already: try again. Repeat a change with "
            "its Idempotency-Key"
        )
    refused.cause = exc
    return refused


class CauseLog:
    """Log the causes of refusals: for each kind of cause, at most one line in LOG_EVERY_S seconds. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[tuple[type, type], float] = {}
        """Kind of cause → the time of the last line about this kind. A kind is the class of the error, with the class of the
        error that caused it."""
        self._left_out: collections.Counter[tuple[type, type]] = collections.Counter()
        """Kind of cause → number of refusals since the last line about this kind, which were not logged."""

    def write(self, refused: Refused, request_id: str) -> None:
        """Log the cause of a refusal, if it has one, unless a line about the same kind of cause is less than LOG_EVERY_S old.

        The field `left_out` of the line is the number of refusals of this kind that were not logged since the last line.
        """
        cause = refused.cause
        if cause is None:
            return
        kind, now = (type(cause), type(cause.__cause__)), self._clock()
        if now - self._logged_at.get(kind, -math.inf) < LOG_EVERY_S:
            self._left_out[kind] += 1
            return
        self._logged_at[kind] = now
        extra = {"request_id": request_id, "left_out": self._left_out.pop(kind, 0)}
        if isinstance(cause, errors.SettingsError):
            said = "requests are answered with 503 until a setting is corrected and the API restarted: %s"
            log.error(said, cause, extra=extra)
        elif isinstance(cause, errors.SealError):
            said = "a change of an endpoint was refused (409), and its row is unchanged: its stored secret cannot be opened: %s"
            log.error(said, cause, extra=extra)
        else:
            log.warning("a request is answered with 503, which asks the client to try again: %s", cause, extra=extra)
