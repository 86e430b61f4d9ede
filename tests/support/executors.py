"""A fake of Spark's executors that come and go, and the contract that the fake and Spark both keep.

`python -m tests.support.executors FOLDER` checks that Spark keeps the contract, on a standalone cluster of this machine.
"""

import os
import pathlib
import secrets
import sys
import time

import pyspark
from pydantic import SecretStr

from delivery.config import settings
from delivery.stages.lanes import session
from delivery.stages.scaling import executors


class FakeExecutors:
    """Executors that start at once where there is room, and end at once when they have no task."""

    def __init__(self, started=2, room=10):
        self.room, self._asked = room, 0
        self._next = 0
        self.active, self.ending, self.busy = [], [], set()
        self._start(started)

    def now(self):
        self.ending = [name for name in self.ending if name in self.busy]
        return executors.Executors(tuple(self.active), tuple(self.ending))

    def request(self, number):
        self._asked = number
        self._start(min(number, self.room) - len(self.active))

    def decommission(self, names):
        for name in names:
            self.active.remove(name)
            self.ending.append(name)
        self._start(min(self._asked, self.room) - len(self.active))

    def _start(self, number):
        for _ in range(number):
            self.active.append(str(self._next))
            self._next += 1


def hold_to_contract(cluster, eventually):
    """Check the contract. `cluster` has two executors, and room for two. `eventually(value, wanted)` waits for a value."""
    eventually(lambda: len(cluster.now().active), 2)
    older, newer = cluster.now().active
    assert int(older) < int(newer)
    cluster.request(1)
    assert cluster.now().active == (older, newer), "a request ends none"
    cluster.decommission((newer,))
    assert cluster.now().active == (older,), "one that is decommissioned is not active any more, at once"
    eventually(cluster.now, executors.Executors((older,), ()))
    cluster.request(2)
    eventually(lambda: len(cluster.now().active), 2)
    kept, newest = cluster.now().active
    assert kept == older
    assert int(newest) > int(newer), "a new one has a new id"
    cluster.request(3)
    assert len(cluster.now().active) == 2, "more than there is room for do not come, and nothing fails"


def _eventually(value, wanted):
    deadline = time.monotonic() + 90
    while (last := value()) != wanted:
        assert time.monotonic() < deadline, f"{last} is not {wanted}"
        time.sleep(0.1)


def main(folder):
    home = pathlib.Path(folder) / "spark"  # Spark's workers keep what they are given below it
    home.mkdir()
    for part in pathlib.Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
    conf = {"spark.authenticate.secret": SecretStr(secrets.token_hex(16)), "spark.decommission.enabled": SecretStr("true")}
    config = settings.SparkSettings(master="local-cluster[2,1,1024]", driver_memory="1g", conf=conf)
    spark = session.start(config, session.Libraries())
    hold_to_contract(executors.SparkExecutors(spark.sparkContext), _eventually)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
