"""Options and output of the commands that change and show the registry."""

import datetime as dt
import io
import json
import sys

import pytest
from typer.testing import CliRunner

from delivery import errors
from delivery.webhooks.sending.handshake import HandshakeState, Reply
from fanout.admin import registry_commands
from fanout.cli import main
from fanout.terminal import commands
from subscriptions_db.registration import apply, diff
from tests.support import certificates


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("30d", 2_592_000)]
)
def test_an_overlap_is_a_number_and_a_unit(text, seconds):
    assert registry_commands.overlap_of(text) == dt.timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "24 h", "-1h", "31d", "721h", "9999999d", "1y", "1.5h", "٣h"])
def test_an_invalid_overlap_is_refused(text):
    with pytest.raises(errors.RegistrationError, match="--overlap: must be a number with s, m, h or d, such as 24h, up to 30d"):
        registry_commands.overlap_of(text)


def test_a_certificate_is_shown_to_a_person_as_a_digest():
    rows = [
        {"id": "a", "tls": certificates.issue("client").pem, "limit": None, "headers": {}},
        {"id": "b", "tls": None, "limit": None, "headers": {}},
    ]
    first, second = map(registry_commands.shortened, rows)
    assert second == rows[1]
    assert first["tls"].startswith("PEM, sha256 ")


def shown(show, *arguments, **options):
    console = commands.Console(width=200)
    with console.capture() as captured:
        show(console, *arguments, **options)
    return captured.get()


def test_apply_shows_endpoints_that_wait_for_their_receivers():
    result = apply.Result(changes=(), awaiting_permission=("acme-stock",))
    text = shown(registry_commands.show, result, dry_run=False)
    assert "acme-stock gets nothing until its receiver permits deliveries: run `fanout endpoints validate acme-stock`" in text
    assert registry_commands.as_document(result)["awaiting_permission"] == ("acme-stock",)


@pytest.mark.parametrize(
    ("count", "dry_run", "line"),
    [
        (0, False, "nothing to change"),
        (1, False, "1 row changed"),
        (2, False, "2 rows changed"),
        (1, True, "1 row would change"),
    ],
)
def test_apply_says_how_many_rows_it_changed(count, dry_run, line):
    created = diff.Change(action="create", kind="tenant", id="t1", fields=())
    text = shown(registry_commands.show, apply.Result(changes=(created,) * count), dry_run=dry_run)
    assert text.splitlines()[-1] == line


def test_new_secrets_are_shown_in_any_encoding_of_the_output(monkeypatch):
    """Regression: the output ended at the `→` of a changed row, after the commit, and the secrets were lost."""
    changed = diff.Change(action="update", kind="tenant", id="t1", fields=(("name", "é", "😀"),))
    result = apply.Result(changes=(changed,), new_secrets={"ep1": "whsec_X"})

    def command():
        registry_commands.show(commands.console, result, dry_run=False)
        commands.print_json({"é": "😀"})

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(main, "app", command)
    main.main()
    sys.stdout.flush()
    text, as_json = sys.stdout.buffer.getvalue().decode("ascii").split("{", maxsplit=1)
    assert "name: \\u00e9 \\u2192 \\ud83d\\ude00" in text
    assert "  ep1  whsec_X" in text
    assert json.loads("{" + as_json) == {"é": "😀"}


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(HandshakeState.PERMITTED), "ep1: permitted\n"),
        (Reply(HandshakeState.PERMITTED, 90), "ep1: permitted, at most 90 requests a minute\n"),
        (
            Reply(HandshakeState.REFUSED, reason="no [b]answer[/b]"),
            (
                "ep1: refused (no [b]answer[/b])\n"
                "An earlier permission of ep1 stays valid. Without one, its deliveries wait until its receiver permits them: "
                "ask the owner of the receiver\n"
            ),
        ),
    ],
)
def test_the_reply_of_a_receiver_is_printed(reply, text):
    assert shown(registry_commands.show_reply, "ep1", reply) == text


@pytest.mark.parametrize("text", ["tenants: [", "tenant: []", "tenants: [{id: a b}]", "", "# nothing"])
def test_a_refused_file_says_that_nothing_was_changed(tmp_path, text):
    file = tmp_path / "registry.yaml"
    file.write_text(text)
    refused = CliRunner().invoke(main.app, ["apply", str(file)])
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"fanout: {file}")
    assert refused.stderr.endswith("Nothing was changed.\n")


def test_a_document_may_come_by_standard_input():
    """Regression: `-` was taken for the name of a file."""
    refused = CliRunner().invoke(main.app, ["apply", "-"], input="tenant: []")
    assert refused.stderr.startswith("fanout: -:1: tenant")
