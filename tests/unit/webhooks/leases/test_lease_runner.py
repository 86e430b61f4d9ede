"""A lease has several runners, and each attempts one entry after another. While the endpoint's rate or host permits no request,
one runner of the endpoint waits for the rate, or in the host's line. The other runners wait until it begins its request.
"""

import asyncio
from dataclasses import dataclass

import pytest

from delivery.model import Attempt
from delivery.registry_model import Retrying
from delivery.webhooks.lanes import retry_lane
from delivery.webhooks.policy import error_classes
from delivery.webhooks.retries import retry_messages
from delivery.webhooks.routing import registries
from delivery.webhooks.scheduling import host_limits, limits
from tests.simulation import virtual
from tests.support import builders
from tests.support.leases import lease, waiting

VICTIM = "https://victim.example"


class Sender:
    """A sender whose attempts take `takes_s`, or what `takes_s` has for their endpoint.

    It has the second at which each attempt began, by endpoint. `asking` has the endpoints that answer 503 with a `Retry-After`.
    """

    def __init__(self, takes_s, asking=()):
        self._takes_s = takes_s
        self._asking = asking
        self.began = {}

    async def attempt(self, delivery, number, timeout_s=None):  # noqa: ARG002
        self.began.setdefault(delivery.endpoint.endpoint_id, []).append(asyncio.get_running_loop().time())
        takes_s = self._takes_s
        await asyncio.sleep(takes_s.get(delivery.endpoint.endpoint_id, 0.1) if isinstance(takes_s, dict) else takes_s)
        if delivery.endpoint.endpoint_id in self._asking:
            return Attempt(number, virtual.now_ms(), 5.0, 503, error_classes.UNAVAILABLE, retry_after_s=3600.0)
        return Attempt(number, virtual.now_ms(), 5.0, None, None)


class Counting(registries.WholeRegistry):
    """A registry that counts the checks before attempts: each check reads the present rows."""

    checks = 0

    def rows_now(self, *asked):
        self.checks += 1
        return super().rows_now(*asked)


@dataclass
class Run:
    """Leases that `deliver` has delivered. Times are in virtual seconds since the first lease began."""

    began: dict[str, list[float]]
    checks: int
    ended: dict[tuple[str, int], tuple[float, int]]
    """By endpoint and number of the lease: the time of its report, and how many of its entries were requeued."""


def deliver(endpoints, *leases, takes_s=0.1, within_s=60.0, asking=(), **bounds):
    """Deliver leases, given as (start in seconds, endpoint, number, number of entries). Look for reports each 0.1 s.

    The leases with number 1 have no order. Each other lease has an order key of its own.
    """

    async def main():
        loop, sender = asyncio.get_running_loop(), Sender(takes_s, asking)
        rows = [builders.subscription(f"s-{row.endpoint_id}", endpoint_id=row.endpoint_id) for row in endpoints]
        registry, chosen = Counting("base", builders.snapshot(*endpoints, *rows)), limits.Limits(**bounds)
        hosts = host_limits.Hosts(chosen, loop.time)
        lane = retry_lane.RetryLane(sender, chosen, paces={}, known_hosts=hosts, clock=loop.time, now_s=virtual.now_s)
        registry.checks, ended, due = 0, {}, sorted(leases, reverse=True)
        while len(ended) < len(leases) and loop.time() < within_s:
            brought = []
            while due and due[-1][0] <= loop.time():
                _, name, number, count = due.pop()
                entries = [waiting(through=(f"s-{name}",)) for _ in range(count)]
                key = None if number == 1 else f"k{number}"
                brought.append(retry_messages.encoded(lease(*entries, endpoint=name, order_key=key, number=number)))
            for report in (await lane.start(brought, registry, 1.0)).reports:
                ended[report.endpoint_id, report.lease] = loop.time(), len(report.requeued)
            await asyncio.sleep(0.1)
        await lane.close()
        return Run(sender.began, registry.checks, ended)

    return virtual.run(main())


def endpoints_at(host, count, **fields):
    return [builders.endpoint(f"ep{n}", url=f"{host}/{n}", **{"retrying": Retrying()} | fields) for n in range(count)]


@pytest.mark.parametrize("leases_each", [1, 4])
def test_one_runner_of_each_endpoint_checks_a_full_host(leases_each):
    """Regression: each of up to 16 runners of a lease did, 38,659 checks a second for 500 endpoints: 4 s of CPU a second.

    The runner checks once with the turn, and once when the host calls it. A runner whose attempt has ended checks too.
    """
    count = 50
    leases = [(0.0, f"ep{n}", number, 16) for n in range(count) for number in range(1, leases_each + 1)]
    run = deliver(endpoints_at(VICTIM, count), *leases, takes_s=1.0, within_s=10.0, max_per_host=8)
    attempts = sum(map(len, run.began.values()))
    assert attempts == pytest.approx(8 * 10 / 1.0, rel=0.2)
    first_checks = 2 * 16 * count * leases_each
    assert run.checks <= first_checks + 4 * attempts


