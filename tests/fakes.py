"""Stand-ins at the edges, held to the same contract tests as the real thing (tests/integration/test_transport.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from delivery.model import Attempt, Delivery
from delivery.webhooks import target, transport


class FakeTransport:
    """Answers by a script: a status, a whole response, or an error to raise. Remembers what was posted."""

    def __init__(self, *script: int | transport.Response | Exception) -> None:
        self._script = list(script)
        self.posted: list[tuple[target.Target, bytes, bytes, float]] = []

    async def post(self, to: target.Target, headers: bytes, body: bytes, timeout_s: float) -> transport.Response:
        self.posted.append((to, headers, body, timeout_s))
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, transport.Response):
            return step
        return transport.Response(status=step, headers=(), body=b"ok")


class Clock:
    """Time that moves when the test says so, or when somebody waits."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeSender:
    """Ends each attempt as `decide` says; counts what is under way to each endpoint."""

    def __init__(self, decide: Callable[[Delivery, int], str | None], clock: Clock, seconds_per_attempt: float = 0.0) -> None:
        self._decide = decide
        self._clock = clock
        self._seconds = seconds_per_attempt
        self.in_flight: dict[str, int] = {}
        self.most_in_flight: dict[str, int] = {}
        self.order: list[str] = []

    async def attempt(self, delivery: Delivery, number: int) -> Attempt:
        endpoint_id = delivery.endpoint.endpoint_id
        self.order.append(endpoint_id)
        self.in_flight[endpoint_id] = self.in_flight.get(endpoint_id, 0) + 1
        self.most_in_flight[endpoint_id] = max(self.most_in_flight.get(endpoint_id, 0), self.in_flight[endpoint_id])
        await asyncio.sleep(0)
        self._clock.now += self._seconds
        self.in_flight[endpoint_id] -= 1
        return Attempt(number=number, started_at_ms=0, duration_ms=1.0, status=None, error_class=self._decide(delivery, number))


class Wire:
    """The socket's side of a connection, without a socket."""

    is_aborted = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted
