"""Aggregates of runs: bounds compared with statistical tables, groups of handmade rows."""

from __future__ import annotations

from math import comb, inf, isnan, sqrt

import pytest
from pyspark.sql import DataFrame, SparkSession

from skipring.lab.experiments.aggregates import (
    BoundSample,
    beside_all_rules,
    beta_share,
    ends,
    groups,
    mean_bounds,
    on_common_ground,
    prepared,
    share_bounds,
    survival,
)
from skipring.lab.experiments.results import ROUNDS, RUNS
from tests.lab.experiments.lab_rows import frame, healed, run, seen


@pytest.mark.parametrize(
    ("good", "runs", "low", "high"),
    [
        (10, 10, 0.6915, 1.0),
        (0, 10, 0.0, 0.3085),
        (3, 20, 0.0321, 0.3789),
        (50, 100, 0.3983, 0.6017),
        (999, 1000, 0.9944, 0.99997),
    ],
)
def test_share_has_the_bounds_of_clopper_and_pearson(
    good: int, runs: int, low: float, high: float
) -> None:
    bounds = share_bounds(good, runs)
    assert [bounds.low, bounds.high] == pytest.approx([low, high], abs=1e-4)


@pytest.mark.parametrize("runs", [1, 7, 30, 400])
def test_beta_distribution_equals_the_binomial_tail(runs: int) -> None:
    for good in range(0, runs, max(1, runs // 5)):
        for share in (0.05, 0.5, 0.93):
            tail = sum(
                comb(runs, k) * share**k * (1 - share) ** (runs - k)
                for k in range(good + 1, runs + 1)
            )
            assert beta_share(good + 1, runs - good, share) == pytest.approx(tail, abs=1e-9)


@pytest.mark.parametrize(
    ("count", "student"), [(2, 12.7062), (6, 2.5706), (31, 2.0423), (1001, 1.9623)]
)
def test_mean_has_the_bounds_of_student(count: int, student: float) -> None:
    values = [float(number % 2) for number in range(count)]
    mean = sum(values) / count
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    bounds = mean_bounds(values)
    assert bounds.high - bounds.value == pytest.approx(student * deviation / sqrt(count), rel=1e-4)
    assert bounds.value - bounds.low == pytest.approx(bounds.high - bounds.value)


def test_median_is_bounded_by_order_statistics() -> None:
    # Six values: both ends leave out 2 * 1/64 = 3.1 %; with five it would be 6.2 %.
    six = BoundSample.of([6, 5, 4, 3, 2, 1], 6).median
    assert (six.value, six.low, six.high) == (3, 1, 6)
    assert isnan(BoundSample.of([1, 2, 3, 4, 5], 5).median.low)
    hundred = BoundSample.of(list(range(1, 101)), 100).median
    assert (hundred.value, hundred.low, hundred.high) == (50, 40, 61)


def test_runs_without_a_value_count_as_infinite() -> None:
    sample = BoundSample.of([4.0, 2.0], runs=5)
    assert sample.values == (2.0, 4.0, inf, inf, inf)
    assert sample.median.value == inf
    assert sample.mean.value == inf
    assert sample.finite == (2.0, 4.0)


@pytest.mark.parametrize(
    ("ends", "shares"),
    [
        ([(1, True), (2, True), (2, True), (4, True)], [(0, 1), (1, 0.75), (2, 0.25), (4, 0)]),
        # 3/4 are left after round 1; one is censored; of the two others one ends in round 3.
        ([(1, True), (2, False), (3, True), (9, False)], [(0, 1), (1, 0.75), (3, 0.375)]),
    ],
    ids=["all ended", "censored"],
)
def test_survival_counts_a_run_for_as_long_as_it_was_observed(
    ends: list[tuple[float, bool]], shares: list[tuple[float, float]]
) -> None:
    *curve, last = survival(ends)
    assert [(step.rounds, step.share.value) for step in curve] == shares
    assert (last.rounds, last.share.value) == (ends[-1][0], shares[-1][1])


# -- runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(spark: SparkSession) -> DataFrame:
    """Return runs that lose legitimacy, never reach it, or fail."""
    rows = [
        healed(8, 3, seed=0),
        healed(8, 5, seed=1),
        healed(8, None, seed=2, mode="paper"),
        healed(16, 7, seed=0),
        healed(8, 9, seed=0, without="R9"),
        healed(8, None, seed=1, without="R9"),
        healed(8, 1, seed=3, error="ValueError: broken"),
        run("topology", 8, converged=True),
    ]
    rounds = [
        *seen(rows[0]["run_id"], [1, 3, 2, 5, 5], strict_from=3),
        *seen(rows[1]["run_id"], [0, 5, 4, 5, 0, 5], strict_from=5),
        *seen(rows[2]["run_id"], [1, 2, 3, 1]),
    ]
    made = prepared(frame(spark, RUNS, rows), frame(spark, ROUNDS, rounds)).cache()
    made.count()
    return made


def of_seed(runs: DataFrame, seed: int) -> dict[str, object]:
    (row,) = runs.filter(
        f"kind = 'converge' AND n = 8 AND without = '' AND seed = {seed}"
    ).collect()
    return row.asDict()


@pytest.mark.heavy  # Spark has to start
def test_failed_run_is_excluded_from_every_aggregate(runs: DataFrame) -> None:
    assert runs.count() == 7
    assert runs.filter("seed = 3").count() == 0


@pytest.mark.heavy  # Spark has to start
def test_layer_counts_as_right_from_its_last_wrong_round_on(runs: DataFrame) -> None:
    first = of_seed(runs, 0)
    found = [first[f"since_L{layer}"] for layer in range(5)]
    assert found == [0, 1, 3, 3, 3]
    assert first["layers_end"] == 5


@pytest.mark.heavy  # Spark has to start
def test_layer_that_is_wrong_at_the_end_has_no_first_right_round(runs: DataFrame) -> None:
    last = of_seed(runs, 2)
    assert last["layers_end"] == 1
    assert [last[f"since_L{layer}"] for layer in range(5)] == [0, None, None, None, None]


@pytest.mark.heavy  # Spark has to start
def test_state_that_stops_being_legitimate_is_lost(runs: DataFrame) -> None:
    kept, lost, never = (of_seed(runs, seed) for seed in range(3))
    assert (kept["lost_explicit"], lost["lost_explicit"], never["lost_explicit"]) == (
        False,
        True,
        False,
    )
    assert (kept["first_explicit"], lost["first_explicit"], never["first_explicit"]) == (3, 1, None)
    assert lost["lost_strict"] is False
    assert (kept["layers_after"], lost["layers_after"]) == (5, 0)


@pytest.mark.heavy  # Spark has to start
def test_values_are_grouped_and_runs_without_a_value_count_as_infinite(runs: DataFrame) -> None:
    found = groups(runs.filter("kind = 'converge' AND without = ''"), ["mode", "n"], "rounds")
    assert [(group.at["mode"], group.at["n"], group.sample) for group in found] == [
        ("fast", 8, BoundSample((3.0, 5.0))),
        ("fast", 16, BoundSample((7.0,))),
        ("paper", 8, BoundSample((float("inf"),))),
    ]


@pytest.mark.heavy  # Spark has to start
def test_run_that_did_not_converge_is_censored_at_its_limit(runs: DataFrame) -> None:
    rows = ends(runs.filter("kind = 'converge' AND n = 8 AND without = ''"), ["mode"]).collect()
    assert {row["mode"]: sorted(tuple(end) for end in row["ends"]) for row in rows} == {
        "fast": [(3.0, True), (5.0, True)],
        "paper": [(100.0, False)],
    }


@pytest.mark.heavy  # Spark has to start
def test_modes_are_compared_in_cells_with_runs_of_all_modes(runs: DataFrame) -> None:
    common = on_common_ground(runs.filter("kind = 'converge' AND without = ''"), "mode")
    assert {(row["mode"], row["n"]) for row in common.collect()} == {("fast", 8), ("paper", 8)}
    assert runs.filter("is_common").count() == 3


@pytest.mark.heavy  # Spark has to start
def test_run_without_a_rule_is_paired_with_the_run_with_all_rules(runs: DataFrame) -> None:
    pairs = beside_all_rules(runs.filter("kind = 'converge'")).collect()
    assert sorted((row["seed"], row["rounds_all"], row["ratio"]) for row in pairs) == [
        (0, 3, 3.0),
        (1, 5, None),
    ]
