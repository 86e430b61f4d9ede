"""Return a checkpoint's folder, Spark's settings for a folder or an S3-compatible store, and test that a store can be used.

Runs on the driver, and in the commands `fanout accept-loss` and `fanout doctor`. Spark's log of offsets and commits relies on
two properties:
1. A file appears whole or not at all. In a folder Spark renames a complete file. On S3 an upload appears only when it is
   complete.
2. An existing file is not replaced. In a folder the rename ensures this. S3 does not: Spark looks for the file, then uploads
   it, so two drivers may both write one file. The Kubernetes Lease keeps a second driver out (docs/adr/0039).
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delivery import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting for the class that reads and writes the files of a checkpoint."""
FOLDER = {
    # Hadoop's default starts a process, `readlink`, for every file that it renames on a local disk. On a busy machine the state
    # of four shards took 410 to 810 ms to commit with it. This manager renames without a process, and took 39 to 81 ms.
    FILE_MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
}
"""Spark's settings for a checkpoint in a folder."""
S3A = {
    # Uploads directly, and aborts when a write fails. Spark's default writes a temporary object, copies it and deletes it.
    FILE_MANAGER: "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
    # The chain of the AWS SDK: environment, web identity, the file of AWS_SHARED_CREDENTIALS_FILE, the machine's role. So the
    # secret does not appear on the JVM's command line, where `spark.conf` would put it.
    "spark.hadoop.fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    # The files are small and are read once from their start. The default prefetches on threads, for columns of tables.
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
}
"""Spark's settings for a checkpoint on an S3-compatible store."""
SCHEME = "s3a://"
_FILE_URL = re.compile(r"file:(?://[^/]*)?(/.*)")


def folder_of(checkpoint: str) -> Path | None:
    """Return the folder of a checkpoint that is a path or a `file` URL; None if the checkpoint has another scheme.

    As in Hadoop, a colon before the first slash ends a scheme, and the path of a URL is not percent-decoded.
    """
    if ":" not in checkpoint.partition("/")[0]:
        return Path(checkpoint)
    url = _FILE_URL.fullmatch(checkpoint)
    return Path(url[1]) if url else None


def is_s3a(checkpoint: str) -> bool:
    """Return True if the checkpoint is on an S3-compatible store."""
    return checkpoint.startswith(SCHEME)


def session_settings(checkpoint: str) -> dict[str, str]:
    """Return Spark's settings for this kind of checkpoint; none for an unknown scheme.

    The operator's entries in `spark.conf` override these settings.
    """
    if is_s3a(checkpoint):
        return S3A
    return {} if folder_of(checkpoint) is None else FOLDER


def require_usable(spark: SparkSession, checkpoint: str) -> None:
    """Write, open and delete a file in the checkpoint as a micro-batch does. Called by `fanout doctor` for a store.

    Raise SettingsError with the store's own message if that fails.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415

    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public way to the JVM
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint.rstrip('/')}/.doctor-{uuid.uuid4()}")
    try:
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        manager = getattr(jvm, MANAGER).create(path, hadoop)
        manager.mkdirs(path.getParent())
        writing = manager.createAtomic(path, False)
        writing.write(b"fanout doctor")
        writing.close()
        manager.open(path).close()
        manager.delete(path)
    except Py4JJavaError as exc:
        raise errors.SettingsError(f"{checkpoint} cannot be used ({_cause(exc)}), so the job would not run: {ADVICE}") from exc


ADVICE = "correct spark.checkpoint, the endpoint in spark.conf, or the credentials in AWS_SHARED_CREDENTIALS_FILE"
"""End of the operator's message when a checkpoint cannot be used."""
MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
"""Spark's class whose `create` returns the file manager that FILE_MANAGER names."""


def _cause(exc: Any) -> str:
    """Return the first line of the message of a Java exception's innermost cause. Without a message, return its class."""
    cause = exc.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    message = str(cause.getMessage() or "").partition("(Service:")[0].strip().partition("\n")[0]
    return message or str(cause.getClass().getName())
