"""Carry out replays: read event topics again, and hand what is due to one endpoint to the retry lane, in bounded pieces.

Runs in `fanout archive`, beside what it archives: a turn takes about BUSY_S. A piece is written down in Postgres when Kafka
has all of it, so that whoever dies in between repeats that piece, with the same `webhook-id`s. What has been handed over and
has not ended is bounded (`archive.replay_max_pending`): it waits in the retry lane, where live events of the endpoint need room
as well.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence

import confluent_kafka

from delivery import errors
from delivery.config import settings, worker_plans
from delivery.model import EndpointId, EndpointStatus, Record, SubscriptionId
from delivery.observability import metrics
from delivery.webhooks.events import parsing
from delivery.webhooks.results import topic_rows
from delivery.webhooks.sending import payload
from fanout.kafka import publishing, topic_scanner
from fanout.kafka.places import Place
from fanout.redrive import replay_plan
from subscriptions_db.postgres import connect
from subscriptions_db.registration import registered_rows
from subscriptions_db.replays import progress
from subscriptions_db.replays.requests import ReplayOne, ReplayRange, ReplayRequest, ReplayState
from subscriptions_db.snapshot import registry_reader

BUSY_S = 1.0
"""No piece begins later than so long after its turn began: what is to be archived waits as long."""
MAX_RECORDS = 1000
"""Of one piece. An event may have 256 KiB, so a piece of the largest is 256 MB."""
ENDPOINT_DELETED, EVENT_GONE, NOT_COUNTED = "endpoint_deleted", "event_gone", "attempts_not_archived"
"""Why a replay has failed. EVENT_GONE: Kafka does not hold the event of a delivery any more. NOT_COUNTED: `archive.attempts` is
off, so nobody would know what still waits."""


class Replayer:
    """Let replays go on, in turn. `now` and `clock` are for tests."""

    def __init__(self, config: settings.Settings) -> None:
        self._config = config
        self._layout = worker_plans.of(config).layout
        self._scanner: topic_scanner.Scanner | None = None
        self._publisher: publishing.Publisher | None = None
        self._routes: tuple[tuple[str, int], replay_plan.Routes | None] | None = None
        self._after = 0

    def turn(self, connection: connect.Connection, *, clock: Callable[[], float] = time.monotonic) -> int:
        """Let all that are under way go on by a piece each, again and again for a while; return how many pieces that were.

        Raises KafkaUnavailable; the piece is made again in the next turn.
        """
        began, pieces = clock(), 0
        try:
            while under_way := self._under_way(connection):
                went_on = 0
                for replay in under_way:
                    if clock() - began >= BUSY_S:
                        return pieces + went_on
                    self._after = replay.number
                    went_on += self._go_on(connection, replay)
                pieces += went_on
                if not went_on:
                    break
        except errors.KafkaUnavailable:
            self.close()
            raise
        return pieces

    def close(self) -> None:
        """Leave Kafka, until the next turn."""
        if self._scanner is not None:
            self._scanner.close()
        self._scanner = self._publisher = None

    def _under_way(self, connection: connect.Connection) -> list[ReplayRequest]:
        return progress.resumable(connection, after=self._after, max_pending=self._config.archive.replay_max_pending)

    def _go_on(self, connection: connect.Connection, seen: ReplayRequest) -> bool:
        """Do the next piece of a replay; False: there is none for now.

        1. It has ended, or somebody else carries it out at this moment.
        2. Its endpoint is gone: it has failed.
        3. It is one delivery: it is handed over, or has failed.
        4. It is a time: where nobody counts what ends, it has failed; at first, what there is to read is written down.
        5. Its endpoint is paused or disabled: it waits. What it handed over would only take room in the retry lane.
        6. It is read on.
        """
        routes = self._routes_to(connection, seen)
        with progress.locked(connection, seen) as replay:
            if replay is None:
                return False
            if routes is None:
                progress.end(connection, replay, ReplayState.FAILED, now=_now(), reason=ENDPOINT_DELETED)
            elif isinstance(replay.asked, ReplayOne):
                self._resend(connection, replay, replay.asked, routes)
            elif not self._config.archive.attempts:
                progress.end(connection, replay, ReplayState.FAILED, now=_now(), reason=NOT_COUNTED)
            elif replay.state is ReplayState.WAITING:
                self._begin(connection, replay, replay.asked)
            elif routes.endpoint.status is not EndpointStatus.ACTIVE:
                return False
            else:
                self._read_on(connection, replay, replay.asked, routes)
        return True

    def _begin(self, connection: connect.Connection, replay: ReplayRequest, asked: ReplayRange) -> None:
        scanner = self._reader()
        names = topic_scanner.event_topics(self._config, scanner.names())
        firsts = scanner.extents(names, since_ms=_ms(asked.since))
        ends = {extent.place: extent.first for extent in scanner.extents(names, since_ms=_ms(asked.until))}
        places = [
            progress.PartitionProgress(*one.place, one.first, ends[one.place]) for one in firsts if one.first < ends[one.place]
        ]
        is_whole = all(extent.is_whole for extent in firsts)
        progress.begin(connection, replay, places, is_whole=is_whole, now=_now())

    def _read_on(
        self, connection: connect.Connection, replay: ReplayRequest, asked: ReplayRange, routes: replay_plan.Routes
    ) -> None:
        place = progress.next_partition(connection, replay)
        if place is None:
            progress.end(connection, replay, ReplayState.DONE, now=_now())
            return
        low, high = self._reader().held(Place(place.topic, place.partition))
        first = max(place.next_offset, low)
        end = min(first + MAX_RECORDS, place.end_offset, high)
        read = self._read(Place(place.topic, place.partition), first, end)
        handed_over = self._hand_over(routes.due(read, asked.event_types), routes, replay)
        # What Kafka has no more, because it is old or its topic was made anew, never comes.
        reached = place._replace(next_offset=end if first < end < high else place.end_offset)
        is_lost = low > place.next_offset or high < place.end_offset
        progress.advance(connection, replay, reached, is_lost=is_lost, records=len(read), handed_over=handed_over)

    def _resend(
        self, connection: connect.Connection, replay: ReplayRequest, asked: ReplayOne, routes: replay_plan.Routes
    ) -> None:
        due = self._find(asked)
        if due is None:
            progress.end(connection, replay, ReplayState.FAILED, now=_now(), reason=EVENT_GONE)
            return
        self._hand_over([due], routes, replay)
        progress.count(connection, replay, is_lost=False, records=1, handed_over=1)
        progress.end(connection, replay, ReplayState.DONE, now=_now())

    def _find(self, asked: ReplayOne) -> replay_plan.Due | None:
        """Return the event of a delivery; None where Kafka does not hold it, or another record in its place."""
        place, subscription_id = Place(asked.topic, asked.partition), SubscriptionId(asked.subscription_id)
        low, high = self._reader().held(place)
        if not low <= asked.offset < high:
            return None
        for record in self._read(place, asked.offset, asked.offset + 1):
            try:
                event = parsing.parse(record, self._layout)
            except errors.EventRejected:
                return None
            if payload.webhook_id(event, subscription_id) == asked.webhook_id:
                return replay_plan.Due(event, subscription_id)
        return None

    def _read(self, place: Place, first: int, end: int) -> list[Record]:
        records: list[Record] = []

        def take(one: confluent_kafka.Message) -> None:
            records.append(Record(*place, one.offset() or 0, one.timestamp()[1], one.value(), topic_scanner.headers(one)))

        self._reader().read([topic_scanner.Extent(place=place, low=first, first=first, end=end)], "events", take)
        return records

    def _hand_over(self, due: Sequence[replay_plan.Due], routes: replay_plan.Routes, replay: ReplayRequest) -> int:
        """Hand over what is due, and return how many deliveries that are, when Kafka has them."""
        self._publisher = self._publisher or publishing.Publisher(self._config.kafka)
        to, topic = routes.endpoint, self._config.delivery.retries_topic
        for written in replay_plan.records(due, routes, replay.replay_id, now_ms=_ms(_now())):
            for row in topic_rows.for_retries(topic, to.endpoint_id.encode(), written):
                self._publisher.publish(publishing.Message(topic=row.topic, key=row.key, value=row.value))
        self._publisher.flush()
        metrics.ARCHIVE_REPLAYED.inc(len(due))
        return len(due)

    def _routes_to(self, connection: connect.Connection, replay: ReplayRequest) -> replay_plan.Routes | None:
        """Return how events come to the endpoint now; None where it is gone, or another customer's by now."""
        key = (replay.endpoint_id, registered_rows.revision(connection))
        if self._routes is None or self._routes[0] != key:
            read = registry_reader.read_routes(connection, EndpointId(replay.endpoint_id))
            endpoint = read.endpoints.get(EndpointId(replay.endpoint_id))
            self._routes = (key, None if endpoint is None else replay_plan.Routes(read, endpoint, self._layout))
        routes = self._routes[1]
        return None if routes is None or routes.endpoint.customer_id != replay.customer_id else routes

    def _reader(self) -> topic_scanner.Scanner:
        self._scanner = self._scanner or topic_scanner.Scanner(self._config.kafka)
        return self._scanner


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _ms(moment: dt.datetime) -> int:
    return round(moment.timestamp() * 1000)
