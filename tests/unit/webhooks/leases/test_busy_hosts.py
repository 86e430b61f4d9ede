"""A lease waits in the line of a host that other requests keep at its limits. It leaves no reservation of the host behind."""

import asyncio

import pytest

from delivery.model import Attempt
from delivery.webhooks.lanes import retry_lane
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import host_limits, limits
from tests.simulation import virtual
from tests.support import builders, dispatching
from tests.support.leases import lease, registry, waiting

GATEWAY = "https://gateway.example"


class Gateway:
    """A sender whose attempts take 0.1 s. It has the second at which each attempt began, by endpoint."""

    def __init__(self):
        self.began = {}

    async def attempt(self, delivery, number, timeout_s=None):  # noqa: ARG002
        self.began.setdefault(delivery.endpoint.endpoint_id, []).append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        return Attempt(number, virtual.now_ms(), 5.0, 200, None)


def lane_at(sender, bounds, hosts):
    return retry_lane.RetryLane(
        sender, bounds, paces={}, known_hosts=hosts, clock=asyncio.get_running_loop().time, now_s=virtual.now_s
    )


def of(count):
    """Return a lease of `count` entries to the endpoint ep1, in the shards' encoding."""
    return retry_messages.encoded(lease(*(waiting() for _ in range(count))))


async def flood(sender, hosts, bounds, per_second):
    """Send events to 20 endpoints of the gateway without end, by a slice of the real-time lane each second."""
    loop, slices = asyncio.get_running_loop(), []
    memory = dispatching.new_memory(loop.time, hosts=hosts)
    others = [builders.endpoint(f"other{n}", url=f"{GATEWAY}/{n}") for n in range(20)]
    while True:
        dispatcher = dispatching.dispatcher_of(sender, loop.time, memory=memory, **bounds)
        for n in range(per_second):
            dispatcher.submit(builders.delivery(endpoint=others[n % 20]))
        slices.append(asyncio.create_task(dispatcher.finish()))
        await asyncio.sleep(1)


@pytest.mark.parametrize(
    "bounds",
    [{"max_per_host": 4}, {"max_per_host": 8, "max_per_second_per_host": 40.0}],
    ids=["connections", "requests a second"],
)
def test_a_retry_soon_gets_a_turn_at_a_host_that_a_fast_lane_keeps_full(bounds):
    """Regression: a lease only looked whether the host was free, and its entries were requeued until they expired."""

    async def main():
        loop, sender, chosen = asyncio.get_running_loop(), Gateway(), limits.Limits(**bounds)
        hosts = host_limits.Hosts(chosen, loop.time)
        flooding = asyncio.create_task(flood(sender, hosts, bounds, per_second=60))
        await asyncio.sleep(5)
        lane = lane_at(sender, chosen, hosts)
        await lane.start([of(20)], registries.WholeRegistry("base", registry(url=GATEWAY)), 1.0)
        await asyncio.sleep(retry_lane.LEASE_S)
        flooding.cancel()
        await lane.close()
        return sender.began

    began = virtual.run(main())
    assert began["ep1"][0] < 5 + 3
    assert len(began["ep1"]) >= retry_lane.LEASE_S / 2
    sent = sum(at > 5 for times in began.values() for at in times)
    assert sent == pytest.approx(40 * retry_lane.LEASE_S, rel=0.05)  # the host is fully used


def left_unsent(entries, after_a_second=lambda *_: None):
    """Deliver a lease of `entries` entries to a host whose one place another request has. Then end that request.

    Return the second at which the lease has ended, the number of its requeued entries, and whether the host has room then.
    """

    async def main():
        loop, chosen = asyncio.get_running_loop(), limits.Limits(max_per_host=1)
        hosts = host_limits.Hosts(chosen, loop.time)
        host = hosts.host_of(GATEWAY)
        host.enter()
        lane, known = lane_at(Gateway(), chosen, hosts), registries.WholeRegistry("base", registry(url=GATEWAY))
        await lane.start([of(entries)], known, 1.0)
        await asyncio.sleep(1)
        after_a_second(lane, host)
        [report] = (await lane.finish_task(2 * retry_lane.LEASE_S)).reports
        ended_at = loop.time()
        await asyncio.sleep(1)
        host.leave()
        await asyncio.sleep(1)
        return ended_at, len(report.requeued), host.has_room

    return virtual.run(main())


