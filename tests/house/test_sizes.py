"""Sizes of modules, functions and packages: limits, and exceptions that may only shrink.

An exception in size_exceptions.toml is an upper bound; remove it when the limit is met.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

import pytest

from tests.support.ratchet import check, committed, differences
from tests.support.source_tree import PACKAGE, ROOT, functions, modules

EXCEPTIONS = ROOT / "tests" / "house" / "size_exceptions.toml"
LIMITS = {"modules": 450, "functions": 40, "packages": 15}


def sizes(sources: Iterable[tuple[str, str, ast.Module]]) -> dict[str, dict[str, int]]:
    """Return lines of modules and functions, and modules of packages, without __init__."""
    lines, functions_lines, packages = dict[str, int](), dict[str, int](), Counter[str]()
    for module, source, tree in sources:
        lines[module] = len(source.splitlines())
        path = PurePosixPath(module)
        packages[path.parent.as_posix()] += path.name != "__init__.py"
        for name, function in functions(tree):
            size = (function.end_lineno or function.lineno) - function.lineno + 1
            key = f"{module}:{name}"
            functions_lines[key] = max(size, functions_lines.get(key, 0))
    return {"modules": lines, "functions": functions_lines, "packages": dict(packages)}


def too_large(found: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return the sizes above a limit."""
    return {name: size for name, size in found.items() if size > limit}


@pytest.mark.parametrize("table", LIMITS)
def test_size_is_within_the_limit_or_a_listed_exception(table: str) -> None:
    sources = ((name, (PACKAGE / name).read_text("utf-8"), tree) for name, tree in modules())
    found = too_large(sizes(sources)[table], LIMITS[table])
    assert check(EXCEPTIONS, table, found, exact=False) == []


@pytest.mark.parametrize("table", LIMITS)
def test_exception_exceeds_the_limit(table: str) -> None:
    assert [
        name for name, size in committed(EXCEPTIONS, table).items() if size <= LIMITS[table]
    ] == []


def test_sizes_above_the_limits_are_found() -> None:
    body = "    x = 1\n" * 40
    sources = {f"node/m{number}.py": "" for number in range(16)}
    sources |= {"node/__init__.py": "", "node/m0.py": f"class A:\n  def f(self):\n{body}"}
    sources |= {"core/long.py": "\n" * 451, "core/fits.py": f"async def g():\n{body[10:]}"}
    found = sizes((name, text, ast.parse(text)) for name, text in sources.items())
    assert {table: too_large(found[table], LIMITS[table]) for table in LIMITS} == {
        "modules": {"core/long.py": 451},
        "functions": {"node/m0.py:A.f": 41},
        "packages": {"node": 16},
    }


@pytest.mark.parametrize(
    ("found", "is_allowed"),
    [
        ({"a": 60}, True),
        ({"a": 55}, True),
        ({"a": 61}, False),
        ({"a": 60, "b": 41}, False),
        ({}, False),
    ],
)
def test_exceptions_only_shrink(found: dict[str, int], is_allowed: bool) -> None:
    assert (differences(found, {"a": 60}, exact=False) == []) == is_allowed
