"""Try more generated cases where nobody waits for the result: `make test-all` sets THOROUGH=1."""

import os

IS_THOROUGH = os.environ.get("THOROUGH") == "1"


def cases(usual: int, *, thorough: int) -> int:
    """Return the number of cases to generate in this run."""
    return thorough if IS_THOROUGH else usual
