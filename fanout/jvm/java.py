"""Find a Java that Spark and Kafka support.

Runs in `fanout` commands and on the driver.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from delivery import errors

SUPPORTED = (17, 21)
"""Major versions of Java that Spark and Kafka support."""
HELP = (
    "Java 17 or 21 is needed: apt install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-21-openjdk-headless "
    "(Fedora) or brew install openjdk@21 (macOS), then set JAVA_HOME if Java is not on the PATH. Without Java, "
    "neither the job nor the local Kafka starts"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def major_version(banner: str) -> int | None:
    """Return the major version in the output of `java -version`, which spells 8 as 1.8; None if there is no version."""
    found = _VERSION.search(banner)
    return int(found[1]) if found else None


def find(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` of JAVA_HOME, or of the PATH if JAVA_HOME is not set.

    Raise LocalStackError if there is none, or if its version is not in SUPPORTED.
    """
    home = environ.get("JAVA_HOME")
    named = shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH", ""))
    if named is None:
        raise errors.LocalStackError(f"no Java found{f' in JAVA_HOME={home}' if home else ''}. {HELP}")
    banner = subprocess.run([named, "-version"], capture_output=True, text=True, check=False).stderr
    version = major_version(banner)
    if version not in SUPPORTED:
        raise errors.LocalStackError(f"{named} is Java {version or 'of an unknown version'}. {HELP}")
    return Path(named)
