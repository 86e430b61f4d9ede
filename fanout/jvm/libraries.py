"""Give Spark's JVM the downloaded jars and the class archives.

Runs in `fanout` commands and on the driver, before Spark.
"""

from __future__ import annotations

from delivery.config import settings
from delivery.stages.checkpoint import object_store
from delivery.stages.lanes import session
from fanout.jvm import class_archive, jars


def of(config: settings.SparkSettings) -> session.Libraries:
    """Return the libraries for a session by these settings. Download the jars if they are missing.

    The client for an S3-compatible store is included only if the checkpoint is on such a store. Raise LocalStackError if the
    jars cannot be downloaded, if they differ from their lock, or if there is no supported Java.
    """
    found = jars.ensure()
    return session.Libraries(
        connector=found.connector,
        store=found.store if object_store.is_s3a(config.checkpoint) else (),
        class_archive=class_archive.find(class_archive.SPARK),
        launcher_archive=class_archive.find(class_archive.LAUNCHER),
    )
