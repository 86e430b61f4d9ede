"""Changes take effect while the job runs; Postgres may go away; new topics are found."""

import itertools

import pytest

from tests.e2e.conftest import assert_eventually

pytestmark = pytest.mark.e2e


def test_a_running_job_follows_the_registry_and_the_topics(platform):
    """One job, one story: the steps share its start, which takes most of the time.

    1. Without a schema the job waits and consumes nothing.
    2. Migrated and registered by then, it delivers.
    3. A change by plain SQL is in effect within 2 s.
    4. A topic that did not exist is found, from its first record; and so are partitions that it gets later.
    """
    platform.create_topic("order")
    job = platform.start("--lanes", "direct")
    assert_eventually(platform.log, lambda log: "fanout db migrate" in log)
    assert not platform.received

    platform.migrate()
    platform.register([{}, {"endpoint": "ep2", "event_type": "*"}], endpoints=("ep1", "ep2"))
    platform.publish(3)
    assert_eventually(lambda: sorted(platform.accepted()), lambda got: got == ["e0", "e1", "e2"], within_s=90)

    platform.assert_deletion_takes_effect()

    platform.publish(4, event_type="brand.new", first=2000)
    assert_eventually(lambda: platform.accepted("ep2"), lambda got: {"e2000", "e2003"} <= set(got))

    platform.add_partitions("brand.new", 8)
    more = platform.publish(40, event_type="brand.new", first=3000)
    assert_eventually(lambda: platform.accepted("ep2"), lambda got: set(more) <= set(got))
    assert "the address guard is OPEN for development: networks 127.0.0.0/8, plain http, any port" in platform.log(whole=True)
    assert platform.stop(job) == 0, platform.log()


def test_postgres_away_does_not_stop_deliveries_until_the_snapshot_is_too_old(platform, own_postgres):
    platform._database = own_postgres.url
    platform.migrate()
    platform.register([{}])
    platform.publish(1)
    job = platform.start("--lanes", "direct", snapshot={"max_age_s": 8, "poll_interval_s": 0.2})
    assert_eventually(platform.accepted, lambda got: got == ["e0"], within_s=90)

    own_postgres.kill()
    platform.publish(1, first=1)
    assert_eventually(platform.accepted, lambda got: got == ["e0", "e1"])
    numbers = itertools.count(2)
    # A micro-batch must begin for the job to hold it, so events keep coming.
    assert_eventually(
        lambda: platform.publish(1, first=next(numbers)) and platform.log(),
        lambda log: "holding: the registry was last confirmed" in log,
    )
    last = platform.publish(1, first=next(numbers))[0]
    assert last not in platform.accepted()

    own_postgres.start()
    # The last may be accepted before those that were sent beside it.
    everything = sorted(f"e{n}" for n in range(next(numbers)))
    assert_eventually(lambda: sorted(platform.accepted()), lambda got: got == everything)
    assert last in everything
    assert platform.stop(job) == 0, platform.log()
