"""The line of endpoint queues for a slot."""

import asyncio

from delivery.webhooks.dispatching import endpoint_queue, ready_queue
from delivery.webhooks.scheduling import limits
from tests.support import fakes
from tests.support.dispatching import deliveries, new_memory


def queue_of(endpoint_id, count, **fields):
    """Return an endpoint's queue with `count` waiting deliveries."""
    memory, submitted = new_memory(lambda: 0.0), deliveries(count, endpoint_id, **fields)
    queue = memory.queue_of(submitted[0].endpoint, limits.Limits(), fakes.unreported_background())
    queue.waiting.extend(endpoint_queue.PendingDelivery(delivery) for delivery in submitted)
    return queue


def line_of(on_return=lambda: None, free_slots=lambda: 256):
    return ready_queue.ReadyQueue(on_return, free_slots, slots=256)


def test_endpoints_take_turns():
    line = line_of()
    for queue in (queue_of("a", 3), queue_of("b", 1), queue_of("c", 2)):
        line.add(queue)
    begun = []
    while line.line:
        queue = line.pop()
        begun.append((queue.endpoint_id, line.begin(queue, 0.0) is not None))
    assert [endpoint_id for endpoint_id, _ in begun] == ["a", "b", "c", "a", "c", "a"]
    assert all(has_begun for _, has_begun in begun)


def test_a_queue_with_as_many_requests_as_it_may_have_is_not_in_line():
    line, queue = line_of(), queue_of("a", 2, max_in_flight=1)
    line.add(queue)
    assert line.begin(line.pop(), 0.0) is not None
    assert not line.line
    queue.end()
    line.add(queue)
    assert list(line.line) == [queue]


def test_a_queue_leaves_the_line_until_its_rate_allows_a_request():
    async def play():
        returned = asyncio.Event()
        line, queue = line_of(on_return=returned.set), queue_of("a", 2, max_per_second=100)
        queue.pace.consume(0.0, 5)
        line.add(queue)
        assert line.begin(line.pop(), 0.0) is None
        assert not line.line
        line.add(queue)
        assert not line.line  # it returns by itself
        await returned.wait()
        assert list(line.line) == [queue]

    asyncio.run(play())


def test_a_queue_does_not_return_when_the_task_has_ended():
    async def play():
        returned = []
        line, queue = line_of(on_return=lambda: returned.append(True)), queue_of("a", 2, max_per_second=100)
        queue.pace.consume(0.0, 5)
        line.add(queue)
        line.begin(line.pop(), 0.0)
        line.close()
        queue.resumption._run()
        assert (list(line.line), returned) == ([], [])

    asyncio.run(play())


def test_a_queue_leaves_the_line_while_too_few_slots_are_free():
    free = 4
    line, slow, slower = line_of(free_slots=lambda: free), queue_of("slow", 9), queue_of("slower", 9)

    def begun():
        nonlocal free
        names = []
        while line.line:
            queue = line.pop()
            if line.begin(queue, 0.0) is not None:
                names.append(queue.endpoint_id)
                free -= 1
        return names

    def end(queue):
        nonlocal free
        queue.end()
        free += 1
        line.return_crowded(queue)

    line.add(slow)
    assert begun() == ["slow", "slow"]
    line.add(slower)
    assert begun() == ["slower"]
    line.add(queue_of("other", 1))
    assert begun() == ["other"]
    end(slow)
    assert begun() == []
    end(slow)
    assert begun() == ["slow"]


def test_a_slot_that_a_returned_queue_does_not_use_goes_to_the_next():
    free = 1
    line, paced, other = line_of(free_slots=lambda: free), queue_of("paced", 9, max_per_second=100), queue_of("other", 9)
    for queue in (paced, other):
        queue.begin(0.0)
        line.add(queue)
        assert line.begin(line.pop(), 0.0) is None

    async def play():
        nonlocal free
        paced.pace.consume(0.0, 5)
        free = 9
        line.return_crowded(queue)
        assert line.begin(line.pop(), 0.0) is None
        assert line.pop() is other

    asyncio.run(play())
