"""Start Spark's launcher, so that its JVM archives the classes that it loads.

Runs as its own process, started by fanout/jvm/class_archive.py. Uses the script `spark-submit`, as PySpark does, because a
JVM ignores an archive that was made with another class path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from delivery.stages import class_sharing


def main(archive: Path) -> None:
    """Print Spark's version by `spark-submit`. The launcher's JVM writes `archive` when it exits."""
    home = Path(pyspark.__file__).parent
    options = class_sharing.launcher_options(f"-XX:ArchiveClassesAtExit={archive}")
    environ = {**os.environ, "SPARK_HOME": str(home), "SPARK_LAUNCHER_OPTS": options}
    command = [str(home / "bin" / "spark-submit"), "--conf", "spark.app.name=archive", "--version"]
    subprocess.run(command, env=environ, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
