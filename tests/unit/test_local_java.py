"""Which Java is found, and what is said when none fits."""

import pytest

from delivery import errors
from fanout.local import java


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)', 17),
        ('openjdk version "21.0.3" 2024-04-16 LTS\nOpenJDK Runtime Environment Temurin-21.0.3+9', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "11.0.22" 2024-01-16', 11),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea"', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17" 2021-09-14', 17),
        ("command not found", None),
    ],
)  # fmt: skip
def test_the_major_version_is_read_from_what_java_prints(banner, version):
    assert java.major_version(banner) == version


@pytest.mark.parametrize("environ", [{"PATH": "/nowhere"}, {"JAVA_HOME": "/nowhere", "PATH": "/usr/bin"}])
def test_without_java_one_line_names_the_fix(environ):
    with pytest.raises(errors.LocalStackError) as missing:
        java.find(environ)
    assert "apt install openjdk-17-jre-headless" in str(missing.value)
    assert "\n" not in str(missing.value)


def test_an_old_java_is_refused_with_its_version(tmp_path):
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.22\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(errors.LocalStackError, match=r"is Java 11\. Java 17 or 21 is needed"):
        java.find({"JAVA_HOME": str(tmp_path)})
