"""Stop a job whose lane waits for an executor that never comes. The job must end, and say why.

`python -m tests.support.no_executors` is a process of its own, because the tests' Spark has no separate executors.
"""

import secrets
import threading

from pydantic import SecretStr

from delivery import errors
from delivery.config import settings
from delivery.stages.lanes import session, supervisor
from delivery.stages.scaling import executor_absence
from delivery.stages.tasks import task_context


class Lane:
    """A lane that begins with a Spark job on its workers, as the direct lane does. The stop comes just before that job."""

    def __init__(self, spark, stop):
        self._spark, self._stop = spark, stop

    def run(self, _, **__):
        self._stop.set()
        task_context.run(self._spark.range(2).where("id < 0").mapInArrow(lambda _: iter(()), task_context.NO_ROWS))


def main():
    conf = {"spark.authenticate.secret": SecretStr(secrets.token_hex(16))}
    config = settings.SparkSettings(master="local-cluster[0,1,1024]", driver_memory="1g", conf=conf)
    absence, stop = executor_absence.ExecutorAbsence(), threading.Event()
    with session.running(config, session.Libraries()) as spark:
        try:
            with absence.watching(spark.sparkContext, stop):
                supervisor.run({"direct": Lane(spark, stop)}, {"direct": None}, stop, once=False)
        except errors.LaneFailed as failure:
            ended_by = str(failure)
    assert ended_by == executor_absence.STOPPED
    assert absence.pause_reason() == executor_absence.ABSENT


if __name__ == "__main__":
    main()
