"""Read the event patterns that LocalStack has published, each with an event and the verdict of the service EventBridge.

The files are not part of this repository: their licence and text are LocalStack's. The environment variable in VARIABLE names
the folder with the files.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

VARIABLE = "EVENT_PATTERN_TEMPLATES"
FOLDER = os.environ.get(VARIABLE, "")
COMMIT = "8b9a79f05846835cf4dff63ab7eefdde9df83783"
"""The commit of LocalStack whose cases docs/filters.md counts."""
MISSING = (
    f"{VARIABLE} names no folder: clone https://github.com/localstack/localstack, check out {COMMIT[:12]}, and set it to "
    "tests/aws/services/events/event_pattern_templates there"
)
_TEXT = r'("(?:[^"\\]|\\.)*")'
_VERDICTS = {"_NEG": False, "_EXC": None}
"""End of a file's name → verdict. None: the service refuses the pattern. With any other end, the pattern matches."""


def cases() -> dict[str, tuple[str, str, bool | None]]:
    """Return name → pattern, event, and the verdict of the service."""
    found = {}
    for file in sorted(Path(FOLDER).glob("*.json5")):
        case = json.loads(_as_json(file.read_text()))
        found[file.stem] = json.dumps(case["EventPattern"]), json.dumps(case["Event"]), _VERDICTS.get(file.stem[-4:], True)
    # A pair of files: JSON5 would lose the field that the pattern names twice.
    event = Path(FOLDER) / "complex_multi_key_event.json"
    pattern = Path(FOLDER) / "complex_multi_key_event_pattern.json"
    return found | {"complex_multi_key": (pattern.read_text(), event.read_text(), True)}


def _as_json(text: str) -> str:
    """Return JSON5 without its comments and its commas before a closing bracket."""
    without_comments = re.sub(rf"{_TEXT}|//[^\n]*", lambda found: found[1] or "", text)
    return re.sub(rf"{_TEXT}|,(?=\s*[}}\]])", lambda found: found[1] or "", without_comments)
