"""What was given up is delivered again by the retry lane, with the webhook ids that it had, and the topics add up."""

import pytest

from fanout import dead_letters, proving
from fanout.letters import Selection
from tests.e2e.conftest import JOB_TIMEOUT_S

pytestmark = pytest.mark.e2e


def test_a_redriven_dead_letter_reaches_its_endpoint_by_its_settings_of_now(platform):
    platform.migrate()
    platform.register([{}])
    platform.statuses["ep1"] = 400
    ids = platform.publish(3)
    assert platform.start("--once", "--lanes", "direct").wait(JOB_TIMEOUT_S) == 0, platform.log()
    failed = {one.webhook_id for one in platform.received}
    assert proving.reconcile(platform.config, settle_s=0).account.lanes["direct"].counts.dead_lettered == 3

    platform.statuses["ep1"] = 200
    with dead_letters.reading(platform.config) as reader:
        assert dead_letters.redrive(platform.config, reader, Selection()).letters == 3
    account = proving.reconcile(platform.config, settle_s=0).account
    assert (account.holds, account.lanes["direct"].counts.pending) == (True, 3)

    assert platform.start("--once", "--lanes", "retry").wait(JOB_TIMEOUT_S) == 0, platform.log()
    assert sorted(platform.accepted()) == sorted(ids)
    assert {one.webhook_id for one in platform.received if one.status == 200} == failed
    account = proving.reconcile(platform.config, settle_s=0).account
    assert (account.holds, account.lanes["direct"].counts.delivered) == (True, 3), account.document()
