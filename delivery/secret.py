"""Wrap a secret so that it is not printed by accident.

Used in every process. Imports the standard library only.
"""

from __future__ import annotations

import hmac


class Secret:
    """Hold secret bytes. Only `reveal` and pickling give them out, so that a search for `reveal` finds each use."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """Return the secret bytes. The caller never logs or formats the bytes, nor puts them into an error."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[type[Secret], tuple[bytes]]:
        return Secret, (self._value,)
