"""`fanout archive` that is behind in its topics tells its replays, which then take at most half of the time."""

import threading
import uuid

import pytest

from delivery.config import settings
from delivery.stages.kafka import topics
from fanout.archiver import main_loop, topic_reader
from fanout.kafka import publishing
from subscriptions_db.postgres import connect, migrate

pytestmark = pytest.mark.integration


class Replayer:
    """Note of each step whether the archive was behind."""

    def __init__(self):
        self.was_behind = []

    def step(self, _, *, is_behind, once):
        assert once
        self.was_behind.append(is_behind)
        return 0

    def close(self):
        pass


def test_replays_know_whether_more_records_wait_to_be_archived(kafka, database):
    name = uuid.uuid4().hex[:8]
    names = {f"{kind}_topic": f"{kind}-{name}" for kind in ("attempts", "dead_letter", "rejected", "retries")}
    config = settings.Settings.model_validate(
        {
            "database": {"url": database},
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "delivery": names | {"result_partitions": 1},
        }
    )
    with connect.connect(config.database) as connection:
        migrate.migrate(connection)
    topics.ensure_all(config)
    publisher = publishing.Publisher(config.kafka)
    for _ in range(5 * topic_reader.MAX_RECORDS_PER_POLL):
        publisher.publish(publishing.Message(topic=names["attempts_topic"], value=b'{"kind":"later"}', key=b"ep1"))
    publisher.flush()
    archiver = main_loop.Archiver(config, threading.Event())
    archiver._replayer = replayer = Replayer()
    archiver.run(once=True)
    assert True in replayer.was_behind
    assert not replayer.was_behind[-1], "it ends when replays have had their turn"
