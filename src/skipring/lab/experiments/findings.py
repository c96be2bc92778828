"""What a matrix has shown, in a few sentences computed from its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from skipring.core.config import Mode
from skipring.lab.experiments.bounds import share_bounds
from skipring.lab.experiments.statistics import HEALING, IN_THE_MODEL, Group, groups
from skipring.lab.experiments.theorems import NOT_MEASURED, Judged
from skipring.report.tables import Tone, number, percent

_WHO: Final = {
    Mode.FAST: "With all its rules (mode fast) skipring",
    Mode.FIXED: "With the fixes alone (mode fixed) it",
    Mode.PAPER: "The paper's pseudocode (mode paper)",
}


class Extent(Struct, frozen=True):
    """How much a matrix holds."""

    runs: int
    failed: int
    adversaries: int
    n_min: int
    n_max: int
    messages: int
    kinds: frozenset[str]


def extent(runs: DataFrame) -> Extent:
    """Count all runs, also those that failed."""
    row = runs.agg(
        F.count("*"),
        F.count("error"),
        F.count_distinct(F.nullif("adversary", F.lit(""))),
        F.coalesce(F.min("n"), F.lit(0)),
        F.coalesce(F.max("n"), F.lit(0)),
        F.coalesce(F.sum("messages"), F.lit(0)),
        F.collect_set("kind"),
    ).collect()[0]
    count, failed, adversaries, n_min, n_max, messages, kinds = row
    return Extent(count, failed, adversaries, n_min, n_max, messages, frozenset(kinds))


def lead(runs: DataFrame) -> str:
    """The main finding: who became legitimate, mode by mode, the best first."""
    found = groups(runs.filter(f"{HEALING} AND {IN_THE_MODEL}"), ["mode"], "rounds")
    if not found:
        return "This matrix has no runs of kind converge, so it says nothing of healing."
    order = [Mode.FAST, Mode.FIXED, Mode.PAPER]
    found.sort(key=lambda group: order.index(Mode(str(group.at["mode"]))))
    return " ".join(map(_told, found))


def _told(group: Group) -> str:
    sample, good = group.sample, len(group.sample.finite)
    who = _WHO[Mode(str(group.at["mode"]))]
    bounds = share_bounds(good, sample.runs)
    if good < sample.runs:
        return (
            f"{who} became legitimate in {good:,} of {sample.runs:,} runs (true share "
            f"{percent(bounds.low)} to {percent(bounds.high)} with 95 %)."
        )
    return (
        f"{who} became legitimate in all {sample.runs:,} runs (true share ≥ "
        f"{percent(bounds.low)} with 95 %), half of them within "
        f"{number(sample.quantile(0.5))} rounds, the slowest in {number(sample.values[-1])}."
    )


def summary(judged: Sequence[Judged]) -> str:
    """How many of the paper's statements hold, do not, and were not measured."""
    return (
        f"Of {len(judged)} statements of the paper, runs with all rules (mode fast) contradict "
        f"{_toned(judged, Mode.FAST, Tone.BAD)} and agree with "
        f"{_toned(judged, Mode.FAST, Tone.GOOD)}; runs of the pseudocode (mode paper) contradict "
        f"{_toned(judged, Mode.PAPER, Tone.BAD)}; "
        f"{sum(not one.is_measured for one in judged)} were not measured."
    )


def _toned(judged: Iterable[Judged], mode: Mode, tone: Tone) -> int:
    return sum(one.verdicts.get(mode, NOT_MEASURED).tone is tone for one in judged)
