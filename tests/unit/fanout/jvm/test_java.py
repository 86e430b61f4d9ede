"""The search for a Java of a supported version, and the message when there is none."""

import os

import pyspark
import pytest
from typer.testing import CliRunner

from delivery import errors
from fanout.cli import main
from fanout.jvm import class_archive, jars, java


@pytest.mark.parametrize(
    ("banner", "major"),
    [
        ('java version "1.8.0_402"\nJava(TM) SE Runtime Environment (build 1.8.0_402-b06)', 8),  # until 8: 1.MAJOR
        ('openjdk version "11.0.22" 2024-01-16\nOpenJDK Runtime Environment (build 11.0.22+7-post-Debian-1)', 11),
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)', 17),
        ('openjdk version "21.0.5" 2024-10-15 LTS\nOpenJDK Runtime Environment Temurin-21.0.5+11 (build 21.0.5+11-LTS)', 21),
        ('openjdk version "25" 2025-09-16 LTS\nOpenJDK Runtime Environment Temurin-25+36 (build 25+36-LTS)', 25),
        ('openjdk version "21-ea" 2023-09-19\nOpenJDK Runtime Environment (build 21-ea+35-2513)', 21),
        ('java version "21.0.2" 2024-01-16 LTS\nJava(TM) SE Runtime Environment Oracle GraalVM 21.0.2+13.1', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Dfile.encoding=UTF-8\nopenjdk version "17.0.9" 2023-10-17', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=11\nopenjdk version "17.0.9" 2023-10-17', 17),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),  # macOS, without one
        ("", None),
    ],
)
def test_the_major_version_is_read_from_the_output_of_java(banner, major):
    assert java.major_version(banner) == major


@pytest.fixture
def install(tmp_path):
    """Make a program `java` that prints a version; return its folder."""

    def make(version):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        program = folder / "java"
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
        return folder

    return make


def test_java_home_is_preferred_to_the_path(install):
    home, on_path = install("21.0.5"), install("17.0.15")
    assert java.find({"JAVA_HOME": str(home.parent), "PATH": str(on_path)}) == home / "java"
    assert java.find({"PATH": os.pathsep.join(["/nowhere", str(on_path)])}) == on_path / "java"


def test_a_java_home_without_java_is_an_error(install, tmp_path):
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(install("17.0.15"))}
    with pytest.raises(errors.LocalStackError, match=r"no Java found in JAVA_HOME=.*gone\. Java 17 or 21 is needed: apt"):
        java.find(environ)


def test_a_java_that_cannot_be_executed_is_not_found(install):
    folder = install("17.0.15")
    (folder / "java").chmod(0o644)
    with pytest.raises(errors.LocalStackError, match="no Java found"):
        java.find({"PATH": str(folder)})


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "25"])
def test_an_unsupported_version_is_refused_with_the_fix(install, version):
    folder = install(version)
    with pytest.raises(errors.LocalStackError) as refused:
        java.find({"PATH": str(folder)})
    major = version.removeprefix("1.").split(".")[0]
    assert str(refused.value).startswith(f"{folder}/java is Java {major}. Java 17 or 21 is needed: apt install")
    assert "\n" not in str(refused.value)


def test_prepare_succeeds_with_a_java_that_archives_no_classes(monkeypatch):
    def fails():
        raise errors.LocalStackError("no archive")

    monkeypatch.setattr(jars, "ensure", lambda: None)
    monkeypatch.setattr(class_archive, "ensure", fails)
    done = CliRunner().invoke(main.app, ["prepare"])
    assert (done.exit_code, done.output) == (
        0,
        "no archive\nThe job runs without the class archive; its start takes some seconds longer.\n",
    )


def test_a_class_archive_of_other_jars_is_not_used(install, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(install("21.0.5").parent))
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    jar = tmp_path / "pyspark" / "jars" / "spark.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr(class_archive, "_make", lambda archive: archive.touch())
    archive = class_archive.ensure(tmp_path)
    assert class_archive.find(tmp_path) == archive
    os.utime(jar, (0, 0))
    assert class_archive.find(tmp_path) is None
