"""Keep the endpoint queues of a task or slice that are in line for a slot, and decide whether their next request may begin.

A slot is room for one request in flight. A slice is the records of about one second in a task of the real-time lane.
"""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import Callable
from typing import Generic

from delivery.model import Sent
from delivery.webhooks.dispatching.endpoint_queue import PendingDelivery, Queue
from delivery.webhooks.scheduling import fewest_first


class ReadyQueue(Generic[Sent]):
    """The endpoint queues in line for a slot, in the order in which they joined: endpoints share the slots round robin.

    A queue joins if it has a waiting delivery and fewer requests in flight than its limit. A queue leaves the line in two
    cases:
    1. The queue waits for its rate or its host. It joins again when the rate or the host allows a request.
    2. The queue has as many requests in flight as `free_slots` returns, or more. This rule leaves slots for other endpoints.
       `return_crowded` lets the queue join again.

    `slots` is the number of all slots. `on_return` is called when a queue joins again. Not thread-safe.
    """

    def __init__(self, on_return: Callable[[], None], free_slots: Callable[[], int], slots: int) -> None:
        self._on_return = on_return
        self._free_slots = free_slots
        self._slots = slots
        self._crowded: fewest_first.FewestFirst[Queue[Sent]] = fewest_first.FewestFirst()
        """The queues that left the line because too few slots are free."""
        self.line: collections.deque[Queue[Sent]] = collections.deque()
        """The queues in line. Other classes only read its length, for each delivery."""
        self._is_closed = False

    @property
    def waits_for_others(self) -> bool:
        """Return True if a queue is out of line for lack of free slots, and holds less than half of all slots itself.

        Then other endpoints hold the slots. A queue that holds half of the slots or more waits for its own endpoint.
        """
        return len(self._crowded) > 0 and 2 * self._crowded.first()[1] < self._slots

    def add(self, queue: Queue[Sent]) -> None:
        """Add a queue to the line if it has a waiting delivery and fewer requests in flight than its limit.

        A queue that is in line already, or waits for its rate, its host or more free slots, is not added.
        """
        if queue.waiting and not queue.is_ready and queue.in_flight < queue.limit:
            queue.is_ready = True
            self.line.append(queue)

    def pop(self) -> Queue[Sent]:
        """Take the first queue out of the line. The caller must then call `begin` with it."""
        return self.line.popleft()

    def begin(self, queue: Queue[Sent], now: float) -> PendingDelivery[Sent] | None:
        """Begin a request to the endpoint of a queue that was taken out of the line; return the delivery to attempt.

        Return None if the endpoint may get no request now (`_may_begin`). After a begun request, the queue joins the line again
        if it may send a further request.
        """
        if not self._may_begin(queue, now):
            return None
        pending = queue.waiting.popleft()
        queue.begin(now)
        queue.is_ready = False
        self.add(queue)
        return pending

    def close(self) -> None:
        """Empty the line. Queues that wait for their rate or host do not join again. Called at the end of the task or slice."""
        self._is_closed = True
        self.line.clear()
        self._crowded.clear()

    def return_crowded(self, ended: Queue[Sent] | None = None) -> None:
        """Let the queue with the fewest requests in flight join the line again, if enough slots are free for it now.

        Only queues that left the line for lack of free slots count, not those that wait for their rate or host. Called for each
        slot that comes free or is not used. Also called when a request has ended: `ended` is then the queue of this request.
        """
        if ended is not None and ended in self._crowded:
            self._crowded.put(ended, ended.in_flight)
        while self._crowded:
            queue, in_flight = self._crowded.first()
            if in_flight >= self._free_slots():
                return
            self._crowded.discard(queue)
            if self._rejoin(queue):
                return

    def _may_begin(self, queue: Queue[Sent], now: float) -> bool:
        """Return True if the first delivery of the queue may be attempted now.

        1. False if the queue is empty, or if its limit has fallen meanwhile and is reached by the requests in flight.
        2. False if the queue has as many requests in flight as slots are free. It joins the line again by `return_crowded`.
        3. False if the rate allows no request yet. The queue joins the line again when the rate allows one.
        4. False if the host has no capacity. The queue joins the line again when the host has capacity.
        5. Otherwise True.
        """
        host, wait_s = queue.host, 0.0 if queue.pace is None else queue.pace.wait_s(now)
        is_wanted = bool(queue.waiting) and queue.in_flight < queue.limit
        was_woken, queue.has_reservation = queue.has_reservation, False
        has_room = host is None or (host.use_reservation() if was_woken else host.has_room)
        is_crowded = is_wanted and queue.in_flight >= self._free_slots()
        if is_wanted and not is_crowded and not wait_s and has_room:
            return True
        if not is_wanted:
            queue.is_ready = False
        elif is_crowded:
            self._crowded.put(queue, queue.in_flight)
        elif wait_s:
            queue.resumption = asyncio.get_running_loop().call_later(wait_s, self._rejoin, queue)
        elif host is not None:
            host.call_when_free(functools.partial(self._rejoin, queue, has_reservation=True), is_again=was_woken)
        if host is not None:
            host.wake()  # the reservation was not used
        if not is_crowded:
            self.return_crowded()  # the slot was not used
        return False

    def _rejoin(self, queue: Queue[Sent], *, has_reservation: bool = False) -> bool:
        """Add a queue that waited for its rate or host. Return False, without adding it, after `close` or if it is empty."""
        if self._is_closed or not queue.waiting:
            queue.is_ready = False
            return False
        queue.has_reservation = has_reservation
        self.line.append(queue)
        self._on_return()
        return True
