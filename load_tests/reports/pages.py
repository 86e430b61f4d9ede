"""Write HTML pages that load nothing from the network. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; } td, th { padding: 0.2rem 0.8rem 0.2rem 0; text-align: left; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #e4e4e4; font-variant-numeric: tabular-nums; }
.holds { color: #2a6d33; } .broken { color: #b3261e; font-weight: 600; } svg { width: 100%; height: auto; }
pre { background: #f5f5f5; padding: 0.8rem; overflow: auto; font-size: 13px; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page with this title. `parts` are its HTML elements."""
    body = "\n".join(parts)
    head = f'<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html>\n{head}\n{body}\n</html>\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as an HTML element. The cells are text, which is escaped."""
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def inline(svg: str) -> str:
    """Return an SVG document as an element of a page."""
    return svg[svg.index("<svg") :]
