"""Fakes of the platform's edges: network, time, randomness.

The fakes pass the same contract tests as the real classes (tests/integration/test_transport.py).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable

from delivery.model import Attempt, Delivery
from delivery.registry_model import EndpointId
from delivery.webhooks.http import origin, transport
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.scheduling import background_attempts, circuit_breaker, deferral


class FakeTransport:
    """A transport that responds by a script: a status, a whole response, or an error to raise. It keeps all requests."""

    def __init__(self, *script: int | transport.Response | Exception) -> None:
        self._script = list(script)
        self.posted: list[tuple[origin.Target, bytes, bytes, float]] = []

    async def post(self, to: origin.Target, headers: bytes, body: bytes, timeout_s: float) -> transport.Response:
        self.posted.append((to, headers, body, timeout_s))
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(step, Exception):
            raise step
        if isinstance(step, transport.Response):
            return step
        return transport.Response(status=step, headers=(), body=b"ok")


class Clock:
    """A clock whose time the test sets."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class PassingClock(Clock):
    """A clock that jumps to the next timer when the event loop has nothing to do."""

    def install(self) -> None:
        """Replace the running loop's timers and time. In real time, a timer of 1 ms could end while a slow test runs."""
        loop = asyncio.get_running_loop()
        timers: list[tuple[float, int, asyncio.Handle]] = []
        numbers = itertools.count()

        def call_later(wait_s: float, callback: Callable[..., object], *arguments: object, **_: object) -> asyncio.Handle:
            handle = asyncio.Handle(callback, arguments, loop)
            heapq.heappush(timers, (self.now + wait_s, next(numbers), handle))
            return handle

        async def pass_time() -> None:
            while True:
                for _ in range(30):
                    await asyncio.sleep(0)
                if timers:
                    at, _, handle = heapq.heappop(timers)
                    if not handle.cancelled():
                        self.now = max(self.now, at)
                        handle._run()

        loop.call_later = call_later  # type: ignore[method-assign,assignment]
        loop.time = lambda: self.now  # type: ignore[method-assign]
        self._passing = loop.create_task(pass_time())


class Middle:
    """A random generator that always returns the middle of the range."""

    def uniform(self, a: float, b: float, /) -> float:
        return (a + b) / 2


def unreported_background() -> background_attempts.BackgroundAttempts:
    """Return background attempts whose results are reported to nobody."""
    return background_attempts.BackgroundAttempts(2.0, 256, lambda _: None)


def deferrals(
    clock: Callable[[], float],
    suppressed: Iterable[str] = (),
    breakers: circuit_breaker.CircuitBreakers | None = None,
    background: background_attempts.BackgroundAttempts | None = None,
) -> deferral.Deferrals:
    """Return the deferrals of a micro-batch, with `clock` for both of their clocks."""
    known = {} if breakers is None else breakers
    reasons = dict.fromkeys(map(EndpointId, suppressed), retry_reasons.CIRCUIT_OPEN)
    return deferral.Deferrals(reasons, known, background or unreported_background(), clock=clock, now_s=clock, rng=Middle())


class FakeSender:
    """A sender that ends each attempt as `decide` says, and counts the requests in flight to each endpoint."""

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
    """The transport of a connection, without a socket."""

    is_aborted = False
    unsent_bytes = 0

    def write(self, data: bytes) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted
