"""Set up logging: lines for people or JSON for machines, on standard error.

Runs on the driver and in the command. Fields given as `extra=` become keys of the JSON object.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from typing import Any

import orjson

from delivery import settings

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def configure(config: settings.Logs) -> None:
    """Send all logs to standard error in the chosen form."""
    handler = logging.StreamHandler(sys.stderr)
    if config.format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=config.level, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)
