"""`fanout dead-letters redrive` refuses an id, and counts one dead letter in the singular."""

import collections
import contextlib

import pytest
from typer.testing import CliRunner

from fanout.cli import main
from fanout.redrive import dead_letter_search, enqueue


def test_the_id_of_a_dead_letter_is_refused_with_the_way_to_redrive_it():
    """Regression: the refusal was "unexpected extra argument", which names no other way."""
    refused = CliRunner().invoke(main.app, ["dead-letters", "redrive", "0:99"])
    output = " ".join(refused.output.replace("│", " ").split())
    assert refused.exit_code == 2
    assert "redrive takes options such as --endpoint and --since, not the id of a dead letter (0:99)" in output
    assert "POST /v1/dead-letters/{id}/redrive" in output


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (
            1,
            "1 dead letter enqueued for the retry lane, in 1 request\n1 dead letter was redriven before and is left out\n",
        ),
        (
            2,
            "2 dead letters enqueued for the retry lane, in 2 requests\n2 dead letters were redriven before and are left out\n",
        ),
    ],
)
def test_a_number_and_its_noun_agree(monkeypatch, count, said):
    summary = enqueue.Summary(letters=count, requests=count, redriven_before=count, endpoints=collections.Counter())
    monkeypatch.setattr(dead_letter_search, "reading", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(dead_letter_search, "redrive", lambda *_, **__: summary)
    assert CliRunner().invoke(main.app, ["dead-letters", "redrive", "--all"]).output == said
