"""Verdicts on the theorems, lemmas, corollaries and claims of the paper, from runs of a matrix.

The table is in ``statements``. A run counts for a statement only within its hypotheses. A run that
reaches its limit of rounds is censored: it refutes nothing. A statement is refuted by a finite
counterexample (a safety property), by a livelock (a liveness property), or by growth with n (a
constant). Runs can refute a statement or support it, but not prove it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan
from typing import Any, Final, TypeAlias

from msgspec import Struct
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from skipring.core.config import Mode
from skipring.lab.experiments.measures import (
    Always,
    Bounded,
    Eventually,
    Statement,
    Unmeasured,
    UpperBound,
    all_of,
)
from skipring.lab.experiments.statements import STATEMENTS
from skipring.lab.experiments.statistics import (
    AIC_DECIDES,
    BOUNDED,
    MODELS,
    BoundSample,
    Model,
    fitted,
    share_bounds,
)
from skipring.report.tables import Tone, number, percent

# The values by n of a statement's runs.
ByN: TypeAlias = Mapping[int, BoundSample]

# Support needs this many seeds in a cell, which is the runs that differ in the seed only. With 20
# good runs the true share is at least 83 % with 95 %.
SEEDS_MIN: Final = 20

# Guess: growth of less than a tenth over the measured sizes is not worth a refutation.
GROWTH_MIN: Final = 0.1


class Verdict(Struct, frozen=True, kw_only=True):
    """Result of the runs for one statement in one mode, and its reason."""

    tone: Tone
    word: str
    reason: str
    sample: str = "–"  # noqa: RUF001  (as it is printed)
    limit: str = "–"  # noqa: RUF001  (as it is printed)
    censored: int = 0
    at_message_limit: int = 0  # of the censored runs


NOT_MEASURED: Final = Verdict(
    tone=Tone.NONE, word="not measured", reason="this matrix has no such runs"
)


class Judged(Struct, frozen=True):
    """Statement, and its verdicts inside and outside its hypotheses, by mode."""

    statement: Statement
    verdicts: Mapping[Mode, Verdict]
    outside: Mapping[Mode, Verdict]


TOO_FEW: Final = Verdict(
    tone=Tone.OPEN, word="too few runs", reason="no cell of the matrix has enough seeds"
)


def judge(runs: DataFrame, seeds_min: int = SEEDS_MIN) -> list[Judged]:
    """Judge every statement by the prepared runs; smaller cells support no statement."""
    counts = {row["mode"]: row for row in _counts(runs, seeds_min).collect()}
    values = _collected(_values(runs, seeds_min).collect())
    return [
        Judged(
            statement,
            {mode: _verdict(index, statement, mode, counts, values) for mode in statement.modes},
            {
                mode: found
                for mode in statement.modes
                if (found := _outside(index, statement, counts.get(mode))) is not None
            },
        )
        for index, statement in enumerate(STATEMENTS)
    ]


def _verdict(
    index: int,
    statement: Statement,
    mode: Mode,
    counts: Mapping[str, Row],
    values: Mapping[tuple[int, str], ByN],
) -> Verdict:
    by_n = values.get((index, mode))
    match statement.measure:
        case Always() if mode in counts:
            return always_verdict(Runs.of(counts[mode][f"in_{index}"]))
        case Eventually() if mode in counts:
            return eventually_verdict(Runs.of(counts[mode][f"in_{index}"]))
        case UpperBound(limit=limit) if by_n is not None:
            return below_verdict(by_n, limit)
        case Bounded(limit=limit) if by_n is not None:
            return bounded_verdict(by_n, limit)
        case Unmeasured(file=file):
            return Verdict(tone=Tone.NONE, word="by tests", reason=f"shown by tests in {file}")
        case _:
            return NOT_MEASURED


def _outside(index: int, statement: Statement, row: Row | None) -> Verdict | None:
    """Return the result of the runs outside the hypotheses, which decide nothing."""
    if row is None or not isinstance(statement.measure, Always | Eventually):
        return None
    runs = Runs.of(row[f"out_{index}"])
    if runs.count == 0:
        return None
    good = f"{len(runs.finite):,} of {runs.count:,} runs show it"
    return Verdict(
        tone=Tone.NONE,
        word="outside",
        reason=good,
        sample=runs.sample,
        limit=runs.limit,
        censored=runs.count - len(runs.finite) if isinstance(statement.measure, Eventually) else 0,
        at_message_limit=runs.at_message_limit,
    )


# --- two jobs for all statements -------------------------------------------------------


class Runs(Struct, frozen=True):
    """Runs of a statement in one mode: their results, sizes, and livelocks."""

    took: tuple[float, ...]  # rounds until each run showed the property; inf if it did not
    sizes: tuple[int, ...]
    starts: int
    rounds_max: int
    lockstep: int  # lockstep computations, and of these the livelocks that refute
    livelocks: int
    open: int  # lockstep computations that ended at their limit
    at_message_limit: int  # of all that ended at a limit, those at the message limit
    small: int  # runs left out: they show the property, but their cells have too few seeds
    example: str | None

    @classmethod
    def of(cls, found: Any) -> Runs:  # noqa: ANN401  (a row of Spark)
        """Return the runs in a row."""
        return cls(
            tuple(sorted(inf if took is None else took for took in found["took"])),
            tuple(sorted(found["sizes"])),
            found["starts"],
            found["rounds_max"] or 0,
            found["lockstep"],
            found["livelocks"],
            found["open"],
            found["at_message_limit"],
            found["small"],
            found["example"],
        )

    @property
    def count(self) -> int:
        """Return the number of runs, without lockstep computations."""
        return len(self.took)

    @property
    def finite(self) -> tuple[float, ...]:
        """Return the rounds of the runs that show the property."""
        return tuple(took for took in self.took if isfinite(took))

    @property
    def sample(self) -> str:
        """Return the number of runs, starts and lockstep computations, and the sizes."""
        parts = [f"{self.count:,} run{'s' if self.count != 1 else ''}"] if self.count else []
        parts += [f"{self.lockstep:,} in lockstep"] if self.lockstep else []
        starts = f" from {self.starts} adversaries" if self.starts > 1 else ""
        sizes = f", n = {self.sizes[0]}" if self.sizes else ""
        if len(self.sizes) > 1:
            sizes += f" to {self.sizes[-1]:,}"
        return " and ".join(parts) + starts + sizes

    @property
    def limit(self) -> str:
        """Return the largest limit of rounds."""
        return f"{self.rounds_max:,}" if self.rounds_max else "–"  # noqa: RUF001  (as it is printed)


def _counts(runs: DataFrame, seeds_min: int) -> DataFrame:
    """Return per mode the runs of every property, inside and outside its hypotheses."""
    columns = []
    for index, statement in enumerate(STATEMENTS):
        measure = statement.measure
        if isinstance(measure, Always | Eventually):
            inside = all_of(statement.hypotheses)
            columns += [
                _found(measure, inside, seeds_min).alias(f"in_{index}"),
                _found(measure, f"NOT ({inside})", 0).alias(f"out_{index}"),
            ]
    return runs.groupBy("mode").agg(*columns)


_NAME: Final = "concat_ws(', ', nullif(adversary, ''), concat('n = ', n), concat('seed ', seed))"


def _found(measure: Always | Eventually, within: str, seeds_min: int) -> Column:
    """Return a struct with the runs of a property.

    A run of a small cell counts only if it does not show the property.
    """
    stopped = "false"
    if isinstance(measure, Always):
        among, took = f"({measure.among}) AND ({within})", f"IF({measure.shows}, 0, NULL)"
        refutes, lockstep, open_at_limit = f"({among}) AND NOT ({measure.shows})", "false", "false"
        example = _NAME
    else:
        among = f"({measure.among}) AND ({within}) AND ({measure.began}) IS NOT NULL"
        took = f"greatest(({measure.reached}) - ({measure.began}), 0)"
        took = f"IF(({measure.reached}) IS NULL, NULL, {took})"
        lockstep = f"({among}) AND kind = 'livelock'"
        refutes = f"{lockstep} AND cycle_length IS NOT NULL AND ({measure.never})"
        open_at_limit = f"{lockstep} AND cycle_length IS NULL AND ({measure.reached}) IS NULL"
        example = (
            f"concat({_NAME}, ': the states of rounds ', cast(measures['cycle_start'] AS int), "
            "' to ', cast(measures['cycle_start'] + cycle_length - 1 AS int), ' repeat')"
        )
        among = f"({among}) AND kind <> 'livelock'"
        stopped = f"message_limit AND (({among}) OR ({lockstep})) AND ({measure.reached}) IS NULL"
    small = f"({among}) AND seeds < {seeds_min} AND ({took}) IS NOT NULL"
    among = f"({among}) AND NOT ({small})"
    either = f"({among}) OR ({lockstep})"
    texts = {
        "took": f"collect_list(IF({among}, coalesce(cast({took} AS double), double('inf')), NULL))",
        "sizes": f"collect_set(IF({either}, n, NULL))",
        "starts": f"count(DISTINCT IF(({either}) AND adversary <> '', adversary, NULL))",
        "rounds_max": f"max(IF({among}, max_rounds, NULL))",
        "lockstep": f"count_if({lockstep})",
        "livelocks": f"count_if({refutes})",
        "open": f"count_if({open_at_limit})",
        "at_message_limit": f"count_if({stopped})",
        "small": f"count_if({small})",
        "example": f"min_by({example}, struct(n, adversary, seed)) FILTER (WHERE {refutes})",
    }
    return F.struct(*(F.expr(text).alias(name) for name, text in texts.items()))


def _values(runs: DataFrame, seeds_min: int) -> DataFrame:
    """Return per statement, mode and n the values of the relevant runs, small cells apart."""
    found = [
        F.struct(
            F.lit(index).alias("statement"),
            F.expr(
                f"IF(({it.measure.among}) AND {all_of(it.hypotheses)}, "
                f"cast({it.measure.value} AS double), NULL)"
            ).alias("it"),
        )
        for index, it in enumerate(STATEMENTS)
        if isinstance(it.measure, UpperBound | Bounded)
    ]
    is_small = F.expr(f"seeds < {seeds_min}").alias("is_small")
    one = runs.select("mode", "n", is_small, F.explode(F.array(*found)).alias("found"))
    return (
        one.select("mode", "n", "is_small", "found.*")
        .filter("it IS NOT NULL")
        .groupBy("statement", "mode", "n", "is_small")
        .agg(F.sort_array(F.collect_list("it")).alias("values"))
    )


def _collected(rows: Iterable[Row]) -> dict[tuple[int, str], dict[int, BoundSample]]:
    collected: dict[tuple[int, str], dict[int, BoundSample]] = {}
    for row in sorted(rows, key=lambda row: int(row["n"])):
        by_n = collected.setdefault((row["statement"], row["mode"]), {})
        if not row["is_small"]:
            by_n[row["n"]] = BoundSample(tuple(row["values"]))
    return collected


# --- verdicts --------------------------------------------------------------------------


def always_verdict(runs: Runs) -> Verdict:
    """Return the verdict on a safety property: one run without it refutes it."""
    good, count = len(runs.finite), runs.count
    if count == 0:
        return TOO_FEW if runs.small else NOT_MEASURED
    told: dict[str, Any] = {"sample": runs.sample, "limit": runs.limit}
    if good == count:
        low = percent(share_bounds(good, count).low)
        reason = f"shown by all runs (true share ≥ {low})"
        return Verdict(tone=Tone.GOOD, word="supported", reason=reason, **told)
    reason = f"{count - good:,} of {count:,} runs are counterexamples, for example {runs.example}"
    return Verdict(tone=Tone.BAD, word="refuted", reason=reason, **told)


def eventually_verdict(runs: Runs) -> Verdict:
    """Return the verdict on a liveness property: only a livelock refutes it."""
    good, count = len(runs.finite), runs.count
    if count == 0 and runs.small and not runs.livelocks:
        return TOO_FEW
    if count == runs.lockstep == 0:
        return NOT_MEASURED
    told: dict[str, Any] = {
        "sample": runs.sample,
        "limit": runs.limit,
        "censored": count - good + runs.open,
        "at_message_limit": runs.at_message_limit,
    }
    reached = _reached(runs) if count else ""
    if runs.livelocks:
        text = (
            f"livelock in {runs.livelocks:,} of {runs.lockstep:,} lockstep computations, "
            f"for example {runs.example}"
        )
        reason = f"{text}; {reached}" if reached else text
        return Verdict(tone=Tone.BAD, word="refuted", reason=reason, **told)
    if told["censored"]:
        return Verdict(tone=Tone.OPEN, word="undecided", reason=f"{reached}, no livelock", **told)
    return Verdict(tone=Tone.GOOD, word="supported", reason=reached, **told)


def _reached(runs: Runs) -> str:
    good, count = len(runs.finite), runs.count
    middle = runs.took[(count - 1) // 2]
    unit = "round" if middle == 1 else "rounds"
    half = f", half of them within {number(middle)} {unit}" if isfinite(middle) else ""
    if good == count:
        low = percent(share_bounds(good, count).low)
        return f"reached by all {count:,} runs (true share ≥ {low}){half}"
    return f"reached by {good or 'none'} of {count:,} runs{half}"


def below_verdict(values: ByN, limit: float) -> Verdict:
    """Return the verdict on a mean that should stay below a limit, from the means at every n."""
    if not values:
        return TOO_FEW
    means = {n: sample.mean for n, sample in values.items()}
    n = max(means, key=lambda n: means[n].value)
    worst, sample = means[n], _sample_of(values)
    text = (
        f"the largest mean is {number(worst.value)} ({number(worst.low)} to {number(worst.high)}), "
        f"at n = {n}; the limit is {number(limit)}"
    )
    if worst.low >= limit:
        return Verdict(tone=Tone.BAD, word="refuted", reason=text, sample=sample)
    if worst.high < limit:
        return Verdict(tone=Tone.GOOD, word="supported", reason=text, sample=sample)
    reason = f"{text}: the bounds do not decide"
    return Verdict(tone=Tone.OPEN, word="undecided", reason=reason, sample=sample)


def _sample_of(values: ByN) -> str:
    counts = [sample.runs for sample in values.values()]
    sizes = f"n = {min(values)} to {max(values):,}"
    return f"{sum(counts):,} runs, {sizes}, at least {min(counts)} for each n"


def bounded_verdict(values: ByN, limit: float | None = None) -> Verdict:
    """Return the verdict on a constant: within its limit, else by the models of growth."""
    points = [(float(n), value) for n, sample in values.items() for value in sample.values]
    models = fitted(points, list(MODELS))
    if not models:
        return NOT_MEASURED if values else TOO_FEW
    sample, largest = _sample_of(values), max(value for _, value in points)
    if limit is not None and largest <= limit:
        reason = f"no run has more than {number(largest)}; the limit is {number(limit)}"
        return Verdict(tone=Tone.GOOD, word="supported", reason=reason, sample=sample)
    flat = next(model for model in models if model.name in BOUNDED)
    grown = next(model for model in models if model.name not in BOUNDED)
    text = f"{_means(values)}; {compared(models)}"
    if flat is models[0] or not _is_growth(grown, values):
        return Verdict(tone=Tone.GOOD, word="supported", reason=text, sample=sample)
    if flat.aic - grown.aic >= AIC_DECIDES:
        return Verdict(tone=Tone.BAD, word="refuted", reason=text, sample=sample)
    reason = f"{text}: the models do not decide"
    return Verdict(tone=Tone.OPEN, word="undecided", reason=reason, sample=sample)


def _is_growth(model: Model, values: ByN) -> bool:
    """Return True if the mean rises by a relevant share over the measured sizes."""
    first, last = model.at(min(values)).value, model.at(max(values)).value
    return last - first > GROWTH_MIN * abs(first)


def _means(values: ByN) -> str:
    first, last = min(values), max(values)
    means = [values[n].mean for n in (first, last)]
    texts = [
        f"{number(mean.value)}"
        + ("" if isnan(mean.low) else f" ({number(mean.low)} to {number(mean.high)})")
        for mean in means
    ]
    return f"mean {texts[0]} at n = {first}, {texts[1]} at n = {last:,}"


def compared(models: Sequence[Model]) -> str:
    """Return the best model and its distance to the second in AIC."""
    best, second = models[0], models[1]
    return f"best model {best.name}, {second.name} is worse by AIC {number(second.aic - best.aic)}"
