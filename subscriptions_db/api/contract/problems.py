"""Say what is wrong with a request, as RFC 9457 (problem+json) does, and translate our errors into it.

Runs in the API.
"""

from __future__ import annotations

import logging
import re

import pydantic

from delivery import errors
from subscriptions_db.manifest import mistakes

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
_ROW = re.compile(r"^(tenants|customers|endpoints|subscriptions|event_types)\[0\]\.?")
"""Where a single row stands in the manifest that it is checked as."""


class Error(pydantic.BaseModel):
    """One thing that is wrong."""

    field: str
    """Where in the request, such as `retry.schedule_s[2]`."""
    problem: str


class Problem(pydantic.BaseModel):
    """Why a request was not done (RFC 9457)."""

    title: str
    status: int
    code: str
    """A word of a closed set: unauthenticated, forbidden, not_found, method_not_allowed, conflict, too_large, unsupported,
    invalid, rate_limited, internal, unavailable."""
    detail: str
    errors: list[Error] = []


TITLES = {
    400: ("invalid", "The request is not HTTP that is understood"),
    401: ("unauthenticated", "No valid API key"),
    403: ("forbidden", "The API key does not allow this"),
    404: ("not_found", "There is no such thing"),
    405: ("method_not_allowed", "There is no such method here"),
    408: ("too_slow", "The request came too slowly"),
    409: ("conflict", "It cannot be done as things stand"),
    413: ("too_large", "The request is too large"),
    415: ("unsupported", "The request is not JSON"),
    422: ("invalid", "The request is wrong"),
    429: ("rate_limited", "Too many requests"),
    500: ("internal", "An error of ours"),
    503: ("unavailable", "Not now"),
}


class Refused(Exception):
    """A request is refused. Says it all in what is answered."""

    def __init__(self, status: int, detail: str, *wrong: tuple[str, str], headers: dict[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.headers = headers or {}
        code, title = TITLES[status]
        found = [Error(field=field, problem=problem) for field, problem in wrong]
        self.problem = Problem(title=title, status=status, code=code, detail=detail, errors=found)


def not_found(kind: str) -> Refused:
    """Return the one answer for what is not there and for what is somebody else's."""
    return Refused(404, f"there is no such {kind}")


def invalid(*wrong: tuple[str, str]) -> Refused:
    """Return a refusal that names each field."""
    return Refused(422, "; ".join(f"{field}: {problem}" if field else problem for field, problem in wrong), *wrong)


def unavailable(detail: str) -> Refused:
    """Return that it may succeed later."""
    return Refused(503, detail, headers={"retry-after": str(RETRY_AFTER_S)})


def of_validation(exc: pydantic.ValidationError, model: type[pydantic.BaseModel] | None = None) -> Refused:
    """Return what a type of a body or query refuses."""
    return invalid(*((one.path, one.problem) for one in mistakes.found(exc, model)))


def of_error(exc: errors.FanoutError) -> Refused:
    """Return what one of our errors means for who asked."""
    if isinstance(exc, errors.RegistrationError):
        found = exc.found if isinstance(exc, errors.ManifestRefused) else (exc,)
        return invalid(*((_ROW.sub("", one.path), one.problem) for one in found))
    if isinstance(exc, errors.SealError):
        return Refused(409, "a secret of the endpoint does not open any more: send auth and tls whole, or ask the operator")
    if isinstance(exc, errors.SettingsError):
        log.error("nothing is served: %s", exc)
        return unavailable("the service is not set up for its registry: the operator finds in its log what to change")
    # Whatever Postgres says is for the log: it may name hosts and roles.
    return unavailable("the registry cannot be reached now")
