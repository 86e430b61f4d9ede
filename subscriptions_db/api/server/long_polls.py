"""Let polls wait that find nothing: they ask again, each time in a transaction of its own, and hold nothing in between.

Runs in the API, on its event loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web

from delivery.config import service_settings
from delivery.observability import metrics
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal
from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.server.handler import Answer, Request

ASK_EVERY_S = 1.0
"""Leases that end and letters that are given back are seen by asking only, so nothing is won by listening to Postgres."""
BOUND: web.RequestKey[asyncio.Timeout] = web.RequestKey("bound", asyncio.Timeout)
"""The request's time, to which the wait is added."""

Ask = Callable[[Route, Request], Awaitable[Answer]]
Who = Callable[[str | None], Awaitable[Principal]]
Aside = Callable[[], contextlib.AbstractContextManager[None]]
"""Inside, a request does not count among those under way."""


class Polls:
    """The polls that wait. Lives on the event loop."""

    def __init__(self, config: service_settings.Api, ask: Ask, who: Who, aside: Aside) -> None:
        self._config = config
        self._ask = ask
        self._who = who
        self._aside = aside
        self._waiting: collections.Counter[str | None] = collections.Counter()
        self._ending = asyncio.Event()

    async def end(self, _: web.Application) -> None:
        """Let all that wait be answered: the server stops."""
        self._ending.set()

    async def wait(self, request: web.Request, route: Route, asked: Request, answer: Answer) -> Answer:
        """Return the first answer that is worth it, or the last one when the time is over; raise Refused when too many wait.

        The key is looked at each time: who may not come in any more is not answered because it came before.
        """
        loop = asyncio.get_running_loop()
        wait_s = min(answer.awaited.wait_s if answer.awaited else 0.0, self._config.max_poll_s)
        until = loop.time() + wait_s
        request[BOUND].reschedule(until + self._config.request_timeout_s)
        with self._place(asked.principal.customer_id):
            while answer.awaited is not None and (left_s := until - loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), min(left_s, ASK_EVERY_S))
                if self._ending.is_set() or request.transport is None:  # who has gone must be given no lease
                    break
                await self._who(request.headers.get("authorization"))
                if answer.awaited.cursor is not None:
                    asked = dataclasses.replace(asked, query={**asked.query, "cursor": answer.awaited.cursor})
                answer = await self._ask(route, asked)
        return answer

    @contextlib.contextmanager
    def _place(self, customer_id: str | None) -> Iterator[None]:
        """Take a place among those that wait. One customer cannot take them all."""
        if self._waiting[customer_id] >= self._config.max_polls_per_customer:
            headers = {"retry-after": str(problems.RETRY_AFTER_S)}
            raise problems.Refused(429, "too many of your polls are waiting", headers=headers)
        if self._waiting.total() >= self._config.max_polls:
            raise problems.unavailable("too many polls are waiting")
        self._waiting[customer_id] += 1
        try:
            with metrics.API_POLLS_WAITING.track_inprogress(), self._aside():
                yield
        finally:
            self._waiting[customer_id] -= 1
            if not self._waiting[customer_id]:
                del self._waiting[customer_id]
