"""The figures of a run: printed as a table at its end, and kept as JSON in build/."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from load_tests.harness import machine_speed

PATH = Path(__file__).parents[2] / "build" / "test-k8s.json"


class Report:
    """Figures by the step that they belong to."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, step: str, **figures: float | str) -> None:
        """Add what was measured in a step, with the load average of the last minute and the slowdown of the machine."""
        figures |= {"machine_load": os.getloadavg()[0], "machine_slowdown": machine_speed.slowdown()}
        rounded = {name: round(value, 1) if isinstance(value, float) else value for name, value in figures.items()}
        self.rows.append({"step": step} | rounded)

    def write(self) -> None:
        """Write the JSON file."""
        PATH.parent.mkdir(exist_ok=True)
        document = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cores": os.cpu_count(),
            "steps": self.rows,
        }
        PATH.write_text(json.dumps(document, indent=2) + "\n")

    def lines(self) -> list[str]:
        """Return the table for the terminal."""
        width = max((len(str(row["step"])) for row in self.rows), default=0)
        return [
            f"{row['step']!s:<{width}}  " + ", ".join(f"{name} {value}" for name, value in row.items() if name != "step")
            for row in self.rows
        ]


class Bound:
    """A bound of seconds for this machine. Most of such a time is CPU time of a start, which grows with the slowdown.

    The slowdown counts as measured before and after the time, and at most as MOST.
    """

    MOST = 4.0

    def __init__(self, quiet_s: float) -> None:
        """`quiet_s` is the bound on a machine without slowdown. Create the object before the measured time."""
        self._quiet_s, self._before = quiet_s, machine_speed.slowdown()

    def seconds(self) -> float:
        """Return the bound. Call it directly after the measured time."""
        return self._quiet_s * min(self.MOST, max(1.0, self._before, machine_speed.slowdown()))
