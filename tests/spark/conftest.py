"""One Spark session for the tests that need one."""

import pytest

from delivery.config import settings
from delivery.stages.checkpoint import shards
from delivery.stages.lanes import session
from fanout.jvm import class_archive


@pytest.fixture(scope="session")
def spark(jars):
    config = settings.Spark(master="local[2]", driver_memory="1g")
    started = session.start(config, session.Libraries(connector=jars.connector, class_archive=class_archive.find()))
    yield shards.session(started, settings.Batch().shards)
    started.stop()
