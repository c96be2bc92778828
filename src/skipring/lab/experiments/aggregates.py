"""Aggregates of the runs of a lab: hypotheses, findings of each run, groups of runs.

Functions from DataFrames to DataFrames take conditions and values in SQL, so a table of them is
data; only ``groups`` collects rows, already grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from skipring.core.config import Mode
from skipring.lab.experiments.lemmas import LAYERS
from skipring.lab.experiments.statistics import BoundSample

# --- runs ------------------------------------------------------------------------------

At: TypeAlias = Mapping[str, str | int | float]

# Parameters that are equal in runs that differ only in seed, mode and rules.
CELL: Final = ("kind", "n", "adversary", "scheduler", "loss", "duplicate", "churn", "publications")
# Parameters that are equal in runs that differ only in the seed.
SAME_BUT_SEED: Final = (*CELL, "mode", "without", "spread")

IN_THE_MODEL: Final = "loss = 0 AND duplicate = 0 AND churn = 0 AND without = ''"
HEALING: Final = "kind = 'converge'"
LIVELOCK: Final = "kind = 'livelock'"


# Initial states, sizes and schedulers with runs in all modes of the matrix but deterministic.
COMMON: Final = "is_common"


class Group(Struct, frozen=True):
    """Runs with common parameters, and their values."""

    at: At
    sample: BoundSample


# --- a run in one row ------------------------------------------------------------------


def prepared(runs: DataFrame, rounds: DataFrame) -> DataFrame:
    """Return the runs without an error, each with the findings of its rounds and its cell."""
    done = runs.filter("error IS NULL").withColumns(
        {
            "rounds": F.expr("IF(converged, greatest(rounds_strict, rounds_publications), NULL)"),
            "seeds": F.size(F.collect_set("seed").over(Window.partitionBy(*SAME_BUT_SEED))),
            "cycle_length": F.expr("measures['cycle_length']"),
            "messages_per_node": F.expr("messages / n"),
            "requests_per_node": F.expr("supervisor_requests / n"),
            "levels": F.expr("greatest(1, cast(ceil(log2(n)) AS int))"),
        }
    )
    compared = done.filter(f"{HEALING} AND {IN_THE_MODEL} AND mode <> '{Mode.DETERMINISTIC}'")
    common = on_common_ground(compared, "mode")
    flagged = common.select("run_id", F.lit(True).alias("is_common"))
    return (
        done.join(history(rounds), "run_id", "left")
        .join(flagged, "run_id", "left")
        .fillna(False, "is_common")
        .withColumn(
            "watched",
            F.expr("coalesce(rounds_strict, IF(message_limit, last_round, max_rounds))"),
        )
    )


def history(rounds: DataFrame) -> DataFrame:
    """Return per run: layers at the end, the round since which each held, and losses."""
    run = Window.partitionBy("run_id")
    seen = rounds.withColumns(
        {name: F.min(F.when(F.col(name[6:]), F.col("round"))).over(run) for name in _FIRST}
    )
    layers_end = F.max_by("layers", "round")
    return seen.groupBy("run_id").agg(
        layers_end.alias("layers_end"),
        *(_since(number).alias(f"since_{layer}") for number, layer in enumerate(LAYERS, 1)),
        *(_first(number).alias(f"first_{layer}") for number, layer in enumerate(LAYERS, 1)),
        F.max(F.when(~F.col("database_valid"), F.col("round"))).alias("database_invalid"),
        F.max("round").alias("last_round"),
        *(_is_lost(first).alias(f"lost_{first[6:]}") for first in _FIRST),
        F.coalesce(
            F.max(F.when(~F.col("explicit"), F.col("round"))) > F.first("first_strict"),
            F.lit(False),
        ).alias("lost_after_strict"),
        F.first("first_explicit").alias("first_explicit"),
        F.first("first_strict").alias("first_strict"),
        F.min(F.when(F.col("round") > F.col("first_explicit"), F.col("layers"))).alias(
            "layers_after"
        ),
        F.max("in_flight").alias("in_flight_peak"),
    )


_FIRST: Final = ("first_explicit", "first_strict", "first_publications")


def _since(layers: int) -> Column:
    """Return the round since which a number of layers hold; null if they do not at the end."""
    last_bad = F.max(F.when(F.col("layers") < layers, F.col("round")))
    held = F.max_by("layers", "round") >= layers
    return F.when(held, F.coalesce(last_bad + 1, F.min("round")))


def _first(layers: int) -> Column:
    """Return the first round in which a number of layers hold."""
    return F.min(F.when(F.col("layers") >= layers, F.col("round")))


def _is_lost(first: str) -> Column:
    """Return a column: True if a condition held in a round and not in a later one."""
    wrong = F.max(F.when(~F.col(first.removeprefix("first_")), F.col("round")))
    return F.coalesce(wrong > F.first(first), F.lit(False))


# --- runs side by side -----------------------------------------------------------------


def on_common_ground(runs: DataFrame, what: str) -> DataFrame:
    """Return the runs of the cells that have runs with every value of ``what``."""
    values = runs.select(F.count_distinct(what).alias("all_values"))
    tried = runs.groupBy(*CELL).agg(F.count_distinct(what).alias("tried"))
    complete = tried.join(F.broadcast(values), F.col("tried") == F.col("all_values"), "left_semi")
    return runs.join(complete, [*CELL], "left_semi")


def beside_all_rules(runs: DataFrame) -> DataFrame:
    """Return runs with rules switched off, each paired with the same run with all rules."""
    same = [*CELL, "mode", "spread", "seed"]
    whole = runs.filter("without = ''").select(
        *same, F.col("rounds").alias("rounds_all"), F.col("converged").alias("converged_all")
    )
    # A run that was legitimate at its start counts as one round, not zero. A run that never became
    # legitimate has no ratio; greatest would ignore its null.
    ratio = F.expr("IF(rounds IS NULL, NULL, greatest(rounds, 1) / greatest(rounds_all, 1))")
    return (
        runs.filter("without <> ''")
        .join(whole.dropDuplicates(same), same)
        .withColumn("ratio", F.when(F.col("converged_all"), ratio))
    )


# --- groups ----------------------------------------------------------------------------


def samples(runs: DataFrame, by: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Return per group the number of runs, and the runs' values."""
    return runs.groupBy(*by).agg(
        F.count("*").cast("int").alias("runs"),
        *(
            F.collect_list(F.expr(value).cast("double")).alias(f"values_{index}")
            for index, value in enumerate(values)
        ),
    )


def ends(runs: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return per group the rounds until each run was strictly legitimate or ended at its limit."""
    end = F.struct(F.col("watched").cast("double"), F.col("rounds_strict").isNotNull())
    return runs.groupBy(*by).agg(F.collect_list(end).alias("ends"))


def groups(runs: DataFrame, by: Sequence[str], value: str) -> list[Group]:
    """Return the groups in order, each with its sample of a value."""
    (found,) = groups_of_each(runs, by, [value])
    return found


def groups_of_each(
    runs: DataFrame, by: Sequence[str], values: Sequence[str]
) -> tuple[list[Group], ...]:
    """Return the groups in order for each of several values, with one query."""
    rows = sorted(
        samples(runs, by, values).collect(), key=lambda row: tuple(row[name] for name in by)
    )
    return tuple(
        [
            Group(
                {name: row[name] for name in by},
                BoundSample.of(row[f"values_{index}"], row["runs"]),
            )
            for row in rows
        ]
        for index in range(len(values))
    )


def together(parts: Iterable[Group]) -> BoundSample:
    """Return one sample of several groups."""
    return BoundSample(tuple(sorted(value for part in parts for value in part.sample.values)))
