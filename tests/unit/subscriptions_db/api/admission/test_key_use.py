"""The use of API keys is noted together and rarely, and a key that expires soon is logged."""

import asyncio
import datetime as dt
import logging

import pytest

from delivery import errors
from subscriptions_db.api.admission import key_use
from subscriptions_db.api.contract import keys
from subscriptions_db.api.contract.principals import Principal, Scope
from tests.support.fakes import Clock


def principal(key_id, expires_in=None):
    expires_at = None if expires_in is None else dt.datetime.now(dt.UTC) + expires_in
    return Principal(key_id, "acme", Scope.READ_ONLY, expires_at=expires_at)


def noted(*steps, fails=False):
    """Return the written key ids of each step. A step is the keys that are noted, after so many seconds of the clock."""
    clock, written = Clock(), []

    async def write(key_ids):
        written.append(list(key_ids))
        if fails:
            raise errors.RegistryUnavailable("away")

    async def run():
        uses = key_use.KeyUse(write, clock=clock, write_after_s=0)
        for after_s, key_ids in steps:
            clock.now += after_s
            for key_id in key_ids:
                uses.note(principal(key_id))
            if uses._writing is not None:
                await uses._writing
        return written

    return asyncio.run(run())


def test_uses_are_written_together_and_each_key_once_in_five_minutes():
    assert noted((0, "ba"), (1, "ab"), (298, "a"), (1, "ac"), (300, "b")) == [["a", "b"], ["a", "c"], ["b"]]


def test_a_use_that_cannot_be_written_is_noted_again():
    assert noted((0, "a"), (1, "a"), fails=True) == [["a"], ["a"]]


def test_pending_uses_are_written_when_the_server_stops():
    written = []

    async def write(key_ids):
        written.append(list(key_ids))

    async def run():
        uses = key_use.KeyUse(write, write_after_s=3600)
        uses.note(principal("a"))
        await uses.end(None)

    asyncio.run(run())
    assert written == [["a"]]


@pytest.mark.parametrize(
    ("expires_in", "is_warned"), [(None, False), (dt.timedelta(days=15), False), (dt.timedelta(days=13), True)]
)
def test_a_key_that_expires_soon_is_logged_once_a_day(caplog, expires_in, is_warned):
    clock = Clock()

    async def write(_):
        pass

    async def run():
        uses = key_use.KeyUse(write, clock=clock, write_after_s=0)
        for after_s in (0, 10, key_use.WARN_EVERY_S):
            clock.now += after_s
            uses.note(principal("fk_1", expires_in))
        await uses.end(None)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert [record.key_id for record in caplog.records] == ["fk_1", "fk_1"] * is_warned


NOW = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "state"),
    [
        (None, None, "active"),
        (NOW + 15 * DAY, None, "active"),
        (NOW + 14 * DAY, None, "expiring"),
        (NOW + DAY, None, "expiring"),
        (NOW, None, "expired"),
        (NOW + DAY, NOW - DAY, "revoked"),
        (None, NOW, "revoked"),
    ],
)
def test_the_state_of_a_key_follows_from_its_times(expires_at, revoked_at, state):
    assert keys.state(expires_at, revoked_at, NOW) == state


def test_an_expiry_is_shown_in_utc_to_the_second():
    east = dt.timezone(dt.timedelta(hours=2))
    assert keys.shown_expiry(dt.datetime(2027, 1, 1, 1, 2, 3, 999, tzinfo=east)) == "2026-12-31T23:02:03Z"
