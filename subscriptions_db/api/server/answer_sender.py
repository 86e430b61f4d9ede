"""Send the answers to requests. Bound how long an answer takes, and how many are sent at once.

Runs in the API, on its event loop. A client may read its answer slowly, or not at all. Its request is not in flight any more,
so it keeps no other client out.
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
