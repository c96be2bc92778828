"""Coverage of the protocol's points: each has a test that carries its number."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from skipring.core.config import Rule
from tests.support.source_tree import ROOT

TESTS = ROOT / "tests" / "core"

SUPERVISOR = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11")
RING = ("B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B11", "B12", "B13", "B14")
SHORTCUTS = ("C2", "C3", "C4", "C5")
RULES = ("R1", "R2", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15", "R16", "R17", "k+1")
TRIES = ("T1", "T2", "T3", "T4", "T6", "T8", "T9", "T10", "T11", "T12", "T14", "T16", "T18", "T19")
ALL = (*SUPERVISOR, *RING, *SHORTCUTS, *RULES, *TRIES, "batch", "D1")

RULE_FILE = "test_config.py"


@cache
def collected() -> dict[str, list[ast.FunctionDef]]:
    """Return the tests in each file of tests/core."""
    return {
        path.name: [
            item
            for item in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(item, ast.FunctionDef) and item.name.startswith("test_")
        ]
        for path in sorted(TESTS.glob("test_*.py"))
    }


def names() -> list[str]:
    return [test.name for found in collected().values() for test in found]


def points_in(name: str) -> set[str]:
    """Return the points whose numbers are in the name of a test."""
    found = re.findall(r"(?<=_)(?:[SBCRTD]\d+|k_plus_1|(?<=^test_)batch)(?=_)", name)
    return {number.replace("_plus_", "+") for number in found}


@pytest.mark.parametrize("point", ALL)
def test_every_point_has_a_test_with_its_number(point: str) -> None:
    assert any(point in points_in(name) for name in names())


def test_every_number_in_a_test_name_is_a_point() -> None:
    assert {name: points_in(name) for name in names() if not points_in(name) <= set(ALL)} == {}


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_is_switched_off_in_a_test_with_its_number(rule: Rule) -> None:
    tests = collected()[RULE_FILE]
    found = [test for test in tests if str(rule) in points_in(test.name)]
    assert found
    for test in found:
        marks = [ast.unparse(mark) for mark in test.decorator_list]
        assert "both_ways" in marks, f"{test.name} does not ask what happens without the rule"
