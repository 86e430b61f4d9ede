"""Print the account of the demo: how many deliveries were due, and how each has ended.

Runs in `fanout` commands.
"""

from __future__ import annotations

import rich.console
import rich.table

from fanout.demo import expected_account
from fanout.terminal import commands


def show(console: rich.console.Console, result: expected_account.ExpectedAccount) -> None:
    """Print the account as a table, then the polled dead letters, batches and latencies.

    Then print the first ten deliveries that are lost or unexpected, the first ten findings of `fanout reconcile`, and a
    verdict.
    """
    table = rich.table.Table(title="Every due (event, subscription), reconciled", title_justify="left")
    table.add_column("")
    for name in (*result.lanes, "together"):
        table.add_column(name, justify="right")
    lanes = list(result.lanes.values())
    reasons = sorted({reason for lane in lanes for reason in lane.skipped})
    rows: list[tuple[str, int | list[int]]] = [
        ("events published", result.events),
        ("due deliveries", [lane.due for lane in lanes]),
        ("  accepted by the receivers", [lane.delivered for lane in lanes]),
        ("    of these redriven, after they were given up", [lane.redriven for lane in lanes]),
        ("  dead-lettered", [lane.dead_lettered for lane in lanes]),
        *((f"  skipped: {reason}", [lane.skipped.get(reason, 0) for lane in lanes]) for reason in reasons),
        ("  pending", [lane.pending for lane in lanes]),
        ("  lost", [len(lane.lost) for lane in lanes]),
        ("sent twice", [lane.duplicates for lane in lanes]),
        ("signatures that did not verify", result.unverified),
        ("delivered although not due", len(result.unexpected)),
        ("bad records, kept for the operator", result.rejected),
        ("findings of fanout reconcile", len(result.findings)),
    ]
    for name, counts in rows:
        cells = [*counts, sum(counts)] if isinstance(counts, list) else [*([""] * len(lanes)), counts]
        table.add_row(name, *map(str, cells))
    commands.show(console, table)
    http = result.over_http
    console.print(
        f"{http.dead_letters} dead letters of {http.customer} over HTTP: {http.polled} polled, "
        f"{http.acknowledged} acknowledged, {http.redriven} redriven, {http.delivered} delivered after the repair"
    )
    left = ", ".join(f"{count} by {reason}" for reason, count in sorted(result.batches.items()))
    console.print(f"{sum(result.batches.values())} batches sent: {left}")
    for name, lane in result.lanes.items():
        percentiles = ", ".join(f"{percentile} {value:.0f} ms" for percentile, value in lane.latency_ms.items())
        console.print(f"{name}: latency from Kafka to the receiver's answer {percentiles}")
    console.print(f"whole demo {result.wall_s:.0f} s")
    for pair in [*(pair for lane in lanes for pair in lane.lost), *result.unexpected][:10]:
        console.print(f"unaccounted: event {pair[0]}, subscription {pair[1]}", style="red")
    for finding in result.findings[:10]:
        console.print(f"finding: {finding}", style="red")
    if result.holds:
        console.print("Nothing is lost, and every signature verified.", style="bold green")
    else:
        console.print("The account does not add up: see the lines above, and the logs in .fanout/demo.", style="bold red")
