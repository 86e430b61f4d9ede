"""Execute replays: read event topics again, and enqueue the due deliveries of one endpoint for the retry lane, in chunks.

Runs in `fanout archive`, between its writes: a step takes about STEP_S. Postgres records a chunk after Kafka has confirmed it.
If the process dies in between, the chunk is repeated, with the same `webhook-id`s. A replay pauses while it has
`archive.replay_max_pending` or more enqueued deliveries without an outcome. These deliveries wait in the retry lane, where live
events of the endpoint also need space.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Sequence

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.model import Record
from delivery.observability import metrics
from delivery.registry_model import Endpoint, EndpointId, EndpointStatus, SubscriptionId
from delivery.stages.kafka import record_reader
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder
from delivery.webhooks.retries import retry_records
from delivery.webhooks.sending import payload
from fanout.archiver.replay_pauses import FIRST_PAUSE_S, ReplayPauses
from fanout.archiver.replay_turns import ReplayTurns
from fanout.kafka import publishing, topic_scanner
from fanout.kafka.places import Place
from fanout.redrive import replay_plan
from subscriptions_db.postgres import connect
from subscriptions_db.registration import registered_rows
from subscriptions_db.replays import progress
from subscriptions_db.replays.requests import ReplayOne, ReplayRange, ReplayRequest, ReplayState
from subscriptions_db.snapshot import registry_reader

log = logging.getLogger(__name__)

STEP_S = 1.0
"""Seconds of a step, after which it begins no further chunk. Archiving waits during a step. While more records wait to be
archived, at least as many seconds pass between two steps."""
MAX_RECORDS = 1000
"""Maximum records of one chunk. A chunk ends earlier when its deliveries have replay_plan.MAX_BYTES."""
PAST_S = 3600
"""Seconds after the end of a replay's time range. If a chunk has at least half of the maximum number of records, and all
records are this much later, the rest of the partition is not read. A few late records do not end the reading, because a
producer's clock may be ahead, and records of the time range may follow."""
ENDPOINT_DELETED, EVENT_GONE, NOT_COUNTED = "endpoint_deleted", "event_gone", "attempts_not_archived"
"""Reasons of failed replays. ENDPOINT_DELETED: the endpoint was deleted, or has another customer now. EVENT_GONE: Kafka no
longer has the event of the delivery at its offset, or the job would reject it now. NOT_COUNTED: `archive.attempts` is off, so
the number of deliveries without an outcome is unknown."""
_OF_ALL_REPLAYS = (errors.RegistryUnavailable, errors.RegistryOutdated, errors.SettingsError)
"""Errors that stop all replays, because `fanout archive` itself pauses or ends (main_loop.py)."""


