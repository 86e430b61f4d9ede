"""Simulated histories break no promise of the platform, whatever endpoints and operators do and whenever a worker dies.

Every run of the tests uses other seeds. A failure says how to replay it: `python -m tests.simulation --seed N --deaths D`.
"""

import random
import secrets

import pytest

from tests.simulation import history, shards, virtual
from tests.simulation.world import Mood
from tests.support import thoroughness

SEEDS = thoroughness.cases(2, thorough=5)
DRAWN = secrets.randbelow(1_000_000)


@pytest.mark.parametrize("deaths", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("number", range(SEEDS))
def test_every_history_keeps_all_promises_and_ends(number, deaths):
    ended = history.History(DRAWN + number, deaths=deaths).run()
    assert ended.due


def test_two_runs_of_a_seed_are_the_same_history():
    first, again = (history.History(5, deaths=0.1).run() for _ in range(2))
    assert [customer.accepted for customer in first.world.customers.values()] == [
        customer.accepted for customer in again.world.customers.values()
    ]


def test_all_randomness_of_a_history_comes_from_its_seed(monkeypatch):
    """A generator without a seed draws other numbers in each process. Two runs of a seed would differ only sometimes."""

    class Seeded(random.Random):
        def __new__(cls, seed):
            return super().__new__(cls, seed)

    monkeypatch.setattr(random, "Random", Seeded)
    assert history.History(5, deaths=0.1).run().platform.died


def test_any_failure_of_a_history_says_how_to_replay_it(monkeypatch):
    monkeypatch.setattr(history.History, "_check", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError) as failure:
        history.History(7, deaths=0.25, events=3).run()
    assert failure.value.__notes__ == ["replay: python -m tests.simulation --seed 7 --deaths 0.25"]


def test_customers_go_through_all_moods():
    moods = {
        mood for seed in range(20) for customer in history.History(seed).world.customers.values() for _, mood in customer.moods
    }
    assert moods == set(Mood)


FIRST_SEEDS = (11, 14)
"""Seeds whose histories have every kind of event together, so that usually no further seed is tried."""
MOST_HISTORIES = 60


def test_histories_show_every_kind_of_event():
    missing = {"gone", "failing", "network", "tenant_deleted", "rejected_by_endpoint", "deaths", "behind"}
    for seed in dict.fromkeys((*FIRST_SEEDS, *range(MOST_HISTORIES))):
        ended = history.History(seed, deaths=0.1).run()
        missing -= {why for _, _, why in ended.disabled}
        missing -= {reason for _, _, reason in (*ended.platform.skips(), *ended.platform.dead_letters())}
        missing -= {"network"} if ended.platform.was_cut_off else set()
        missing -= {"deaths"} if ended.platform.died else set()
        missing -= {"behind"} if ended.platform.most_behind_ms > shards.POLICY.lease_timeout_s * 1000 else set()
        if not missing:
            return
    assert not missing


def test_a_deadlock_of_the_virtual_loop_is_reported():
    async def forever():
        await virtual.asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        virtual.run(forever())
