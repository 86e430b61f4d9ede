"""Set up logging: lines for people or JSON for machines, on standard error.

Runs in every process: on the driver, in the commands, in `fanout archive`, in the API and in the workers. Fields given as
`extra=` become keys of the JSON object, or follow the text. Control characters are escaped, so that foreign text cannot forge a
line or control a terminal.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
import textwrap
from typing import Any

import orjson

from delivery.observability import safe_text

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object on one line, with the time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry |= _extra(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return safe_text.json(_json(entry))


class TextFormatter(logging.Formatter):
    """Format a record as one line for a person, with its fields at the end. The lines of a traceback follow, indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base class's name
        return safe_text.line(" ".join([super().formatMessage(record), *(f"{k}={v}" for k, v in _extra(record).items())]))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the base class's name
        return textwrap.indent(safe_text.text(super().formatException(ei)), "    ")  # its message may quote foreign lines


def _json(entry: dict[str, Any]) -> str:
    try:
        return orjson.dumps(entry, default=str).decode()
    except TypeError:  # text with a lone surrogate has no UTF-8 form
        return orjson.dumps({key: safe_text.text(str(value)) for key, value in entry.items()}).decode()


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


def configure(level: str, form: str) -> None:
    """Set up the process to write log records of `level` and above to standard error. Earlier handlers are removed.

    `form` is `text` or `json`. Records of py4j and httpx2 below WARNING are never written.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for library in ("py4j", "httpx2"):  # httpx2: a line for each request to the schema registry
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.root.level))
