"""Render a page for each code of problem documents, and one that lists all codes. Pure.

The `type` of a problem document is the URL of its code's page.

Runs in the API, which serves the pages as HTML, and in `make docs`, which writes them as Markdown to docs/problems.
"""

from __future__ import annotations

import html

import orjson

from subscriptions_db.api.contract import problem_types, problems
from subscriptions_db.api.contract.problem_types import TYPES

_NOTE = "<!-- Generated from subscriptions_db/api/contract/problem_types.py by `make docs`. -->"
_LIST_HEAD = f"""\
# Problems

{_NOTE}

Each refusal of the [HTTP API](api.md#refusals) is a problem document (RFC 9457). Its `type` leads to the page of its `code`,
`/v1/problems/CODE`. The API serves these pages without a key, and a list of them at `/v1/problems`. The pages below have the
same text.
"""
_STYLE = "body{font-family:sans-serif;max-width:45em;margin:2em auto;padding:0 1em}pre{white-space:pre-wrap}"


def markdown_list() -> str:
    """Return the text of docs/problems.md. It has a section for each code, with a link to the page of the code."""
    return _LIST_HEAD + "".join(
        f"\n## {code}\n\n{_meaning(code)}\n\n[What to do, and an example](problems/{code}.md)\n" for code in TYPES
    )


def markdown(code: str) -> str:
    """Return the page of a code for docs/problems, as Markdown."""
    return (
        f"# {code}\n\n{_NOTE}\n\n{_meaning(code)}\n\n## What to do\n\n{TYPES[code].remedy}\n\n## Example\n\n"
        f"```http\n{_example(code)}\n```\n\n[All problems](../problems.md)\n"
    )


def html_list() -> bytes:
    """Return the page that lists all codes, as HTML. The fragment `#CODE` of its URL leads to the section of a code."""
    sections = (
        f'<h2 id="{code}"><a href="{problem_types.PATH}/{code}">{code}</a></h2><p>{html.escape(_meaning(code))}</p>'
        for code in TYPES
    )
    return _page("Problems", "".join(sections))


def html_page(code: str) -> bytes:
    """Return the page of a code as HTML."""
    return _page(
        code,
        f"<p>{html.escape(_meaning(code))}</p><h2>What to do</h2><p>{html.escape(TYPES[code].remedy)}</p>"
        f'<h2>Example</h2><pre>{html.escape(_example(code))}</pre><p><a href="{problem_types.PATH}">All problems</a></p>',
    )


def _page(title: str, body: str) -> bytes:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f"{head}<h1>{title}</h1>{body}".encode()


def _meaning(code: str) -> str:
    """Return the statuses and the meaning of a code."""
    if code in problems.OTHER_TITLES:
        return f"Status {problems.OTHER_TITLES[code][0]}. {TYPES[code].meaning}"
    statuses = " or ".join(str(status) for status, (known, _) in problems.TITLES.items() if known == code)
    return f"Status {statuses}. {TYPES[code].meaning}"


def _example(code: str) -> str:
    """Return an example of an answer with the code: the status, `Content-Type`, the refusal's headers and the problem document.

    The problem document is indented JSON.
    """
    refused = TYPES[code].example
    document = problem_types.document(refused.problem, "", problem_types.REQUEST_ID)
    headers = {"Content-Type": problems.CONTENT_TYPE} | {name.title(): value for name, value in refused.headers.items()}
    lines = (f"{name}: {value}" for name, value in headers.items())
    body = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    return "\n".join([f"HTTP/1.1 {refused.problem.status}", *lines, "", body])
