"""Aggregates of the runs of a lab: groups of runs, and statistical bounds.

Functions from DataFrames to DataFrames take conditions and values in SQL, so a table of them is
data; only ``groups`` collects rows, already grouped. All bounds are two-sided and hold
with 95 %. Shares: Clopper and Pearson. Means and slopes: Student. Medians: order statistics, which
assume nothing of the distribution. Survival: Kaplan and Meier, with the bounds of Clopper and
Pearson for the number of runs that would show the same share (Peto).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import comb, exp, inf, isfinite, lgamma, log, log1p, nan, sqrt
from typing import Final, TypeAlias

from msgspec import Struct
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from skipring.lab.experiments.trials import LAYERS
from skipring.world.adversaries.catalog import ADVERSARIES

CONFIDENCE: Final = 0.95
_TAIL: Final = (1 - CONFIDENCE) / 2
_BISECTIONS: Final = 50  # error of 2^-50, far below the displayed precision
_EXACT_MEDIANS: Final = 1000  # above this the normal approximation is as good as the exact sum
_Z: Final = 1.959964  # the normal distribution's 97.5 % point


class Bounds(Struct, frozen=True):
    """Estimate and the range of the true value with 95 %; nan if there are too few values."""

    value: float
    low: float
    high: float


# --- distributions ---------------------------------------------------------------------


def beta_share(a: float, b: float, x: float) -> float:
    """Return the beta distribution's share below x (regularized incomplete beta function)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction below converges slowly here
        return 1 - beta_share(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    return front * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function (DLMF 8.17.22)."""
    below = 1.0
    terms = 20 + int(2 * sqrt(a + b))  # Measured: enough for 12 digits up to a + b = 10^6.
    for m in range(terms, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        below = 1 + odd / (1 + even / below)
    return 1 / below


def _solve(rising: Callable[[float], float], goal: float) -> float:
    """Return the point in [0, 1] where a rising function reaches ``goal``."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= goal else (middle, high)
    return (low + high) / 2


def _student(freedom: int) -> float:
    """Return Student's 97.5 % point."""
    share = _solve(lambda x: beta_share(freedom / 2, 0.5, x), 2 * _TAIL)
    return sqrt(freedom * (1 - share) / share)


# --- shares, means, slopes -------------------------------------------------------------


def share_bounds(good: float, runs: float) -> Bounds:
    """Return the true share if ``good`` of ``runs`` were good (Clopper and Pearson)."""
    if runs <= 0:
        return Bounds(nan, 0.0, 1.0)
    bad = runs - good
    low = _solve(lambda x: beta_share(good, bad + 1, x), _TAIL) if good > 0 else 0.0
    high = _solve(lambda x: beta_share(good + 1, bad, x), 1 - _TAIL) if bad > 0 else 1.0
    return Bounds(good / runs, low, high)


def mean_bounds(values: Sequence[float]) -> Bounds:
    """Return the true mean (Student); a single value has no bounds."""
    count = len(values)
    mean = sum(values) / count
    if count == 1:
        return Bounds(mean, nan, nan)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    half = _student(count - 1) * sqrt(variance / count)
    return Bounds(mean, mean - half, mean + half)


def slope_bounds(points: Sequence[tuple[float, float]]) -> Bounds:
    """Return the slope of the straight line that fits best (Student)."""
    count = len(points)
    x_mean, y_mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    if spread == 0 or count < 3:  # noqa: PLR2004  (two points leave no spread)
        return Bounds(nan, nan, nan)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / spread
    rest = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    half = _student(count - 2) * sqrt(rest / (count - 2) / spread)
    return Bounds(slope, slope - half, slope + half)


# --- medians ---------------------------------------------------------------------------


class BoundSample(Struct, frozen=True):
    """Values of some runs in order; inf for runs that never reached one."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], runs: int) -> BoundSample:
        """Return the distribution of ``runs`` runs, of which some have a value."""
        return cls((*sorted(values), *[inf] * (runs - len(values))))

    @property
    def runs(self) -> int:
        """Return the number of runs."""
        return len(self.values)

    @property
    def finite(self) -> tuple[float, ...]:
        """Return the values of the runs that have one."""
        return tuple(value for value in self.values if isfinite(value))

    def quantile(self, share: float) -> float:
        """Return the smallest value that at least this share of the runs did not exceed."""
        return self.values[max(0, -int(-share * self.runs // 1) - 1)]

    @property
    def mean(self) -> Bounds:
        """Return the mean with its bounds; inf if a run never reached a value."""
        whole = len(self.finite) == self.runs
        return mean_bounds(self.values) if whole else Bounds(inf, nan, nan)

    @property
    def median(self) -> Bounds:
        """Return the middle value, and the order statistics around the true median."""
        skipped = _below_median(self.runs)
        if skipped < 0:
            return Bounds(self.quantile(0.5), nan, nan)
        return Bounds(self.quantile(0.5), self.values[skipped], self.values[-1 - skipped])


def _below_median(runs: int) -> int:
    """Return the number of values to omit at either end; -1 if there are too few values."""
    if runs > _EXACT_MEDIANS:
        return int(runs / 2 - _Z * sqrt(runs) / 2) - 1
    tail, skipped = 0.0, -1
    while True:
        tail += comb(runs, skipped + 1) / 2**runs
        if tail > _TAIL:
            return skipped
        skipped += 1


# --- survival --------------------------------------------------------------------------


class Survival(Struct, frozen=True):
    """Share of runs that have not ended after a number of rounds."""

    rounds: float
    share: Bounds


def survival(ends: Sequence[tuple[float, bool]]) -> Iterator[Survival]:
    """Yield Kaplan and Meier's curve of (rounds, has ended); other runs are censored."""
    at_risk = len(ends)
    step = Survival(0.0, Bounds(1.0, share_bounds(at_risk, at_risk).low, 1.0))
    yield step
    for rounds, group in groupby(sorted(ends), key=lambda end: end[0]):
        came = [through for _, through in group]
        if any(came):
            step = Survival(rounds, _survivors(step.share.value, at_risk, sum(came)))
            yield step
        at_risk -= len(came)
    yield Survival(max(rounds for rounds, _ in ends), step.share)


def _survivors(share: float, at_risk: int, came: int) -> Bounds:
    """Return the surviving share after ``came`` of the runs at risk have ended."""
    left = at_risk - came
    share *= left / at_risk
    shown_by = max(left, left / share) if left else at_risk
    bounds = share_bounds(left, shown_by)
    return Bounds(share, bounds.low, bounds.high)


# --- runs ------------------------------------------------------------------------------

At: TypeAlias = Mapping[str, str | int | float]

# Parameters that are equal in runs that differ only in seed, mode and rules.
CELL: Final = ("kind", "n", "adversary", "scheduler", "loss", "duplicate", "churn", "publications")

# The paper's model: channels lose nothing, no member joins or leaves, and no rule is switched off.
IN_THE_MODEL: Final = "loss = 0 AND duplicate = 0 AND churn = 0 AND without = ''"
HEALING: Final = "kind = 'converge'"
_CRASH_LATER: Final = tuple(code for code, it in ADVERSARIES.items() if it.crash_rounds)
# Without outside events, only the protocol can lose a legitimate state.
UNDISTURBED: Final = f"{HEALING} AND {IN_THE_MODEL} AND NOT crashes_later"


# Initial states, sizes and schedulers with runs in all modes of the matrix.
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
    """Return per run: layers at the end, the round since which each held, and losses."""
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
