"""A delivery goes through its whole retry schedule in the state of a shard, with a clock that jumps: weeks in milliseconds."""

import random

import pytest

from delivery.registry_model import Retrying
from delivery.webhooks.policy import backoff, error_classes
from delivery.webhooks.retries import retry_messages
from tests.support.retries import DAY_MS, NOW, Shard, accepted, entry, failed_attempt, postponed, reported


class Customer:
    """A shard, a worker that attempts each leased entry, and an endpoint that responds by `answers` in turn, then with 500."""

    def __init__(self, *answers, retrying_by=None, seed=1):
        self.shard = Shard()
        self.answers = list(answers)
        self.retrying = retrying_by or Retrying()
        self.rng = random.Random(seed)
        self.now_ms = NOW
        self.attempted_ms = []
        self.dead = None

    def attempt(self, lease):
        [entry_] = lease.entries
        assert entry_.again_at_ms <= self.now_ms
        self.attempted_ms.append(self.now_ms)
        error_class, retry_after_s = self.answers.pop(0) if self.answers else (error_classes.SERVER_ERROR, None)
        if error_class is None:
            return accepted(lease)
        again = backoff.next_attempt(
            self.retrying,
            error_class,
            entry_.retries,
            now_ms=self.now_ms,
            expires_ms=entry_.expires_ms,
            retry_after_s=retry_after_s,
            rng=self.rng,
        )
        if again is None:
            self.dead = error_class
            return reported(lease, delivered=0, failed=1)
        attempt = failed_attempt(entry_.attempts + 1, error_class=error_class)
        return reported(lease, retry_messages.Requeue(0, again, error_class, (attempt,)), retry_after_s=retry_after_s)

    def live(self):
        """Advance the time until the entry has ended. Return the wait before each attempt, in seconds."""
        first = backoff.next_attempt(
            self.retrying, error_classes.SERVER_ERROR, 0, now_ms=NOW, expires_ms=NOW + 3 * DAY_MS, rng=self.rng
        )
        arrived = [postponed(entry(again_at_ms=first.at_ms, retries=first.retries, attempts=1))]
        while arrived or self.shard.backlog.due_ms is not None:
            leases = self.shard.step(*arrived, now_ms=self.now_ms)
            arrived = [self.attempt(lease) for lease in leases if not lease.given_up]
            self.dead = self.dead or next((lease.given_up for lease in leases), None)
            if not arrived and self.shard.backlog.due_ms is not None:
                self.now_ms = max(self.now_ms, self.shard.backlog.due_ms)
        assert self.shard.is_empty()
        return [(after - before) / 1000 for before, after in zip([NOW, *self.attempted_ms], self.attempted_ms, strict=False)]


@pytest.mark.parametrize("seed", range(20))
def test_the_default_schedule_ends_in_a_dead_letter(seed):
    customer = Customer(seed=seed)
    waits_s = customer.live()
    assert len(waits_s) == len(Retrying().schedule_s)
    for nth, (waited_s, wait_s) in enumerate(zip(waits_s, Retrying().schedule_s, strict=True)):
        assert 0.8 * wait_s - 0.001 <= waited_s <= max(1.2 * wait_s, 5 * 2**nth) + 0.001
    assert customer.dead == error_classes.SERVER_ERROR


def test_a_retry_after_is_the_least_wait_and_uses_up_a_wait():
    customer = Customer((error_classes.UNAVAILABLE, 3600.0), (None, None))
    first_s, second_s = customer.live()
    assert 4 <= first_s <= 6
    assert 3600 <= second_s <= 3600 * 1.2
    assert customer.dead is None


def test_a_custom_schedule_is_kept_until_max_age():
    customer = Customer(retrying_by=Retrying(schedule_s=(1, 60, *[86_000] * 9)))
    waits_s = customer.live()
    assert len(waits_s) == 5, "1 s, 1 min, and three days of waits of a day"
    assert customer.dead == error_classes.SERVER_ERROR
