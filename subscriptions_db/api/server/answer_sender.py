"""Send the answers to requests. Bound how long an answer takes, and how many are sent at once.

Runs in the API, on its event loop. A client may read its answer slowly, or not at all. A request whose answer is being sent no
longer counts as in flight, so a slow client keeps no requests of other clients out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import web

log = logging.getLogger(__name__)

ON_CUT_OFF = (
    "the connection was closed. Nothing needs to be done. If it happens often, the client or a proxy reads too slowly, or many "
    "other clients read no answers"
)
"""The field `advice` of the log line about an answer that could not be sent in time."""


class AnswerSender:
    """Send answers to clients. Lives on the event loop."""

    def __init__(self, within_s: float, max_at_once: int) -> None:
        """Abort an answer that is not sent within `within_s` seconds. Beyond `max_at_once` answers, also abort the oldest."""
        self._within_s = within_s
        self._max_at_once = max_at_once
        self._sent: dict[asyncio.Timeout, None] = {}
        """The timeouts of the answers that are being sent, the oldest first."""

    async def send(self, request: web.Request, response: web.StreamResponse, named: Mapping[str, Any]) -> None:
        """Send an answer, or abort its connection. aiohttp gets the answer after this call, and does not send it a second time.

        The connection is aborted when the answer takes longer than `within_s`, or is the oldest of more than `max_at_once`.
        `named` has the fields of the log line that name the request.
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
        """Add the timeout `bound` of an answer to the answers that are being sent.

        If `max_at_once` are being sent already, let the oldest one's timeout expire now: most probably, its client does not
        read.
        """
        if len(self._sent) >= self._max_at_once:
            oldest = next(iter(self._sent))
            del self._sent[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
        self._sent[bound] = None
