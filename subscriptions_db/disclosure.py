"""Show customers the same error class for two failures that operators see as two classes.

Runs in `fanout archive`, in the API and in `fanout` commands. Pure. `dns` means that a host name does not resolve,
`address_blocked` that it resolves to an internal address. The difference would tell customers which internal names exist. Logs,
metrics and topics keep the two classes apart. The detail text of the two classes is the same everywhere.
"""

from __future__ import annotations

from typing import Any

from delivery import errors

_SHOWN = {errors.AddressBlocked.error_class: errors.DnsFailed.error_class}


def word(reason: str | None) -> str | None:
    """Return the error class or reason that customers see: `dns` for `address_blocked`, else `reason`. None stays None."""
    return reason if reason is None else _SHOWN.get(reason, reason)


def letter(document: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a dead letter with the reason and the error classes that customers see."""
    shown = document | {"reason": word(document.get("reason"))}
    attempts = document.get("attempts")
    if isinstance(attempts, list):
        shown["attempts"] = [attempt | {"error_class": word(attempt.get("error_class"))} for attempt in attempts]
    return shown
