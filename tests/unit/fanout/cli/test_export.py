"""`fanout dead-letters export` replaces a file by a whole one only."""

import contextlib

import pytest
from typer.testing import CliRunner

from delivery import errors
from fanout.cli import main
from fanout.redrive import dead_letter_search


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Export to a file that has an earlier export; the function `writes` writes the dead letters."""
    monkeypatch.setattr(dead_letter_search, "reading", lambda *_: contextlib.nullcontext())
    file = tmp_path / "letters.ndjson"
    file.write_bytes(b"earlier\n")

    def begin(writes):
        monkeypatch.setattr(dead_letter_search, "export", lambda _, __, to, ___: writes(to))
        return file, CliRunner().invoke(main.app, ["dead-letters", "export", str(file)])

    return begin


def test_a_failed_export_leaves_the_earlier_file(export):
    """Regression: the file was emptied before Kafka was asked."""

    def fails(to):
        to.write(b"half")
        raise errors.KafkaUnavailable("Kafka does not answer")

    file, done = export(fails)
    assert isinstance(done.exception, errors.KafkaUnavailable)
    assert [(path.name, path.read_bytes()) for path in file.parent.iterdir()] == [(file.name, b"earlier\n")]


def test_a_whole_export_replaces_the_earlier_file(export):
    file, done = export(lambda to: to.write(b"new\n") and 1)
    assert done.exit_code == 0
    assert [(path.name, path.read_bytes()) for path in file.parent.iterdir()] == [(file.name, b"new\n")]


def test_a_file_that_cannot_be_written_is_refused_before_the_search(export, tmp_path):
    searched = []
    export(searched.append)
    done = CliRunner().invoke(main.app, ["dead-letters", "export", str(tmp_path / "absent" / "letters.ndjson")])
    assert (done.exit_code, len(searched)) == (2, 1)
