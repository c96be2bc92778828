"""The threat model in docs/operations.md: each statement names test functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ACTORS = ("an outsider", "a user of the machine", "a client", "a member", "a supervisor")


def threat_model() -> str:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    return text.partition("### Threat model")[2].partition("\n## ")[0]


def statements() -> list[tuple[str, str]]:
    """Return the statement and the tests of each row."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", threat_model(), flags=re.MULTILINE)
    return [row for row in rows if row[1] != "test"]


def test_every_actor_has_a_table() -> None:
    headings = re.findall(r"^\| (.+) \| test \|$", threat_model(), flags=re.MULTILINE)
    assert tuple(headings) == ACTORS


def named_in(cell: str) -> list[tuple[str, list[str]]]:
    """Return the files that a cell names, each with the test functions before it."""
    return [
        (path, re.findall(r"`(test_\w+)`", functions))
        for functions, path in re.findall(r"([^;]+?) of `(tests/[^`]+\.py)`", cell)
    ]


def test_every_statement_names_test_functions_that_exist() -> None:
    found = statements()
    assert len(found) > len(ACTORS)
    for statement, cell in found:
        named = named_in(cell)
        assert named, statement
        assert cell.count("`") == 2 * sum(1 + len(functions) for _, functions in named), cell
        for path, functions in named:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert functions, f"{statement}: no function of {path}"
            for function in functions:
                assert f"def {function}(" in text, f"{statement}: {function} of {path}"


def test_text_below_the_tables_names_a_test_function_that_exists() -> None:
    below = threat_model().rpartition("|\n")[2]
    for path, functions in named_in(below):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert functions
        assert all(f"def {function}(" in text for function in functions)
