"""Aggregates of runs: findings and groups of handmade rows."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from skipring.lab.experiments.aggregates import (
    beside_all_rules,
    ends,
    groups,
    on_common_ground,
    prepared,
)
from skipring.lab.experiments.results import ROUNDS, RUNS
from skipring.lab.experiments.statistics import BoundSample
from tests.lab.experiments.lab_rows import frame, healed, run, seen

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
def test_first_round_of_a_layer_counts_although_the_layer_is_lost_again(runs: DataFrame) -> None:
    lost = of_seed(runs, 1)
    assert [lost[f"first_L{layer}"] for layer in (1, 4)] == [1, 1]
    assert lost["since_L1"] == 5
    assert lost["database_invalid"] == 4


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
