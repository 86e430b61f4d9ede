"""Where a checkpoint lies decides how Spark writes it, and which jars it gets."""

from pathlib import Path

import pytest

from delivery.stages.checkpoint import object_store
from fanout.jvm import jars

FOUND = jars.Jars(connector=(Path("connector.jar"),), store=(Path("s3.jar"),), broker=(Path("broker.jar"),))


@pytest.mark.parametrize(
    ("checkpoint", "manager", "given"),
    [
        (".fanout/checkpoint", "FileSystemBasedCheckpointFileManager", ["connector.jar"]),
        ("/var/lib/fanout/checkpoint", "FileSystemBasedCheckpointFileManager", ["connector.jar"]),
        ("s3a://bucket/fanout/all", "AbortableStreamBasedCheckpointFileManager", ["connector.jar", "s3.jar"]),
        ("hdfs://names/fanout", "", ["connector.jar"]),  # Spark's own default
    ],
)
def test_a_checkpoint_is_written_as_its_place_allows(checkpoint, manager, given):
    made = object_store.session_settings(checkpoint).get(object_store.FILE_MANAGER, "")
    assert made.rpartition(".")[2] == manager
    assert [str(jar) for jar in FOUND.for_spark(checkpoint)] == given


def test_no_secret_is_among_sparks_settings():
    assert not [name for name in object_store.S3A if name.endswith((".key", "secret", "password", "token"))]
