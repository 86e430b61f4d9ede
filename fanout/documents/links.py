"""Find the links of Markdown documents that lead nowhere: the file is missing, or the document has no such anchor.

Runs in `python -m fanout.documents.generate` and the tests. Links to other hosts are not followed.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(([^()\s]+)\)|^ *\[[^\]]+\]: *(\S+)", re.MULTILINE)
_HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)
_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


def documents(root: Path) -> list[Path]:
    """Return the Markdown documents in the folder `root`, and all below its folders `docs` and `deploy`."""
    return [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "deploy").rglob("*.md")]


def broken(document: Path) -> Iterator[str]:
    """Yield each link of a document that leads nowhere."""
    for found in _LINK.finditer(_CODE.sub("", _FENCE.sub("", document.read_text()))):
        link = found[1] or found[2]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.resolve())):
            yield link


@functools.cache
def anchors(document: Path) -> frozenset[str]:
    """Return the anchors of a document: of its headings, as GitHub makes them, and of its `<a>` tags."""
    text = _FENCE.sub("", document.read_text())
    seen: Counter[str] = Counter()
    found = set(_ANCHOR.findall(text))
    for heading in _HEADING.findall(text):
        plain = _NOT_IN_ANCHORS.sub("", _MARKUP.sub(r"\1", heading).lower()).replace(" ", "-")
        found.add(f"{plain}-{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return frozenset(found)