def test_one_runner_of_each_endpoint_waits_for_its_rate():
    """Regression: after each wait for a rate, all 16 runners checked it, and 15 waited again."""
    run = deliver(endpoints_at(VICTIM, 1, max_per_second=2.0), (0.0, "ep0", 1, 50), within_s=20.0)
    assert len(run.began["ep0"]) == pytest.approx(40, abs=2)
    assert run.checks <= 2 * 16 + 3 * 40


def test_capacity_of_a_host_is_used_as_soon_as_an_attempt_ends():
    """Two endpoints with one runner each in the host's line keep all places of the host in use."""
    run = deliver(
        endpoints_at(VICTIM, 2), *[(0.0, f"ep{n}", 1, 400) for n in range(2)], takes_s=0.05, within_s=4.0, max_per_host=8
    )
    assert sum(map(len, run.began.values())) == pytest.approx(8 * 4 / 0.05, rel=0.1)


def test_a_lease_ends_in_time_behind_a_later_lease_of_its_endpoint():
    """Lease 2 sends at 0 s, and again from 12 s. Lease 3 has the turn until 20 s, and then lease 4 until 40 s."""
    leases = (0.0, "ep0", 2, 2), (5.0, "ep0", 3, 1), (11.0, "ep0", 4, 1)
    run = deliver(endpoints_at(VICTIM, 1, max_per_second=1 / 20), *leases, takes_s=12.0)
    assert run.began == {"ep0": pytest.approx([0.0, 20.0, 40.0], abs=0.1)}
    assert run.ended["ep0", 2] == (pytest.approx(retry_lane.LEASE_S, abs=0.2), 1)


def test_a_lease_ends_with_its_last_attempt_and_waits_for_no_turn():
    """The last entry goes at 6 s. Another runner of the lease waits for the turn, behind leases that send from 7 to 10 s."""
    others = [(at, "ep0", number, 1) for number, at in enumerate([0.5, 2.2, 3.1, 3.2, 3.3, 3.4], start=2)]
    run = deliver(
        endpoints_at(VICTIM, 1, max_per_second=1.0), (0.0, "ep0", 1, 5), *others, takes_s=1.5, max_in_flight_per_endpoint=3
    )
    assert run.began == {"ep0": pytest.approx(range(11), abs=0.1)}
    assert run.ended["ep0", 1] == (pytest.approx(6 + 1.5, abs=0.2), 0)


@pytest.mark.parametrize("slow", [32, 64, 250])
def test_many_slow_endpoints_leave_slots_for_the_retries_of_others(slow):
    """Regression: runners took the worker's slots in turn. Behind 32 endpoints that take 14 s, another endpoint's retry began
    after 23 s. Behind 64 it was requeued without an attempt, again and again.
    """
    names = [f"ep{number}" for number in range(slow)]
    rows = [builders.endpoint(name, url=f"https://{name}.example/", retrying=Retrying()) for name in (*names, "other")]
    leases = [(at, name, number, 64) for number, at in enumerate((0.0, 45.0, 90.0), start=1) for name in names]
    others = [(at, "other", number, 1) for number, at in enumerate(range(5, 120, 5), start=1)]
    run = deliver(rows, *leases, *others, takes_s=dict.fromkeys(names, 14.0), within_s=125.0)
    delays = [began - at for began, (at, *_) in zip(run.began["other"], others, strict=True)]
    assert max(delays) <= 14.2
    assert sum(delay > 0.2 for delay in delays) <= 3
    assert all(requeued == 0 for (name, _), (_, requeued) in run.ended.items() if name == "other")


def test_after_a_retry_after_no_further_request_of_the_endpoint_begins():
    """Regression: all 256 entries of a lease were sent in the next 25 s, and each used up a wait of the schedule."""
    leases = [(0.0, "ep0", 1, 256), *[(0.0, "ep0", number, 1) for number in range(2, 6)], (0.0, "ep1", 1, 20)]
    run = deliver(endpoints_at(VICTIM, 2, max_in_flight=2), *leases, takes_s=0.2, asking={"ep0"})
    assert run.began["ep0"] == [0.0, 0.0]
    assert len(run.began["ep1"]) == 20
    assert run.ended["ep0", 1] == (pytest.approx(0.2, abs=0.2), 256)
    assert [run.ended["ep0", number] for number in range(2, 6)] == 4 * [(pytest.approx(0.2, abs=0.2), 1)]


def test_a_retry_after_ends_the_leases_that_wait_for_the_rate():
    leases = [(0.0, "ep0", 1, 20), (0.0, "ep0", 2, 3)]
    run = deliver(endpoints_at(VICTIM, 1, max_per_second=0.5), *leases, takes_s=1.0, asking={"ep0"})
    assert run.began["ep0"] == [0.0]
    assert run.ended == {("ep0", 1): (pytest.approx(1, abs=0.2), 20), ("ep0", 2): (pytest.approx(1, abs=0.2), 3)}
