"""Foreign text does nothing to a terminal or a log: every control character is a visible escape."""

import json
import logging
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.observability import logs, safe_text
from fanout.terminal import commands

ROOT = Path(__file__).parents[3]
CONTROLS = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in {"Cc", "Cf", "Zl", "Zp", "Cs"}]
"""Control and format characters (bidirectional controls, zero widths), line separators, lone surrogates."""
SHOWN = {"\t", "\n"}
HARMLESS_FORMAT = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890-\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a]"
)
"""Signs of scripts and music, which Unicode counts as format characters. They show, and change nothing else."""
HOSTILE = [character for character in CONTROLS if not HARMLESS_FORMAT.match(character)]
ALL = "a" + "".join(HOSTILE) + "z"
WITH_UTF_8 = "".join(character for character in ALL if unicodedata.category(character) != "Cs")


def assert_harmless(shown, *, lines):
    left = set(shown) & set(HOSTILE) - SHOWN
    assert not left
    assert shown.count("\n") <= lines


def test_every_control_character_is_a_visible_escape():
    assert_harmless(safe_text.text(ALL), lines=1)
    assert_harmless(safe_text.line(ALL), lines=0)
    assert safe_text.line("\x1b[2J\x9b\u202e\r\n\U000e0041") == r"\x1b[2J\x9b\u202e\r\n\U000e0041"


@given(st.text())
def test_text_without_control_characters_is_unchanged(text):
    if not set(text) & set(HOSTILE):
        assert safe_text.text(text) == safe_text.line(text) == text


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_escaped_json_is_equal_and_has_no_control_character(value):
    document = safe_text.json(json.dumps(value, ensure_ascii=False))
    assert json.loads(document) == value
    assert_harmless(document, lines=0)


@pytest.mark.parametrize("formatter", [logs.TextFormatter(), logs.JsonFormatter()], ids=["text", "json"])
@pytest.mark.parametrize("text", [ALL, WITH_UTF_8], ids=["with surrogates", "utf-8"])
def test_foreign_text_forges_no_log_line_and_moves_no_terminal(formatter, text):
    record = logging.LogRecord("name", logging.INFO, __file__, 1, "said %s", (text,), None)
    record.detail = text
    assert_harmless(formatter.format(record), lines=0)


def test_the_text_of_an_exception_is_harmless_in_the_log():
    with pytest.raises(ValueError, match="invalid literal") as failed:
        int(WITH_UTF_8)
    exc_info = (failed.type, failed.value, failed.tb)
    record = logging.LogRecord("name", logging.ERROR, __file__, 1, "failed", (), exc_info)
    assert_harmless(logs.TextFormatter().format(record), lines=20)
    assert "Traceback" in logs.TextFormatter().format(record)
    assert_harmless(logs.JsonFormatter().format(record), lines=0)


def test_the_lines_of_an_exception_look_like_no_log_lines():
    """Regression: an exception that quoted foreign text with a newline could forge a line of the log."""
    with pytest.raises(ValueError, match="all is well") as failed:
        raise ValueError("bad value\n12:00:00 INFO    delivery.job: all is well")
    exc_info = (failed.type, failed.value, failed.tb)
    record = logging.LogRecord("name", logging.ERROR, __file__, 1, "failed", (), exc_info)
    first, *lines = logs.TextFormatter().format(record).split("\n")
    assert first.endswith("failed")
    assert all(line.startswith("    ") for line in lines if line)


@pytest.fixture
def shown(capsys, monkeypatch):
    """Return a function with the text that was written to the terminal so far, without our own colours."""
    monkeypatch.setattr(commands, "console", commands.Console(force_terminal=True, soft_wrap=True, highlight=False, width=200))

    def written():
        out, err = capsys.readouterr()
        return re.sub(r"\x1b\[[0-9;]*m", "", out + err)

    return written


@pytest.mark.parametrize(
    "prints",
    [
        lambda: commands.print_table([{"id": "a", "detail": WITH_UTF_8}]),
        lambda: commands.print_json([{"detail": WITH_UTF_8}]),
        lambda: commands.say(WITH_UTF_8),
        lambda: commands.console.print(WITH_UTF_8),
        lambda: commands.console.print("name", WITH_UTF_8),
        lambda: commands.JsonLines().write(json.dumps(WITH_UTF_8, ensure_ascii=False).encode() + b"\n"),
    ],
)
def test_all_output_of_a_command_is_harmless(shown, prints):
    prints()
    text = shown()
    assert "u202e" in re.sub(r"[\s│]", "", text)
    assert_harmless(text, lines=60)


def test_a_receivers_response_in_a_dead_letter_moves_no_terminal(shown):
    """`fanout dead-letters show` wrote ESC sequences of a receiver to the operator's terminal."""
    table = [{"status": "500", "response": "\x1b]0;owned\x07\x1b[2J\u202egnp.exe"}]
    commands.print_table(table)
    assert r"\x1b[2J\u202egnp.exe" in shown()


def test_square_brackets_of_a_foreign_text_are_no_markup(shown):
    """Regression: `listen` failed at the path `/a[/b]`, and `doctor` left out the `[kafka]` of its advice."""
    commands.console.print("the settings of [kafka] and /a[/b]")
    commands.print_table([{"path": "/a[bold]/[/b]"}])
    text = shown()
    assert "the settings of [kafka] and /a[/b]" in text
    assert "/a[bold]/[/b]" in text


def test_colons_of_a_foreign_text_are_no_emoji_codes(shown):
    """Regression: the id `acme:bank:eu` was shown with a picture of a bank, also in files."""
    commands.console.print("acme:bank:eu of acme:key:7")
    commands.console.print("[red]!![/] acme:bank:orders", markup=True)
    commands.print_table([{"acme:bank:id": "acme:bank:table"}])
    text = shown()
    for name in ("acme:bank:eu of acme:key:7", "!! acme:bank:orders", "acme:bank:id", "acme:bank:table"):
        assert name in text


def test_commands_print_by_the_module_terminal_only():
    """Another way of printing would pass foreign text to the operator's terminal unescaped."""
    around = re.compile(r"sys\.(stdout|stderr)|\bprint\(|typer\.echo|click\.echo|rich\.console\.Console\(|rich\.print")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "fanout").rglob("*.py")
        if path.parent.name != "terminal"
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if around.search(re.sub(r"\w+\.print\(", "", text)) and "def " not in text
    ]
    assert found == []


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_id_is_never_cut(capsys, monkeypatch, is_terminal):
    """On a terminal of 80 columns, ids were cut to an ellipsis, and could not be copied."""
    monkeypatch.setattr(commands, "console", commands.Console(force_terminal=is_terminal, soft_wrap=True, width=80))
    row = {name: f"{name}-{'0123456789' * 4}" for name in ("endpoint", "customer", "subscription", "tenant")}
    commands.print_table([row])
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "…" not in out
    if is_terminal:
        assert max(map(len, out.splitlines())) <= 80
        cells = [[cell.strip() for cell in text.split("│")[1:-1]] for text in out.splitlines() if text.startswith("│")]
        assert ["".join(parts) for parts in zip(*cells, strict=True)] == list(row.values())
    else:
        assert all(value in out for value in row.values())
