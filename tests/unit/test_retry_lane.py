"""A turn is delivered by what the registry says now, and its report says what came of each of its parcels."""

import asyncio
import collections
import dataclasses
import itertools

import orjson
import pytest

from delivery import errors
from delivery.model import Attempt, Batching, DeliveryMode, EndpointStatus, OutcomeKind, Retrying, SubscriptionStatus
from delivery.webhooks import limits, message, parcel, retry, retry_lane, routing, rows, segment, tally
from tests import builders, fakes
from tests.turns import LATER_MS, turn, waiting

TOPICS = rows.Topics(attempts="attempts", dead_letters="dead", rejected="rejected", retries="retries")
NOW_MS = 1_700_000_000_000
FAILED = Attempt(number=1, started_at_ms=0, duration_ms=1.0, status=500, error_class="server_error")


class Sender:
    """Answers as `answer(delivery)` says: an error class, None, or an event to wait for before it accepts."""

    def __init__(self, answer=lambda _: None, retry_after_s=None):
        self.sent, self.in_flight, self.most = [], collections.Counter(), collections.Counter()
        self._answer, self._retry_after_s = answer, retry_after_s

    async def attempt(self, delivery, number, timeout_s=None):
        endpoint_id = delivery.endpoint.endpoint_id
        self.sent.append((delivery, number, timeout_s))
        self.in_flight[endpoint_id] += 1
        self.most[endpoint_id] = max(self.most[endpoint_id], self.in_flight[endpoint_id])
        await asyncio.sleep(0)
        error_class = self._answer(delivery)
        if isinstance(error_class, asyncio.Event):
            await error_class.wait()
            error_class = None
        self.in_flight[endpoint_id] -= 1
        return Attempt(number, NOW_MS, 5.0, None, error_class, retry_after_s=error_class and self._retry_after_s)

    def ids(self):
        return [delivery.event.event_id for delivery, _, _ in self.sent]


def lane_of(sender, clock=None, **bounds):
    clock = clock or fakes.Clock(NOW_MS / 1000)
    return retry_lane.RetryLane(sender, limits.Limits(**bounds), paces={}, clock=clock, now_s=clock)


def deliver(registry, *turns, sender=None, **bounds):
    """Deliver turns in one micro-batch; return what has ended."""

    async def main():
        lane = lane_of(sender, **bounds)
        first = await lane.take(map(parcel.encoded, turns), routing.WholeRegistry("base", registry), 10)
        return together(first, await lane.settle(10))

    sender = sender or Sender()
    return asyncio.run(main())


def together(*ended):
    results = dataclasses.replace(ended[-1].results, outcomes=[], batches=[])
    for one in ended:
        results.outcomes += one.results.outcomes
        results.batches += one.results.batches
    return retry_lane.Ended(results, [report for one in ended for report in one.reports])


def registry(*subscriptions, **fields):
    endpoint = builders.endpoint(**{"retrying": Retrying()} | fields)
    return builders.snapshot(endpoint, *(subscriptions or [builders.subscription()]))


def batch_registry(*subscriptions, **fields):
    return registry(*subscriptions, **{"mode": DeliveryMode.BATCH, "batching": Batching()} | fields)


def written(ended):
    told = [*rows.rows(ended.results, TOPICS), *rows.reports(ended.reports, TOPICS)]
    return {
        topic: [row.value if topic == "retries" else orjson.loads(row.value) for row in of]
        for topic, of in itertools.groupby(sorted(told, key=lambda row: row.topic), key=lambda row: row.topic)
    }


def test_what_is_attempted_again_is_the_same_delivery_by_what_the_registry_says_now():
    sender, event = Sender(), builders.event()
    before = builders.delivery(event=event)
    retrying = Retrying(timeout_s=7.5)
    [report] = deliver(
        registry(url="https://moved.example.com/", retrying=retrying),
        turn(waiting(event, attempts=3, story=(FAILED,))),
        sender=sender,
    ).reports
    [(delivery, number, timeout_s)] = sender.sent
    assert (delivery.webhook_id, delivery.body, delivery.signed) == (before.webhook_id, before.body, before.signed)
    assert (delivery.endpoint.url, number, timeout_s) == ("https://moved.example.com/", 4, 7.5)
    assert (report.turn, report.delivered, report.failed, report.hold, report.back) == (1, 1, 0, None, [])


