"""A customer learns by webhook that one of its endpoints fails, and nobody else does."""

import threading

import orjson
import pytest
import standardwebhooks

from delivery import settings
from delivery.stages import topics
from fanout import archiving
from tests.e2e.conftest import SECRET, assert_eventually

pytestmark = pytest.mark.e2e


def test_an_endpoint_that_fails_is_told_to_another_of_its_customer_and_to_nobody_else(platform):
    topic = f"{platform.name}.fanout.operational"
    told = {"operations": {"topic": topic, "failing_after_s": 0.001}}
    platform.migrate()
    theirs = {"event_type": "fanout.*", "everything": False}
    platform.register(
        [
            {},
            {"endpoint": "ep2", **theirs, "sub_tenants": {"fanout": ["c1"]}},
            {"endpoint": "ep3", **theirs, "sub_tenants": {"fanout": ["c2"]}},
            {"endpoint": "ep4", "event_type": "*"},
        ],
        endpoints=("ep1", "ep2", "ep3", "ep4"),
    )
    platform.statuses["ep1"] = 400
    dead_letters = platform.config.delivery.dead_letter_topic
    topics.ensure(platform.config.kafka, [topic], 1)
    platform.create_topic("order")
    job = platform.start("--lanes", "direct", **told)
    for first in (0, 3):  # two records of the log, so that there is time between
        platform.publish(3, first=first)
        assert_eventually(lambda: platform.accepted("ep4"), lambda got, least=first + 3: len(got) >= least, within_s=120)
        assert_eventually(lambda: len(platform.read(dead_letters)), lambda count, least=first + 3: count == least)
    config = settings.Settings.model_validate(platform.settings(**told))
    archiving.run(config, stop=threading.Event(), once=True)

    received = assert_eventually(
        lambda: [one for one in list(platform.received) if one.path == "/ep2"], lambda got: len(got) == 2
    )
    events = {}
    for one in received:
        event = standardwebhooks.Webhook(SECRET).verify(one.body, one.headers)
        assert (event["source"], event["tenant_id"], event["sub_tenant_id"]) == ("fanout", "fanout", "c1")
        events[event["type"]] = event["data"]
    assert events["fanout.endpoint.failing"].items() >= {"endpoint_id": "ep1", "error_class": "refused"}.items()
    assert events["fanout.dead-letters.waiting"].items() >= {"endpoint_id": "ep1", "letters": 1}.items()
    archiving.run(config, stop=threading.Event(), once=True)
    assert platform.stop(job) == 0, platform.log()
    assert [one.path for one in platform.received if orjson.loads(one.body)["type"].startswith("fanout.")] == ["/ep2", "/ep2"]
