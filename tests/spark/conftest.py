"""One Spark session for the tests that need one."""

import pytest

from delivery import settings
from delivery.stages import session, shards


@pytest.fixture(scope="session")
def spark(jars):
    started = session.start(settings.Spark(master="local[2]", driver_memory="1g"), jars.connector)
    yield shards.session(started, settings.Batch().shards)
    started.stop()