def test_the_log_tells_of_the_new_attempt_only_and_the_dead_letter_of_the_whole_story():
    ended = deliver(registry(), turn(waiting(attempts=1, retries=7, story=(FAILED,))), sender=Sender(lambda _: "server_error"))
    told = written(ended)
    [entry] = told["attempts"][0]["entries"]
    assert (entry["kind"], entry["attempt"]) == ("attempt", 2)
    [letter] = told["dead"]
    assert (letter["reason"], [attempt["attempt"] for attempt in letter["attempts"]]) == ("server_error", [1, 2])
    assert ended.reports[0].back == []
    assert ended.reports[0].failed == 1
    counted = tally.of(ended.results, cpu_s=0)
    assert (counted.attempts, counted.deliveries) == ({"server_error": 1}, {("dead_lettered", "server_error"): 1})


def test_what_fails_comes_back_for_its_next_attempt_by_the_endpoints_schedule_of_now():
    retrying = Retrying(schedule_s=(1, 100, 1000))
    sender = Sender(lambda _: "unavailable", retry_after_s=500.0)
    ended = deliver(registry(retrying=retrying), turn(waiting(attempts=2, retries=1)), sender=sender)
    [report] = ended.reports
    [back] = report.back
    assert (back.place, back.reason, back.again.retries) == (0, "unavailable", 2)
    assert back.again.at_ms >= NOW_MS + 500_000
    assert [attempt.number for attempt in back.attempts] == [3]
    assert (report.delivered, report.failed, report.retry_after_s) == (0, 1, 500.0)
    assert [outcome.kind for outcome in ended.results.outcomes] == [OutcomeKind.POSTPONED]


def test_what_would_come_back_after_it_expires_is_a_dead_letter_now():
    ended = deliver(registry(), turn(waiting(expires_ms=NOW_MS + 10)), sender=Sender(lambda _: "timeout"))
    assert [outcome.kind for outcome in ended.results.outcomes] == [OutcomeKind.DEAD_LETTERED]


@pytest.mark.parametrize("error_class", ["refused", "redirect"])
def test_what_the_circuit_of_a_fast_lane_takes_for_an_answer_is_none_of_an_endpoint_that_is_ill(error_class):
    [report] = deliver(registry(), turn(), sender=Sender(lambda _: error_class)).reports
    assert (report.delivered, report.failed, report.refused) == (0, 0, 1)


def test_an_endpoint_that_says_that_it_is_gone_is_told_to_whoever_disables_it():
    ended = deliver(registry(), turn(), sender=Sender(lambda _: "gone"))
    assert (ended.results.gone, ended.reports[0].failed) == ({"ep1"}, 1)


def test_a_fault_of_ours_is_no_failure_of_the_endpoint():
    [report] = deliver(registry(), turn(), sender=Sender(lambda _: errors.LocalFailure.error_class)).reports
    assert (report.failed, len(report.back)) == (0, 1)


ELSEWHERE = builders.subscription(endpoint_id="ep2")


@pytest.mark.parametrize("of", [1, 2])
@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (lambda _: builders.snapshot(), "endpoint_deleted"),
        (lambda made: made(customer_id="c2"), "endpoint_deleted"),
        (lambda made: builders.snapshot(*made().endpoints.values()), "subscription_deleted"),
        (
            lambda made: builders.snapshot(*made().endpoints.values(), builders.endpoint("ep2"), ELSEWHERE),
            "subscription_deleted",
        ),
        (lambda made: made(builders.subscription(status=SubscriptionStatus.PAUSED)), "subscription_paused"),
        (lambda made: made(fault="a secret that does not open"), "quarantined"),
        (lambda made: made(fault="a refused URL", status=EndpointStatus.PAUSED), "quarantined"),
    ],
)
@pytest.mark.parametrize("given_up", [{}, {"given_up": retry.EXPIRED, "number": 0}])
def test_what_is_gone_or_stopped_while_it_waited_is_skipped_and_says_why(of, snapshot, reason, given_up):
    sender = Sender()
    made = registry if of == 1 else batch_registry
    ended = deliver(snapshot(made), turn(waiting(*(builders.event() for _ in range(of))), **given_up), sender=sender)
    assert sender.sent == []
    assert tally.of(ended.results, cpu_s=0).deliveries == {("skipped", reason): of}
    assert [(report.back, report.delivered) for report in ended.reports] == ([] if given_up else [([], 0)])
    [entry] = written(ended)["attempts"][0]["entries"]
    assert (entry["kind"], entry["reason"]) == ("skipped" if of == 1 else "batch_skipped", reason)