@pytest.mark.parametrize("entries", [1, 20])
def test_a_lease_in_the_line_of_a_full_host_ends_in_time(entries):
    assert left_unsent(entries) == (pytest.approx(retry_lane.LEASE_S), entries, True)


@pytest.mark.parametrize("entries", [1, 20])
def test_a_stop_ends_a_wait_in_the_line_of_a_host_at_once(entries):
    assert left_unsent(entries, lambda lane, _: lane.stop()) == (1.0, entries, True)


@pytest.mark.parametrize("entries", [1, 20])
def test_a_stop_in_the_moment_of_the_call_keeps_no_reservation(entries):
    def call_and_stop(lane, host):
        loop = asyncio.get_running_loop()
        host.leave()  # the host calls the lease in the next iteration of the loop
        loop.call_later(0, lane.stop)
        loop.call_later(0.5, host.enter)

    assert left_unsent(entries, call_and_stop) == (1.0, entries, True)


def test_endpoints_in_a_line_longer_than_a_lease_are_all_served():
    """Regression: each lease began at the end of the line, and the same endpoints were served again and again."""

    async def main():
        sender, chosen = Gateway(), limits.Limits(max_per_host=4, max_per_second_per_host=1.0)
        lane = lane_at(sender, chosen, host_limits.Hosts(chosen, asyncio.get_running_loop().time))
        names = [f"ep{n}" for n in range(100)]
        rows = [builders.endpoint(name, url=GATEWAY) for name in names]
        subscriptions = [builders.subscription(f"s-{name}", endpoint_id=name) for name in names]
        known = registries.WholeRegistry("base", builders.snapshot(*rows, *subscriptions))
        for number in range(1, 6):
            leases = [
                lease(*(waiting(through=(f"s-{name}",)) for _ in range(9)), endpoint=name, number=number) for name in names
            ]
            await lane.start(map(retry_messages.encoded, leases), known, 1.0)
            await lane.finish_task(2 * retry_lane.LEASE_S)
        return len(sender.began)

    assert virtual.run(main()) == 100


def test_a_lease_without_a_free_slot_leaves_the_capacity_of_its_host_to_others():
    """The host calls the lease while the worker's only slot is taken by the attempts of another endpoint."""

    async def main():
        loop, sender, chosen = asyncio.get_running_loop(), Gateway(), limits.Limits(max_per_host=1, max_in_flight=1)
        hosts = host_limits.Hosts(chosen, loop.time)
        host = hosts.host_of(GATEWAY)
        host.enter()
        rows = builders.endpoint(url=GATEWAY), builders.endpoint("ep2", url="https://other.example/")
        subscriptions = builders.subscription(), builders.subscription("s2", endpoint_id="ep2")
        known, lane = registries.WholeRegistry("base", builders.snapshot(*rows, *subscriptions)), lane_at(sender, chosen, hosts)
        other = lease(*(waiting(through=("s2",)) for _ in range(30)), endpoint="ep2")
        await lane.start([of(1), retry_messages.encoded(other)], known, 1.0)
        await asyncio.sleep(1.05)
        host.leave()
        await asyncio.sleep(0.01)
        assert host.has_room
        host.enter()
        await asyncio.sleep(10)
        assert (len(sender.began["ep2"]), sender.began.get("ep1")) == (30, None)
        host.leave()
        await asyncio.sleep(1)
        await lane.close()
        return sender.began["ep1"]

    assert virtual.run(main()) == [pytest.approx(11.06)]
