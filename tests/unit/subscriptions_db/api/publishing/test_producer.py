"""An event counts as published when Kafka has confirmed it, and a request when all of its events are."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import confluent_kafka
import pytest

from delivery import errors
from delivery.config import settings
from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing import producer
from subscriptions_db.api.publishing.checks import Publication

OPTIONS = {"delivery.timeout.ms": "600000", "enable.idempotence": "false", "linger.ms": "1"}


@dataclass
class Confirmation:
    """A confirmed record, or one whose answer has no offset."""

    place: int | None = 7

    def topic(self):
        return "events.order"

    def partition(self):
        return 3

    def offset(self):
        return self.place


@dataclass
class Client:
    """A client of Kafka: it answers each event by a script when it is polled."""

    options: dict
    script: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    room: int = 100

    def produce(self, *_, on_delivery, **__):
        if len(self.waiting) >= self.room:
            raise BufferError("Local: Queue full")
        self.waiting.append(on_delivery)

    def poll(self, _):
        if self.waiting:
            self.waiting.pop(0)(*(self.script.pop(0) if self.script else (None, Confirmation())))

    def flush(self, _):
        return 0

    def __len__(self):
        return len(self.waiting)

    __hash__ = object.__hash__


@pytest.fixture
def clients(monkeypatch):
    """Return the clients that the producer makes, in their order."""
    made = []
    monkeypatch.setattr(producer.confluent_kafka, "Producer", lambda options: made.append(Client(options)) or made[-1])
    return made


@pytest.fixture
def events_to(clients):  # noqa: ARG001  # it makes no real ones
    made = producer.EventProducer(settings.KafkaSettings(librdkafka_options=OPTIONS), request_timeout_s=4)
    yield made
    made.close()


def event(event_id, place=""):
    return Publication("events.order", b"{}", None, (), "t1", event_id, "shop", place)


def publish(events_to, *ids):
    places = [f"[{index}]" for index in range(len(ids))] if len(ids) > 1 else [""]
    return asyncio.run(events_to.publish([event(*pair) for pair in zip(ids, places, strict=False)]))


def test_the_ids_are_those_of_the_events(events_to, clients):
    assert publish(events_to, "a", "c", "b") == ["a", "c", "b"]
    assert publish(events_to) == []
    assert len(clients) == 1


def test_the_first_event_connects_and_settings_weaken_no_guarantee(events_to, clients):
    assert clients == []
    publish(events_to, "a")
    options = clients[0].options
    assert (options["enable.idempotence"], options["delivery.timeout.ms"]) == (True, 2000)  # half of the request's time
    assert options["linger.ms"] == "1"


@pytest.mark.parametrize(
    "answer",
    [
        (confluent_kafka.KafkaError(confluent_kafka.KafkaError._MSG_TIMED_OUT), Confirmation()),
        (None, Confirmation(place=None)),
    ],
)
def test_one_unconfirmed_event_fails_its_request_and_the_next_has_a_new_client(events_to, clients, answer):
    publish(events_to, "a")
    clients[0].script = [answer, (None, Confirmation())]
    with pytest.raises(errors.KafkaUnavailable, match=r"topic events\.order"):
        publish(events_to, "a", "b")
    assert publish(events_to, "c") == ["c"]
    assert [len(client.waiting) for client in clients] == [0, 0]


def refused(name):
    return confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, name)), Confirmation()


@pytest.mark.parametrize(
    ("name", "status"),
    [("INVALID_RECORD", 422), ("POLICY_VIOLATION", 422), ("INVALID_TIMESTAMP", 422), ("TOPIC_AUTHORIZATION_FAILED", 422)],
)
def test_an_event_that_kafka_refuses_keeps_the_producer_for_others(events_to, clients, name, status):
    publish(events_to, "a")
    clients[0].script = [refused("_INVALID_DIFFERENT_RECORD"), refused(name)]
    with pytest.raises(problems.Refused) as found:
        publish(events_to, "b", "c")
    assert (found.value.problem.status, [wrong.field for wrong in found.value.problem.errors]) == (status, ["[1]"])
    assert found.value.problem.detail.startswith("[1], topic events.order: ")
    assert publish(events_to, "d") == ["d"]
    assert len(clients) == 1


def test_an_error_that_may_pass_keeps_the_client(events_to, clients):
    publish(events_to, "a")
    clients[0].script = [refused("NOT_ENOUGH_REPLICAS")]
    with pytest.raises(errors.KafkaUnavailable, match=r"topic events\.order"):
        publish(events_to, "b")
    assert publish(events_to, "c") == ["c"]
    assert len(clients) == 1


@pytest.mark.parametrize("is_too_large", [False, True])
def test_an_event_is_too_large_if_kafka_refuses_it_alone(events_to, clients, monkeypatch, is_too_large):
    """A broker refuses a whole batch, with small events of other requests."""
    publish(events_to, "a")
    clients[0].script = [(None, Confirmation()), refused("MSG_SIZE_TOO_LARGE"), refused("MSG_SIZE_TOO_LARGE")]
    second = [(None, Confirmation(8)), refused("MSG_SIZE_TOO_LARGE") if is_too_large else (None, Confirmation(9))]
    monkeypatch.setattr(
        producer.confluent_kafka, "Producer", lambda options: clients.append(Client(options, list(second))) or clients[-1]
    )
    if is_too_large:
        with pytest.raises(problems.Refused) as found:
            publish(events_to, "b", "c", "d")
        assert (found.value.problem.status, [wrong.field for wrong in found.value.problem.errors]) == (413, ["[2]"])
    else:
        assert publish(events_to, "b", "c", "d") == ["b", "c", "d"]
    assert [client.options.get("batch.num.messages") for client in clients] == [None, 1]


def test_an_event_that_the_client_itself_refuses_is_too_large(events_to, clients, monkeypatch):
    publish(events_to, "a")

    def refuse(*_, **__):
        raise confluent_kafka.KafkaException(refused("MSG_SIZE_TOO_LARGE")[0])

    monkeypatch.setattr(Client, "produce", refuse)
    with pytest.raises(problems.Refused) as found:
        publish(events_to, "b")
    assert found.value.problem.detail.startswith("topic events.order: ")
    assert [wrong.field for wrong in found.value.problem.errors] == [""]  # Regression: `[0]` of a body that is no list
    monkeypatch.undo()
    assert len(clients) == 1


def test_a_full_client_fails_the_request_and_is_emptied_later(events_to, clients):
    async def both():
        await events_to.publish([event("a")])
        clients[0].room = 1
        with pytest.raises(errors.KafkaUnavailable, match="Queue full"):
            await events_to.publish([event("b"), event("c")])
        assert await events_to.publish([event("d")]) == ["d"]
        while clients[0].waiting:  # noqa: ASYNC110  # a client tells nobody
            await asyncio.sleep(0)

    asyncio.run(both())
    assert len(clients) == 2


def test_a_request_that_is_cut_off_leaves_no_trace(events_to, clients):
    async def cut_off():
        await events_to.publish([event("a")])
        waiting = asyncio.create_task(events_to.publish([event("b")]))
        await asyncio.sleep(0)
        waiting.cancel()
        while clients[0].waiting:  # noqa: ASYNC110  # a client tells nobody
            await asyncio.sleep(0)
        return await events_to.publish([event("c")])

    assert asyncio.run(cut_off()) == ["c"]
    assert len(clients) == 1


@pytest.mark.parametrize(
    ("second", "third", "written"),
    [
        ((None, Confirmation()), (None, Confirmation()), "abc"),
        ((None, Confirmation()), refused("INVALID_RECORD"), "ab"),
        (refused("_MSG_TIMED_OUT"), refused("POLICY_VIOLATION"), "ab"),  # nobody knows of the second event
        (refused("MSG_SIZE_TOO_LARGE"), (None, Confirmation()), "abc"),  # Kafka takes it alone
    ],
)
def test_events_that_kafka_may_have_are_reported_after_a_failure(events_to, clients, second, third, written):
    """Regression: one event that Kafka refused made the others of its request free of the daily quota."""
    publish(events_to, "0")
    clients[0].script = [(None, Confirmation()), second, third]
    found = []
    with contextlib.suppress(problems.Refused, errors.KafkaUnavailable):
        asyncio.run(events_to.publish([event(event_id) for event_id in "abc"], found.append))
    assert ["".join(reported.event_id for reported in call) for call in found] == [written]


@pytest.mark.parametrize("error", [BufferError("full"), confluent_kafka.KafkaException(refused("MSG_SIZE_TOO_LARGE")[0])])
def test_events_that_the_client_did_not_take_are_not_reported(events_to, monkeypatch, error):
    publish(events_to, "0")
    produce = Client.produce

    def take_one(client, *sent, **options):
        if client.waiting:
            raise error
        produce(client, *sent, **options)

    monkeypatch.setattr(Client, "produce", take_one)
    found = []
    with pytest.raises((problems.Refused, errors.KafkaUnavailable)):
        asyncio.run(events_to.publish([event(event_id) for event_id in "abc"], found.extend))
    assert [reported.event_id for reported in found] == ["a"]


def test_events_of_a_request_that_is_cut_off_are_reported(events_to, clients):
    async def cut_off():
        found = []
        waiting = asyncio.create_task(events_to.publish([event("a")], found.extend))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return [reported.event_id for reported in found]

    assert asyncio.run(cut_off()) == ["a"]
    assert len(clients) == 1


def test_without_a_client_no_event_is_reported(events_to, monkeypatch):
    def fail(_):
        raise confluent_kafka.KafkaException(refused("_INVALID_ARG")[0])

    monkeypatch.setattr(producer.confluent_kafka, "Producer", fail)
    found = []
    with pytest.raises(errors.KafkaUnavailable, match="no Kafka client can be made"):
        asyncio.run(events_to.publish([event("a")], found.append))
    assert found == [[]]
