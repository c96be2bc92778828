"""Statistics of the runs of a lab, as functions from DataFrames to DataFrames.

Conditions and values are written in SQL, so that a table of them is data. Nothing here reads or
writes; ``groups`` alone brings something to the driver, and only what is grouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from skipring.lab.experiments.bounds import BoundSample
from skipring.lab.experiments.samples import LAYERS
from skipring.world.adversaries.catalog import ADVERSARIES

At: TypeAlias = Mapping[str, str | int | float]

# What is equal in runs that differ in nothing but chance, mode and rules.
CELL: Final = ("kind", "n", "adversary", "scheduler", "loss", "duplicate", "churn", "publications")

# The paper's model: channels lose nothing, no member comes or goes, and no rule is switched off.
IN_THE_MODEL: Final = "loss = 0 AND duplicate = 0 AND churn = 0 AND without = ''"
HEALING: Final = "kind = 'converge'"
_CRASH_LATER: Final = tuple(code for code, it in ADVERSARIES.items() if it.crash_rounds)
# What was legitimate can only be lost by the protocol where nothing happens from outside.
UNDISTURBED: Final = f"{HEALING} AND {IN_THE_MODEL} AND NOT crashes_later"


# Starts, sizes and schedulers that all modes of the matrix were tried with.
COMMON: Final = "is_common"


class Group(Struct, frozen=True):
    """Runs that have something in common, and what they came to."""

    at: At
    sample: BoundSample


# --- a run in one row ------------------------------------------------------------------


def prepared(runs: DataFrame, rounds: DataFrame) -> DataFrame:
    """The runs that went without an error, each with what its rounds and its likes show."""
    done = runs.filter("error IS NULL").withColumns(
        {
            "rounds": F.expr("IF(converged, greatest(rounds_strict, rounds_publications), NULL)"),
            "watched": F.expr("coalesce(rounds_strict, max_rounds)"),
            "messages_per_node": F.expr("messages / n"),
            "requests_per_node": F.expr("supervisor_requests / n"),
            "levels": F.expr("greatest(1, cast(ceil(log2(n)) AS int))"),
            "crashes_later": F.col("adversary").isin(*_CRASH_LATER),
        }
    )
    common = on_common_ground(done.filter(f"{HEALING} AND {IN_THE_MODEL}"), "mode")
    flagged = common.select("run_id", F.lit(True).alias("is_common"))
    return (
        done.join(history(rounds), "run_id", "left")
        .join(flagged, "run_id", "left")
        .fillna(False, "is_common")
    )


def history(rounds: DataFrame) -> DataFrame:
    """Per run: the layers at its end and since when each held, and what was right and got lost."""
    run = Window.partitionBy("run_id")
    seen = rounds.withColumns(
        {name: F.min(F.when(F.col(name[6:]), F.col("round"))).over(run) for name in _FIRST}
    )
    layers_end = F.max_by("layers", "round")
    return seen.groupBy("run_id").agg(
        layers_end.alias("layers_end"),
        *(_since(number).alias(f"since_{layer}") for number, layer in enumerate(LAYERS, 1)),
        *(_is_lost(first).alias(f"lost_{first[6:]}") for first in _FIRST),
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


def _is_lost(first: str) -> Column:
    """True if something that was right in one round was wrong in a later one."""
    wrong = F.max(F.when(~F.col(first.removeprefix("first_")), F.col("round")))
    return F.coalesce(wrong > F.first(first), F.lit(False))


# --- runs side by side -----------------------------------------------------------------


def on_common_ground(runs: DataFrame, what: str) -> DataFrame:
    """The runs of cells in which every value of ``what`` was tried, so that all had equal work."""
    values = runs.select(F.count_distinct(what).alias("all_values"))
    tried = runs.groupBy(*CELL).agg(F.count_distinct(what).alias("tried"))
    complete = tried.join(F.broadcast(values), F.col("tried") == F.col("all_values"), "left_semi")
    return runs.join(complete, [*CELL], "left_semi")


def beside_all_rules(runs: DataFrame) -> DataFrame:
    """Return runs with rules switched off, each beside the run that differs in nothing else."""
    same = [*CELL, "mode", "spread", "seed"]
    whole = runs.filter("without = ''").select(
        *same, F.col("rounds").alias("rounds_all"), F.col("converged").alias("converged_all")
    )
    # A run that was through from the start took less than a round, not none. A run that was never
    # through has no ratio; greatest would leave out its null.
    ratio = F.expr("IF(rounds IS NULL, NULL, greatest(rounds, 1) / greatest(rounds_all, 1))")
    return (
        runs.filter("without <> ''")
        .join(whole.dropDuplicates(same), same)
        .withColumn("ratio", F.when(F.col("converged_all"), ratio))
    )


# --- groups ----------------------------------------------------------------------------


def samples(runs: DataFrame, by: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Per group: how many runs there are, and of each value those that have one."""
    return runs.groupBy(*by).agg(
        F.count("*").cast("int").alias("runs"),
        *(
            F.collect_list(F.expr(value).cast("double")).alias(f"values_{index}")
            for index, value in enumerate(values)
        ),
    )


def ends(runs: DataFrame, by: Sequence[str]) -> DataFrame:
    """Per group: after how many rounds each run was strictly legitimate, or given up."""
    end = F.struct(F.col("watched").cast("double"), F.col("rounds_strict").isNotNull())
    return runs.groupBy(*by).agg(F.collect_list(end).alias("ends"))


def groups(runs: DataFrame, by: Sequence[str], value: str) -> list[Group]:
    """The groups in order, each with its sample of a value."""
    (found,) = groups_of_each(runs, by, [value])
    return found


def groups_of_each(
    runs: DataFrame, by: Sequence[str], values: Sequence[str]
) -> tuple[list[Group], ...]:
    """The same of several values in one go: the groups in order, once for each value."""
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
    """One sample of several groups."""
    return BoundSample(tuple(sorted(value for part in parts for value in part.sample.values)))
