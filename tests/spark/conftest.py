"""One Spark session for the tests that need one."""

import pytest

from delivery import settings
from delivery.stages import session, shards
from fanout.local import classes


@pytest.fixture(scope="session")
def spark(jars):
    config = settings.Spark(master="local[2]", driver_memory="1g")
    started = session.start(config, session.Libraries(jars=jars.connector, class_archive=classes.find()))
    yield shards.session(started, settings.Batch().shards)
    started.stop()
