"""Results leave their worker while other attempts are in flight, so a kill repeats no written result."""

import asyncio
import contextlib
import dataclasses
import threading

import pytest

from delivery.config import plan_builder, settings
from delivery.registry_model import Retrying
from delivery.webhooks.lanes import worker
from delivery.webhooks.retries import retry_messages
from tests.integration import serving
from tests.integration.customers import Source
from tests.support import builders, leases

pytestmark = pytest.mark.integration
PLAN = dataclasses.replace(plan_builder.plan_of(settings.Settings()), guard=serving.OPEN, attempt_timeout_s=20)

FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
RECORD = builders.record(value=b'{"tenant_id": "t1", "id": "e0"}')


def test_results_leave_while_an_endpoint_does_not_answer():
    records = [builders.record(offset=offset, value=b'{"tenant_id": "t1", "id": "e%d"}' % offset) for offset in range(10)]

    async def main():
        go_on = asyncio.Event()

        async def answer(server, writer):
            if len(server.requests) > 5:
                await go_on.wait()
            writer.write(serving.OK)

        async with serving.serve(answer) as server:
            here = worker.Worker(PLAN)
            results = here.deliver(
                [records], Source(builders.snapshot(builders.endpoint(url=server.url()), builders.subscription()))
            )
            left = 0
            while left < 5:
                left += len((await asyncio.to_thread(next, results)).outcomes)
            assert left == 5
            go_on.set()
            rest = await asyncio.to_thread(list, results)
            assert sum(len(part.outcomes) for part in rest) == 5
            assert [receipt.due for part in rest for receipt in part.receipts] == [10]
            here.close()

    serving.run(main())


def test_an_accepting_endpoint_is_reported_by_the_first_task_only():
    async def main():
        async with serving.serve(serving.saying(serving.OK)) as server:
            here = worker.Worker(PLAN)
            source = Source(builders.snapshot(builders.endpoint(url=server.url()), builders.subscription()))

            def accepting():
                return [to.endpoint_id for part in here.deliver([[RECORD]], source) for to in part.accepting]

            assert [await asyncio.to_thread(accepting) for _ in range(3)] == [["ep1"], [], []]
            here.close()

    serving.run(main())


def test_an_endpoint_is_reported_again_by_its_first_acceptance_after_a_failure():
    """The failure may be in any lane of the worker: here in the direct lane, then in the retry lane."""

    async def main():
        answers = [serving.OK]

        async def answer(server, writer):  # noqa: ARG001
            writer.write(answers[-1])

        async with serving.serve(answer) as server:
            here = worker.Worker(PLAN)
            row = builders.endpoint(url=server.url(), retrying=Retrying())
            source = Source(builders.snapshot(row, builders.subscription()))

            def accepting():
                return [to.endpoint_id for part in here.deliver([[RECORD]], source) for to in part.accepting]

            async def after_a_failure(fail):
                answers.append(FAILED)
                await asyncio.to_thread(fail)
                answers.pop()
                return [await asyncio.to_thread(accepting) for _ in range(2)]

            assert await asyncio.to_thread(accepting) == ["ep1"]
            assert await after_a_failure(accepting) == [["ep1"], []]
            retry = here.retry([retry_messages.encoded(leases.lease())], source, 10.0)
            assert await after_a_failure(lambda: list(retry)) == [["ep1"], []]
            here.close()

    serving.run(main())


def test_each_lane_reads_the_state_of_its_worker_in_the_event_loop(monkeypatch):
    """Regression: the end of a task read the hosts in the task's thread, while the event loop may add one.

    The task failed with "dictionary changed size during iteration", and its deliveries were repeated.
    """
    threads = []
    with contextlib.closing(worker.Worker(PLAN)) as here:
        hosts = here._state.memory.hosts
        monkeypatch.setattr(hosts, "drain_delayed", lambda: threads.append(threading.current_thread().name) or 0)
        source = Source(builders.snapshot())
        list(here.deliver([[RECORD]], source))
        list(here.deliver_batches([], source))
        list(here.retry([], source, 0.0))
    assert threads == ["deliveries"] * 3
