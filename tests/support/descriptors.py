"""Descriptors that this process holds: files, sockets, pipes."""

import contextlib
import pathlib


def held():
    """Return each open descriptor as its number and its target.

    Those below /proc are left out: the thread that measures the tests' CPU (tests/budget.py) opens and closes them at any time.
    """
    found = set()
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add((entry.name, str(entry.readlink())))
    return {(number, target) for number, target in found if not target.startswith("/proc/")}


def files():
    """Return the open files among them: clients of Kafka that other tests leave open sockets and pipes at any time."""
    return {(number, target) for number, target in held() if target.startswith("/")}
