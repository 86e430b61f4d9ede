"""Choose the copy of PySpark that Python workers import. Runs in the executors, when their daemon starts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

ZIP = ("python", "lib", "pyspark.zip")
"""Path of the zipped copy of PySpark, in Spark's home folder. With pip, Spark's home is the folder of the package `pyspark`."""


def without_zipped_copies(path: Iterable[str]) -> list[str]:
    """Return Python's search path without zipped copies of PySpark, if the same installation has an unpacked copy on the path.

    Spark puts the zipped copy first. Python compiles the sources of a zip file again in each process: 0.4 CPU seconds. If the
    zipped copy is of another Spark installation, it stays first: that Spark then runs, and the workers must speak its protocol.
    """
    entries = list(path)
    return [entry for entry in entries if not (Path(entry).parts[-3:] == ZIP and _parent_of_package(Path(entry)) in entries)]


def _parent_of_package(zipped: Path) -> str:
    """Return the folder above the package `pyspark` that contains this zip file. Return "" if no such package contains it."""
    home = zipped.parents[2]
    return str(home.parent) if (home / "__init__.py").is_file() else ""
