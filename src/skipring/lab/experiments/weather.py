"""What the weather does to healing, section by section: loss, churn, schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from skipring.core.config import Mode
from skipring.lab.experiments.figures import by_row, median_point
from skipring.lab.experiments.group_tables import median_table
from skipring.lab.experiments.healing_sections import RANGE_NOTE, missing
from skipring.lab.experiments.statistics import HEALING, Group, groups, together
from skipring.report.page import Section
from skipring.report.plots import Axis
from skipring.report.tables import number

_START: Final = ("n", "adversary", "publications")
_CALM: Final = {"loss": "loss = 0", "churn": "churn = 0", "scheduler": "scheduler = 'random'"}
# Without churn a run is measured from its start, with churn from the end of it.
_STORM: Final = {"churn": "churn > 0"}
_TITLES: Final = {
    "loss": ("Lost messages", "of all messages lost"),
    "churn": ("Churn", "of the nodes crash, and as many join, in each of 100 rounds before"),
    "scheduler": ("Schedulers", ""),
}


def weather(runs: DataFrame) -> tuple[Section, ...]:
    """Rounds by loss, by churn and by scheduler, all else at rest."""
    healing = runs.filter(f"{HEALING} AND mode = '{Mode.FAST}' AND without = ''")
    return tuple(_effect(healing, what) for what in _TITLES)


def _effect(healing: DataFrame, what: str) -> Section:
    title, unit = _TITLES[what]
    key = f"weather-{what}"
    calm = " AND ".join((_CALM | {what: _STORM.get(what, "true")}).values())
    found = _on_equal_starts(groups(healing.filter(calm), [what, *_START], "rounds"), what)
    if len(found) < 2:  # noqa: PLR2004  (one alone cannot be compared)
        return missing(key, title, f"runs of kind converge that differ in {what} only")
    named = [Group({"what": _words(group.at[what], unit)}, group.sample) for group in found]
    told = [f"{group.at['what']}: {number(group.sample.median.value)}" for group in named]
    return Section(
        key,
        title,
        f"Median rounds until legitimate, from the same starts: {', '.join(told)}.",
        by_row(named, "what", median_point, Axis("rounds until legitimate"), "rounds"),
        median_table(named, ("what",), "rounds"),
        (f"Mode fast. {RANGE_NOTE}",),
    )


def _on_equal_starts(found: Sequence[Group], what: str) -> list[Group]:
    """One group for each weather, of the starts that were tried in all of them."""
    tried: dict[tuple[object, ...], set[object]] = {}
    for group in found:
        tried.setdefault(_start(group), set()).add(group.at[what])
    weathers = {group.at[what] for group in found}
    equal = [group for group in found if tried[_start(group)] == weathers]
    return [
        Group({what: value}, together(group for group in equal if group.at[what] == value))
        for value in dict.fromkeys(group.at[what] for group in equal)
    ]


def _start(group: Group) -> tuple[object, ...]:
    return tuple(group.at[name] for name in _START)


def _words(value: str | float, unit: str) -> str:
    return f"{100 * value:g} % {unit}" if isinstance(value, float) else str(value)
