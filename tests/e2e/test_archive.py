"""A customer polls what its endpoint did not take, acknowledges it, and has it delivered when the endpoint is mended."""

import datetime as dt
import threading

import orjson
import pytest

from fanout import archiving, proving
from subscriptions_db import connect
from subscriptions_db.archive import attempts, consumers, letters
from subscriptions_db.archive.selection import Selection

pytestmark = pytest.mark.e2e


def test_dead_letters_are_polled_acknowledged_and_redriven_from_the_archive(platform):
    failed = platform.give_up(3)
    archiving.run(platform.config, stop=threading.Event(), once=True)

    now = dt.datetime.now(dt.UTC)
    with connect.connect(platform.config.database) as connection:
        assert consumers.create(connection, "c1", "support", Selection(endpoint_id="ep1"))
        leased = consumers.lease(connection, "c1", "support", limit=10, lease_s=60, now=now).leased
        documents = [one.letter.document() for one in leased]
        assert sorted(document["event_id"] for document in documents) == ["e0", "e1", "e2"]
        assert {document["webhook_id"] for document in documents} == failed
        assert {orjson.loads(one.letter.payload)["id"] for one in leased} == {"e0", "e1", "e2"}
        assert len(consumers.acknowledge(connection, "c1", "support", [one.receipt for one in leased])) == 3
        found = attempts.search(connection, "c1", attempts.Asked(endpoint_id="ep1", status=400), limit=10).attempts
        assert {one.webhook_id for one in found} == failed
        assert len(letters.redrive(connection, "c1", [one.letter.position for one in leased], now=now)) == 3

    platform.statuses["ep1"] = 200
    archiving.run(platform.config, stop=threading.Event(), once=True)
    platform.run_once("--lanes", "retry")
    assert sorted(platform.accepted()) == ["e0", "e1", "e2"]
    assert {one.webhook_id for one in platform.received if one.status == 200} == failed
    account = proving.reconcile(platform.config, settle_s=0).account
    assert (account.holds, account.lanes["direct"].counts.delivered) == (True, 3), account.document()