class Replayer:
    """Advance all unfinished replays, one chunk in each turn. Customers take turns, and so do the replays of each customer."""

    def __init__(
        self, config: settings.Settings, *, max_records: int = MAX_RECORDS, max_bytes: int = replay_plan.MAX_BYTES
    ) -> None:
        """A chunk ends after `max_records`, or when its deliveries have `max_bytes` of packed events."""
        self._config = config
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._layout = plan_builder.layout_of(config)
        self._formats = decoder.decoder_of(plan_builder.formats_of(config.schema_registry), self._layout)
        self._scanner: topic_scanner.Scanner | None = None
        self._publisher: publishing.Publisher | None = None
        self._routes: tuple[tuple[str, int], replay_plan.Routes | None] | None = None
        self._turns = ReplayTurns()
        self._pauses = ReplayPauses()
        self._allowed_at = -math.inf
        """Time before which no replay is advanced, by the clock of `step`."""
        self._yields_until = -math.inf
        """Time before which no step runs while the archive is behind, by the clock of `step`."""

    def step(
        self,
        connection: connect.Connection,
        *,
        is_behind: bool = False,
        once: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> int:
        """Advance the unfinished replays, a chunk in each turn, for about STEP_S or until none can advance now.

        Customers take turns, and so do the replays of each customer (replay_turns.py).

        `is_behind`: records wait to be archived. Then do nothing for as long as the last step took, and for STEP_S at least. So
        archiving has at least half of the time.

        Return the number of advances. The beginning and the end of a replay count as well. If Kafka or the schema registry
        fails for a replay, log a warning, and pause this replay (replay_pauses.py). After the pause, the chunk is repeated.
        Other replays continue:
        1. at once, if Kafka did not give the records of one topic (TopicUnreadable);
        2. after decoder.AWAY_S, if the schema registry failed: until then the decoder refuses each schema that it has not read;
        3. after FIRST_PAUSE_S, if Kafka failed otherwise.

        If a replay has an unforeseen error, log its traceback, and pause this replay in the same way. Other replays continue at
        once.

        Raise RegistryUnavailable if Postgres fails, RegistryOutdated if it lacks a migration, and SettingsError if the settings
        permit no replay. With `once`, raise any error in place of a pause. `clock` is for tests.
        """
        if is_behind and clock() < self._yields_until:
            return 0
        began = clock()
        try:
            return self._take_turns(connection, began, once=once, clock=clock)
        finally:
            ended = clock()
            self._yields_until = ended + max(STEP_S, ended - began)

    def _take_turns(self, connection: connect.Connection, began: float, *, once: bool, clock: Callable[[], float]) -> int:
        chunks, has_tried, idle = 0, False, set[int]()
        while clock() >= self._allowed_at and (running := self._running(connection, clock(), idle)):
            for replay in self._turns.of_customers(running):
                # A step tries at least one replay, however slow the machine is: a step without an advance ends `--once`.
                if (has_tried and clock() - began >= STEP_S) or clock() < self._allowed_at:
                    return chunks
                has_tried = True
                self._turns.taken(replay)
                idle.add(replay.number)
                try:
                    if self._advance(connection, replay):
                        idle.discard(replay.number)
                        chunks += 1
                except (errors.KafkaUnavailable, errors.SchemaRegistryUnavailable) as exc:
                    self._failed(replay, exc, once=once, now=clock())
                except _OF_ALL_REPLAYS:
                    raise
                except Exception as exc:  # raised, it would end the archive again and again, for all customers
                    if once:
                        raise
                    self._failed_unforeseen(replay, exc, clock())
                else:
                    self._pauses.succeeded(replay.number)
        return chunks

    def _failed(
        self,
        replay: ReplayRequest,
        exc: errors.KafkaUnavailable | errors.SchemaRegistryUnavailable,
        *,
        once: bool,
        now: float,
    ) -> None:
        """Log a failure, and begin the pauses that `step` describes. With `once`, raise the error instead.

        If Kafka failed otherwise than for one topic, also close the connections to Kafka.
        """
        is_of_kafka = isinstance(exc, errors.KafkaUnavailable) and not isinstance(exc, errors.TopicUnreadable)
        if is_of_kafka:
            self.close()
        if once:
            raise exc
        pause_s = self._pauses.failed(replay.number, now)
        others_s = FIRST_PAUSE_S if is_of_kafka else 0.0
        if isinstance(exc, errors.SchemaRegistryUnavailable):
            others_s = decoder.AWAY_S
        self._allowed_at = now + others_s
        log.warning(
            "%s. So replay %s pauses for %.0f s, and other replays %s. Archiving and redrives continue. If this is "
            "logged again, check that Kafka and the schema registry answer, and that the archiver may read the topics of "
            "events and write the retries topic",
            exc, replay.replay_id, pause_s, f"pause for {others_s:.0f} s" if others_s else "continue",
        )  # fmt: skip

    def _failed_unforeseen(self, replay: ReplayRequest, exc: Exception, now: float) -> None:
        """Log an unforeseen error with its traceback, begin a pause of the replay, and close the connections to Kafka."""
        self.close()
        pause_s = self._pauses.failed(replay.number, now)
        log.error(
            "an unforeseen error in replay %s. So this replay pauses for %.0f s, then tries again. Archiving, redrives and "
            "other replays continue. Send this traceback to the maintainers of the platform. `fanout replays cancel` ends the "
            "replay", replay.replay_id, pause_s, exc_info=exc,
        )  # fmt: skip

    def close(self) -> None:
        """Close the connections to Kafka. The next step opens them again."""
        if self._scanner is not None:
            self._scanner.close()
        self._scanner = self._publisher = None

    def _running(self, connection: connect.Connection, now: float, idle: Collection[int]) -> list[ReplayRequest]:
        """Return the unfinished replays that may advance. Leave out paused replays, and replays with a number in `idle`."""
        found = progress.resumable(connection, max_pending=self._config.archive.replay_max_pending)
        return [replay for replay in found if not (replay.number in idle or self._pauses.is_paused(replay.number, now))]

    def _advance(self, connection: connect.Connection, seen: ReplayRequest) -> bool:
        """Do the next step of a replay. Return True if something was done, and False in the cases 1 and 6.

        1. The replay has ended, or another process executes it at this moment: nothing is done.
        2. The replay's endpoint was deleted, or belongs to another customer now: the replay fails.
        3. The replay asks for one delivery: the delivery is enqueued, or the replay fails.
        4. The replay asks for a time range, and attempts are not archived: the replay fails.
        5. The replay asks for a time range, and has not begun: the offsets to read are recorded.
        6. The endpoint is paused or disabled: the replay waits, because its deliveries would only take space in the retry lane.
        7. Otherwise the next records are read, and their due deliveries enqueued. If no record is left, the replay is done.
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
                self._read_chunk(connection, replay, replay.asked, routes)
        return True

    def _begin(self, connection: connect.Connection, replay: ReplayRequest, asked: ReplayRange) -> None:
        scanner = self._reader()
        names = topic_scanner.event_topics(self._config, scanner.names())
        extents = scanner.extents(names, since_ms=_ms(asked.since))
        # A record of the time range may come after a later record, so each partition is read up to its present end. Only
        # `_read_chunk` may stop earlier (PAST_S).
        places = [
            progress.PartitionProgress(*extent.place, extent.first, extent.end)
            for extent in extents
            if extent.first < extent.end
        ]
        is_whole = all(extent.is_whole for extent in extents)
        progress.begin(connection, replay, places, is_whole=is_whole, now=_now())

    def _read_chunk(
        self, connection: connect.Connection, replay: ReplayRequest, asked: ReplayRange, routes: replay_plan.Routes
    ) -> None:
        """Read the next records of one partition, and enqueue the due deliveries of records in the time range.

        The rest of the partition is left unread if all records of the chunk are PAST_S or more after the time range, and the
        chunk has at least half of the maximum number of records.
        """
        place = progress.next_partition(connection, replay)
        if place is None:
            progress.end(connection, replay, ReplayState.DONE, now=_now())
            return
        low, high = self._reader().bounds(Place(place.topic, place.partition))
        first = max(place.next_offset, low)
        end = min(first + self._max_records, place.end_offset, high)
        until_ms = _ms(asked.until)
        chunk = replay_plan.Chunk(first, end, since_ms=_ms(asked.since), until_ms=until_ms)
        with contextlib.closing(self._read(Place(place.topic, place.partition), first, end)) as records:
            due = routes.due(chunk.in_range(records), asked.event_types, max_bytes=self._max_bytes)
        handed_over = self._enqueue(due, routes, replay)
        # Transactions and compaction leave offsets without a record: a few late records are no whole chunk.
        is_past = 2 * chunk.records >= self._max_records and chunk.earliest_ms >= until_ms + PAST_S * 1000
        # Records that Kafka has deleted, or that were in a topic deleted since, are skipped.
        is_next = first < chunk.next_offset < high and not is_past
        reached = place._replace(next_offset=chunk.next_offset if is_next else place.end_offset)
        is_lost = low > place.next_offset or high < place.end_offset
        progress.advance(connection, replay, reached, is_lost=is_lost, records=chunk.records, handed_over=handed_over)

    def _resend(
        self, connection: connect.Connection, replay: ReplayRequest, asked: ReplayOne, routes: replay_plan.Routes
    ) -> None:
        due = self._find(asked, routes.endpoint)
        if not due:
            progress.end(connection, replay, ReplayState.FAILED, now=_now(), reason=EVENT_GONE)
            return
        self._enqueue(due, routes, replay)
        progress.count(connection, replay, is_lost=False, records=1, handed_over=1)
        progress.end(connection, replay, ReplayState.DONE, now=_now())

    def _find(self, asked: ReplayOne, endpoint: Endpoint) -> list[replay_plan.Due]:
        """Return the requested delivery, with its event as read from Kafka.

        Empty: Kafka no longer has the event at its offset, or the job would reject it now.
        """
        place, subscription_id = Place(asked.topic, asked.partition), SubscriptionId(asked.subscription_id)
        low, high = self._reader().bounds(place)
        if not low <= asked.offset < high:
            return []
        for record in self._read(place, asked.offset, asked.offset + 1):
            try:
                event = parsing.parse(record, self._layout) if self._formats is None else self._formats.event_now(record)
            except errors.EventRejected:
                return []
            # The setting `source.reused_ids` may have changed since the first delivery.
            for same in (event._replace(payload_digest=""), parsing.with_payload_digest(event)):
                if payload.webhook_id(same, subscription_id) == asked.webhook_id:
                    return replay_plan.deliveries(same, endpoint, [subscription_id])
        return []

    def _read(self, place: Place, first: int, end: int) -> Generator[Record, None, None]:
        """Yield the records of a range of offsets. Close the generator to stop before the end."""
        extent = topic_scanner.Extent(place=place, low=first, first=first, end=end)
        with contextlib.closing(self._reader().messages([extent], "events")) as messages:
            yield from map(record_reader.record_of, messages)

    def _enqueue(self, due: Sequence[replay_plan.Due], routes: replay_plan.Routes, replay: ReplayRequest) -> int:
        """Enqueue due deliveries, wait until Kafka has them, and return their number."""
        self._publisher = self._publisher or publishing.Publisher(self._config.kafka)
        to, topic = routes.endpoint, self._config.delivery.retries_topic
        resends = isinstance(replay.asked, ReplayOne)
        for written in replay_plan.records(due, routes, replay.replay_id, now_ms=_ms(_now()), resends=resends):
            for record in retry_records.records(to.endpoint_id.encode(), written):
                self._publisher.publish(publishing.Message(topic=topic, key=record.key, value=record.value))
        self._publisher.flush()
        metrics.ARCHIVE_REPLAYED.inc(len(due))
        return len(due)

    def _routes_to(self, connection: connect.Connection, replay: ReplayRequest) -> replay_plan.Routes | None:
        """Return the present routes to the endpoint; None if it was deleted, or belongs to another customer now."""
        key = (replay.endpoint_id, registered_rows.revision(connection))
        if self._routes is None or self._routes[0] != key:
            read = registry_reader.read_routes(connection, EndpointId(replay.endpoint_id))
            endpoint = read.endpoints.get(EndpointId(replay.endpoint_id))
            self._routes = (key, None if endpoint is None else replay_plan.Routes(read, endpoint, self._layout, self._formats))
        routes = self._routes[1]
        return None if routes is None or routes.endpoint.customer_id != replay.customer_id else routes

    def _reader(self) -> topic_scanner.Scanner:
        self._scanner = self._scanner or topic_scanner.Scanner(self._config.kafka)
        return self._scanner


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _ms(moment: dt.datetime) -> int:
    return round(moment.timestamp() * 1000)
