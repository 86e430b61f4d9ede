"""The requests to one host are limited over all customers, and endpoints at other hosts do not wait."""

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.model import Attempt, OutcomeKind
from delivery.webhooks.policy import retry_reasons
from delivery.webhooks.scheduling import host_limits, limits
from tests.simulation import virtual
from tests.support import builders, dispatching

VICTIM = "https://victim.example"
LONG_S = 3600.0


class Receivers:
    """A sender to endpoints that respond after `wait_s`. By host, it has the most requests at once and the start of each."""

    def __init__(self, wait_s):
        self._wait_s = wait_s
        self.now, self.most, self.began = {}, {}, {}

    async def attempt(self, delivery, number, timeout_s=None):  # noqa: ARG002
        host, loop = host_limits.host_name(delivery.endpoint.url), asyncio.get_running_loop()
        self.now[host] = self.now.get(host, 0) + 1
        self.most[host] = max(self.most.get(host, 0), self.now[host])
        self.began.setdefault(host, []).append(loop.time())
        await asyncio.sleep(self._wait_s)
        self.now[host] -= 1
        return Attempt(number=number, started_at_ms=0, duration_ms=1.0, status=200, error_class=None)


def delivered(urls, *, wait_s=0.05, each=1, known=None, **bounds):
    """Return the receivers after one delivery or more to each endpoint, and the outcomes."""
    receivers = Receivers(wait_s)

    async def main():
        loop = asyncio.get_running_loop()
        chosen = {"queue_timeout_s": LONG_S, "response_deadline_s": LONG_S} | bounds
        all_hosts = known or host_limits.Hosts(limits.Limits(**chosen), loop.time)
        dispatcher = dispatching.dispatcher_of(
            receivers, loop.time, memory=dispatching.new_memory(loop.time, hosts=all_hosts), **chosen
        )
        for number, url in enumerate(urls):
            endpoint = builders.endpoint(f"ep{number}", url=url, customer_id=f"c{number % 10}")
            for _ in range(each):
                dispatcher.submit(builders.delivery(endpoint=endpoint))
        await dispatcher.finish()
        return dispatcher.drain(), loop.time(), all_hosts.drain_delayed()

    outcomes, took_s, waited = virtual.run(main())
    return receivers, outcomes, took_s, waited


def test_a_thousand_endpoints_at_one_host_keep_its_limits():
    """One event made 2,000 requests in 0.43 s over 256 connections to one host of ten customers."""
    urls = [f"{VICTIM}:{443 + n % 3}/{n}" for n in range(1000)]
    receivers, outcomes, took_s, waited = delivered(urls, max_per_host=8, max_per_second_per_host=100.0)

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    assert receivers.most == {"victim.example": 8}
    began = receivers.began["victim.example"]
    assert max(sum(at <= other < at + 0.999 for other in began) for at in began) <= 100
    assert took_s == pytest.approx(10, rel=0.1)  # and not much slower than the limit
    assert waited >= 900


def test_a_request_that_waits_for_the_rate_of_a_host_is_counted_once():
    """Regression: each request that the rate allowed wakes all waiting queues, and each of these counted a further wait."""
    urls = [f"{VICTIM}/{n}" for n in range(200)]
    receivers, _, took_s, waited = delivered(urls, max_per_host=50, max_per_second_per_host=20.0)

    assert len(receivers.began["victim.example"]) == 200
    assert took_s == pytest.approx(10, rel=0.1)
    assert 150 <= waited <= 250


def test_a_full_host_does_not_delay_other_hosts():
    urls = [f"{VICTIM}/{n}" for n in range(300)] + [f"https://other{n}.example/" for n in range(50)]
    receivers, _, _, _ = delivered(urls, wait_s=1.0, max_per_host=2, max_per_second_per_host=1000.0, max_in_flight=64)

    assert max(began for n in range(50) for began in receivers.began[f"other{n}.example"]) < 1.0


def test_an_unlimited_host_has_no_limits():
    urls = [f"https://hooks.gateway.example/{n}" for n in range(100)]
    for names in (("hooks.gateway.example",), ("*.gateway.example",)):
        receivers, _, _, waited = delivered(urls, max_per_host=2, unlimited_hosts=names)
        assert receivers.most == {"hooks.gateway.example": 100}
        assert waited == 0


