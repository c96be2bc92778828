"""Verdicts of runs on the paper's statements."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log2
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import SAME_BUT_SEED, prepared
from skipring.lab.experiments.matrix import read_matrix
from skipring.lab.experiments.measures import Statement, Unmeasured
from skipring.lab.experiments.results import ROUNDS, RUNS
from skipring.lab.experiments.runner import estimated_s
from skipring.lab.experiments.statements import STATEMENTS
from skipring.lab.experiments.statistics import BoundSample
from skipring.lab.experiments.verdicts import (
    NOT_MEASURED,
    SEEDS_MIN,
    TOO_FEW,
    Judged,
    Runs,
    _verdict,
    always_verdict,
    below_verdict,
    bounded_verdict,
    eventually_verdict,
    judge,
)
from skipring.report.tables import Tone
from tests.lab.experiments.lab_rows import frame, healed, livelock, run, seen, whole_lab
from tests.support.source_tree import ROOT

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAPER_MAP = (DOCS / "paper-map.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "statement",
    [it for it in STATEMENTS if isinstance(it.measure, Unmeasured)],
    ids=lambda statement: statement.title,
)
def test_unmeasured_statement_names_the_tests_of_the_map(statement: Statement) -> None:
    assert isinstance(statement.measure, Unmeasured)
    assert f"/{statement.measure.file}`" in PAPER_MAP
    verdict = _verdict(0, statement, Mode.FAST, {}, {})
    assert verdict.word == "by tests"
    assert verdict.reason.endswith(statement.measure.file)


# --- verdicts --------------------------------------------------------------------------


def found(took: list[float], **more: object) -> Runs:
    given = {"starts": 1, "rounds_max": 200, "lockstep": 0, "livelocks": 0, "open": 0}
    given |= {"at_message_limit": 0, "small": 0}
    return Runs.of({"took": took, "sizes": [8], "example": "A03, n = 8"} | given | more)


def test_property_of_all_runs_is_supported_with_a_bound_on_its_share() -> None:
    verdict = always_verdict(found([0.0] * 100))
    assert (verdict.word, verdict.tone) == ("supported", Tone.GOOD)
    assert verdict.reason == "shown by all runs (true share ≥ 96.4 %)"


def test_one_counterexample_refutes_a_safety_property() -> None:
    verdict = always_verdict(found([0.0] * 99 + [inf]))
    assert (verdict.word, verdict.tone) == ("refuted", Tone.BAD)
    assert verdict.reason == "1 of 100 runs are counterexamples, for example A03, n = 8"


def test_run_at_its_limit_is_censored_and_refutes_nothing() -> None:
    verdict = eventually_verdict(found([3.0] * 98 + [inf] * 2))
    assert (verdict.word, verdict.tone, verdict.censored) == ("undecided", Tone.OPEN, 2)
    assert verdict.limit == "200"
    assert "reached by 98 of 100 runs, half of them within 3 rounds" in verdict.reason


def test_livelock_refutes_a_liveness_property() -> None:
    verdict = eventually_verdict(found([3.0] * 100, lockstep=5, livelocks=2))
    assert (verdict.word, verdict.tone, verdict.censored) == ("refuted", Tone.BAD, 0)
    assert "livelock in 2 of 5 lockstep computations, for example A03, n = 8" in verdict.reason
    assert verdict.sample == "100 runs and 5 in lockstep, n = 8"


def test_property_that_every_run_reaches_is_supported() -> None:
    assert eventually_verdict(found([3.0] * 10, lockstep=2)).tone is Tone.GOOD
    assert eventually_verdict(found([3.0] * 10, lockstep=2, open=1)).tone is Tone.OPEN


def test_statement_without_runs_is_not_measured() -> None:
    assert always_verdict(found([])) == NOT_MEASURED
    assert eventually_verdict(found([])) == NOT_MEASURED
    assert bounded_verdict({8: BoundSample((1.0,))}) == NOT_MEASURED


def test_statement_with_small_cells_only_has_too_few_runs() -> None:
    small = [always_verdict(found([], small=9)), eventually_verdict(found([], small=9))]
    assert [*small, below_verdict({}, 1.0), bounded_verdict({})] == [TOO_FEW] * 4
    assert TOO_FEW.tone is Tone.OPEN
    assert eventually_verdict(found([], small=9, lockstep=2, livelocks=1)).tone is Tone.BAD


def test_run_at_the_message_limit_is_censored_and_counted_apart() -> None:
    verdict = eventually_verdict(found([3.0] * 98 + [inf] * 2, at_message_limit=1))
    assert (verdict.tone, verdict.censored, verdict.at_message_limit) == (Tone.OPEN, 2, 1)


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
    [
        (lambda n: 3.0, Tone.GOOD),
        (lambda n: 6.0 - 6 / n, Tone.GOOD),
        (log2, Tone.BAD),
        (float, Tone.BAD),
    ],
)
def test_constant_is_judged_as_bounded(grown: Callable[[float], float], tone: Tone) -> None:
    values = {
        n: BoundSample(tuple(grown(n) + seed / 1000 for seed in range(20)))
        for n in (8, 16, 32, 64, 128)
    }
    assert bounded_verdict(values).tone is tone
    assert bounded_verdict(values, limit=200.0).tone is Tone.GOOD


# --- runs ------------------------------------------------------------------------------


def verdicts(judged: list[Judged], title: str) -> dict[Mode, Tone]:
    (one,) = [one for one in judged if one.statement.title == title]
    return {mode: verdict.tone for mode, verdict in one.verdicts.items()}


@pytest.mark.heavy
def test_runs_count_only_for_their_own_statements(spark: SparkSession) -> None:
    rows, rounds = whole_lab()
    judged = judge(
        prepared(frame(spark, RUNS, rows), frame(spark, ROUNDS, rounds)).cache(), seeds_min=1
    )
    paper, fixed, fast = Mode.PAPER, Mode.FIXED, Mode.FAST
    assert verdicts(judged, "Theorem Network Convergence") == {
        paper: Tone.BAD,
        fixed: Tone.GOOD,
        fast: Tone.GOOD,
    }
    assert verdicts(judged, "Theorem Publication Convergence")[paper] is Tone.OPEN
    assert verdicts(judged, "Claim: p′ = p.label") == {paper: Tone.BAD}  # noqa: RUF001  (as it is printed)
    requests = "Theorem: fewer than one request expected in an interval"
    assert verdicts(judged, requests) == {paper: Tone.BAD, fixed: Tone.NONE, fast: Tone.GOOD}
    subscribers = "Theorem: constant overhead of the subscribers, to unsubscribe"
    assert verdicts(judged, subscribers)[paper] is Tone.BAD
    assert verdicts(judged, "Lemma Node Degree") == {fast: Tone.GOOD}
    assert verdicts(judged, "Flooding, in step")[fast] is Tone.GOOD
    assert verdicts(judged, "Lemma: the potential never increases")[paper] is Tone.GOOD


@pytest.mark.heavy
def test_cell_with_few_seeds_weakens_and_supports_nothing(spark: SparkSession) -> None:
    cells = {"A05": SEEDS_MIN, "A06": SEEDS_MIN - 1}
    rows = [healed(8, 5, seed=it, adversary=code) for code, n in cells.items() for it in range(n)]
    tones = []
    for late in ([], [healed(8, None, seed=99, adversary="A07")]):
        given = [*rows, *late]
        rounds = [row for one in given for row in seen(one["run_id"], [0, 5])]
        judged = judge(prepared(frame(spark, RUNS, given), frame(spark, ROUNDS, rounds)).cache())
        (one,) = [it for it in judged if it.statement.title == "Theorem Network Convergence"]
        tones.append((one.verdicts[Mode.FAST].tone, one.verdicts[Mode.FAST].sample))
    assert tones[0] == (Tone.GOOD, "20 runs, n = 8")
    assert tones[1][0] is Tone.OPEN


def test_small_matrix_has_enough_seeds_in_every_cell_within_the_model() -> None:
    """Cells with faults of messages, churn or a missing rule are outside the hypotheses."""
    cells: dict[tuple[object, ...], set[int]] = {}
    for it in read_matrix(ROOT / "scenarios" / "lab-small.toml").runs:
        if not (it.loss or it.duplicate or it.churn or it.without):
            cell = tuple(getattr(it, name) for name in SAME_BUT_SEED)
            cells.setdefault(cell, set()).add(it.seed)
    assert [cell for cell, seeds in cells.items() if len(seeds) < SEEDS_MIN] == []


def test_small_matrix_takes_ten_minutes_on_two_cores_by_the_estimate() -> None:
    runs = read_matrix(ROOT / "scenarios" / "lab-small.toml").runs
    assert sum(map(estimated_s, runs)) <= 2 * 600


@pytest.mark.heavy
def test_ring_that_loses_legitimacy_refutes_closure(spark: SparkSession) -> None:
    kept, lost = healed(8, 5, seed=0), healed(8, 5, seed=1)
    later = healed(8, 5, seed=2, adversary="A20")
    rounds = [*seen(kept["run_id"], [0, 5, 5]), *seen(lost["run_id"], [0, 5, 3, 5], strict_from=3)]
    runs = frame(spark, RUNS, [kept, lost, later, run("topology", 8)])
    judged = judge(prepared(runs, frame(spark, ROUNDS, rounds)).cache(), seeds_min=1)
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


@pytest.mark.heavy
def test_runs_outside_the_hypotheses_have_no_verdict(spark: SparkSession) -> None:
    rows = [
        healed(8, 5, mode="paper"),
        healed(8, None, mode="paper", seed=1, start_crashed=True),
        livelock(0, start_connected=False),
    ]
    rounds = [row for one in rows for row in seen(one["run_id"], [0, 5])]
    judged = judge(
        prepared(frame(spark, RUNS, rows), frame(spark, ROUNDS, rounds)).cache(), seeds_min=1
    )
    (one,) = [it for it in judged if it.statement.title == "Theorem Network Convergence"]
    assert one.verdicts[Mode.PAPER].tone is Tone.GOOD
    outside = one.outside[Mode.PAPER]
    assert (outside.tone, outside.censored) == (Tone.NONE, 1)
    assert outside.sample == "1 run and 1 in lockstep, n = 8"
