"""The names of Kafka's topics are read when one is missing, or when they are old; not for each request."""

import asyncio

import pytest

from delivery import errors
from subscriptions_db.api.publishing import known_topics
from tests.support.fakes import Clock


class Kafka:
    """The topics in Kafka, with a count of their readings."""

    def __init__(self, *names):
        self.names = set(names)
        self.read_count = 0
        self.failure = None

    async def read(self):
        self.read_count += 1
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure
        return frozenset(self.names)


@pytest.fixture
def kafka():
    return Kafka("a", "b")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def known(kafka, clock):
    return known_topics.KnownTopics(kafka.read, clock)


def missing(known, *names):
    return set(asyncio.run(known.missing(frozenset(names))))


def test_known_topics_are_not_read_again_until_they_are_old(known, kafka, clock):
    assert [missing(known, "a"), missing(known, "a", "b")] == [set(), set()]
    clock.now += known_topics.MAX_AGE_S
    assert (missing(known, "a"), kafka.read_count) == (set(), 1)
    kafka.names.remove("a")
    clock.now += known_topics.MAX_STALE_S
    assert (missing(known, "a"), kafka.read_count) == ({"a"}, 2)


def test_nobody_waits_for_a_reading_of_known_topics(known, kafka, clock):
    async def later():
        await known.missing(frozenset("a"))
        kafka.names.remove("a")
        clock.now += known_topics.MAX_AGE_S + 1
        before = [await known.missing(frozenset("a")) for _ in range(3)]  # none of them waits, so the reading has no turn
        while kafka.read_count < 2 or not known._reading.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        return before, await known.missing(frozenset("a"))

    assert asyncio.run(later()) == ([frozenset()] * 3, frozenset("a"))
    assert kafka.read_count == 2


@pytest.mark.parametrize("age_s", [known_topics.MAX_AGE_S + 1, known_topics.MAX_STALE_S + 1])
def test_known_topics_outlive_readings_that_fail(known, kafka, clock, age_s):
    assert missing(known, "a") == set()
    kafka.failure = errors.KafkaUnavailable("away")
    clock.now += age_s
    assert missing(known, "a") == set()
    with pytest.raises(errors.KafkaUnavailable):
        missing(known, "a", "new")


def test_a_new_topic_is_found_within_a_second_by_one_reading_a_second(known, kafka, clock):
    assert [missing(known, "new") for _ in range(10)] == [{"new"}] * 10
    assert kafka.read_count == 1
    kafka.names.add("new")
    clock.now += known_topics.MIN_AGE_S + 0.1
    assert (missing(known, "new"), kafka.read_count) == (set(), 2)


def test_concurrent_requests_share_one_reading_and_its_failure(known, kafka):
    async def both():
        return await asyncio.gather(*(known.missing(frozenset("a")) for _ in range(5)), return_exceptions=True)

    kafka.failure = errors.KafkaUnavailable("away")
    assert asyncio.run(both()) == [kafka.failure] * 5
    assert kafka.read_count == 1
    kafka.failure = None
    assert asyncio.run(both()) == [frozenset()] * 5