@pytest.mark.parametrize(
    ("status", "hold"), [(EndpointStatus.PAUSED, retry.ENDPOINT_PAUSED), (EndpointStatus.DISABLED, retry.ENDPOINT_DISABLED)]
)
def test_of_a_paused_or_disabled_endpoint_all_come_back_unattempted(status, hold):
    sender = Sender()
    ended = deliver(registry(status=status), turn(waiting(retries=2), waiting(retries=0)), sender=sender)
    [report] = ended.reports
    assert (report.hold, report.delivered, report.failed) == (hold, 0, 0)
    assert [(back.place, back.reason, back.again.retries, back.attempts) for back in report.back] == [
        (0, hold, 2, ()),
        (1, hold, 0, ()),
    ]
    assert (sender.sent, ended.results.outcomes) == ([], [])


@pytest.mark.parametrize("status", list(EndpointStatus))
@pytest.mark.parametrize("reason", [retry.NO_ROOM, retry.EXPIRED])
def test_what_is_given_up_is_a_dead_letter_with_its_story_and_no_report(status, reason):
    sender = Sender()
    ended = deliver(
        registry(status=status), turn(waiting(attempts=1, story=(FAILED,)), number=0, given_up=reason), sender=sender
    )
    assert (ended.reports, sender.sent) == ([], [])
    told = written(ended)
    assert [(letter["reason"], len(letter["attempts"])) for letter in told["dead"]] == [(reason, 1)]
    assert [entry["kind"] for entry in told["attempts"][0]["entries"]] == ["dead_lettered"]


def test_a_batch_is_sent_as_the_batch_lane_sends_it_and_events_that_the_answer_names_are_dead_letters():
    of = [builders.event() for _ in range(3)]

    class Rejecting(Sender):
        async def attempt(self, delivery, number, timeout_s=None):
            attempt = await super().attempt(delivery, number, timeout_s)
            return attempt._replace(response=b'{"rejected": [{"index": 1, "reason": "no such order"}]}')

    sender = Rejecting()
    ended = deliver(batch_registry(), turn(waiting(*of, attempts=1, story=(FAILED,))), sender=sender)
    [(batch, number, _)] = sender.sent
    assert (number, [one["id"] for one in orjson.loads(batch.body)]) == (2, [event.event_id for event in of])
    assert batch.webhook_id.startswith("batch_")
    [letter] = written(ended)["dead"]
    assert (letter["event_id"], letter["reason"]) == (of[1].event_id, "rejected_by_endpoint")
    assert letter["webhook_id"] == message.webhook_id(of[1], "s1")
    assert [(report.delivered, report.back) for report in ended.reports] == [(1, [])]


def test_what_is_skipped_of_a_batch_is_told_when_the_batch_has_ended():
    of = [builders.event() for _ in range(3)]
    parcels = waiting(*of, through=("s1", "gone", "s1"))
    failed = deliver(batch_registry(), turn(parcels), sender=Sender(lambda _: "server_error"))
    assert tally.of(failed.results, cpu_s=0).deliveries == {("postponed", "server_error"): 2}
    [back] = failed.reports[0].back
    ended = deliver(batch_registry(), turn(parcels.returned(back)))
    assert tally.of(ended.results, cpu_s=0).deliveries == {("delivered", "none"): 2, ("skipped", "subscription_deleted"): 1}


