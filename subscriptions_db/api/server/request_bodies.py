"""Read the bodies of requests, and send answers. Bound how many wait for slow clients.

Runs in the API, on its event loop. A client may send a body as slowly as the request's timeout permits. Meanwhile the request
is in flight. A client may also read its answer slowly. Then the request is not in flight any more: it must not keep other
clients out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal
from subscriptions_db.api.server import admission

log = logging.getLogger(__name__)

HUNG_UP = "the connection was closed before the whole body had arrived: send the request again"
"""The problem of a request whose client is gone. Nobody reads it, but the request counts and is logged as a client's error."""
UNREADABLE = (
    "the body is not encoded as the headers Content-Encoding and Transfer-Encoding say: correct the body or the headers"
)
ON_CUT_OFF = (
    "the connection was closed. Nothing needs to be done. If it happens often, the client or a proxy reads too slowly, or many "
    "other clients read no answers"
)
"""The field `advice` of the log line about an answer that could not be sent in time."""
Place = Callable[[str], contextlib.AbstractContextManager[None]]
"""A context in which a request of a customer or key occupies a place in flight (`WorkerThreads.place`)."""


async def read(request: web.Request) -> bytes:
    """Return the body of a request, decompressed.

    Raise Refused with 400 if the client closes the connection before the end of the body, or if aiohttp finds that the body is
    not encoded as its headers say. aiohttp takes a cut gzip body as whole, and waits for the rest of a cut deflate body.
    aiohttp raises HTTPRequestEntityTooLarge for a body that is too large.
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

        The request occupies a place of its customer until the body has arrived; a request without a customer, of its key. The
        announced bytes are charged before the body arrives, so that requests that come at once do not all pass. The bytes
        beyond them are charged afterwards.

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


class AnswerSender:
    """Send answers to clients. Lives on the event loop."""

    def __init__(self, within_s: float, max_at_once: int) -> None:
        """An answer takes at most `within_s` seconds. Of more than `max_at_once` answers, the oldest is cut off."""
        self._within_s = within_s
        self._max_at_once = max_at_once
        self._sent: dict[asyncio.Timeout, None] = {}
        """The timeouts of the answers that are being sent, the oldest first."""

    async def send(self, request: web.Request, response: web.StreamResponse, named: Mapping[str, Any]) -> None:
        """Send an answer, or abort its connection. aiohttp does not send the same answer again later.

        The connection is aborted when the answer has taken too long, or when it is the oldest of too many. `named` has the
        fields of the log line that name the request.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._within_s) as bound:
                self._begin(bound)
                try:
                    await response.prepare(request)
                    await response.write_eof()
                finally:
                    self._sent.pop(bound, None)
        except TimeoutError:
            after_s = min(round(loop.time() - began, 1), self._within_s)
            log.info("api.cut_off", extra={**named, "after_s": after_s, "advice": ON_CUT_OFF})
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:  # the client has disconnected
            pass

    def _begin(self, bound: asyncio.Timeout) -> None:
        """Count an answer as being sent. If there are too many, cut off the oldest: most probably, its client does not read."""
        if len(self._sent) >= self._max_at_once:
            oldest = next(iter(self._sent))
            del self._sent[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
        self._sent[bound] = None
