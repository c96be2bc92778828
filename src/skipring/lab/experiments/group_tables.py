"""Tables of groups of runs: medians, means, shares."""

from __future__ import annotations

from collections.abc import Sequence

from skipring.lab.experiments.bounds import share_bounds
from skipring.lab.experiments.figures import title_of
from skipring.lab.experiments.statistics import Group
from skipring.report.tables import Table, number, percent


def median_table(found: Sequence[Group], by: Sequence[str], unit: str) -> Table:
    """The median of each group, with its bounds and the range."""
    headings = (*by, "runs", "median", "95 % from", "to", "fastest", "slowest", "not through")
    rows = []
    for group in found:
        sample, middle = group.sample, group.sample.median
        last = number(sample.finite[-1]) if sample.finite else "–"  # noqa: RUF001  (as it is printed)
        rows.append(
            (
                *(title_of(group.at[name]) for name in by),
                f"{sample.runs:,}",
                number(middle.value),
                number(middle.low),
                number(middle.high),
                number(sample.values[0]),
                last,
                f"{sample.runs - len(sample.finite):,}",
            )
        )
    named = tuple(f"{name} ({unit})" if name == "median" else name for name in headings)
    return Table(named, tuple(rows), frozenset(named[len(by) :]) | {"n"})


def share_table(found: Sequence[Group]) -> Table:
    """The share of each group that became legitimate, with its bounds."""
    by = tuple(found[0].at)
    rows = []
    for group in found:
        good, total = len(group.sample.finite), group.sample.runs
        bounds = share_bounds(good, total)
        rows.append(
            (
                *(str(group.at[name]) for name in by),
                f"{total:,}",
                f"{good:,}",
                percent(bounds.value),
                percent(bounds.low),
                percent(bounds.high),
            )
        )
    headings = (*by, "runs", "legitimate", "share", "95 % from", "to")
    return Table(headings, tuple(rows), frozenset(headings[len(by) :]) | {"n"})


def mean_table(found: Sequence[Group], by: Sequence[str], unit: str) -> Table:
    """The mean of each group, with its bounds and the range."""
    rows = []
    for group in found:
        sample = group.sample
        mean = sample.mean
        rows.append(
            (
                *(str(group.at[name]) for name in by),
                f"{sample.runs:,}",
                *(
                    number(value)
                    for value in (
                        mean.value,
                        mean.low,
                        mean.high,
                        sample.values[0],
                        sample.values[-1],
                    )
                ),
            )
        )
    headings = (*by, "runs", f"mean ({unit})", "95 % from", "to", "least", "most")
    return Table(headings, tuple(rows), frozenset(headings[len(by) :]) | {"n"})
