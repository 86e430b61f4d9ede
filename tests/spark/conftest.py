"""One Spark session for the tests that need one."""

import pytest

from delivery.config import settings
from delivery.stages.checkpoint import shards
from delivery.stages.lanes import session
from fanout.jvm import libraries


@pytest.fixture(scope="session")
def spark():
    config = settings.SparkSettings(master="local[2]", driver_memory="1g")
    started = session.start(config, libraries.of(config))
    yield shards.session(started, settings.BatchSettings().shards)
    started.stop()
