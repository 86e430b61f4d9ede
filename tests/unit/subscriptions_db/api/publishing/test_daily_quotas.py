"""All keys together publish a bounded number of events a day for one tenant."""

import asyncio
import collections
import datetime as dt
from types import SimpleNamespace

import pytest

from delivery import errors
from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing import daily_quotas
from subscriptions_db.api.publishing.published_counts import TenantSum

NOON = dt.datetime(2026, 5, 10, 12, 0, tzinfo=dt.UTC)
DAY_S = 86_400


class Postgres:
    """The counts of all processes, which a test reads and breaks."""

    def __init__(self):
        self.events = collections.Counter()
        self.own = {}
        self.unregistered = set()
        self.writes = 0
        self.is_away = False
        self.second_write = asyncio.Event()

    async def add(self, counts, _today):
        self.writes += 1
        if self.writes == 2:
            self.second_write.set()
        await asyncio.sleep(0)
        if self.is_away:
            raise errors.RegistryUnavailable("away")
        registered = {place: events for place, events in counts.items() if place[1] not in self.unregistered}
        self.events.update(registered)
        return {place: TenantSum(self.events[place], self.own.get(place[1])) for place in registered}


class Process:
    """The quotas of one process, on a clock of the test."""

    def __init__(self, postgres, max_per_day=10, **bounds):
        self.now = NOON
        self.quotas = daily_quotas.DailyQuotas(
            max_per_day, postgres.add, now=lambda: self.now, write_after_s=0, retry_after_s=0, **bounds
        )

    async def publish(self, tenants):
        self.quotas.require_room(tenants)
        self.quotas.count(tenants)

    async def written(self):
        if self.quotas._writing is not None:
            await self.quotas._writing

    def refusal(self, tenants):
        with pytest.raises(problems.Refused) as found:
            self.quotas.require_room(tenants)
        return found.value


@pytest.fixture
def postgres():
    return Postgres()


def test_events_beyond_the_quota_are_refused_until_the_day_ends(postgres):
    async def run():
        process = Process(postgres)
        await process.publish(["t1"] * 9)
        await process.publish(["t1"] * 5)  # begins below the quota, so it is accepted whole
        answer = process.refusal(["t2", "t1"])
        assert (answer.problem.status, answer.problem.code) == (429, "quota")
        assert answer.headers == {"retry-after": "43200"}
        assert "tenant t1 has published its quota of 10 events today" in answer.problem.detail
        await process.publish(["t2"])  # the refused request counted for none of its tenants
        process.now += dt.timedelta(seconds=DAY_S / 2)
        await process.publish(["t1"])
        await process.written()

    asyncio.run(run())
    days = (NOON.date(), NOON.date() + dt.timedelta(days=1))
    assert postgres.events == {(days[0], "t1"): 14, (days[0], "t2"): 1, (days[1], "t1"): 1}


def test_the_processes_of_the_api_share_a_quota(postgres):
    async def run():
        first, second = Process(postgres), Process(postgres)
        await first.publish(["t1"] * 9)
        await second.publish(["t1"])  # it does not know of the other process yet
        await first.written()
        await second.written()
        assert second.refusal(["t1"]).headers == {"retry-after": "43200"}

    asyncio.run(run())


def test_a_tenants_own_quota_counts_once_it_is_read(postgres):
    async def run():
        process = Process(postgres)
        postgres.own = {"t1": 3, "t2": 20}
        await process.publish(["t1"] * 3 + ["t2"] * 9)
        await process.written()
        assert "its quota of 3 events" in process.refusal(["t1"]).problem.detail
        await process.publish(["t2"] * 6)
        assert process.quotas.room({"t1", "t2"})[:2] == (3, 0)
        assert process.quotas.room({"t2"})[:2] == (20, 5)

    asyncio.run(run())


