"""docs/operations.md and the dashboard speak of what exists, and its commands do what it says."""

import json
import re
import subprocess

import pytest
import yaml

from delivery.model import Attempt, Outcome, OutcomeKind
from delivery.observability import metrics
from delivery.webhooks.results import attempt_log
from tests.support import builders
from tests.support.reading import ROOT, blocks

TEXT = (ROOT / "docs" / "operations.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy" / "helm" / "fanout" / "files" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
[ALERTS_BLOCK] = [block for block in blocks("docs/operations.md", "yaml") if block.startswith("groups:")]
[RULES] = yaml.safe_load(ALERTS_BLOCK)["groups"]
ALERTS = {rule["alert"]: rule["expr"] for rule in RULES["rules"]}
LABELS = {"lane", "outcome", "reason", "error_class", "topic", "process", "kind", "le", "route", "method", "status", "quota"}


def metrics_in(expression):
    """The declared names that an expression uses; a histogram is used by its series."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bfanout_\w+", expression)}


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *ALERTS.values()])
def test_a_query_uses_metrics_and_labels_that_exist(expression):
    assert metrics_in(expression) <= set(metrics.declared())
    grouped = [label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")]
    matched = re.findall(r"[{,]\s*(\w+)\s*=", expression)
    assert {*grouped, *matched} <= LABELS
    assert all(expression.count(opening) == expression.count(closing) for opening, closing in ("()", "[]", "{}"))


def test_the_chart_installs_the_alerts_that_operations_explains():
    chart = ROOT / "deploy" / "helm" / "fanout" / "files" / "alerts.yaml"
    assert chart.read_text() == ALERTS_BLOCK


def test_every_metric_has_a_panel():
    assert set().union(*map(metrics_in, EXPRESSIONS)) == set(metrics.declared())


def test_the_dashboards_panels_have_ids_of_their_own_and_do_not_overlap():
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_alert_has_its_section_and_every_section_its_alert():
    sections = {name for heading in re.findall(r"^### (.+)$", TEXT, re.MULTILINE) for name in heading.split(", ")}
    assert sections == set(ALERTS)


def test_the_keys_of_the_attempts_line_are_the_documented_ones():
    documented = re.search(r"^\| `delivery\.attempted` \|[^|]+\|(.+)\|$", TEXT, re.MULTILINE)[1]
    assert re.findall(r"`(\w+)`", documented) == list(attempt_log.fields(outcome(), attempt()))


def attempt(error_class=None):
    return Attempt(number=1, started_at_ms=0, duration_ms=1.0, status=None, error_class=error_class)


def outcome(endpoint_id="ep1"):
    return Outcome(delivery=builders.delivery(endpoint=builders.endpoint(endpoint_id)), kind=OutcomeKind.DELIVERED)


def shell(command, folder):
    return subprocess.run(["/bin/sh", "-ec", command], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_the_worst_endpoints_are_found_in_the_log(tmp_path):
    lines = [
        json.dumps(
            {"event": "delivery.attempted", **attempt_log.fields(outcome(name), attempt(error_class))}, separators=(",", ":")
        )
        for name, error_class in [("a", None), ("b", "timeout"), ("c", "dns"), ("b", "timeout"), ("a", None), ("a", None)]
    ]
    (tmp_path / "job.log").write_text("\n".join([*lines, "a line of Spark's"]))
    [command] = [block for block in blocks("docs/operations.md", "sh") if block.startswith("grep")]
    assert [line.split() for line in shell(command, tmp_path).splitlines()] == [
        ["2", '"endpoint_id":"b"'],
        ["1", '"endpoint_id":"c"'],
    ]


def test_a_backup_of_the_checkpoint_can_be_restored(tmp_path):
    (tmp_path / "checkpoint" / "direct").mkdir(parents=True)
    (tmp_path / "checkpoint" / "direct" / "metadata").write_text("kept")
    [commands] = [block for block in blocks("docs/operations.md", "sh") if block.startswith("tar")]
    back_up, restore = commands.replace("/var/lib/fanout", str(tmp_path)).split("\n\n")
    shell(back_up, tmp_path)
    (tmp_path / "checkpoint" / "direct" / "metadata").write_text("damaged")
    (tmp_path / "checkpoint" / "direct" / "newer").write_text("a later micro-batch")
    shell(restore, tmp_path)
    # Regression: newer files stayed, and the lane continued after them.
    assert {path.name: path.read_text() for path in (tmp_path / "checkpoint" / "direct").iterdir()} == {"metadata": "kept"}
