"""Answer long polls: repeat a request that found nothing until it finds something or its time is over.

Each try is a transaction of its own. Between tries a poll holds neither a connection nor a thread.

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
from subscriptions_db import server_bounds
from subscriptions_db.api.contract import problems
from subscriptions_db.api.contract.principals import Principal
from subscriptions_db.api.contract.routes import Route
from subscriptions_db.api.server.handler import ApiAnswer, ApiRequest

TIMEOUT: web.RequestKey[asyncio.Timeout] = web.RequestKey("bound", asyncio.Timeout)
"""The request's timeout. A long poll extends the timeout by its wait. A request that sends something to a receiver extends the
timeout by the time that the receiver may take."""

Answer = Callable[[Route, ApiRequest], Awaitable[ApiAnswer]]
"""Execute a request in a transaction, and return its answer."""
Authenticate = Callable[[str | None], Awaitable[Principal]]
"""Return the principal of a request from its header `Authorization`; raise Refused if the key is not valid or cannot be
checked."""
OutsideInFlight = Callable[[], contextlib.AbstractContextManager[None]]
"""A context in which a request does not count as in flight."""


class LongPolls:
    """The waiting long polls. Lives on the event loop."""

    def __init__(
        self,
        config: service_settings.ApiSettings,
        answer: Answer,
        authenticate: Authenticate,
        outside_in_flight: OutsideInFlight,
        *,
        every_s: float = server_bounds.DEFAULT.poll_every_s,
    ) -> None:
        """`every_s` is the number of seconds between two tries of a waiting poll."""
        self._config = config
        self._every_s = every_s
        self._answer = answer
        self._authenticate = authenticate
        self._outside_in_flight = outside_in_flight
        self._waiting: collections.Counter[str] = collections.Counter()
        self._ending = asyncio.Event()

    async def end(self, _: web.Application) -> None:
        """Answer all waiting polls at once, because the server stops."""
        self._ending.set()

    async def wait(self, request: web.Request, route: Route, asked: ApiRequest, answer: ApiAnswer) -> ApiAnswer:
        """Return the first answer with a result, or the last answer when the time is over or the server stops.

        `answer` is the answer of the first try. A disconnected client ends the wait too. The request's timeout is extended by
        the wait. Each try authenticates the key again, because the key may have been revoked during the wait. Raise Refused if
        too many polls wait, if the key is not valid any more, or if a try is refused.
        """
        loop = asyncio.get_running_loop()
        wait_s = min(answer.awaited.wait_s if answer.awaited else 0.0, self._config.max_poll_s)
        until = loop.time() + wait_s
        extend(request, wait_s + self._config.request_timeout_s)
        with self._waiting_slot(asked.principal.customer_id or asked.principal.key_id):
            while answer.awaited is not None and (left_s := until - loop.time()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), min(left_s, self._every_s))
                if self._ending.is_set() or request.transport is None:  # a disconnected client must get no lease
                    break
                await self._authenticate(request.headers.get("authorization"))
                if answer.awaited.cursor is not None:
                    asked = dataclasses.replace(asked, query={**asked.query, "cursor": answer.awaited.cursor})
                answer = await self._answer(route, asked)
        return answer

    @contextlib.contextmanager
    def _waiting_slot(self, poller: str) -> Iterator[None]:
        """Occupy one of the slots for waiting polls. `poller` is the customer, or the key of an operator.

        Raise Refused with 429 if the poller occupies all of its slots, and with 503 if all slots of the process are occupied.
        """
        if self._waiting[poller] >= self._config.max_polls_per_customer:
            headers = {"retry-after": str(problems.RETRY_AFTER_S)}
            raise problems.Refused(
                429,
                f"{self._waiting[poller]} of your long polls are waiting already, so this one was refused: try again when one "
                "of them has ended",
                headers=headers,
            )
        if self._waiting.total() >= self._config.max_polls:
            raise problems.unavailable("too many long polls are waiting, so this one was refused: try again")
        self._waiting[poller] += 1
        try:
            with metrics.API_POLLS_WAITING.track_inprogress(), self._outside_in_flight():
                yield
        finally:
            self._waiting[poller] -= 1
            if not self._waiting[poller]:
                del self._waiting[poller]


def extend(request: web.Request, left_s: float) -> None:
    """Set the request's timeout to `left_s` seconds from now."""
    request[TIMEOUT].reschedule(asyncio.get_running_loop().time() + left_s)