def test_a_larger_quota_counts_within_the_day(postgres):
    """A refused request makes the process read the quota again."""

    async def run():
        process = Process(postgres)
        await process.publish(["t1"] * 10)
        await process.written()
        postgres.own = {"t1": 11}
        process.refusal(["t1"])
        await process.written()
        await process.publish(["t1"])
        await process.written()
        postgres.own = {}
        process.refusal(["t1"])
        await process.written()
        assert "its quota of 10 events" in process.refusal(["t1"]).problem.detail
        await process.written()

    asyncio.run(run())
    assert postgres.events.total() == 11


def test_a_larger_quota_counts_after_a_refusal_during_a_write(postgres):
    """Regression: a refusal asks for the tenant's quota, and a write of other counts that ended then dropped the question."""

    async def run():
        began, may_end = asyncio.Event(), asyncio.Event()

        async def write(counts, today):
            began.set()
            await may_end.wait()
            return await postgres.add(counts, today)

        process = Process(SimpleNamespace(add=write))
        await process.publish(["full"] * 10)
        may_end.set()
        await process.written()
        postgres.own["full"] = 20
        began.clear()
        may_end.clear()
        await process.publish(["other"])
        await began.wait()
        process.refusal(["full"])
        may_end.set()
        await process.written()
        await process.publish(["full"])

    asyncio.run(run())


def test_counts_that_are_forgotten_during_a_write_are_not_subtracted(postgres):
    """Regression: counts that were forgotten while they were written made a later count negative."""

    async def run():
        began, may_end = asyncio.Event(), asyncio.Event()

        async def write(counts, today):
            assert min(counts.values()) > 0
            began.set()
            await may_end.wait()
            return await postgres.add(counts, today)

        process = Process(SimpleNamespace(add=write), max_pending=2)
        await process.publish(["t1"] * 7)
        await began.wait()
        await process.publish(["t2", "t3", "t4"])
        assert process.quotas.room(["t1"]).remaining == 3  # the events in flight count too
        may_end.set()
        await process.written()

    asyncio.run(run())
    assert {tenant: count for (_, tenant), count in postgres.events.items()} == {"t1": 7, "t3": 1, "t4": 1}


def test_a_question_for_a_quota_that_postgres_does_not_answer_is_no_lost_count(postgres, caplog):
    async def run():
        process = Process(postgres)
        await process.publish(["t1"] * 10)
        await process.written()
        postgres.is_away = True
        process.refusal(["t1"])
        await process.quotas.end(None)

    asyncio.run(run())
    assert caplog.records == []


def test_counts_that_come_during_the_last_write_are_logged_as_lost_too(caplog):
    """Regression: the log had only the counts of the write that failed."""

    async def run():
        began, may_end = asyncio.Event(), asyncio.Event()

        async def write(_counts, _today):
            began.set()
            await may_end.wait()
            raise errors.RegistryUnavailable("away")

        process = Process(SimpleNamespace(add=write))
        await process.publish(["t1"] * 3)
        await began.wait()
        await process.publish(["t2"] * 5)
        ending = asyncio.create_task(process.quotas.end(None))
        await asyncio.sleep(0)
        may_end.set()
        await ending

    asyncio.run(run())
    [line] = caplog.messages
    assert "the counts of 8 published events of 2 tenants" in line


def test_counts_are_written_together_and_not_by_request(postgres):
    async def run():
        process = Process(postgres, max_per_day=10_000)
        for _ in range(100):
            await process.publish(["t1", "t2"])
        await process.written()

    asyncio.run(run())
    assert (postgres.writes, postgres.events.total()) == (1, 200)


def test_without_postgres_a_process_keeps_to_the_quota_by_its_own_count(postgres, caplog):
    async def run():
        process = Process(postgres)
        postgres.is_away = True
        await process.publish(["t1"] * 10)
        await postgres.second_write.wait()
        process.refusal(["t1"])
        postgres.is_away = False
        await process.written()
        process.refusal(["t1"])

    asyncio.run(run())
    assert postgres.events.total() == 10
    assert "probably not counted there yet" in caplog.text