def test_in_order_means_one_after_the_other_and_none_after_one_that_fails():
    of = [builders.event(event_id=f"e{n}") for n in range(4)]
    sender = Sender(lambda delivery: "server_error" if delivery.event.event_id == "e2" else None)
    [report] = deliver(registry(), turn(*map(waiting, of), order_key="k"), sender=sender).reports
    assert (sender.ids(), sender.most) == (["e0", "e1", "e2"], {"ep1": 1})
    assert (report.order_key, report.delivered, report.failed) == ("k", 2, 1)
    assert [(back.place, len(back.attempts)) for back in report.back] == [(2, 1), (3, 0)]


def test_no_more_is_under_way_to_an_endpoint_than_it_takes_over_all_its_turns():
    sender = Sender()
    turns = [turn(*(waiting() for _ in range(5)), order_key=key) for key in "abcdefgh"]
    deliver(registry(max_in_flight=6), *turns, turn(*(waiting() for _ in range(20))), sender=sender, workers=2)
    assert (len(sender.sent), sender.most) == (60, {"ep1": 3})


def test_an_endpoints_pace_holds_over_micro_batches_and_what_it_has_no_time_for_comes_back(monkeypatch):
    clock, sender = fakes.Clock(NOW_MS / 1000), Sender()

    async def pass_time(seconds, sleep=asyncio.sleep):
        clock.now += seconds
        await sleep(0)

    async def main():
        monkeypatch.setattr(retry_lane.asyncio, "sleep", pass_time)
        lane, known = lane_of(sender, clock), routing.WholeRegistry("base", registry(max_per_second=0.2))
        for number in (1, 2):
            await lane.take([parcel.encoded(turn(*(waiting() for _ in range(10)), number=number))], known, 10)
            ended.append(await lane.settle(10))

    ended = []
    asyncio.run(main())
    assert [report.delivered for one in ended for report in one.reports] == [7, 6]  # one each 5 s, in 30 s
    assert [[back.attempts for back in one.reports[0].back] for one in ended] == [[()] * 3, [()] * 4]
    assert clock.now == NOW_MS / 1000 + 60


class Hanging:
    """A lane with an endpoint that does not answer before it is told to."""

    def __init__(self):
        self.answers = asyncio.Event()
        self.sender = Sender(lambda delivery: self.answers if delivery.endpoint.endpoint_id == "ep1" else None)
        self.lane = lane_of(self.sender)
        other = [builders.endpoint("ep2"), builders.subscription("s2", endpoint_id="ep2")]
        self.registry = routing.WholeRegistry("base", builders.snapshot(builders.endpoint(), builders.subscription(), *other))

    async def micro_batch(self, *turns, settle_s=0.01):
        taken = await self.lane.take(map(parcel.encoded, turns), self.registry, settle_s)
        return together(taken, await self.lane.settle(settle_s))


def test_a_micro_batch_does_not_wait_for_a_late_answer_and_a_later_one_reports_it():
    async def main():
        hanging = Hanging()
        first = await hanging.micro_batch(turn(), turn(waiting(through=("s2",)), endpoint="ep2"))
        assert [report.endpoint_id for report in first.reports] == ["ep2"]
        assert (await hanging.micro_batch()).reports == []
        hanging.answers.set()
        late = await hanging.micro_batch(turn(waiting(through=("s2",)), endpoint="ep2", number=2))
        assert {(report.endpoint_id, report.delivered) for report in late.reports} == {("ep1", 1), ("ep2", 1)}
        assert len(late.results.outcomes) == 2
        assert (await hanging.micro_batch()).results.outcomes == []

    asyncio.run(main())


def test_a_turn_that_is_given_again_while_it_is_under_way_is_not_sent_twice():
    async def main():
        hanging = Hanging()
        await hanging.micro_batch(turn())
        await hanging.micro_batch(turn())
        hanging.answers.set()
        ended = await hanging.micro_batch(turn(), settle_s=5)
        assert [report.turn for report in ended.reports] == [1]
        assert len(hanging.sender.sent) == 1

    asyncio.run(main())


