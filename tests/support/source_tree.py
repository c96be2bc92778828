"""Syntax trees and places of the sources, for the tests of the house rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "skipring"

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the path below src/skipring and the tree of each module, of all packages by default."""
    for top in [PACKAGE / name for name in packages] or [PACKAGE]:
        for path in sorted(top.rglob("*.py")):
            yield path.relative_to(PACKAGE).as_posix(), _parsed(path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, Function]]:
    """Yield each function with its qualified name, nested functions included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name, node
            yield from functions(node, f"{owner}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{owner}{node.name}.")
        else:
            yield from functions(node, owner)
