"""Say one word where customers read, for two failures that operators tell apart.

Runs where the archive is written, and in the API. Pure. `dns` says that a host name does not exist, `address_blocked` that it
leads to an address inside: the difference tells a customer which internal names there are. The logs, the metrics and the
topics keep both. The text of both is the same everywhere.
"""

from __future__ import annotations

from typing import Any

from delivery import errors

_SHOWN = {errors.AddressBlocked.error_class: errors.DnsFailed.error_class}


def word(reason: str | None) -> str | None:
    """Return an error class, or a reason that may be one, as customers see it."""
    return reason if reason is None else _SHOWN.get(reason, reason)


def letter(document: dict[str, Any]) -> dict[str, Any]:
    """Return a dead letter as customers see it."""
    shown = document | {"reason": word(document.get("reason"))}
    attempts = document.get("attempts")
    if isinstance(attempts, list):
        shown["attempts"] = [one | {"error_class": word(one.get("error_class"))} for one in attempts]
    return shown
