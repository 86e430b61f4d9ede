"""Descriptors that this process holds: files, sockets, pipes."""

import contextlib
import pathlib


def held():
    """Return each open descriptor as its number and its target.

    Descriptors of files below /proc are left out: the thread that measures the tests' CPU (tests/budget.py) opens and closes
    such files at any time.
    """
    found = set()
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add((entry.name, str(entry.readlink())))
    return {(number, target) for number, target in found if not target.startswith("/proc/")}


def files():
    """Return held descriptors of files only, because Kafka clients of earlier tests open sockets and pipes at any time."""
    return {(number, target) for number, target in held() if target.startswith("/")}
