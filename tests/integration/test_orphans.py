"""A worker outlives its JVM for a moment: its sent requests are logged, and it begins no more."""

import asyncio
import dataclasses
import signal
import sys
from pathlib import Path

import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.webhooks.lanes import drain_gate, worker
from delivery.webhooks.results import completed_work
from delivery.webhooks.retries import retry_messages
from tests.integration import customers, serving
from tests.integration.customers import Source
from tests.support import builders, leases, sinks

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PLAN = dataclasses.replace(plan_builder.plan_of(settings.Settings()), guard=serving.OPEN, attempt_timeout_s=20)
UNDER_WAY = PLAN.limits.max_in_flight_per_endpoint
RECORDS = [builders.record(offset=number, value=b'{"tenant_id": "t1", "id": "e%d"}' % number) for number in range(40)]


def registry(url):
    return Source(builders.snapshot(builders.endpoint(url=url), builders.subscription()))


class Holding:
    """An endpoint that answers when the test says so. Knows when as many requests are in flight as the limit allows."""

    def __init__(self):
        self.is_busy, self.answers = asyncio.Event(), asyncio.Event()

    async def __call__(self, server, writer):
        if len(server.requests) == UNDER_WAY:
            self.is_busy.set()
        await self.answers.wait()
        writer.write(serving.OK)


@pytest.mark.parametrize("noticed", ["by the signal", "by the pipe"])
def test_an_orphan_reports_its_requests_in_flight_and_begins_none(monkeypatch, noticed):
    async def main():
        here, endpoint, outcomes = worker.Worker(PLAN), Holding(), []
        loop, is_gone = asyncio.get_running_loop(), asyncio.Event()

        async def close(self, within_s, closed=drain_gate.DrainGate.close):
            loop.call_soon_threadsafe(endpoint.answers.set)
            await closed(self, within_s)

        monkeypatch.setattr(drain_gate.DrainGate, "close", close)

        def given():
            yield RECORDS
            if noticed == "by the pipe":
                asyncio.run_coroutine_threadsafe(is_gone.wait(), loop).result()
                raise EOFError

        def task(url):
            for results in here.deliver(given(), registry(url)):
                outcomes.extend(results.outcomes)

        async with serving.serve(endpoint) as server:
            running = asyncio.create_task(asyncio.to_thread(task, server.url()))
            await endpoint.is_busy.wait()
            if noticed == "by the signal":
                here.mark_orphaned()
            is_gone.set()
            with pytest.raises((errors.Orphaned, EOFError)):
                await running
            assert len(outcomes) == len(server.requests) == UNDER_WAY
            here.close()

    serving.run(main())


def test_an_orphan_attempts_no_further_retry_entry():
    """Regression: an orphaned worker went on to attempt the entries of the leases that it read."""
    with customers.Keeping() as kept, customers.working() as here:
        known = Source(leases.registry(url=kept.url))

        def written():
            here.mark_orphaned()
            yield retry_messages.encoded(leases.lease())

        ended = list(here.retry(written(), known, 10.0))
    assert kept.received == []
    assert [len(report.requeued) for results in ended for report in results.reports] == [1]


WORKER = """
import contextlib, os, sys, threading
from pathlib import Path
from delivery import errors
from delivery.stages.tasks import deliver_events, task_context
from tests.support import sinks
from tests.integration import test_orphans as here

class Stuck(sinks.Nowhere):
    def flush(self, within_s):
        threading.Event().wait()

url, folder = sys.argv[1:]
sink = sinks.Folder(Path(folder)) if folder else Stuck()
tools = task_context.Tools(plan=here.PLAN, observe=lambda _: None, sink=sink)
def read(_):
    yield here.RECORDS
    sys.stdin.read()  # the job's reader would still fetch records

task = deliver_events.DeliverAssignment(assignments=[()], tools=tools, source=here.registry(url), read=read)
with contextlib.suppress(errors.Orphaned):  # it is not raised if the last attempts end before the worker looks for the JVM
    task(0)
os._exit(0)  # as Spark's daemon ends a worker. A graceful end may crash, because the event loop's thread still runs
"""


async def orphaned(url, folder, endpoint):
    """Start a worker in a process of its own, and do to it what Spark's daemon does when the JVM is gone."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, url, folder, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    await endpoint.is_busy.wait()
    child.send_signal(signal.SIGHUP)
    child.stdin.close()
    return child


def test_all_that_an_orphan_has_sent_is_in_the_journal(tmp_path):
    async def main():
        endpoint, known = Holding(), completed_work.FastLaneLog()
        async with serving.serve(endpoint) as server:
            child = await orphaned(server.url(), str(tmp_path), endpoint)
            endpoint.answers.set()
            assert await child.wait() == 0
            for row in sinks.Folder(tmp_path).rows():
                if row.topic == PLAN.topics.attempts:
                    known.add(row.value, known.readers(PLAN.topics)[row.topic], (row.topic, 0, 0))
            assert len(known.completed) == len(server.requests) >= UNDER_WAY

    serving.run(main())


def test_an_orphan_that_cannot_end_is_ended():
    async def main():
        endpoint = Holding()
        async with serving.serve(endpoint) as server:
            child = await orphaned(server.url(), "", endpoint)
            assert await child.wait() == -signal.SIGALRM

    serving.run(main())
