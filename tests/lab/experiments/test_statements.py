"""Statements of the paper: the table and the paper map agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skipring.lab.experiments.measures import HYPOTHESES, Statement
from skipring.lab.experiments.statements import STATEMENTS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAPER_MAP = (DOCS / "paper-map.md").read_text(encoding="utf-8")
# Rows of the map that are statements of the paper: title, and what the last column says.
IN_THE_MAP = re.findall(
    r"^\| ((?:Theorem|Lemma|Corollary|Claim)[^|]*?) \|.*\| ([^|]*)\|$", PAPER_MAP, re.MULTILINE
)
TITLES = [title for title, _ in IN_THE_MAP]


def start_of(title: str) -> str:
    """Return the common part of a title in the map and in the table."""
    return re.split(r"[,;]|: logarithmic", title)[0]


@pytest.mark.parametrize("title", TITLES)
def test_every_statement_of_the_map_is_in_the_table(title: str) -> None:
    assert any(statement.title.startswith(start_of(title)) for statement in STATEMENTS)


def test_map_has_at_least_20_statements() -> None:
    assert len(TITLES) >= 20


@pytest.mark.parametrize(
    "statement", STATEMENTS, ids=[f"{it.section} {it.title}" for it in STATEMENTS]
)
def test_statement_of_the_table_is_in_the_map_and_its_records_exist(statement: Statement) -> None:
    if statement.title.startswith(("Theorem", "Lemma", "Corollary", "RangeSummary")):
        assert start_of(statement.title) in PAPER_MAP
    for record in statement.decisions:
        assert list((DOCS / "decisions").glob(f"{record}-*.md"))


@pytest.mark.parametrize(
    "title", [title for title, known in IN_THE_MAP if known.startswith("**False**")]
)
def test_statement_that_the_map_calls_false_is_known_as_false(title: str) -> None:
    known = [it.known for it in STATEMENTS if it.title.startswith(start_of(title))]
    assert any("false" in text for text in known)


def test_hypotheses_have_different_letters() -> None:
    assert len({it.letter for it in HYPOTHESES}) == len(HYPOTHESES)


def test_hypotheses_of_all_statements_are_in_the_legend() -> None:
    assert {it for statement in STATEMENTS for it in statement.hypotheses} == set(HYPOTHESES)
