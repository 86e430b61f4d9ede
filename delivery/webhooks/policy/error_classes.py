"""Classify the status of a response. The error classes of failures without a response are in `delivery.errors`. Pure."""

from __future__ import annotations

from delivery import errors

REDIRECT = "redirect"
REFUSED = "refused"
GONE = "gone"
THROTTLED = "throttled"
UNAVAILABLE = "unavailable"
SERVER_ERROR = "server_error"

UNFORESEEN_DETAIL = (
    "an unforeseen error in the platform. The endpoint is not at fault. The worker's log has a traceback for the maintainers"
)
"""Detail of an attempt that failed, or of a record that was rejected, because of an unforeseen error in our own code. This
detail replaces the error's own text, which could contain a secret."""


def error_class_of(status: int) -> str | None:
    """Return the error class of a status. None: the endpoint accepted the request. Only 2xx accepts (Standard Webhooks 1.0).

    1. 2xx: None.                          4. 429: throttled.
    2. 3xx: redirect, never followed.      5. Other 4xx: refused.
    3. 410: gone.                          6. 502, 503, 504: unavailable. Other 5xx: server_error.
    7. Any other number is not a final HTTP status: response_invalid.
    """
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return REDIRECT
    if status == 410:
        return GONE
    if status == 429:
        return THROTTLED
    if 400 <= status < 500:
        return REFUSED
    if status in {502, 503, 504}:
        return UNAVAILABLE
    return SERVER_ERROR if 500 <= status < 600 else errors.ResponseInvalid.error_class