def test_pending_counts_are_written_when_the_server_stops(postgres):
    async def run():
        process = Process(postgres)
        process.quotas._write_after_s = 3600
        await process.publish(["t1"])
        await process.quotas.end(None)

    asyncio.run(run())
    assert postgres.events.total() == 1


def test_a_server_that_stops_without_postgres_logs_the_lost_counts(postgres, caplog):
    """Regression: the log had the line of a write that is repeated, and no number of events."""

    async def run():
        process = Process(postgres)
        postgres.is_away = True
        await process.publish(["t1"] * 3 + ["t2"])
        await asyncio.wait_for(process.quotas.end(None), 10)

    asyncio.run(run())
    assert postgres.events.total() == 0
    assert "did not confirm the counts of 4 published events of 2 tenants" in caplog.text
    assert caplog.records[-1].tenant_ids == ["t1", "t2"]
    assert len(caplog.records) == 1


def test_the_room_is_that_of_the_tenant_with_the_least(postgres):
    async def run():
        process = Process(postgres)
        await process.publish(["t1"] * 7 + ["t2"] * 3)
        assert process.quotas.room({"t1", "t2", "t3"}) == (10, 3, DAY_S / 2)
        assert process.quotas.room({"t3"}) == (10, 10, DAY_S / 2)
        await process.publish(["t1"] * 7)
        assert process.quotas.room({"t1"}).remaining == 0
        await process.written()

    asyncio.run(run())


def test_without_a_quota_nothing_is_counted(postgres):
    async def run():
        process = Process(postgres, max_per_day=0)
        await process.publish(["t1"] * 1000)
        await process.publish(["t1"])
        assert process.quotas._writing is None

    asyncio.run(run())
    assert postgres.writes == 0


@pytest.mark.parametrize("tenant", ["Ä", "a" * 129, "a\0", "a\n", "\ud800", "-a"])
def test_ids_that_the_registry_cannot_have_do_not_count(postgres, tenant):
    """Regression: such an id could be too long for Postgres, which then took the counts of no tenant any more."""

    async def run():
        process = Process(postgres)
        await process.publish([tenant] * 10 + ["a" * 128] * 3)
        process.quotas.require_room([tenant])
        await process.written()

    asyncio.run(run())
    assert postgres.events == {(NOON.date(), "a" * 128): 3}


def test_each_process_counts_unregistered_tenants_alone(postgres):
    async def run():
        postgres.unregistered = {"t1"}
        first, second = Process(postgres), Process(postgres)
        for _ in range(2):
            await first.publish(["t1"] * 5)
            await first.written()
        first.refusal(["t1"])
        await first.written()
        first.refusal(["t1"])
        await second.publish(["t1"])
        for process in (first, second):
            await process.written()
        first.now += dt.timedelta(days=1)
        await first.publish(["t1"])
        await first.written()

    asyncio.run(run())
    assert postgres.events == {}


def test_a_process_remembers_a_bounded_number_of_sums(postgres):
    async def run():
        process = Process(postgres, max_tenants=3)
        postgres.own = {f"t{n}": 20 for n in range(9)}
        for n in range(9):
            await process.publish([f"t{n}"])
            await process.written()
        assert len(process.quotas._sums) == len(process.quotas._own) == 3

    asyncio.run(run())


def test_without_postgres_a_process_keeps_a_bounded_number_of_counts(postgres):
    async def run():
        process = Process(postgres, max_pending=3)
        postgres.is_away = True
        for n in range(9):
            await process.publish([f"t{n}"])
        assert len(process.quotas._pending) == 3
        postgres.is_away = False
        await process.written()

    asyncio.run(run())
    assert postgres.events == {(NOON.date(), f"t{n}"): 1 for n in (6, 7, 8)}
