"""The newest lease of each FIFO is in flight until it is reported; the memory of all leases is bounded."""

import asyncio

from delivery.webhooks.leases import memory_budget
from delivery.webhooks.leases.lease_book import LeaseBook
from delivery.webhooks.leases.lease_in_flight import LeaseInFlight
from delivery.webhooks.leases.lease_triage import RegistryView
from delivery.webhooks.routing import registries
from tests.support.leases import lease, waiting
from tests.support.retries import failed_attempt

VIEW = RegistryView(registries.Destination(None, {}), 1, 3600.0)


def in_flight(**fields):
    return LeaseInFlight(lease(**fields), VIEW, until=30.0)


def test_a_newer_lease_of_a_fifo_stops_the_older():
    async def main():
        book, release = LeaseBook(), asyncio.Event()
        older, newer, other = in_flight(number=1), in_flight(number=2), in_flight(number=3, order_key="k")
        for begun in (older, newer, other):
            book.begin(begun, release.wait())
        assert [begun.until for begun in (older, newer, other)] == [float("-inf"), 30.0, 30.0]
        assert list(book.in_flight()) == [newer, other]
        book.forget(older)
        assert [book.rejoin(begun.message) for begun in (older, newer, other)] == [False, True, True]
        book.forget(newer)
        assert not book.rejoin(newer.message)
        release.set()
        assert await book.wait(5)

    asyncio.run(main())


def test_a_task_awaits_its_own_leases_only():
    async def main():
        book, release = LeaseBook(), asyncio.Event()
        begun = in_flight()
        book.begin(begun, release.wait())
        assert not await book.wait(0)
        book.finish_task()
        assert await book.wait(0)
        assert book.rejoin(begun.message)
        assert not await book.wait(0)
        await book.close()
        assert not book.is_busy

    asyncio.run(main())


def test_ended_leases_are_drained_once_in_order():
    book, ended = LeaseBook(), [in_flight(number=2), in_flight(number=1)]
    for lease_ended in ended:
        book.end(lease_ended)
    assert (book.has_ended, book.drain_ended()) == (True, ended)
    assert (book.has_ended, book.drain_ended()) == (False, [])


def test_memory_is_waited_for_while_leases_end():
    entry_bytes = waiting(packed=[]).written_bytes + memory_budget.ENTRY_BYTES
    small, large = lease(waiting(packed=[])), lease(waiting(packed=[]), waiting(packed=[]))

    async def main():
        budget, waits = memory_budget.MemoryBudget(max_bytes=3 * entry_bytes), []
        assert budget.has_room(lease(*(waiting(packed=[]) for _ in range(9)))), "a single lease always fits"
        held = [budget.reserve(large), budget.reserve(small)]

        async def one_ends():
            waits.append("ended")
            budget.release(held.pop(0))
            return True

        async def none_ends():
            waits.append("none")
            return False

        assert not budget.has_room(large)
        assert await budget.wait_for_room(large, one_ends)
        budget.reserve(large)
        for _ in range(2):
            assert not await budget.wait_for_room(small, none_ends)
        assert waits == ["ended", "none"], "a task waits in vain once"
        budget.finish_task()
        assert not await budget.wait_for_room(small, none_ends)
        assert waits == ["ended", "none", "none"]

    asyncio.run(main())


def test_the_bytes_of_leases_include_the_attempt_histories():
    """Regression: ENTRY_BYTES stood for a history that may have ten times as many bytes, so a worker held too much."""
    history = tuple(failed_attempt(number, response=b"x" * 1024) for number in range(1, 11))
    budget, begun = memory_budget.MemoryBudget(max_bytes=30_000), lease(waiting(history=history))
    assert budget.reserve(begun) > 10 * 1024
    assert budget.has_room(begun)
    budget.reserve(begun)
    assert not budget.has_room(begun), "three have more than 36 KiB"
