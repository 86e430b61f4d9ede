"""Hold a secret so that it cannot be printed by accident.

Runs on the driver and in the executors. Imports the standard library only.
"""

from __future__ import annotations

import hmac


class Secret:
    """Wrap secret bytes; `reveal()` is the only way to them, so that each use is found by a search for it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the secret itself. Never log, format or raise what this returns."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[type[Secret], tuple[bytes]]:
        return Secret, (self._value,)
