"""Read the bodies of requests, and count the bytes. Bound how many requests of a customer or key wait for their bodies.

Runs in the API, on its event loop. A client may send a body as slowly as the request's timeout permits. Meanwhile the request
is in flight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web

from subscriptions_db.api.admission import admission
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal

HUNG_UP = "the connection was closed before the whole body had arrived, so nothing was done: send the request again"
"""The problem of a request whose client is gone. Nobody reads the problem, but the request is counted and logged as a client's
error."""
UNREADABLE = (
    "the body is not encoded as the headers Content-Encoding and Transfer-Encoding say: correct the body or the headers"
)
Place = Callable[[str], contextlib.AbstractContextManager[None]]
"""A context in which a request of a customer or key occupies a place in flight (`WorkerThreads.place`)."""


async def read(request: web.Request) -> bytes:
    """Return the body of a request, decompressed.

    Raise Refused with 400 if the client closes the connection before the end of the body, or if aiohttp finds that the body is
    not encoded as its headers say. aiohttp raises HTTPRequestEntityTooLarge for a body that is too large.

    aiohttp does not report a truncated body. It takes a truncated gzip body as whole, and waits for the rest of a truncated
    deflate body.
    """
    try:
        return await request.read()
    except ConnectionError:
        raise problems.Refused(HTTPStatus.BAD_REQUEST, HUNG_UP) from None
    except web.RequestPayloadError:
        raise problems.Refused(HTTPStatus.BAD_REQUEST, UNREADABLE) from None


class BodyReader:
    """Read the JSON bodies of admitted requests, and count their bytes in the rates of their keys."""

    def __init__(self, place: Place, admitted: admission.Admission, max_body_bytes: int) -> None:
        self._place = place
        self._admission = admitted
        self._max_body_bytes = max_body_bytes

    async def json(self, request: web.Request, principal: Principal) -> bytes:
        """Return the body of an admitted request, or an empty JSON object if it has none.

        The request occupies a place of its customer until the body has arrived. A request without a customer occupies a place
        of its key. The announced bytes are charged before the body arrives, so that requests that come at once do not all pass.
        Bytes beyond the announced ones are charged afterwards.

        Raise Refused:

        * 400: as `read` does, and for a compressed body without content.
        * 415: the content type is not JSON.
        * 429: too many requests of the customer or key wait.

        aiohttp raises HTTPRequestEntityTooLarge for a body that is too large.
        """
        kind, key_id = request.content_type, principal.key_id
        if request.body_exists and kind != "application/json" and not kind.endswith("+json"):
            refusal = "the body's content type is missing, or is not taken here: send content-type application/json"
            raise problems.Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, refusal)
        with self._place(principal.customer_id or key_id):
            announced = min(request.content_length or 0, self._max_body_bytes)
            self._admission.charge_body(key_id, announced)
            body = await read(request)
        self._admission.charge_body(key_id, len(body), charged=announced)
        if not body and request.headers.get("content-encoding"):  # cut within the header of gzip, for example
            raise problems.Refused(HTTPStatus.BAD_REQUEST, UNREADABLE)
        return body or b"{}"
