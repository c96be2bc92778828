"""Sections about statements: causes are counted once, variants separately."""

from __future__ import annotations

from msgspec.structs import replace

from skipring.core.config import Mode
from skipring.lab.experiments.measures import Statement
from skipring.lab.experiments.sections.evaluation import (
    causes,
    contradictions,
    method,
    statements,
    threats,
    worst_cases,
)
from skipring.lab.experiments.statements import STATEMENTS
from skipring.lab.experiments.verdicts import NOT_MEASURED, Judged, Verdict
from skipring.report.tables import Cell, Tone
from tests.support.source_tree import ROOT

REFUTED = Verdict(
    tone=Tone.BAD,
    word="refuted",
    reason="one run",
    sample="1 run",
    censored=3,
    at_message_limit=1,
)

SCENARIOS = ROOT / "scenarios"
CLOSURE = [it for it in STATEMENTS if it.title.endswith(" Closure") and it.cause is not None]
(OURS,) = (it for it in STATEMENTS if it.title == "BuildRing inside BuildSR")
(CONVERGENCE,) = (it for it in STATEMENTS if it.title == "Theorem Network Convergence")


def judged(*found: Statement) -> list[Judged]:
    return [Judged(it, dict.fromkeys(it.modes, REFUTED), {}) for it in found]


def test_statements_that_one_cause_refutes_are_one_contradiction() -> None:
    assert len(CLOSURE) == 4
    assert contradictions(judged(*CLOSURE), Mode.PAPER) == (4, 1)
    assert contradictions(judged(*CLOSURE, CONVERGENCE), Mode.PAPER) == (5, 2)


def test_variant_is_no_statement_of_the_paper() -> None:
    assert contradictions(judged(OURS), Mode.PAPER) == (0, 0)
    found = {section.key: section for section in statements(judged(OURS, CONVERGENCE))}
    rows = {key: section.table.rows for key, section in found.items() if section.table}
    assert [row[1] for row in rows["statements"] if "BuildRing inside" in str(row[1])] == []
    assert len(rows["variants"]) == len(OURS.modes)


def test_table_of_causes_names_decision_statement_and_modes() -> None:
    table = causes(judged(CONVERGENCE)).table
    assert table is not None
    ((text, decision, titles),) = table.rows
    assert (decision, titles) == (
        "0003",
        "Theorem Network Convergence (paper, fixed, fast)",
    )
    assert "displaced shortcut" in str(text)


def test_worst_cases_are_read_from_their_scenarios() -> None:
    worst = {path.stem: path.read_text() for path in sorted(SCENARIOS.glob("worst-*.toml"))}
    table = worst_cases(worst).table
    assert table is not None
    assert [row[0] for row in table.rows] == list(worst)
    for row in table.rows:
        assert f"heals within {row[5]} rounds" in worst[str(row[0])]


def test_row_states_hypotheses_sample_limit_censored_verdict_and_reason() -> None:
    found = statements(judged(CONVERGENCE))[0].table
    assert found is not None
    assert found.rows[0][2:] == (
        "C S W E G",
        "1 run",
        REFUTED.limit,
        "3",
        "1",
        Cell("refuted", Tone.BAD),
        "one run",
    )


def test_statement_without_runs_is_shown() -> None:
    one = Judged(CONVERGENCE, {Mode.PAPER: replace(NOT_MEASURED)}, {})
    table = statements([one])[0].table
    assert table is not None
    assert Cell("not measured") in table.rows[0]


def test_method_and_threats_are_stated() -> None:
    assert [section.key for section in (*method(), *threats())] == [
        "hypotheses",
        "rules",
        "threats",
    ]
    assert all(section.notes or section.table for section in (*method(), *threats()))
