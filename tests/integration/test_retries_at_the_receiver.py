"""Turns as their receivers see them, sent by a real worker over real connections, from one micro-batch to the next."""

import base64
import dataclasses
import itertools
import socket

import pytest
from aiohttp import web
from standardwebhooks import Webhook

from delivery.registry_model import EndpointStatus, Retrying
from delivery.webhooks.http import exchange_deadlines
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import circuit_breaker
from tests.integration.customers import Customers, Keeping, Source, working
from tests.support import builders
from tests.support.leases import lease, waiting

pytestmark = pytest.mark.integration


@pytest.fixture
def here():
    with working(attempt_timeout_s=0.1) as made:
        yield made


def source(customers=(), **urls):
    owners = itertools.chain(customers, itertools.repeat("c1"))
    endpoints = [
        builders.endpoint(name, url=url, customer_id=owner, retrying=Retrying(timeout_s=3.0))
        for (name, url), owner in zip(urls.items(), owners, strict=False)
    ]
    return Source(builders.snapshot(*endpoints, *(builders.subscription(f"s-{name}", endpoint_id=name) for name in urls)))


def micro_batch(here, known, *leases, settle_s=0.3):
    """Deliver leases; return the reports that have come."""
    ended = here.retry([retry_messages.encoded(message) for message in leases], known, settle_s)
    return {report.endpoint_id: report for results in ended for report in results.reports}


def test_a_retry_verifies_at_its_receiver_and_keeps_the_first_webhook_id(here):
    event = builders.event()
    with Keeping() as customers:
        known = source(ep1=f"{customers.url}/ep1")
        reports = micro_batch(here, known, lease(waiting(event, through=("s-ep1",))), settle_s=5)
    [(_, headers, body)] = customers.received
    assert reports["ep1"].delivered == 1
    through = builders.subscription("s-ep1")
    assert headers["webhook-id"] == builders.delivery(event=event, subscription=through).webhook_id
    Webhook(base64.b64encode(builders.KEY.secret.reveal()).decode()).verify(body, headers)


def test_a_hanging_receiver_is_given_its_own_time_and_waited_for_by_nobody(here):
    with Keeping() as customers, socket.create_server(("127.0.0.1", 0)) as silent:
        known = source(ep1=f"{customers.url}/ep1", hangs=f"http://127.0.0.1:{silent.getsockname()[1]}/")
        of_hangs = lease(waiting(through=("s-hangs",)), endpoint="hangs")
        reports = micro_batch(here, known, of_hangs, lease(waiting(through=("s-ep1",))))
        assert set(reports) == {"ep1"}
        late = {}
        while not late:
            late = micro_batch(here, known, of_hangs)
    [back] = late["hangs"].requeued
    [attempt] = back.attempts
    assert attempt.duration_ms >= 3000
    # The worker adds its own delay to the 3 s. An attempt is `local` only after the longest extension.
    is_extended = attempt.duration_ms >= 3000 + exchange_deadlines.MAX_EXTENSION_S * 1000
    assert attempt.error_class == ("local" if is_extended else "timeout")


class Late(Customers):
    """Answers when the test says so."""

    async def answer(self, _):
        await self.ended.wait()
        return web.Response()


def test_a_late_report_leaves_without_a_further_task_of_the_retry_lane(here):
    """Regression: the report waited for a task until its lease expired, and entries were delivered again without a crash."""
    assert here.drain_leases() is None
    with Late() as customers:
        assert micro_batch(here, source(ep1=f"{customers.url}/ep1"), lease(waiting(through=("s-ep1",)))) == {}
        assert here.drain_leases() is None
        customers.end()
        late = []
        while not any(results.reports for results in late):  # an acceptance may be reported before its lease has ended
            late += filter(None, [here.drain_leases()])
    assert [(report.endpoint_id, report.delivered) for results in late for report in results.reports] == [("ep1", 1)]
    assert sum(len(results.results.outcomes) for results in late) == 1
    assert here.drain_leases() is None


class Newer(Source):
    """A registry of another broadcast."""

    def registry(self, _):
        return registries.WholeRegistry("newer", self._snapshot)


def test_a_lease_in_flight_follows_the_registry_of_another_lanes_task(here):
    """Regression: a worker may get no task of the retry lane for long, and its leases kept the endpoint of their start."""
    with Late() as customers:
        endpoint = builders.endpoint(url=f"{customers.url}/ep1", max_in_flight=1, retrying=Retrying(timeout_s=30.0))
        paused = dataclasses.replace(endpoint, status=EndpointStatus.PAUSED)
        known = Source(builders.snapshot(endpoint, builders.subscription()))
        assert micro_batch(here, known, lease(waiting(), waiting()), settle_s=0.0) == {}
        assert list(here.deliver([], Newer(builders.snapshot(paused, builders.subscription(), revision=2))))
        customers.end()
        late = {}
        while not late:
            late = {report.endpoint_id: report for report in getattr(here.drain_leases(), "reports", ())}
    assert late["ep1"].delivered == 1
    assert [(back.place, back.attempts) for back in late["ep1"].requeued] == [(1, ())]


def test_the_retry_lane_reports_an_outage_and_forgets_circuit_breakers(here):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        known = source(["c1", "c2"] * 5, **{f"ep{n}": f"http://127.0.0.{n + 1}:{port}/" for n in range(10)})
        here._state.memory.breakers["ep1"] = circuit_breaker.CircuitBreaker()
        leases = [lease(waiting(through=(f"s-ep{n}",)), endpoint=f"ep{n}", customer_id=f"c{n % 2 + 1}") for n in range(10)]
        ended = list(here.retry([retry_messages.encoded(message) for message in leases], known, 5.0))
    assert [(results.results.reach.asked, results.results.reach.unreachable) for results in ended] == [(0, 0), (10, 10)]
    assert here._state.memory.breakers == {}
