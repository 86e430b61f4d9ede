"""Play micro-batches of one worker in passing time: endpoints that are slow or fail, and what the worker keeps between them."""

from __future__ import annotations

import asyncio
import collections

from delivery.webhooks.scheduling import background_attempts
from tests.support import fakes
from tests.support.dispatching import deliveries, dispatcher_of, new_memory

NEVER_S = 3600.0


class Endpoints(fakes.FakeSender):
    """Endpoints that take the time in `seconds` (default 0) and end as in `errors` (default accepted)."""

    def __init__(self, clock, seconds, errors=()):
        super().__init__(lambda delivery, _: dict(errors).get(delivery.endpoint.endpoint_id), clock)
        self.seconds = dict(seconds)

    async def attempt(self, delivery, number):
        self.under_way = getattr(self, "under_way", 0) + 1
        self.most_under_way = max(getattr(self, "most_under_way", 0), self.under_way)
        if wait_s := self.seconds.get(delivery.endpoint.endpoint_id):
            await asyncio.sleep(wait_s)
        self.under_way -= 1
        attempt = await super().attempt(delivery, number)
        return attempt._replace(status=200 if attempt.error_class is None else None)


class Worker:
    """The state of a worker that outlives a micro-batch."""

    def __init__(self, sender, clock, *, most=256, **bounds):
        self.sender, self.clock, self.bounds = sender, clock, bounds
        self.reported = []
        self._came = asyncio.Event()
        self.background = background_attempts.BackgroundAttempts(2.0, most, self._take)
        self.memory = new_memory(clock)

    async def micro_batch(self, *submitted, late=None):
        """Return the seconds that a micro-batch took, and the number of outcomes by endpoint, kind and reason."""
        began = self.clock.now
        dispatcher = dispatcher_of(
            self.sender,
            self.clock,
            background=self.background,
            memory=self.memory,
            late=late,
            **self.bounds,
        )
        for delivery in submitted:
            dispatcher.submit(delivery)
        await dispatcher.finish()
        self.ended, self.report = dispatcher.drain(), dispatcher.report()
        kinds = collections.Counter((o.delivery.endpoint.endpoint_id, o.kind.value, o.reason) for o in self.ended)
        return round(self.clock.now - began, 3), kinds

    def _take(self, ended):
        self.reported.append(ended)
        self._came.set()

    async def until_reported(self, count=1):
        while len(self.reported) < count:
            self._came.clear()
            await self._came.wait()
        await asyncio.sleep(0)  # its runner ends


def playing(play, seconds, errors=(), **bounds):
    """Run `play(worker)` in passing time, and return what it returns."""
    clock = fakes.PassingClock()

    async def main():
        clock.install()
        return await play(Worker(Endpoints(clock, seconds, errors), clock, **bounds))

    return asyncio.run(main())


def fine(count=20):
    return [delivery for number in range(count) for delivery in deliveries(1, f"fine{number}")]


FINE = {(f"fine{number}", "delivered", None): 1 for number in range(20)}


def apart(*names):
    """Return a delivery to each of these endpoints. Each endpoint has its own host and customer."""
    urls = {name: f"https://{name}.example/" for name in names}
    return [delivery for name in names for delivery in deliveries(1, name, url=urls[name], customer_id=f"c-{name}")]
