"""The settings `source.reused_ids` and `source.invalid_time` in a job."""

import orjson
import pytest

from fanout.kafka import publishing
from tests.support import poison

pytestmark = pytest.mark.e2e


@pytest.mark.slow
@pytest.mark.parametrize(
    ("treatment", "of_times"), [("passed", "rejected"), ("told_apart", "passed"), ("rejected", "rejected")]
)
def test_reused_ids_and_invalid_times_are_treated_as_the_operator_has_set(platform, treatment, of_times):
    platform.register([{}])
    platform.create_topic("order")
    publisher = publishing.Publisher(platform.config.kafka)

    def publish(value, headers=()):
        topic = f"{platform.name}.order"
        publisher.publish(publishing.Message(topic=topic, key=b"always one partition", value=value, headers=headers))

    for fields in ({"id": "e0", "n": 0}, {"id": "e0", "n": 1}, {"id": "e1", "time": "yesterday"}):
        publish(orjson.dumps({"tenant_id": "t1", **fields}))
    binary = {"ce_time": b"yesterday", **dict(poison.BINARY), "ce_id": b"e2"}
    publish(b"{}", tuple(binary.items()))
    publisher.flush()
    platform.run_once(source={"reused_ids": treatment, "invalid_time": of_times})
    is_rejected = treatment == "rejected"
    passed = ["e1", "e2"] if of_times == "passed" else []
    assert sorted(platform.accepted()) == ["e0", *([] if is_rejected else ["e0"]), *passed]
    of_e0 = {request.webhook_id for request in platform.received if b'"e0"' in request.body}
    assert len(of_e0) == (2 if treatment == "told_apart" else 1)
    rejected = sorted(row.reason for row in platform.ledger().rejected.values())
    assert rejected == ([] if passed else ["bad_attribute"] * 2) + (["reused_id"] if is_rejected else [])
