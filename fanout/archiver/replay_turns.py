"""Let customers take turns, and also each customer's replays, so that no customer waits for another's many replays. Pure.

Runs in `fanout archive`.
"""

from __future__ import annotations

from collections.abc import Iterable

from subscriptions_db.replays.requests import ReplayRequest


class ReplayTurns:
    """The order in which replays and customers had their last turns."""

    def __init__(self) -> None:
        self._turns = 0
        self._of_replays: dict[int, int] = {}
        self._of_customers: dict[str, int] = {}

    def taken(self, replay: ReplayRequest) -> None:
        """Note that a replay, and so its customer, has a turn now."""
        self._turns += 1
        self._of_replays[replay.number] = self._of_customers[replay.customer_id] = self._turns

    def of_customers(self, unfinished: Iterable[ReplayRequest]) -> list[ReplayRequest]:
        """Return the next replay of each customer, in the order of the customers' turns.

        1. A customer's next replay is the replay whose last turn is the longest ago. Among equals, the oldest replay is next.
        2. The customer whose last turn is the longest ago comes first.
        3. A replay or customer that was not in `unfinished` of the previous call counts as if it had taken the last turn but
           one. So a customer that returns comes after the customers that have waited. Customers are missing now and then,
           because too many of their deliveries have no outcome yet.

        Turns of replays and customers outside of `unfinished` are forgotten.
        """
        listed = list(unfinished)
        self._of_replays = {replay.number: self._of_replays.get(replay.number, self._turns - 1) for replay in listed}
        self._of_customers = {
            replay.customer_id: self._of_customers.get(replay.customer_id, self._turns - 1) for replay in listed
        }
        found = sorted(listed, key=lambda replay: (self._of_replays[replay.number], replay.number))
        next_of: dict[str, ReplayRequest] = {}
        for replay in found:
            next_of.setdefault(replay.customer_id, replay)
        return sorted(next_of.values(), key=lambda replay: (self._of_customers[replay.customer_id], replay.number))
