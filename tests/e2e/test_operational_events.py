"""A customer and the operator learn by webhook that an endpoint fails or is disabled, and nobody else does."""

import threading

import orjson
import pytest
import standardwebhooks

from delivery.config import settings
from delivery.stages.kafka import topics
from fanout.admin import registry_commands
from fanout.archiver import main_loop
from tests.e2e.conftest import SECRET, assert_eventually

pytestmark = pytest.mark.e2e


def test_only_its_customer_and_the_operator_learn_of_a_failing_endpoint(platform):
    topic = f"{platform.name}.fanout.operational"
    overrides = {"operations": {"topic": topic, "failing_after_s": 0.001}}
    theirs = {"event_type": "fanout.*", "everything": False}
    platform.register(
        [
            {},
            {"endpoint": "ep2", **theirs, "sub_tenants": {"fanout": ["c1"]}},
            {"endpoint": "ep3", **theirs, "sub_tenants": {"fanout": ["c2"]}},
            {"endpoint": "ep4", "event_type": "*"},
            {"endpoint": "gone", "event_type": "user"},
        ],
        endpoints=("ep1", "ep2", "ep3", "ep4", "gone"),
    )
    platform.register(
        [{"id": "all", "endpoint": "operators", **theirs, "tenants": ["fanout"]}], endpoints=("operators",), customer="operator"
    )
    platform.statuses |= {"ep1": 400, "gone": 410}
    dead_letters = platform.config.delivery.dead_letter_topic
    topics.ensure(platform.config.kafka, [topic], 1)
    platform.create_topic("order")
    job = platform.start("--lanes", "direct", **overrides)
    for first in (0, 3):  # two records of the log, so that there is time between
        platform.publish(3, first=first)
        assert_eventually(lambda: platform.accepted("ep4"), lambda got, least=first + 3: len(got) >= least)
        assert_eventually(lambda: len(platform.read(dead_letters)), lambda count, least=first + 3: count == least)
    platform.publish(1, event_type="user", first=6)
    assert_eventually(lambda: status_of(platform, "gone"), lambda status: status == "disabled")
    config = settings.Settings.model_validate(platform.settings(**overrides))
    main_loop.run(config, stop=threading.Event(), once=True)

    received = assert_eventually(lambda: received_by(platform, "ep2"), lambda got: len(got) == 4)
    events = {}
    for request in received:
        event = standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
        assert (event["source"], event["tenant_id"], event["sub_tenant_id"]) == ("fanout", "fanout", "c1")
        events[event["type"], event["data"]["endpoint_id"]] = event["data"]
    assert events["fanout.endpoint.failing", "ep1"]["error_class"] == "refused"
    assert events["fanout.dead-letters.waiting", "ep1"]["letters"] == 1
    assert events["fanout.endpoint.disabled", "gone"]["reason"] == "gone"
    assert events["fanout.dead-letters.waiting", "gone"]["letters"] == 1
    assert_eventually(lambda: received_by(platform, "operators"), lambda got: len(got) == 4)
    main_loop.run(config, stop=threading.Event(), once=True)
    assert platform.stop(job) == 0, platform.log()
    both = [sorted(request.body for request in received_by(platform, name)) for name in ("ep2", "operators")]
    assert both[0] == both[1]
    assert len(both[0]) == 4
    everybody = [request.path for request in platform.received if orjson.loads(request.body)["type"].startswith("fanout.")]
    assert sorted(everybody) == ["/ep2"] * 4 + ["/operators"] * 4
    assert all(request.is_verified for request in platform.received)


def received_by(platform, endpoint):
    """Return the requests that an endpoint received."""
    return [request for request in list(platform.received) if request.path == f"/{endpoint}"]


def status_of(platform, endpoint_id):
    [row] = registry_commands.get(platform.config, registry_commands.kind_of("endpoints"), endpoint_id)
    return row["status"]
