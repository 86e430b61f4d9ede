"""Implement `python -m load_tests curves`: measure axes, or read an earlier run, and write figures and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from delivery import errors
from load_tests.curves import curve_pages, measuring, summary
from load_tests.curves.axes import AXES, Axis
from load_tests.harness import stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files that the command writes. A file that is None is not written."""

    json_file: Path | None = None
    """Figures. Axes that this run does not measure stay as they are in the file."""
    html_file: Path | None = None
    svg_folder: Path | None = None
    """Folder for `curves.md`, which is a page of the documents, and its plots."""


def chosen(names: Sequence[str], at_most: int | None) -> list[Axis]:
    """Return the axes with these names; all axes if `names` is empty.

    Values of an axis above `at_most` are left out, but never its smallest value. Raise RegistrationError for a name that is no
    axis.
    """
    unknown = [name for name in names if name not in AXES]
    if unknown:
        raise errors.RegistrationError(unknown[0], f"is no axis, so nothing was measured; the axes are: {', '.join(AXES)}")
    axes = [AXES[name] for name in names or AXES]
    return axes if at_most is None else [axis.up_to(at_most) for axis in axes]


def read(file: Path) -> dict[str, Any]:
    """Return the axes of an earlier run. Raise RegistrationError if the file cannot be read or has no axes."""
    try:
        found: dict[str, Any] = orjson.loads(file.read_bytes())["axes"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise errors.RegistrationError(
            str(file), "has no figures of curves, so nothing was drawn: name a file that --json has written"
        ) from exc
    return found


def measure(axes: Sequence[Axis], deliveries: int | None, terms: stage.Terms, files: Files) -> list[str]:
    """Measure the axes, write the files, and return a text for each value that must not be trusted.

    A pass measures one value once, with `deliveries` deliveries; None: the number of the axis. The JSON file is written after
    each job, and all files at the end. An interrupted run also writes all files, with the values measured until then.

    Raise RegistrationError, and measure nothing, if there is a JSON file already and it has no axes.
    """
    known = read(files.json_file) if files.json_file is not None and files.json_file.is_file() else {}
    measured: dict[str, Any] = {}

    def keep(name: str, figures: dict[str, Any]) -> None:
        measured[name] = figures
        _write_json({**known, **measured}, files)

    try:
        for axis in axes:
            _measure(axis, deliveries or axis.deliveries, terms, keep)
    finally:
        write({**known, **measured}, files)
        for name, figures in curve_pages.drawable(measured).items():
            for text in curve_pages.sentences(figures):
                terms.say(f"{name}: {text}")
    return summary.broken(measured)


def _measure(axis: Axis, deliveries: int, terms: stage.Terms, keep: Callable[[str, dict[str, Any]], None]) -> None:
    """Run the jobs of an axis. After each job, also an interrupted one, call `keep` with the figures of the axis so far.

    A job with a problem is the last: the larger values are not measured.
    """
    jobs: list[measuring.JobRun] = []
    for values in axis.jobs():
        jobs.append(measuring.JobRun(values=values))
        try:
            measuring.run(axis, jobs[-1], deliveries, terms)
        finally:
            keep(axis.name, summary.document(axis, jobs))
        if problem := jobs[-1].problem:
            terms.say(f"{axis.name} {values[0]:,}: {problem}; larger values are left out")
            break


def write(axes: dict[str, Any], files: Files) -> None:
    """Write the figures of the axes as JSON, HTML and SVG, into each file that is not None."""
    _write_json(axes, files)
    if files.html_file is not None:
        files.html_file.write_text(curve_pages.html(axes))
    if files.svg_folder is not None:
        curve_pages.write_folder(axes, files.svg_folder)


def _write_json(axes: dict[str, Any], files: Files) -> None:
    if files.json_file is not None:
        files.json_file.write_bytes(orjson.dumps({"axes": axes}, option=orjson.OPT_INDENT_2))
