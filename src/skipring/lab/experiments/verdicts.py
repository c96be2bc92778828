"""Verdicts on the theorems, lemmas, corollaries and claims of the paper, from runs of a matrix.

The table is in ``statements``. A statement has a measure: the relevant runs and what they must
show, in SQL over ``aggregates.prepared``. The page shows the known result of docs/paper-map.md next
to the verdict: runs can refute a statement or make it likely, but not prove it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2
from typing import Final, TypeAlias

from msgspec import Struct
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import BoundSample, share_bounds, slope_bounds
from skipring.lab.experiments.statements import (
    STATEMENTS,
    Constant,
    Share,
    Statement,
    Unmeasured,
    UpperBound,
)
from skipring.report.tables import Cell, Tone, number, percent

NOT_MEASURED: Final = Cell("not measured by this matrix", Tone.NONE)
# Guess: growth by less than a tenth from the smallest to the largest n counts as constant.
GROWTH_MAX: Final = 0.1

# The values by n of a statement's runs.
ByN: TypeAlias = Mapping[int, BoundSample]


class Judged(Struct, frozen=True):
    """Statement and the verdict of the runs, by mode; a single one if it has no modes."""

    statement: Statement
    verdicts: Mapping[Mode, Cell]

    @property
    def is_measured(self) -> bool:
        """Return True if a run is relevant to the statement."""
        return any(verdict.tone is not Tone.NONE for verdict in self.verdicts.values())


def judge(runs: DataFrame) -> list[Judged]:
    """Judge every statement by the prepared runs."""
    counts = {row["mode"]: row for row in _counts(runs).collect()}
    values = _collected(_values(runs).collect())
    return [
        Judged(
            statement,
            {mode: _verdict(index, statement, mode, counts, values) for mode in statement.modes},
        )
        for index, statement in enumerate(STATEMENTS)
    ]


def _verdict(
    index: int,
    statement: Statement,
    mode: Mode,
    counts: Mapping[str, Row],
    values: Mapping[tuple[int, str], ByN],
) -> Cell:
    match statement.measure:
        case Share(is_more=is_more) if mode in counts:
            row = counts[mode]
            return share_verdict(row[f"good_{index}"], row[f"runs_{index}"], is_more=is_more)
        case UpperBound(limit=limit):
            return below_verdict(values.get((index, mode), {}), limit)
        case Constant():
            return constant_verdict(values.get((index, mode), {}))
        case Unmeasured(file=file):
            return Cell(f"not measured by the lab; shown by tests in {file}", Tone.NONE)
        case _:
            return NOT_MEASURED


# --- two jobs for all statements -------------------------------------------------------


def _counts(runs: DataFrame) -> DataFrame:
    """Return per mode and share the number of relevant runs, and of those that show it."""
    columns = []
    for index, statement in enumerate(STATEMENTS):
        if isinstance(statement.measure, Share):
            among, shows = statement.measure.among, statement.measure.shows
            columns += [
                F.count_if(F.expr(among)).alias(f"runs_{index}"),
                F.count_if(F.expr(f"({among}) AND ({shows})")).alias(f"good_{index}"),
            ]
    return runs.groupBy("mode").agg(*columns)


def _values(runs: DataFrame) -> DataFrame:
    """Return per statement, mode and n the values of the relevant runs."""
    found = [
        F.struct(
            F.lit(index).alias("statement"),
            F.expr(f"IF({it.measure.among}, cast({it.measure.value} AS double), NULL)").alias("it"),
        )
        for index, it in enumerate(STATEMENTS)
        if isinstance(it.measure, UpperBound | Constant)
    ]
    one = runs.select("mode", "n", F.explode(F.array(*found)).alias("found"))
    return (
        one.select("mode", "n", "found.*")
        .filter("it IS NOT NULL")
        .groupBy("statement", "mode", "n")
        .agg(F.sort_array(F.collect_list("it")).alias("values"))
    )


def _collected(rows: Iterable[Row]) -> dict[tuple[int, str], dict[int, BoundSample]]:
    collected: dict[tuple[int, str], dict[int, BoundSample]] = {}
    for row in sorted(rows, key=lambda row: int(row["n"])):
        sample = BoundSample(tuple(row["values"]))
        collected.setdefault((row["statement"], row["mode"]), {})[row["n"]] = sample
    return collected


# --- verdicts --------------------------------------------------------------------------


def share_verdict(good: int, runs: int, *, is_more: bool = False) -> Cell:
    """Return the verdict on a statement that should hold in all runs, from the share of good runs.

    If the measure is stronger than the statement, runs that fail do not refute the statement.
    """
    if runs == 0:
        return NOT_MEASURED
    bounds = share_bounds(good, runs)
    if good == runs:
        text = f"holds in all {runs:,} runs (true share ≥ {percent(bounds.low)} with 95 %)"
        return Cell(text, Tone.GOOD)
    if is_more:
        return Cell(f"open: {runs - good:,} of {runs:,} runs fail in more than this", Tone.OPEN)
    interval = f"true share {percent(bounds.low)} to {percent(bounds.high)} with 95 %"
    return Cell(f"false: {_counterexamples(runs - good)} of {runs:,} ({interval})", Tone.BAD)


def _counterexamples(count: int) -> str:
    return f"{count:,} counterexample{'s' if count != 1 else ''}"


def below_verdict(values: ByN, limit: float) -> Cell:
    """Return the verdict on a mean that should stay below a limit, from the means at every n."""
    if not values:
        return NOT_MEASURED
    means = {n: sample.mean for n, sample in values.items()}
    n = max(means, key=lambda n: means[n].value)
    worst = means[n]
    runs = sum(sample.runs for sample in values.values())
    measured = f"at most {number(worst.value)} ({number(worst.low)} to {number(worst.high)})"
    where = f"on average, at n = {n}, in {runs:,} runs"
    if worst.low >= limit:
        return Cell(f"false: {measured} {where}", Tone.BAD)
    if worst.high < limit:
        return Cell(f"holds: {measured} {where}", Tone.GOOD)
    return Cell(f"open: {measured} {where}: the bounds do not decide", Tone.OPEN)


def constant_verdict(values: ByN) -> Cell:
    """Return the verdict on a cost that should not depend on n, from the larger half of all n.

    Small rings are excluded: there a change often informs only members that are informed anyway.
    """
    sizes = sorted(values)[len(values) // 2 - 1 :]
    if len(sizes) < 2:  # noqa: PLR2004  (one alone cannot be compared)
        return NOT_MEASURED
    points = [(log2(n), value) for n in sizes for value in values[n].values]
    slope = slope_bounds(points)
    first, last = values[sizes[0]].mean.value, values[sizes[-1]].mean.value
    text = (
        f"from {number(first)} at n = {sizes[0]} to {number(last)} at n = {sizes[-1]}; with each "
        f"doubling of n {_signed(slope.value)} ({_signed(slope.low)} to {_signed(slope.high)}), "
        f"in {len(points):,} runs"
    )
    allowed = GROWTH_MAX * max(first, last) / log2(sizes[-1] / sizes[0])
    if slope.low > 0 and slope.value > allowed:
        return Cell(f"false: it grows, {text}", Tone.BAD)
    if slope.high <= allowed:
        return Cell(f"holds: {text}", Tone.GOOD)
    return Cell(f"open: {text}: the bounds do not decide", Tone.OPEN)


def _signed(value: float) -> str:
    return f"+{number(value)}" if value >= 0 else number(value)
