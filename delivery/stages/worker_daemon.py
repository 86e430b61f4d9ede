"""Fork Spark's Python workers from a process that has their modules loaded.

Runs in the executors, as the module of Spark's setting `spark.python.daemon.module`. Spark starts one daemon for an executor,
and more for the real-time lane (delivery.stages.realtime.realtime_source). A daemon forks a worker for each task that finds no
idle worker. The workers of a daemon share the memory of the modules. Except for pandas in the workers with state, a worker
imports nothing before its first record (docs/adr/0048).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable

from delivery.stages import pyspark_path

LOADED = (
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
    "delivery.stages.realtime.deliver_realtime",
    "delivery.stages.tasks.batch_shard",
    "delivery.stages.tasks.deliver_batches",
    "delivery.stages.tasks.deliver_events",
    "delivery.stages.tasks.deliver_retries",
    "delivery.stages.tasks.drain",
    "delivery.stages.tasks.retry_shard",
    "delivery.stages.tasks.collect_segments",
)
"""Modules that tasks need, with all that they import. The package pandas is not among them. Only the workers with state need
pandas, and its import takes a second of CPU and 45 MB."""


Worker = Callable[[socket.socket, bool], int]
"""PySpark's function that runs the tasks of a forked worker on a socket to the JVM, and returns the worker's exit code."""


def ending_quietly(worker: Worker) -> Worker:
    """Return `worker`, with exit code 1 in place of a BrokenPipeError.

    When the job stops, the JVM closes the socket before the worker's last bytes. PySpark would print a traceback for each
    worker. PySpark itself handles a socket that closes within a task.
    """

    def run(sock: socket.socket, is_authenticated: bool) -> int:  # noqa: FBT001  # PySpark's signature
        try:
            return worker(sock, is_authenticated)
        except BrokenPipeError:
            return 1

    return run


def main() -> None:
    """Load the modules, and run PySpark's daemon, which forks the workers, until Spark ends it."""
    os.umask(0o077)  # PySpark trusts each process that can open its sockets
    # NumPy, which pyarrow imports, starts a thread for each core, and threads do not survive a fork. One thread is left, of the
    # memory allocator jemalloc, which provides for a fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.path[:] = pyspark_path.without_zipped_copies(sys.path)
    with contextlib.redirect_stdout(sys.stderr):  # Spark reads PySpark's protocol from standard output
        for name in LOADED:
            with contextlib.suppress(ImportError):  # a task that needs the module imports it again, and reports the error
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # otherwise a worker's first collection would copy the memory that it shares
    daemon = importlib.import_module("pyspark.daemon")
    daemon.worker = ending_quietly(daemon.worker)  # type: ignore[attr-defined]  # manager() finds it by this name
    daemon.manager()


if __name__ == "__main__":
    main()
