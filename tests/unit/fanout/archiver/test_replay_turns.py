"""Customers take turns, whatever the number of their replays."""

import types

from fanout.archiver.replay_turns import ReplayTurns


def replay(number, customer="c1"):
    return types.SimpleNamespace(number=number, customer_id=customer)


def taken(turns, *unfinished, rounds):
    """Return the numbers of the replays that have turns in so many rounds."""
    found = []
    for _ in range(rounds):
        for due in turns.of_customers(unfinished):
            turns.taken(due)
            found.append(due.number)
    return found


def test_each_customer_has_one_turn_in_a_round_and_its_replays_alternate():
    assert taken(ReplayTurns(), replay(1), replay(2), replay(3), replay(4, "c2"), rounds=4) == [1, 4, 2, 4, 3, 4, 1, 4]


def test_a_round_that_ended_early_goes_on_with_the_other_customers():
    turns = ReplayTurns()
    turns.taken(replay(1))
    assert [due.number for due in turns.of_customers([replay(1), replay(2), replay(3, "c2")])] == [3, 2]


def test_turns_of_ended_replays_are_forgotten():
    turns = ReplayTurns()
    taken(turns, replay(1), replay(2, "c2"), rounds=1)
    assert turns.of_customers([]) == []
    assert (turns._of_replays, turns._of_customers) == ({}, {})


def test_a_customer_does_not_wait_for_others_that_come_back_again_and_again():
    """Regression: a replay with `archive.replay_max_pending` deliveries is missing for a time, and then came first again."""
    turns, found = ReplayTurns(), []
    for _ in range(6):  # each step has time for one chunk, and its replay is missing in the next step
        unfinished = [replay(number, f"c{number}") for number in (1, 2, 3) if found[-1:] != [number]]
        due = turns.of_customers(unfinished)[0]
        turns.taken(due)
        found.append(due.number)
    assert found[:3] == [1, 2, 3]