def test_a_long_wait_for_a_host_is_deferred_as_rate_limited():
    urls = [f"{VICTIM}/{n}" for n in range(50)]
    _, outcomes, _, _ = delivered(urls, max_per_host=4, max_per_second_per_host=10.0, queue_timeout_s=1.0)

    assert {outcome.reason for outcome in outcomes if outcome.kind is OutcomeKind.POSTPONED} == {retry_reasons.RATE_LIMITED}


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([5.0, 50.0, 1000.0]),
)
def test_all_deliveries_of_a_host_end_within_its_limits(where, each, most, per_second):
    urls = [f"https://host{host}.example/{n}" for n, host in enumerate(where)]
    receivers, outcomes, _, _ = delivered(
        urls, each=each, max_per_host=most, max_per_second_per_host=per_second, max_in_flight_per_endpoint=3
    )

    assert len(outcomes) == len(urls) * each
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}
    assert max(receivers.most.values()) <= most


def test_an_abandoned_micro_batch_frees_its_host_capacity():
    async def main():
        loop = asyncio.get_running_loop()
        bounds = {"max_per_host": 2, "queue_timeout_s": LONG_S, "response_deadline_s": LONG_S}
        known = host_limits.Hosts(limits.Limits(**bounds), loop.time)
        given_up = dispatching.dispatcher_of(
            Receivers(LONG_S), loop.time, memory=dispatching.new_memory(loop.time, hosts=known), **bounds
        )
        for n in range(10):
            given_up.submit(builders.delivery(endpoint=builders.endpoint(f"ep{n}", url=f"{VICTIM}/{n}")))
        await asyncio.sleep(0.1)
        given_up.abandon()
        await asyncio.sleep(0.1)
        following = dispatching.dispatcher_of(
            Receivers(0.01), loop.time, memory=dispatching.new_memory(loop.time, hosts=known), **bounds
        )
        for n in range(10):
            following.submit(builders.delivery(endpoint=builders.endpoint(f"ep{n}", url=f"{VICTIM}/{n}")))
        await following.finish()
        return len(following.drain()), loop.time()

    count, took_s = virtual.run(main())
    assert count == 10
    assert took_s < 1


def test_a_wait_for_a_host_that_was_forgotten_since_still_counts():
    known = host_limits.Hosts(limits.Limits(max_per_host=1), clock=lambda: 0.0, max_hosts=1)
    known.host_of(f"{VICTIM}/").count_delay()
    known.host_of("https://other.example/").count_delay()
    assert [known.drain_delayed(), known.drain_delayed()] == [2, 0]


def test_the_warning_names_the_host_and_the_setting(caplog):
    with caplog.at_level(logging.WARNING):
        delivered([f"{VICTIM}/{n}" for n in range(30)], max_per_host=2)
    [warning] = [record.getMessage() for record in caplog.records if "victim.example" in record.getMessage()]
    assert "delivery.unlimited_hosts" in warning


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://A.Example:8443/x", "a.example"),
        ("https://u:p@a.example/", "a.example"),
        ("https://a.example./", "a.example"),
        ("http://[::1]:80/", "::1"),
    ],
)
def test_a_host_is_known_by_its_name_alone(url, name):
    assert host_limits.host_name(url) == name


def test_each_worker_has_its_share_and_at_least_one_connection():
    bounds = limits.Limits(max_per_host=128, max_per_second_per_host=2000.0, workers=40)
    assert (bounds.in_flight_to_host(), bounds.rate_to_host()) == (3, 50.0)
    assert limits.Limits(max_per_host=2, workers=40).in_flight_to_host() == 1


def test_endpoints_share_a_host_round_robin():
    urls = [f"{VICTIM}/{n}" for n in range(4)]
    _, outcomes, _, _ = delivered(urls, each=5, wait_s=0.01, max_per_host=1, max_in_flight_per_endpoint=1)

    order = [outcome.delivery.endpoint.endpoint_id for outcome in outcomes]
    assert [set(order[first : first + 4]) for first in range(0, 20, 4)] == [{"ep0", "ep1", "ep2", "ep3"}] * 5


def test_endpoints_share_the_rate_of_a_host_round_robin():
    """Regression: a token woke many queues. All but one waited at the end of the line again, and some never got a turn."""
    urls = [f"{VICTIM}/{n}" for n in range(31)]
    _, outcomes, took_s, _ = delivered(urls, each=5, wait_s=0.01, max_per_host=8, max_per_second_per_host=20.0)

    order = [outcome.delivery.endpoint.endpoint_id for outcome in outcomes]
    assert [len(set(order[first : first + 31])) for first in range(0, 155, 31)] == [31] * 5
    assert took_s == pytest.approx(155 / 20, rel=0.1)


def test_a_token_that_is_not_used_goes_to_the_next_queue_at_once():
    async def main():
        loop = asyncio.get_running_loop()
        known = host_limits.Host("victim.example", 8, 1.0, loop.time)
        called = []
        for name in ("first", "second"):
            known.call_when_free(lambda name=name: bool(called.append((name, loop.time()))) or True)
        await asyncio.sleep(0.1)
        known.use_reservation()  # and does not enter
        known.wake()
        await asyncio.sleep(0.1)
        return called

    assert virtual.run(main()) == [("first", 0.0), ("second", pytest.approx(0.1))]


