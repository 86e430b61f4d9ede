"""Where a checkpoint lies decides how Spark writes it, and which jars it gets."""

from pathlib import Path

import pytest

from delivery.config import settings
from delivery.stages.checkpoint import object_store
from fanout.jvm import jars, libraries

FOUND = jars.Jars(connector=(Path("connector.jar"),), store=(Path("s3.jar"),), broker=(Path("broker.jar"),))


@pytest.mark.parametrize(
    ("checkpoint", "manager", "given"),
    [
        (".fanout/checkpoint", "FileSystemBasedCheckpointFileManager", ()),
        ("/var/lib/fanout/checkpoint", "FileSystemBasedCheckpointFileManager", ()),
        ("file:///var/lib/fanout/checkpoint", "FileSystemBasedCheckpointFileManager", ()),
        ("s3a://bucket/fanout/all", "AbortableStreamBasedCheckpointFileManager", FOUND.store),
        ("hdfs://names/fanout", "", ()),  # Spark's own default
    ],
)
def test_a_checkpoint_is_written_as_its_place_allows(checkpoint, manager, given, monkeypatch):
    made = object_store.session_settings(checkpoint).get(object_store.FILE_MANAGER, "")
    assert made.rpartition(".")[2] == manager
    monkeypatch.setattr(jars, "ensure", lambda: FOUND)
    assert libraries.of(settings.SparkSettings(checkpoint=checkpoint)).store == given


@pytest.mark.parametrize(
    ("checkpoint", "folder"),
    [
        (".fanout/checkpoint", ".fanout/checkpoint"),
        ("/data/a:b?c#d", "/data/a:b?c#d"),
        ("file:///data/a:b?c#d", "/data/a:b?c#d"),
        ("file:/data/a%20b", "/data/a%20b"),
        ("file://localhost/data", "/data"),
    ],
)
def test_the_folder_of_a_path_and_of_a_file_url(checkpoint, folder):
    assert object_store.folder_of(checkpoint) == Path(folder)


def test_a_checkpoint_on_a_store_has_no_folder():
    assert object_store.folder_of("s3a://bucket/checkpoint") is None


def test_no_secret_is_among_sparks_settings():
    assert not [name for name in object_store.S3A if name.endswith((".key", "secret", "password", "token"))]
