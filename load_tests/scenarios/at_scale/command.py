"""Implement `python -m load_tests run`: choose a scenario and its size, run the scenario, print and write its figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from delivery import errors
from load_tests.harness import machine_speed, stage
from load_tests.scenarios.at_scale import bounds, html_report, plan, running, table

NAMES = tuple(table.SCENARIOS)
"""Names of the scenarios that the command line accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSize:
    """The size of a run, from the command line. None leaves the value of the scenario."""

    share: float = 1.0
    """Share of the scenario's rate. For a scenario with `capacity`: the first share of the search."""
    seconds: int | None = None
    """Seconds of each phase, or of each tried share."""
    topics: int | None = None
    tenants: int | None = None
    endpoints: int | None = None
    warm_up: int | None = None
    """Events before all phases."""


def chosen(name: str, size: ChosenSize, limits: Iterable[str]) -> plan.ScaleScenario:
    """Return the scenario of the table with this name, at this size and with these limits (`figure=limit`).

    Raise RegistrationError for a name that is not in the table, and for a limit that cannot be used.
    """
    if name not in table.SCENARIOS:
        raise errors.RegistrationError(name, f"is no scenario, so nothing was started; the scenarios are: {', '.join(NAMES)}")
    scenario = table.SCENARIOS[name]
    shape = {field: value for field in ("topics", "tenants", "endpoints") if (value := getattr(size, field)) is not None}
    scenario = replace(scenario, shape=replace(scenario.shape, **shape), bounds=bounds.replaced(scenario.bounds, limits))
    if size.warm_up is not None:
        scenario = replace(scenario, warm_up=size.warm_up)
    if scenario.capacity is not None:
        scenario = replace(scenario, capacity=replace(scenario.capacity, first_share=size.share))
    else:
        scenario = replace(scenario, per_s=scenario.per_s * size.share)
    if size.seconds is not None:
        phases = tuple(replace(phase, seconds=size.seconds) for phase in scenario.phases)
        scenario = replace(scenario, seconds=size.seconds, phases=phases)
    return scenario


def run(scenario: plan.ScaleScenario, terms: stage.Terms, *, json_file: Path | None, html_file: Path | None) -> bool:
    """Run the scenario, print and write its figures and verdicts, and return True if all bounds hold.

    `json_file` and `html_file` are the files for the figures. A file that is None is not written.
    """
    figures = machine_speed.beside(lambda: running.run(scenario, terms))
    if json_file is not None:
        json_file.write_bytes(_json(figures))
    if html_file is not None:
        html_report.write(figures, html_file)
    sys.stdout.write(_json({name: value for name, value in figures.items() if name != "series"}).decode() + "\n")
    for verdict in figures["verdicts"]:
        value = "missing" if verdict["value"] is None else f"{verdict['value']:g}"
        terms.say(f"{'holds ' if verdict['holds'] else 'BROKEN'} {verdict['bound']}, measured {value}")
    return all(verdict["holds"] for verdict in figures["verdicts"])


def _json(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)
