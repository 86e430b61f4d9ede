"""A batch record is taken apart by one lane. A wrong event is rejected by itself, and every lane delivers the others."""

import orjson
import pytest

from fanout.kafka import publishing
from tests.e2e.test_batch_lane import in_batches
from tests.support import topic_records

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
BATCH = (("trace", b"a"), ("content-type", b"application/cloudevents-batch+json"))
WRONG = b'{"specversion": "1.0", "id": "wrong", "type": "order", "source": "/shop"}'
"""A CloudEvent without a tenant."""


def event(event_id):
    fields = {"specversion": "1.0", "type": "order", "source": "/shop", "tenantid": "t1", "data": {"id": event_id}}
    return orjson.dumps({"id": event_id, **fields})


def publish(platform, topic, *events):
    publisher = publishing.Publisher(platform.config.kafka)
    publisher.publish(publishing.Message(topic=topic, key=b"k", value=b"[%s]" % b",".join(events), headers=BATCH))
    publisher.flush()


@pytest.mark.parametrize("lanes", ["direct,batch", "realtime,batch"])
def test_each_event_of_a_batch_record_has_an_end_of_its_own(platform, lanes):
    platform.register([{"id": "alone", "endpoint": "ep1"}])
    platform.register([{"id": "batched", "endpoint": "ep2"}], endpoints=("ep2",), **in_batches(max_events=2, max_wait_s=1))
    platform.create_topic("order")
    topic = f"{platform.name}.order"
    publish(platform, topic, event("e1"), WRONG, event("e2"))
    source = {"batch_records": "taken_apart"} | ({"realtime_pattern": f"{platform.name}.order"} if "realtime" in lanes else {})

    for _ in range(2):  # the second run reads what the first has written
        platform.run_once("--lanes", lanes, source=source)

    assert sorted(platform.accepted("ep1")) == ["e1", "e2"]  # sent at the same time: the endpoint has no order
    assert platform.accepted_requests("ep2") == [["e1", "e2"]]
    records = topic_records.records(platform.config.kafka, topic)
    assert {(record.partition, key) for record, key in records} == {(records[0][0].partition, b"k")}
    assert [record.value for record, _ in records[1:]] == [event("e1"), WRONG, event("e2")]
    assert {record.headers for record, _ in records[1:]} == {(BATCH[0], ("content-type", b"application/cloudevents+json"))}
    [rejected] = platform.ledger().rejected.values()
    assert (rejected.offset, rejected.reason) == (2, "missing_attribute")
    platform.configure(source=source)
    platform.assert_adds_up()
