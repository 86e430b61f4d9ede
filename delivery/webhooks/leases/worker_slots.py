"""Divide the slots of one worker's retry lane among endpoints, so that slow endpoints leave slots for the others."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

from delivery.registry_model import EndpointId
from delivery.webhooks.scheduling import fewest_first


class WorkerSlots:
    """The slots of one worker's leases. A slot is room for one request in flight. Not thread-safe.

    An endpoint gets a slot only while it holds fewer slots than are free. So an endpoint holds at most half of the slots. Many
    endpoints that respond slowly hold fewer slots each, and leave free slots for an endpoint that holds none. If several
    endpoints wait, the endpoint with the fewest slots comes first. If several have equally few, the endpoint that has waited
    longest comes first.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held: collections.Counter[EndpointId] = collections.Counter()
        self._waiting: dict[EndpointId, collections.deque[asyncio.Future[None]]] = {}
        """By endpoint: a future for each caller that waits, in order. The result of a future gives its caller a slot."""
        self._line: fewest_first.FewestFirst[EndpointId] = fewest_first.FewestFirst()
        """The endpoints for which a caller waits."""

    def has_room(self, endpoint_id: EndpointId) -> bool:
        """Return True if a request to the endpoint gets a slot now."""
        return self._held[endpoint_id] < self._free and endpoint_id not in self._waiting

    @contextlib.asynccontextmanager
    async def slot(self, endpoint_id: EndpointId, within_s: float) -> AsyncIterator[bool]:
        """Hold a slot for one request while the `with` block runs. Yield False if no slot comes free within `within_s`."""
        has_slot = self.has_room(endpoint_id)
        if has_slot:
            self._take(endpoint_id)
        else:
            has_slot = await self._wait(endpoint_id, within_s)
        try:
            yield has_slot
        finally:
            if has_slot:
                self._give_back(endpoint_id)

    async def _wait(self, endpoint_id: EndpointId, within_s: float) -> bool:
        """Wait for a slot of the endpoint; return False after `within_s` seconds. Cancelled, it leaves no slot taken."""
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(endpoint_id, collections.deque()).append(given)
        if endpoint_id not in self._line:
            self._line.put(endpoint_id, self._held[endpoint_id])
        try:
            await asyncio.wait((given,), timeout=max(within_s, 0.0))
        except asyncio.CancelledError:
            self._leave(endpoint_id, given)
            if given.done():
                self._give_back(endpoint_id)
            raise
        self._leave(endpoint_id, given)
        return given.done()

    def _leave(self, endpoint_id: EndpointId, given: asyncio.Future[None]) -> None:
        """Forget a caller that waits no more. A caller that was given a slot is forgotten already."""
        if not given.done():
            self._waiting[endpoint_id].remove(given)
            self._forget_if_nobody_waits(endpoint_id)

    def _forget_if_nobody_waits(self, endpoint_id: EndpointId) -> None:
        if not self._waiting[endpoint_id]:
            del self._waiting[endpoint_id]
            self._line.discard(endpoint_id)
            self._forget_if_unused(endpoint_id)

    def _take(self, endpoint_id: EndpointId) -> None:
        self._free -= 1
        self._change(endpoint_id, 1)

    def _give_back(self, endpoint_id: EndpointId) -> None:
        self._free += 1
        self._change(endpoint_id, -1)
        self._give_free()

    def _change(self, endpoint_id: EndpointId, by: int) -> None:
        """Change the number of slots that the endpoint holds.

        If a caller waits for the endpoint, put the endpoint behind all waiting endpoints with as many slots.
        """
        self._held[endpoint_id] += by
        if endpoint_id in self._line:
            self._line.put(endpoint_id, self._held[endpoint_id])
        else:
            self._forget_if_unused(endpoint_id)

    def _forget_if_unused(self, endpoint_id: EndpointId) -> None:
        if not self._held[endpoint_id]:
            del self._held[endpoint_id]

    def _give_free(self) -> None:
        """Give free slots to endpoints that wait and may get one."""
        while self._line:
            endpoint_id, held = self._line.first()
            if held >= self._free:
                return
            self._waiting[endpoint_id].popleft().set_result(None)
            self._forget_if_nobody_waits(endpoint_id)
            self._take(endpoint_id)
