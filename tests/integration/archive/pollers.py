"""Pollers of a consumer, and what they get, for tests of the archive."""

import datetime as dt

from subscriptions_db.archive.search import archive_positions, archived_dead_letters, consumers, parked_letters, receipts
from subscriptions_db.archive.search.selection import DeadLetterSearch
from tests.support import archive

EVERYTHING = DeadLetterSearch()
NOW = archive.NOW


def after(seconds):
    return NOW + dt.timedelta(seconds=seconds)


def settled(results):
    return sorted(result.position for result in results if result.refusal is None)


class Pollers:
    """The pollers of consumer `k` of customer c1."""

    def __init__(self, connection, name="k", selection=EVERYTHING, *, bounds=None, **fields):
        """`bounds` are those of each poll, in place of the default ones."""
        self._of = (connection, "c1", name)
        self._bounds = bounds or {}
        assert consumers.create(*self._of, selection, **fields)

    def poll(self, at=0, *, limit=10, lease_s=60.0):
        return consumers.lease(*self._of, limit=limit, lease_s=lease_s, now=after(at), **self._bounds)

    def acknowledge(self, *leased):
        return settled(receipts.ack(*self._of, [letter.receipt for letter in leased]))

    def give_back(self, *leased, at=0, wait_s=0):
        return settled(receipts.nack(*self._of, [letter.receipt for letter in leased], now=after(at), wait_s=wait_s))

    def extend(self, *leased, at, lease_s):
        found = receipts.extend(*self._of, [letter.receipt for letter in leased], now=after(at), lease_s=lease_s)
        return [result.refusal or (result.until - NOW).total_seconds() for result in found]

    def seek(self, position):
        consumers.seek(*self._of, after=position)

    def parked(self, selection=EVERYTHING, *, past=0, limit=10):
        return parked_letters.browse(*self._of, selection, place=past, is_backwards=False, limit=limit)

    def parked_before(self, place, selection=EVERYTHING, *, limit=10):
        return parked_letters.browse(*self._of, selection, place=place, is_backwards=True, limit=limit)

    def unpark(self, *positions, at=0, **bounds):
        return parked_letters.unpark(*self._of, list(positions) or None, now=after(at), **bounds)


def positions(given):
    return [entry.letter.position for entry in given.leased]


def all_of(connection, selection=EVERYTHING, limit=3):
    found, at = [], 0
    while True:
        page = archived_dead_letters.browse(connection, "c1", selection, after=at, limit=limit)
        found += page.letters
        at = archive_positions.letter_position(archive_positions.letter_cursor(page.until))
        if not page.has_more:
            return found
