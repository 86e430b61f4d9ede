"""Find the places where a test replaces a constant of a module."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


def patched_constants(source: str, packages: Collection[str]) -> list[str]:
    """Return the constants of modules of `packages` that a test file replaces, such as `delivery.job.MAX_S`.

    1. By a call of `setattr`, `patch` or `patch.object`, with the module and the name, or with one text for both.
    2. By a tuple of module and name, for a call in a loop.
    3. By an assignment to `module.MAX_S`.
    """
    tree = ast.parse(source)
    imported = dict(_imports(tree))
    found = (name for node in ast.walk(tree) for name in _replaced(node, imported))
    return [name for name in found if name.split(".")[0] in packages and _CONSTANT.fullmatch(name.rpartition(".")[2])]


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each imported name of a file, with the dotted name that it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)


def _replaced(node: ast.AST, imported: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Call) and _last_name(node.func) in {"setattr", "patch", "object"}:
        yield from _named(node.args[:2], imported)
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        yield from _named(node.elts[:2], imported)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield _dotted(node, imported)


def _named(arguments: list[ast.expr], imported: dict[str, str]) -> Iterator[str]:
    match arguments:
        case [ast.Constant(str(name)), *_]:
            yield name
        case [owner, ast.Constant(str(name))]:
            yield f"{_dotted(owner, imported)}.{name}"


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(_, name):
            return name
    return ""


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    root, *rest = ast.unparse(node).split(".")
    return ".".join([imported.get(root, ""), *rest])