def test_an_abandoned_reservation_goes_to_the_next_queue():
    async def main():
        loop = asyncio.get_running_loop()
        known = host_limits.Host("victim.example", 1, 1000.0, loop.time)
        known.enter()
        called = []
        known.call_when_free(lambda: bool(called.append("first")) or True)
        known.call_when_free(lambda: bool(called.append("second")) or True)
        known.leave()
        await asyncio.sleep(0.1)
        assert called == ["first"]
        assert not known.has_room
        assert known.use_reservation()  # and does not enter
        known.wake()
        await asyncio.sleep(0.1)
        return called

    assert virtual.run(main()) == ["first", "second"]


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.sampled_from([None, 0, 1, 5])), min_size=1, max_size=30),
    st.integers(1, 3),
    st.sampled_from([2.0, 30.0, 1000.0]),
)
def test_callers_that_leave_the_line_leave_no_reservation(callers, most, per_second):
    """Each caller has its start and the end of its patience, in tenths of a second, and what it does when it is called.

    It sends a request of so many tenths of a second. None: it sends none.
    """

    async def main():
        loop = asyncio.get_running_loop()
        host, in_flight, refused = host_limits.Host("victim.example", most, per_second, loop.time), [0], []

        async def call(start, patience, request):
            await asyncio.sleep(start / 10)
            try:
                async with asyncio.timeout(patience / 10):
                    has_room = await host.wait_for_room(f"ep{patience % 3}")
            except TimeoutError:
                return
            if not has_room:
                refused.append(start)
            elif request is not None:
                host.serve(f"ep{patience % 3}")
                in_flight.append(in_flight[-1] + 1)
                await asyncio.sleep(request / 10)
                in_flight.append(in_flight[-1] - 1)
                host.leave()

        await asyncio.gather(*(call(*caller) for caller in callers))
        await asyncio.sleep(1)
        assert max(in_flight) <= most
        assert refused == []
        for _ in range(most):  # no place is lost
            assert host.has_room
            host.enter()
            await asyncio.sleep(1)
        assert not host.has_room

    virtual.run(main())


def test_an_endpoint_that_leaves_the_line_unserved_comes_back_to_its_place():
    async def main():
        host, served = host_limits.Host("victim.example", 1, 1000.0, asyncio.get_running_loop().time), []

        async def wait(endpoint_id):
            if await host.wait_for_room(endpoint_id):
                host.serve(endpoint_id)
                served.append(endpoint_id)

        async def all_waiting(*endpoint_ids):
            waits = [asyncio.create_task(wait(endpoint_id)) for endpoint_id in endpoint_ids]
            await asyncio.sleep(0.1)
            return waits

        host.enter()
        waits = await all_waiting("ep1", "ep2", "ep3")
        host.leave()
        await asyncio.sleep(0.1)
        for left in waits[1:]:
            left.cancel()
        await all_waiting("ep1", "ep3", "ep2")
        for _ in range(3):
            host.leave()
            await asyncio.sleep(0.1)
        return served

    assert virtual.run(main()) == ["ep1", "ep2", "ep3", "ep1"]


def test_the_places_of_many_endpoints_are_forgotten():
    places = host_limits.Places(max_places=2)
    first = places.of("ep1")
    assert (places.of("ep1"), places.of("ep2") > first) == (first, True)
    places.of("ep3")
    assert places.of("ep1") > places.of("ep3")


def test_a_changed_share_applies_to_known_hosts():
    shared = host_limits.Hosts(limits.Limits(max_per_host=4), clock=lambda: 0.0)
    host = shared.host_of(VICTIM)
    host.enter()
    host.enter()
    shared.set_bounds(limits.Limits(max_per_host=4, workers=4))
    assert (host.has_room, shared.soft_connection_limit(VICTIM)) == (False, 1)
    host.leave()
    assert not host.has_room
    host.leave()
    assert host.has_room


def test_a_larger_share_wakes_waiting_queues():
    async def main():
        shared = host_limits.Hosts(limits.Limits(max_per_host=4, workers=4), asyncio.get_running_loop().time)
        host, called = shared.host_of(VICTIM), asyncio.Event()
        host.enter()
        host.call_when_free(lambda: called.set() or True)
        await asyncio.sleep(0)
        assert not called.is_set()
        shared.set_bounds(limits.Limits(max_per_host=4, workers=1))
        await asyncio.wait_for(called.wait(), 10)

    asyncio.run(main())
