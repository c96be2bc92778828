"""Bounds in docstrings: a docstring that promises a bound names the test that measures it.

The docstrings of commands are their help texts, which name no tests.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.source_tree import ROOT, modules

NUMBER = r"(?:about )?(?:\d[\d.,_]*|an?|one|two|``[A-Z_]+``|[A-Z][A-Z_]+)"
UNIT = r"(?:ms|µs|s|milliseconds?|seconds?|minutes?|ticks?|rounds?|[KMG]i?B|bytes)"
PROMISE = re.compile(
    rf"\b(?:at most|less than|no more than|fewer than|within|up to) (?:once )?{NUMBER} {UNIT}\b"
)
TEST = re.compile(r"``(test_\w+)``")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def all_tests() -> frozenset[str]:
    """Return the names of all tests."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    return frozenset(re.findall(r"\bdef (test_\w+)", "\n".join(texts)))


def promises(tree: ast.Module) -> list[str]:
    """Return the promised bounds of docstrings that name no test of the tree."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            named = set(TEST.findall(text))
            if not named or not named <= all_tests():
                found += PROMISE.findall(" ".join(text.split()))
    return found


def test_docstring_that_promises_a_bound_names_its_test() -> None:
    found = {
        module: bounds
        for module, tree in modules()
        if not module.startswith("cli/") and (bounds := promises(tree))
    }
    assert found == {}


def test_tests_that_docstrings_name_exist() -> None:
    named = {
        name
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED)
        for name in TEST.findall(ast.get_docstring(node) or "")
    }
    assert named <= all_tests()


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("Return the status in at most 5 ms.", True),
        ("It lasts for at most\n    16 ticks.", True),
        ("Read at most ``BYTES`` bytes.", True),
        ("Check at most once a second.", True),
        ("Wait for at most FINISH_S; it can run again.", False),
        ("Return at most as many records.", False),
        ("It takes at most 5 ms (``test_docstring_that_promises_a_bound_names_its_test``).", False),
        ("It takes at most 5 ms (``test_of_another_tree``).", True),
    ],
)
def test_promise_without_a_test_is_found(text: str, is_found: bool) -> None:
    assert bool(promises(ast.parse(f'"""{text}"""'))) == is_found
