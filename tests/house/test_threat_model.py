"""The threat model in docs/operations.md: each statement names tests that exist."""

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


def test_every_statement_names_tests_that_exist() -> None:
    found = statements()
    assert len(found) > len(ACTORS)
    for statement, tests in found:
        paths = re.findall(r"`(tests/[^`]+\.py)`", tests)
        assert paths, statement
        for path in paths:
            assert "def test_" in (ROOT / path).read_text(encoding="utf-8"), statement
