"""The intake shares the event loop with everything else in a worker."""

import asyncio

from delivery.registry_model import DeliveryMode
from delivery.webhooks.events import parsing
from delivery.webhooks.routing import intake, registries
from tests.support import builders


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when `now` is increased."""

    now = 0.0

    def time(self):
        return self.now


def turns(seconds_of_a_record, records):
    """Return how often another coroutine had a turn while an intake took `records` records."""
    had = 0

    def prepare(event, _):
        asyncio.get_running_loop().now += seconds_of_a_record
        return event

    async def other():
        nonlocal had
        while True:
            had += 1
            await asyncio.sleep(0)

    async def take():
        registry = registries.WholeRegistry("", builders.snapshot(builders.endpoint(), builders.subscription()))
        lane = intake.Intake(registry, parsing.Layout(), DeliveryMode.DIRECT, prepare)
        beside = asyncio.ensure_future(other())
        for offset in range(records):
            assert await lane.accept(builders.record(offset=offset), []) is not None
        beside.cancel()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(take())
    return had


def test_the_intake_yields_to_the_event_loop_by_time():
    """Regression: a lane yielded after 32 records only. Large events with many filters kept the event loop for seconds."""
    assert turns(1.1 * intake.MAX_TURN_S, records=10) == 9
    assert turns(0.6 * intake.MAX_TURN_S, records=10) == 4
    assert turns(0.0, records=10) == 0
