"""Fixtures: an archive with its schema, and further connections that use it at the same time."""

import concurrent.futures
import contextlib

import pytest

from delivery.config import settings
from delivery.webhooks.http import guard
from subscriptions_db.archive.ingest import writer
from subscriptions_db.manifest import manifest
from subscriptions_db.postgres import connect
from subscriptions_db.registration import apply
from subscriptions_db.secrets import keyring
from tests.integration.archive import replays
from tests.support import archive


@pytest.fixture
def opened(database):
    """Open connections to the test's own database."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(connect.connect(settings.DatabaseSettings(url=database)))


@pytest.fixture
def connection(opened):
    made = opened()
    made.execute("insert into customers values ('c1'), ('c2')")
    return made


@pytest.fixture
def write(connection):
    """Archive dead letters, one offset after the other."""
    offsets = iter(range(1_000_000))

    def written(count=1, *, to=None, now=archive.NOW, **fields):
        taken = [archive.taken_letter(next(offsets), **fields) for _ in range(count)]
        return writer.write(to or connection, taken, archive.KEPT, now=now)

    return written


@pytest.fixture
def in_background():
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as executor:
        yield executor.submit


@pytest.fixture
def world(kafka, opened):
    """Return a world for one test of replays."""
    connection = opened()
    ring = keyring.KeyRing.from_settings(settings.KeysSettings(ring={"k1": keyring.generate()}))
    apply.apply(connection, manifest.check(replays.DOCUMENT, guard.Guard()), ring)
    return replays.World(kafka, connection)
