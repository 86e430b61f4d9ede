"""Sinks for tests and benchmarks of tasks, which need no Kafka."""

import pickle
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from delivery.stages.tasks import task_context as stage_tasks
from delivery.webhooks.results.topic_rows import TopicRow


@dataclass(frozen=True, slots=True)
class Folder:
    """A sink that keeps the rows of each task in a file. tests/integration/test_sink.py compares it with the real sink."""

    path: Path

    def __call__(self):
        return _ToFile(self.path / f"{time.time_ns()}-{uuid.uuid4().hex}")

    def rows(self):
        """Return all rows of the tasks that have succeeded."""
        return [TopicRow(*row) for file in sorted(self.path.iterdir()) for row in pickle.loads(file.read_bytes())]

    def take(self, tasks):
        """Run tasks; return the rows that they have written."""
        before = len(self.rows())
        stage_tasks.run(tasks)
        return self.rows()[before:]


class _ToFile:
    def __init__(self, file):
        self._file = file
        self._rows = []

    def write(self, made):
        self._rows += [tuple(row) for row in made]

    def flush(self, _within_s):
        self.finish()

    def finish(self):
        self._file.write_bytes(pickle.dumps(self._rows))


class Nowhere:
    """A sink that counts rows and drops them."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        return self

    def write(self, made):
        self.count += sum(1 for _ in made)

    def flush(self, within_s):
        pass

    def finish(self):
        pass
