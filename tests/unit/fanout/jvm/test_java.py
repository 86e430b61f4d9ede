"""The search for a Java of a supported version, and the message when there is none."""

import os

import pyspark
import pytest
from typer.testing import CliRunner

from delivery import errors
from delivery.stages import class_sharing
from fanout.cli import main
from fanout.jvm import class_archive, jars, java
from fanout.local import kafka_server


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
    def fails(program):
        raise errors.LocalStackError(f"no archive of {program.name}")

    monkeypatch.setattr(jars, "ensure", lambda: None)
    monkeypatch.setattr(class_archive, "ensure", fails)
    done = CliRunner().invoke(main.app, ["prepare"])
    assert done.exit_code == 0
    assert done.output == (
        "no archive of spark\nSpark runs without the class archive; its start takes longer.\n"
        "no archive of launcher\nSpark's launcher runs without the class archive; its start takes longer.\n"
        "no archive of broker\nThe embedded Kafka broker runs without the class archive; its start takes longer.\n"
    )


@pytest.fixture
def library(install, tmp_path, monkeypatch):
    """A folder of downloaded jars, with a Java and a PySpark beside it. An archive is built at once, and is empty."""
    monkeypatch.setenv("JAVA_HOME", str(install("21.0.5").parent))
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    for name in ("pyspark/jars/spark.jar", "broker/kafka.jar"):
        jar = tmp_path / name
        jar.parent.mkdir(parents=True)
        jar.touch()
    monkeypatch.setattr(class_archive, "_make", lambda _, archive: archive.touch())
    return tmp_path


def lock_that_cannot_be_opened(library):
    """Put a folder in the place of the lock: root, which may run the tests, may write every file."""
    (library / "classes.lock").unlink(missing_ok=True)
    (library / "classes.lock").mkdir()


JARS = [
    (class_archive.SPARK, "pyspark/jars/spark.jar"),
    (class_archive.LAUNCHER, "pyspark/jars/spark.jar"),
    (class_archive.BROKER, "broker/kafka.jar"),
]
EACH_PROGRAM = pytest.mark.parametrize(("program", "jar"), JARS, ids=[program.name for program, _ in JARS])


@EACH_PROGRAM
def test_a_class_archive_of_other_jars_is_not_used(library, program, jar):
    archive = class_archive.ensure(program, library)
    assert class_archive.find(program, library) == archive
    os.utime(library / jar, (0, 0))
    assert class_archive.find(program, library) is None


@EACH_PROGRAM
def test_a_new_class_archive_replaces_only_that_of_its_program(library, program, jar):
    for each in class_archive.PROGRAMS:
        class_archive.ensure(each, library)
    before = set(library.glob("*.jsa"))
    os.utime(library / jar, (0, 0))
    archive = class_archive.ensure(program, library)
    [replaced] = before - set(library.glob("*.jsa"))
    assert replaced.name.startswith(program.name)
    assert archive not in before


def test_an_archive_that_is_there_needs_no_right_to_write_its_folder(library):
    """Regression: in the image, `fanout prepare` ended with a PermissionError for a user who may not write the folder."""
    archive = class_archive.ensure(class_archive.SPARK, library)
    lock_that_cannot_be_opened(library)
    assert class_archive.ensure(class_archive.SPARK, library) == archive


def test_a_folder_that_cannot_be_written_is_named(library):
    lock_that_cannot_be_opened(library)
    with pytest.raises(errors.LocalStackError, match=r"Spark has no archive of its classes: .*classes\.lock cannot be written"):
        class_archive.ensure(class_archive.SPARK, library)


def test_an_image_without_the_brokers_jars_has_no_archive_of_them(library):
    (library / "broker" / "kafka.jar").unlink()
    assert class_archive.ensure(class_archive.BROKER, library) is None
    assert list(library.glob("*.jsa")) == []


def test_a_launcher_archive_whose_path_has_a_space_is_left_out():
    """`spark-class` would split the path, and the JVM would not start."""
    assert class_sharing.launcher_options("-a=/b.jsa", "-a=/my folder/b.jsa").split()[-2:] == ["-Xlog:disable", "-a=/b.jsa"]


@pytest.mark.parametrize("is_built", [True, False])
def test_a_broker_starts_with_its_class_archive_if_that_was_built(library, tmp_path, monkeypatch, is_built):
    archive = tmp_path / "broker.jsa" if is_built else None
    monkeypatch.setattr(class_archive, "find", {class_archive.BROKER: archive}.get)
    (tmp_path / "21.0.5" / "bin" / "java").write_text('#!/bin/sh\necho "openjdk version \\"21.0.5\\"" "$@" >&2\n')
    libraries = jars.Jars(connector=(), store=(), broker=(library / "broker" / "kafka.jar",))
    broker = kafka_server.EmbeddedKafka(tmp_path / "kafka", libraries=libraries)
    with pytest.raises(errors.LocalStackError, match="did not start"):
        broker.start()  # this Java only prints its arguments
    [format_jvm, broker_jvm] = (tmp_path / "kafka" / "broker.log").read_text().splitlines()
    expected = f"-XX:SharedArchiveFile={archive}" if is_built else "-cp"
    for line, main_class in ((format_jvm, "kafka.tools.StorageTool format"), (broker_jvm, "kafka.Kafka")):
        assert f" {main_class} " in line
        assert expected in line
        assert ("-XX:SharedArchiveFile" in line) is is_built
