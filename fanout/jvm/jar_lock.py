"""Compare jars with a lock file that has the SHA-256 of each jar, because Ivy downloads jars by version only.

Runs in `fanout` commands and on the driver. `sha256sum --check` reads the lock too, if it runs in the folder of the jars.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from delivery import errors


def written(folder: Path) -> str:
    """Return the text of a lock for the jars in the subfolders of `folder`: one line for each jar, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in _digests(folder).items())


def check(folder: Path, lock_file: Path) -> None:
    """Raise LocalStackError if jars in the subfolders of `folder` are changed, missing or extra, compared with the lock."""
    lines = (line.partition("  ") for line in lock_file.read_text().splitlines())
    locked = {name: digest for digest, _, name in lines}
    found = _digests(folder)
    if found == locked:
        return
    problems = (
        *(f"{name} is changed" for name in sorted(found.keys() & locked.keys()) if found[name] != locked[name]),
        *(f"{name} is missing" for name in sorted(locked.keys() - found.keys())),
        *(f"{name} is extra" for name in sorted(found.keys() - locked.keys())),
    )
    raise errors.LocalStackError(
        f"the jars differ from {lock_file}: {', '.join(problems)}. They are not used. Remove {lock_file.parent / 'lib'} and "
        "Ivy's copies in ~/.ivy2/cache, and run the command again to download them. After a change of ivy.xml, run: make lock"
    )


def _digests(folder: Path) -> dict[str, str]:
    return {jar.relative_to(folder).as_posix(): _digest(jar) for jar in sorted(folder.glob("*/*.jar"))}


def _digest(jar: Path) -> str:
    with jar.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
