"""Verdicts of runs on the paper's statements."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import BoundSample, prepared
from skipring.lab.experiments.results import ROUNDS, RUNS
from skipring.lab.experiments.statements import STATEMENTS, Statement, Unmeasured
from skipring.lab.experiments.verdicts import (
    NOT_MEASURED,
    Judged,
    _verdict,
    below_verdict,
    constant_verdict,
    judge,
    share_verdict,
)
from skipring.report.tables import Tone
from tests.lab.experiments.lab_rows import frame, healed, run, seen, whole_lab

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAPER_MAP = (DOCS / "paper-map.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "statement",
    [it for it in STATEMENTS if isinstance(it.measure, Unmeasured)],
    ids=lambda statement: statement.title,
)
def test_unmeasured_statement_names_the_tests_of_the_map(statement: Statement) -> None:
    assert isinstance(statement.measure, Unmeasured)
    (row,) = (row for row in PAPER_MAP.splitlines() if row.startswith(f"| {statement.title} |"))
    assert f"/{statement.measure.file}::" in row
    verdict = _verdict(0, statement, Mode.FAST, {}, {})
    assert verdict.text.startswith("not measured by the lab; shown by tests in ")
    assert verdict.text.endswith(statement.measure.file)
    assert not Judged(statement, {Mode.FAST: verdict}).is_measured


# --- verdicts --------------------------------------------------------------------------


def test_statement_that_holds_in_all_runs_gets_a_bound_on_its_share() -> None:
    verdict = share_verdict(100, 100)
    assert verdict.text == "holds in all 100 runs (true share ≥ 96.4 % with 95 %)"
    assert verdict.tone is Tone.GOOD


def test_one_counterexample_refutes_a_statement() -> None:
    verdict = share_verdict(99, 100)
    assert verdict.text.startswith("false: 1 counterexample of 100 (true share 94.6 % to 99.97")
    assert verdict.tone is Tone.BAD


def test_statement_without_runs_is_not_measured() -> None:
    assert share_verdict(0, 0) == NOT_MEASURED
    assert below_verdict({}, 1.0) == NOT_MEASURED
    assert constant_verdict({8: BoundSample((1.0,))}) == NOT_MEASURED


def test_runs_that_fail_a_stronger_claim_do_not_refute_the_statement() -> None:
    assert share_verdict(9, 10, is_more=True).tone is Tone.OPEN
    assert share_verdict(10, 10, is_more=True).tone is Tone.GOOD


@pytest.mark.parametrize(
    ("values", "tone"),
    [((0.8, 0.81, 0.82), Tone.GOOD), ((1.3, 1.31, 1.32), Tone.BAD), ((0.7, 1.0, 1.3), Tone.OPEN)],
)
def test_mean_is_judged_below_above_or_undecided_against_a_limit(
    values: tuple[float, ...], tone: Tone
) -> None:
    assert below_verdict({8: BoundSample((0.1, 0.2)), 16: BoundSample(values)}, 1.0).tone is tone


@pytest.mark.parametrize(
    ("grown", "tone"),
    [(lambda n: 3.0, Tone.GOOD), (lambda n: 3.0 - 1 / n, Tone.GOOD), (float, Tone.BAD)],
)
def test_constant_cost_is_confirmed_and_growing_cost_is_refuted(grown: object, tone: Tone) -> None:
    assert callable(grown)
    values = {n: BoundSample((grown(n), grown(n) + 0.01)) for n in (8, 16, 32, 64, 128)}
    assert constant_verdict(values).tone is tone


# --- runs ------------------------------------------------------------------------------


def verdicts(judged: list[Judged], title: str) -> dict[Mode, Tone]:
    (one,) = [one for one in judged if one.statement.title == title]
    return {mode: verdict.tone for mode, verdict in one.verdicts.items()}


@pytest.mark.heavy
def test_runs_count_only_for_their_own_statements(spark: SparkSession) -> None:
    rows, rounds = whole_lab()
    judged = judge(prepared(frame(spark, RUNS, rows), frame(spark, ROUNDS, rounds)).cache())
    paper, fixed, fast = Mode.PAPER, Mode.FIXED, Mode.FAST
    assert verdicts(judged, "Theorem Network Convergence") == {
        paper: Tone.BAD,
        fixed: Tone.GOOD,
        fast: Tone.GOOD,
    }
    assert verdicts(judged, "Theorem Publication Convergence")[paper] is Tone.BAD
    requests = "Theorem: fewer than one request expected in an interval"
    assert verdicts(judged, requests) == {paper: Tone.BAD, fixed: Tone.NONE, fast: Tone.GOOD}
    subscribers = "Theorem: constant overhead of the subscribers, to unsubscribe"
    assert verdicts(judged, subscribers)[paper] is Tone.BAD
    assert verdicts(judged, "Lemma Node Degree") == {fast: Tone.GOOD}
    assert verdicts(judged, "Flooding, in step")[fast] is Tone.GOOD
    assert verdicts(judged, "Lemma: the potential never increases")[fast] is Tone.NONE


@pytest.mark.heavy
def test_ring_that_loses_legitimacy_refutes_closure(spark: SparkSession) -> None:
    kept, lost = healed(8, 5, seed=0), healed(8, 5, seed=1)
    later = healed(8, 5, seed=2, adversary="A20")
    rounds = [*seen(kept["run_id"], [0, 5, 5]), *seen(lost["run_id"], [0, 5, 3, 5], strict_from=3)]
    runs = frame(spark, RUNS, [kept, lost, later, run("topology", 8)])
    judged = judge(prepared(runs, frame(spark, ROUNDS, rounds)).cache())
    tones = {
        title: verdicts(judged, title)[Mode.FAST]
        for title in (
            "Theorem Network Closure",
            "Theorem Network Closure, of strict states",
            "Lemma Supervisor Closure",
            "Lemma Ring Closure",
            "Lemma Shortcut Closure",
        )
    }
    assert list(tones.values()) == [Tone.BAD, Tone.GOOD, Tone.GOOD, Tone.GOOD, Tone.BAD]
