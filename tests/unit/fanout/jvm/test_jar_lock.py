"""Jars that differ from the lock are refused by name; jars that equal it byte for byte are used."""

import hashlib
import xml.etree.ElementTree as ET

import pytest

from delivery import errors
from fanout.jvm import jar_lock, jars

A, B = "broker/a-1.jar", "connector/b-2.jar"


@pytest.fixture
def library(tmp_path):
    """A folder of two jars that equal the lock, beside their ivy.xml."""
    for name in (A, B):
        jar = tmp_path / "lib" / name
        jar.parent.mkdir(parents=True)
        jar.write_text(name)
    (tmp_path / "jars.lock").write_text(jar_lock.written(tmp_path / "lib"))
    (tmp_path / "ivy.xml").write_text("<ivy-module/>")
    (tmp_path / "lib" / jars.MARKER).write_text(hashlib.sha256(b"<ivy-module/>").hexdigest())
    return tmp_path / "lib"


def change(library):
    (library / B).write_text("connector/b-2.jaR")


def remove(library):
    (library / A).unlink()


def add(library):
    (library / "broker" / "c.jar").touch()


def put_in_the_place_of_another(library):
    (library / A).rename(library / "broker" / "a-2.jar")


def move_to_the_other_folder(library):
    (library / A).rename(library / "connector" / "a-1.jar")


DIFFERENCES = [
    (change, f"{B} is changed"),
    (remove, f"{A} is missing"),
    (add, "broker/c.jar is extra"),
    (put_in_the_place_of_another, f"{A} is missing, broker/a-2.jar is extra"),
    (move_to_the_other_folder, f"{A} is missing, connector/a-1.jar is extra"),
]


def refusal(library, problem):
    there = library.parent
    return (
        f"the jars differ from {there}/jars.lock: {problem}. They are not used. Remove {there}/lib and Ivy's copies in "
        "~/.ivy2/cache, and run the command again to download them. After a change of ivy.xml, run: make lock"
    )


@pytest.mark.parametrize(("differ", "problem"), DIFFERENCES)
def test_jars_that_differ_from_the_lock_are_refused_by_name(library, differ, problem):
    differ(library)
    with pytest.raises(errors.LocalStackError) as refused:
        jars.ensure(library.parent / "ivy.xml")
    assert str(refused.value) == refusal(library, problem)


def test_jars_of_the_lock_are_used_and_other_files_are_ignored(library):
    (library / "spark-0123456789abcdef.jsa").touch()
    found = jars.ensure(library.parent / "ivy.xml")
    assert (found.broker, found.connector) == ((library / A,), (library / B,))


@pytest.mark.parametrize(("differ", "problem"), DIFFERENCES)
def test_a_wrong_download_does_not_replace_the_present_jars(library, monkeypatch, differ, problem):
    def fetch(_, into):
        for name in (A, B):
            (into / name).parent.mkdir(parents=True)
            (into / name).write_text(name)
        differ(into)

    (library / jars.MARKER).write_text("of another ivy.xml")
    monkeypatch.setattr(jars, "_fetch", fetch)
    with pytest.raises(errors.LocalStackError) as refused:
        jars.ensure(library.parent / "ivy.xml", say=lambda _: None)
    assert str(refused.value) == refusal(library, problem)
    jar_lock.check(library, library.parent / "jars.lock")
    assert sorted(path.name for path in library.parent.iterdir()) == ["ivy.xml", "jars.lock", "lib"]


def test_the_lock_has_the_revisions_that_ivy_xml_declares():
    locked = (jars.IVY_FILE.parent / "jars.lock").read_text().splitlines()
    declared = ET.parse(jars.IVY_FILE).findall("./dependencies/dependency")  # noqa: S314  # our own file
    assert {
        f"{dependency.get('conf').split('->')[0]}/{dependency.get('name')}-{dependency.get('rev')}.jar"
        for dependency in declared
    } <= {line.partition("  ")[2] for line in locked}
