"""Redriven dead letters are delivered by the retry lane with their first webhook ids, and the topics add up."""

import pytest

from fanout.reconcile import proving
from fanout.redrive import dead_letter_search
from fanout.redrive.selection import Selection

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # over HTTP, test_over_http.py shows the same in the gate


def test_a_redriven_dead_letter_reaches_its_endpoint_by_its_settings_of_now(platform):
    failed = platform.give_up(3)
    assert proving.reconcile(platform.config, settle_s=0).account.lanes["direct"].counts.dead_lettered == 3

    platform.statuses["ep1"] = 200
    with dead_letter_search.reading(platform.config) as reader:
        assert dead_letter_search.redrive(platform.config, reader, Selection()).letters == 3
    account = proving.reconcile(platform.config, settle_s=0).account
    assert (account.holds, account.lanes["direct"].counts.pending) == (True, 3)

    platform.run_once("--lanes", "retry")
    assert sorted(platform.accepted()) == ["e0", "e1", "e2"]
    assert {request.webhook_id for request in platform.received if request.status == 200} == failed
    account = proving.reconcile(platform.config, settle_s=0).account
    assert (account.holds, account.lanes["direct"].counts.delivered) == (True, 3), account.document()