def test_a_turn_in_place_of_one_that_was_given_up_for_lost_takes_what_that_has_not_begun():
    of = [waiting(builders.event(event_id=f"e{n}")) for n in range(3)]

    async def main():
        hanging = Hanging()
        await hanging.micro_batch(turn(*of, order_key="k"))
        await hanging.micro_batch(turn(*of, order_key="k", number=2))
        hanging.answers.set()
        await asyncio.wait(hanging.lane._tasks)
        ended = await hanging.micro_batch()
        assert {report.turn: len(report.back) for report in ended.reports} == {1: 2, 2: 0}
        assert hanging.sender.ids() == ["e0", "e0", "e1", "e2"]

    asyncio.run(main())


def test_what_is_under_way_is_bounded_and_what_finds_no_room_comes_back_unless_others_make_some(monkeypatch):
    monkeypatch.setattr(retry_lane, "MAX_UNDER_WAY_BYTES", 3 * retry_lane.PARCEL_BYTES)
    others = [turn(waiting(through=("s2",)), endpoint="ep2", order_key=str(n)) for n in range(20)]

    async def main():
        hanging = Hanging()
        first = await hanging.micro_batch(turn(), *others)
        assert sum(report.delivered for report in first.reports) == 20
        turned_away = await hanging.micro_batch(turn(waiting(), waiting(), order_key="k", number=3))
        [report] = turned_away.reports
        assert (report.hold, report.failed, [len(back.attempts) for back in report.back]) == (None, 0, [0, 0])
        assert all(back.again.at_ms > NOW_MS for back in report.back)
        given_up = await hanging.micro_batch(turn(waiting(), waiting(), number=0, given_up=retry.NO_ROOM))
        assert len(given_up.results.outcomes) == 2
        await hanging.lane.close()

    asyncio.run(main())


def unreadable(monkeypatch, broken):
    unpack = segment.unpacked
    monkeypatch.setattr(segment, "unpacked", lambda packed: 1 / 0 if packed == broken.packed[0] else unpack(packed))


@pytest.mark.parametrize("subscriptions", [(), (builders.subscription(status=SubscriptionStatus.PAUSED),)])
def test_events_that_cannot_be_read_come_back_later_and_the_others_go_on(monkeypatch, caplog, subscriptions):
    broken = waiting(retries=3)
    unreadable(monkeypatch, broken)
    ended = deliver(registry(*subscriptions), turn(waiting(), broken, waiting()))
    [report] = ended.reports
    [back] = report.back
    assert (back.place, back.reason, back.again) == (1, "unforeseen", (NOW_MS + 300_000, 3))
    assert [attempt.error_class for attempt in back.attempts] == ["local"]
    assert (report.failed, len(ended.results.outcomes)) == (0, 2)
    assert "unforeseen" in caplog.text


def test_events_that_cannot_be_read_and_are_given_up_fail_the_task_because_nothing_could_be_told_of_them(monkeypatch):
    broken = waiting()
    unreadable(monkeypatch, broken)
    with pytest.raises(ZeroDivisionError):
        deliver(registry(), turn(broken, number=0, given_up=retry.EXPIRED))


def test_a_surprise_in_one_turn_is_that_turns_alone_and_it_may_leave_again(monkeypatch, caplog):
    turns = [turn(number=5), turn(order_key="k")]

    def in_flight_to(_, endpoint):
        if not surprised:
            surprised.append(endpoint)
            raise RuntimeError("a bug")
        return 1

    async def main():
        lane, known = lane_of(Sender()), routing.WholeRegistry("base", registry())
        monkeypatch.setattr(limits.Limits, "in_flight_to", in_flight_to)
        ended = together(await lane.take(map(parcel.encoded, turns), known, 5), await lane.settle(5))
        assert [report.order_key for report in ended.reports] == ["k"]
        assert "unforeseen" in caplog.text
        ended = together(await lane.take([parcel.encoded(turns[0])], known, 5), await lane.settle(5))
        assert [report.turn for report in ended.reports] == [5]

    surprised = []
    asyncio.run(main())


def test_content_that_cannot_be_made_is_a_dead_letter(monkeypatch, caplog):
    monkeypatch.setattr(message, "content", lambda *_: 1 / 0)
    ended = deliver(registry(), turn(waiting(expires_ms=LATER_MS)))
    assert tally.of(ended.results, cpu_s=0).deliveries == {("dead_lettered", "unforeseen"): 1}
    assert "unforeseen" in caplog.text
