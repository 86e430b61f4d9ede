"""All leases of an endpoint share its slots, its rate and the limits of its host."""

import asyncio

from delivery.webhooks.leases.endpoint_slots import EndpointSlots
from delivery.webhooks.scheduling import host_limits, limits
from tests.support import builders, fakes


def slots_of(paces=None, **bounds):
    clock, chosen = fakes.Clock(0.0), limits.Limits(**bounds)
    return EndpointSlots(chosen, {} if paces is None else paces, host_limits.Hosts(chosen, clock))


def test_leases_in_flight_at_once_share_a_semaphore():
    slots = slots_of(workers=2)
    first, second = (slots.limits_of(builders.endpoint(max_in_flight=6)) for _ in range(2))
    assert first.slots is second.slots
    assert (first.max_in_flight, first.slots._value) == (3, 3)
    assert slots.limits_of(builders.endpoint("ep2", max_in_flight=6)).slots is not first.slots


def test_a_lease_in_flight_keeps_its_limit():
    slots = slots_of()
    before = slots.limits_of(builders.endpoint())
    slots.set_bounds(limits.Limits(max_in_flight_per_endpoint=2))
    after = slots.limits_of(builders.endpoint())
    assert (before.max_in_flight, after.max_in_flight) == (16, 2)
    assert before.slots is not after.slots


def test_leases_in_flight_at_once_share_a_turn_unless_the_rate_has_changed():
    """A lease with a higher rate would wait behind a lease that waits by the old rate."""
    slots = slots_of()
    first, second, faster = (slots.limits_of(builders.endpoint(max_per_second=rate)) for rate in (0.1, 0.1, 5.0))
    assert first.turn is second.turn
    assert faster.turn is not first.turn


def test_a_request_waits_for_the_rate_of_all_lanes():
    paces = {}
    shared = slots_of(paces).limits_of(builders.endpoint(max_per_second=0.5))
    assert shared.pace is paces["ep1"]
    assert (shared.full_host(), shared.rate_wait_s(0.0)) == (None, 0.0)
    shared.begin(0.0)
    assert shared.rate_wait_s(0.5) == 1.5
    shared.end()
    assert shared.rate_wait_s(2.0) == 0.0


def test_a_request_waits_for_its_host():
    async def main():
        shared = slots_of(max_per_host=1).limits_of(builders.endpoint())
        shared.begin(0.0)
        assert shared.full_host() is shared.host
        shared.end()
        assert shared.full_host() is None

    asyncio.run(main())
