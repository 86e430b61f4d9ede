"""How long micro-batches and deliveries take with the checkpoint in a folder and on an S3-compatible store, in turns.

    python -m pytest -s tests/benchmarks/checkpoint_on_a_store.py

Direct and batch lane, 50 events a second for 40 s, each place twice. Prints medians and the machine's load.
"""

import json
import os
import re
import statistics
import time

import orjson
import pytest

from tests.e2e.conftest import Platform, assert_eventually
from tests.k8s import s3
from tests.k8s.test_object_store import store  # noqa: F401  # a fixture

SECONDS, STEP = 40, 5
pytestmark = pytest.mark.timeout(3000)


@pytest.fixture
def platforms(kafka, postgres, tmp_path):
    made = []

    def make():
        postgres.create_database(f"bench{len(made)}")
        folder = tmp_path / str(len(made))
        folder.mkdir()
        platform = Platform(kafka, postgres.url_of(f"bench{len(made)}"), folder)
        made.append(platform)
        return platform

    yield make
    for platform in made:
        platform.close()


def measured(platform, spark):
    """Return the medians of one run."""
    came = {"ep1": {}, "ep2": {}}

    class Noting(list):
        def append(self, one):
            body = orjson.loads(one.body)
            for event in body if isinstance(body, list) else [body]:
                came[one.path.strip("/")].setdefault(event["id"], time.monotonic())

    platform.received = Noting()
    with platform.receiving():
        platform.migrate()
        platform.register([{}])
        fields = {"mode": "batch", "batch": {"max_events": 100, "max_wait_s": 1}}
        platform.register([{"id": "b0", "endpoint": "ep2"}], endpoints=("ep2",), **fields)
        job = platform.start("--lanes", "direct,batch", spark={"driver_memory": "1g", **spark}, logs={"format": "json"})
        platform.publish(50)
        assert_eventually(lambda: min(map(len, came.values())), lambda count: count == 50, within_s=400)
        sent, number = {}, 50
        began = time.monotonic()
        before = platform.log(whole=True).count("\n")
        while time.monotonic() - began < SECONDS:
            for event_id in platform.publish(STEP, first=number):
                sent[event_id] = time.monotonic()
            number += STEP
            time.sleep(STEP / 50)
        assert_eventually(lambda: min(map(len, came.values())), lambda count: count == number, within_s=400)
        lines = platform.log(whole=True).splitlines()[before:]
        assert platform.stop(job) == 0
    logged = [json.loads(line) for line in lines if re.match(r'^{.*"micro-batch committed"', line)]
    medians = {
        f"{lane} micro-batch ms": statistics.median(one["duration_ms"] for one in logged if one["lane"] == lane)
        for lane in ("direct", "batch")
    }
    for endpoint, at in came.items():
        medians[f"{endpoint} latency ms"] = round(1000 * statistics.median(at[one] - sent[one] for one in sent))
    return medians | {"micro-batches": len(logged), "load": round(os.getloadavg()[0])}


def test_checkpoint_on_a_store_costs_this(platforms, store):  # noqa: F811
    for turn in range(2):
        print(turn, "folder", measured(platforms(), {}))
        url = f"s3a://{s3.BUCKET}/bench{turn}"
        print(turn, "store ", measured(platforms(), {"checkpoint": url, "conf": store.conf}))
