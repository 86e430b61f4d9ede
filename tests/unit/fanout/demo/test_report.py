"""The table of the demo names what it counts, and the README quotes its rows."""

import pathlib

import rich.console

from fanout.demo import expected_account, report

README = pathlib.Path(__file__).parents[4] / "README.md"
LANE = expected_account.ExpectedLane(
    due=4,
    delivered=4,
    redriven=0,
    dead_lettered=0,
    skipped={"subscription_paused": 0},
    pending=0,
    lost=(),
    duplicates=0,
    latency_ms={},
)


def rows(text):
    """Return the first two cells of the table in `text`. The second has the count of the first lane."""
    cells = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    return {row[1].strip(): row[2].strip() for row in cells}


def shown(**fields):
    nothing = expected_account.OverHttp(customer="c", dead_letters=0, polled=0, acknowledged=0, redriven=0, delivered=0)
    defaults = {
        "events": 4,
        "rejected": 0,
        "lanes": {"direct": LANE},
        "batches": {},
        "over_http": nothing,
        "unverified": 0,
        "unexpected": (),
        "findings": (),
        "wall_s": 1.0,
    }
    console = rich.console.Console(width=200)
    with console.capture() as captured:
        report.show(console, expected_account.ExpectedAccount(**defaults | fields))
    return captured.get()


def test_deliveries_whose_signature_did_not_verify_are_not_called_verified():
    """Regression: they counted in the row "delivered and verified by the receivers"."""
    text = shown(unverified=1)
    assert rows(text)["accepted by the receivers"] == "4"
    assert [name for name in rows(text) if "verif" in name] == ["signatures that did not verify"]
    assert "does not add up" in text


def test_the_readme_has_the_rows_of_the_table():
    assert rows(README.read_text()).keys() == rows(shown()).keys()
