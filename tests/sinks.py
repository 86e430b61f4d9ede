"""A sink that keeps rows in a folder, so that tests of tasks need no Kafka. tests/integration/test_sink.py tests it too."""

import pickle
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from delivery.stages import sink
from delivery.webhooks.rows import Row


@dataclass(frozen=True, slots=True)
class Folder:
    """As sink.Sink. The rows of each task are a file."""

    path: Path

    def __call__(self):
        return _ToFile(self.path / f"{time.time_ns()}-{uuid.uuid4().hex}")

    def rows(self):
        """Return all rows of the tasks that have ended well."""
        return [Row(*row) for file in sorted(self.path.iterdir()) for row in pickle.loads(file.read_bytes())]

    def take(self, tasks):
        """Run tasks; return the rows that they have written."""
        before = len(self.rows())
        sink.run(tasks)
        return self.rows()[before:]


class _ToFile:
    def __init__(self, file):
        self._file = file
        self._rows = []

    def write(self, made):
        self._rows += [tuple(row) for row in made]

    def finish(self):
        self._file.write_bytes(pickle.dumps(self._rows))
