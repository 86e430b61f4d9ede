"""A customer has a delivery made again, then all of a time: the same `webhook-id`s, validly signed, and the account holds."""

import dataclasses
import datetime as dt
import threading

import pytest

from fanout.archiver import main_loop
from fanout.reconcile import proving
from subscriptions_db.archive.search import attempts
from subscriptions_db.postgres import connect
from subscriptions_db.replays import requests
from subscriptions_db.replays.requests import ReplayOne, ReplayRange, ReplayState

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # over HTTP, test_over_http.py shows the same in the gate


def test_resent_and_replayed_deliveries_keep_their_webhook_ids(platform):
    platform.register([{}])
    began = dt.datetime.now(dt.UTC)
    platform.publish(3)
    platform.publish(2, event_type="user")  # due to nobody
    platform.run_once("--lanes", "direct")
    first = {request.webhook_id for request in platform.received}
    assert len(first) == 3
    carry_out(platform)

    with connect.connect(platform.config.database) as connection:
        attempt = next(
            row
            for row in attempts.search(connection, "c1", attempts.AttemptSearch(), limit=10).attempts
            if row.event_id == "e1"
        )
        delivery = ReplayOne(
            webhook_id=attempt.webhook_id,
            subscription_id=attempt.subscription_id,
            topic=attempt.topic,
            partition=attempt.partition,
            offset=attempt.offset,
        )
        resent = requests.ask(connection, "c1", "ep1", delivery)
        gone = requests.ask(connection, "c1", "ep1", dataclasses.replace(delivery, webhook_id="msg_0", offset=99))
        carry_out(platform)
        platform.run_once("--lanes", "retry")  # before the replay: a resend of what waits only brings it forward
        replay = requests.ask(connection, "c1", "ep1", ReplayRange(since=began, until=dt.datetime.now(dt.UTC)))
        carry_out(platform)
        found = requests.get(connection, "c1", gone.replay_id)
        assert (found.state, found.reason) == (ReplayState.FAILED, "event_gone")
        platform.run_once("--lanes", "retry")
        assert sorted(request.webhook_id for request in platform.received[3:]) == sorted([*first, delivery.webhook_id])
        assert all(request.is_verified for request in platform.received)
        carry_out(platform)
        replays = [requests.get(connection, "c1", asked.replay_id) for asked in (resent, replay)]
    assert [(replay.state, replay.handed_over, replay.delivered, replay.is_whole) for replay in replays] == [
        (ReplayState.DONE, 1, 1, True), (ReplayState.DONE, 3, 3, True)
    ]  # fmt: skip
    account = proving.reconcile(platform.config, settle_s=0).account
    counts = account.lanes["direct"].counts
    assert (account.holds, counts.delivered, counts.repeated, counts.replayed) == (True, 3, 0, 4), account.document()


def carry_out(platform):
    main_loop.run(platform.config, stop=threading.Event(), once=True)
