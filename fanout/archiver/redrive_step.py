"""Redrive the dead letters of the archive that customers requested over the API: enqueue them in the retry lane again.

Runs in `fanout archive`. All dead letters of one page are enqueued together. The dead letters of one batch go in one request
again if one page has all of them, and if the request is not too large (redrive_plan.MAX_REQUEST_BYTES).
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from delivery import errors
from delivery.config import settings
from delivery.observability import metrics
from delivery.registry_model import Revision
from delivery.webhooks.results import dead_letter_records
from delivery.webhooks.results.dead_letter_records import DeadLetter
from fanout.redrive import enqueue, redrive_plan
from fanout.redrive.selection import Selection
from subscriptions_db.archive.search import redrive_requests as archive
from subscriptions_db.postgres import connect
from subscriptions_db.registration import registered_rows

log = logging.getLogger(__name__)

PAUSE_S = 30.0
"""Seconds for which no dead letter is redriven after a failure of Kafka."""
PAGES_UNTIL_TURNS = 4
"""Every fourth page takes the requests of all customers in turn, and the pages between take the oldest requests. A page in turn
must read all requests, which takes about 0.4 s for 200,000 requests. So not every page is in turn."""


class Redriver:
    """Redrive the requested dead letters, a page in each step. After a failure of Kafka, pause for PAUSE_S."""

    def __init__(
        self,
        config: settings.Settings,
        *,
        max_bytes: int = archive.MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes` bounds one page, as in `claim_page`. `clock` returns seconds."""
        self._config = config
        self._max_bytes = max_bytes
        self._clock = clock
        self._allowed_at = 0.0
        self._pages = 0

    def step(self, connection: connect.Connection, *, now: dt.datetime, once: bool) -> int:
        """Enqueue a page of requested dead letters; return their number, 0 while the step pauses or if no redrive is requested.

        One page in PAGES_UNTIL_TURNS takes the requests of all customers in turn, so that nobody waits for the large redrive of
        another customer. After a failure of Kafka, log it and return 0. With `once`, raise KafkaUnavailable instead. Raise
        RegistryUnavailable if Postgres is unavailable.
        """
        if self._clock() < self._allowed_at:
            return 0
        self._pages += 1
        in_turn = self._pages % PAGES_UNTIL_TURNS == 0
        try:
            redriven = redrive(self._config, connection, now=now, in_turn=in_turn, max_bytes=self._max_bytes)
        except errors.KafkaUnavailable as exc:
            if once:
                raise
            log.warning(
                "%s. So redrives pause for %.0f s, and archiving continues. If this is logged again, check that Kafka answers, "
                "and that the archiver may write the retries topic and the attempts topic", exc, PAUSE_S,
            )  # fmt: skip
            self._allowed_at = self._clock() + PAUSE_S
            return 0
        metrics.ARCHIVE_REDRIVEN.inc(redriven)
        return redriven


def redrive(
    config: settings.Settings,
    connection: connect.Connection,
    *,
    now: dt.datetime,
    in_turn: bool = False,
    max_bytes: int = archive.MAX_BYTES,
) -> int:
    """Enqueue one page of requested dead letters, only the newest of each delivery. Return the number of enqueued dead letters.

    `in_turn` and `max_bytes` are passed to `claim_page`.

    A dead letter that cannot be redriven, because another program wrote it, is left out and logged. The whole page then counts
    as redriven. A page without a dead letter that can be redriven is followed by the next page. Return 0 if no redrive is
    requested any more.

    Raise KafkaUnavailable if Kafka does not confirm all enqueued dead letters, and RegistryUnavailable if Postgres is
    unavailable. The next call then enqueues the page again.
    """
    enqueued = 0
    while not enqueued:
        with archive.claim_page(connection, now=now, in_turn=in_turn, max_bytes=max_bytes) as requested:
            if not requested:
                return 0
            plan = redrive_plan.Plan(Selection(), redrive_plan.Redriven())
            letters = dict(_redrivable(requested))
            for position, letter in letters.items():
                plan.add(letter, position)
            enqueued = _enqueue(config, connection, plan, letters, now_ms=round(now.timestamp() * 1000))
    return enqueued


def _redrivable(requested: Iterable[archive.RedriveRequest]) -> Iterator[tuple[int, DeadLetter]]:
    """Yield each dead letter that can be redriven, with its position. Log all other dead letters."""
    for request in requested:
        try:
            letter = dead_letter_records.decode(request.record())
            fault = redrive_plan.fault_of(letter)
        except (RecursionError, TypeError, ValueError) as exc:
            fault = f"{type(exc).__name__}: {exc}"
        if not fault:
            yield request.position, letter
            continue
        log.error(
            "dead letter %d of the archive cannot be redriven (%s), so it was left out and counts as redriven. Other redrives "
            "continue. Another program wrote it to the dead-letter topic: find this program. The API still shows the letter",
            request.position, fault,
        )  # fmt: skip


def _enqueue(
    config: settings.Settings,
    connection: connect.Connection,
    plan: redrive_plan.Plan,
    letters: dict[int, DeadLetter],
    *,
    now_ms: int,
) -> int:
    chosen = plan.chosen()
    max_ages_s = archive.max_ages_s(connection, {letter.endpoint_id for letter in letters.values()})
    revision = Revision(registered_rows.revision(connection))
    enqueuer = enqueue.Enqueuer(config, chosen.values(), now_ms=now_ms, dry_run=False, max_ages_s=max_ages_s, revision=revision)
    for position, letter in letters.items():
        if position in chosen:
            enqueuer.add(letter)
    enqueuer.finish()
    return enqueuer.summary.letters
