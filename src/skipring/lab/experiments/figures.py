"""Figures and tables of the lab: groups of runs as points, series and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import inf, log2
from textwrap import shorten
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from skipring.lab.experiments.aggregates import At, Group
from skipring.lab.experiments.statistics import (
    Bounds,
    BoundSample,
    Model,
    Survival,
    share_bounds,
)
from skipring.report.plots import (
    Axis,
    Panel,
    Point,
    Series,
    band_figure,
    dot_figure,
    line_figure,
    panel_figure,
)
from skipring.report.tables import Table, number, percent
from skipring.world.adversaries import ADVERSARIES

Figure: TypeAlias = Any  # plotly has no types
Reduce: TypeAlias = Callable[[Group, str], Point]

LABEL_CHARS: Final = 44  # Guess: longer ones leave too little room; the table has the full text.
N_AXIS: Final = Axis("n, subscribers (logarithmic)", is_log=True)


# --- one group, one point --------------------------------------------------------------


def median_point(group: Group, unit: str) -> Point:
    """Return the median of the runs, with the lowest and the highest."""
    sample, middle = group.sample, group.sample.median
    low, high = sample.values[0], sample.values[-1]
    text = (
        f"{described(group.at)}<br>median {number(middle.value)} {unit} (95 %: "
        f"{number(middle.low)} to {number(middle.high)})<br>range {number(low)} to "
        f"{number(high)}, {sample.runs:,} runs"
    )
    last = sample.finite[-1] if sample.finite else inf
    return Point(_n(group.at), middle.value, low, last, text)


def mean_point(group: Group, unit: str) -> Point:
    """Return the mean of the runs with its bounds."""
    mean = group.sample.mean
    text = (
        f"{described(group.at)}<br>mean {number(mean.value)} {unit} (95 %: {number(mean.low)} to "
        f"{number(mean.high)})<br>{group.sample.runs:,} runs"
    )
    return Point(_n(group.at), mean.value, mean.low, mean.high, text)


def highest_point(group: Group, unit: str) -> Point:
    """Return the highest value of all runs."""
    highest = group.sample.values[-1]
    text = f"{described(group.at)}<br>at most {number(highest)} {unit}, {group.sample.runs:,} runs"
    return Point(_n(group.at), highest, highest, highest, text)


def share_point(group: Group, unit: str) -> Point:
    """Return the share of the runs that have a value, in percent."""
    good = len(group.sample.finite)
    bounds = share_bounds(good, group.sample.runs)
    text = (
        f"{described(group.at)}<br>{good:,} of {group.sample.runs:,} {unit}<br>true share "
        f"{percent(bounds.low)} to {percent(bounds.high)} with 95 %"
    )
    return Point(_n(group.at), 100 * bounds.value, 100 * bounds.low, 100 * bounds.high, text)


def _n(at: At) -> float:
    return float(at.get("n", 0))


def described(at: At) -> str:
    """Return the common parameters of a group as text."""
    words = []
    for name, value in at.items():
        text = escape(title_of(value) if name == "adversary" else str(value))
        words.append(text if name in ("adversary", "mode", "what") else f"{name} {text}")
    return ", ".join(words)


def title_of(adversary: object) -> str:
    """Return the code and the description of an adversary."""
    known = ADVERSARIES.get(str(adversary))
    return f"{adversary} {known.title}" if known is not None else str(adversary)


# --- series ----------------------------------------------------------------------------


def series_by(groups: Iterable[Group], key: str, reduce: Reduce, unit: str) -> tuple[Series, ...]:
    """Return a series for each value of ``key``, with a point for each group."""
    points: dict[str, list[Point]] = {}
    for group in groups:
        points.setdefault(str(group.at[key]), []).append(reduce(group, unit))
    return tuple(Series(name, tuple(found)) for name, found in points.items())


def theory(name: str, sizes: Iterable[int], value: Callable[[int], float]) -> Series:
    """Return a theoretical line to compare runs with."""
    points = [Point(n, value(n), value(n), value(n), f"{name}: {number(value(n))}") for n in sizes]
    return Series(name, tuple(points), is_theory=True)


def sizes_of(groups: Iterable[Group]) -> list[int]:
    """Return every n of the groups, in order."""
    return sorted({int(group.at["n"]) for group in groups})


def expected_requests(n: int, more_bits: int) -> float:
    """Return the expected requests per interval in SR(n), by the probabilities of section 3.2.1.

    The minimal node asks with probability 1/2 (action iv), a node with a label of k bits with
    probability 1/(2^(k + more) k^2).
    """
    lengths = [index.bit_length() for index in range(1, n)]
    return 0.5 + sum(1 / (2.0 ** (k + more_bits) * k * k) for k in lengths)


# --- figures ---------------------------------------------------------------------------


def by_n(
    groups: Sequence[Group],
    key: str,
    y: Axis,
    reduce: Reduce,
    unit: str,
    lines: Sequence[Series] = (),
) -> Figure:
    """Return a plot with a line over n for each value of ``key``, and lines of theory."""
    return line_figure([*series_by(groups, key, reduce, unit), *lines], N_AXIS, y)


def by_adversary(groups: Sequence[Group]) -> Figure:
    """Return a plot with a row for each adversary, the slowest first, and a dot for each n."""
    slowest: dict[str, float] = {}
    for group in groups:
        code = str(group.at["adversary"])
        slowest[code] = max(slowest.get(code, 0.0), group.sample.quantile(0.5))
    order = sorted(slowest, key=lambda code: (-slowest[code], code))
    rows = {code: float(row) for row, code in enumerate(order)}
    series = [Series(f"n = {n}", tuple(_row_points(groups, n, rows))) for n in sizes_of(groups)]
    names = [shorten(title_of(code), LABEL_CHARS, placeholder=" …") for code in order]
    return dot_figure(names, series, Axis("rounds"))


def _row_points(groups: Iterable[Group], n: int, rows: dict[str, float]) -> Iterable[Point]:
    for group in groups:
        if group.at["n"] == n:
            point = median_point(group, "rounds")
            yield replace(point, x=rows[str(group.at["adversary"])])


def by_row(groups: Sequence[Group], key: str, reduce: Reduce, x: Axis, unit: str) -> Figure:
    """Return a plot with a row and a dot for each group."""
    rows = [replace(reduce(group, unit), x=float(row)) for row, group in enumerate(groups)]
    names = [str(group.at[key]) for group in groups]
    return dot_figure(names, [Series(x.title, tuple(rows))], x)


def panels_by_n(
    panels: Sequence[tuple[str, Sequence[Group], Axis]],
    key: str,
    reduce: Reduce,
    unit: str,
    lines: Sequence[Series] = (),
) -> Figure:
    """Return a line plot over n for each title."""
    return panel_figure(
        [
            Panel(title, (*series_by(groups, key, reduce, unit), *lines), N_AXIS, y)
            for title, groups, y in panels
        ]
    )


def survival_figure(curves: Sequence[tuple[str, Sequence[Survival]]]) -> Figure:
    """Return a plot of the share of runs that are not legitimate yet, by round."""
    series = [
        Series(name, tuple(_survival_point(name, step.rounds, step.share) for step in curve))
        for name, curve in curves
    ]
    x = Axis("rounds since the start (logarithmic, from 1)", is_log=True)
    return band_figure(series, x, Axis("runs not yet legitimate, %"), shape="hv")


def model_figure(models: Sequence[tuple[str, Model]], sizes: Sequence[int]) -> Figure:
    """Return a plot of fitted means over n, with their bands."""
    series = [
        Series(name, tuple(_model_point(name, n, model.at(n)) for n in sizes))
        for name, model in models
    ]
    return band_figure(series, N_AXIS, Axis("rounds until legitimate"), shape="linear")


def _model_point(name: str, n: int, mean: Bounds) -> Point:
    text = (
        f"{escape(name)}<br>n = {n}: {number(mean.value)} rounds<br>95 %: {number(mean.low)} to "
        f"{number(mean.high)}"
    )
    return Point(float(n), mean.value, mean.low, mean.high, text)


def _survival_point(name: str, rounds: float, share: Bounds) -> Point:
    text = (
        f"mode {escape(name)}<br>after {number(rounds)} rounds {percent(share.value)} are not yet "
        f"legitimate<br>95 %: {percent(share.low)} to {percent(share.high)}"
    )
    low, high = 100 * share.low, 100 * share.high
    return Point(max(rounds, 1.0), 100 * share.value, low, high, text)


def log2_line(groups: Iterable[Group], factor: int = 1) -> Series:
    """Return the line of log2 n, or of a multiple of it."""
    name = "log₂ n" if factor == 1 else f"{factor} log₂ n"
    return theory(name, sizes_of(groups), lambda n: factor * log2(n))


# --- tables of groups -------------------------------------------------------------------


def _table(
    found: Sequence[Group],
    by: Sequence[str],
    headings: Sequence[str],
    cells: Callable[[BoundSample], Sequence[str]],
) -> Table:
    """Return a table with a row for each group: its values, its runs, and some cells."""
    rows = (
        (
            *(title_of(group.at[name]) for name in by),
            f"{group.sample.runs:,}",
            *cells(group.sample),
        )
        for group in found
    )
    named = (*by, "runs", *headings)
    return Table(named, tuple(rows), frozenset(named[len(by) :]) | {"n"})


def median_table(found: Sequence[Group], by: Sequence[str], unit: str) -> Table:
    """Return a table of medians with bounds and range, by group."""

    def cells(sample: BoundSample) -> list[str]:
        middle = sample.median
        shown = [*map(number, (middle.value, middle.low, middle.high, sample.values[0]))]
        last = number(sample.finite[-1]) if sample.finite else "–"  # noqa: RUF001  (as it is printed)
        return [*shown, last, f"{sample.runs - len(sample.finite):,}"]

    headings = (f"median ({unit})", "95 % from", "to", "fastest", "slowest", "unfinished")
    return _table(found, by, headings, cells)


def share_table(found: Sequence[Group]) -> Table:
    """Return a table of the share of legitimate runs with bounds, by group."""

    def cells(sample: BoundSample) -> list[str]:
        good = len(sample.finite)
        bounds = share_bounds(good, sample.runs)
        return [f"{good:,}", *map(percent, (bounds.value, bounds.low, bounds.high))]

    return _table(found, tuple(found[0].at), ("legitimate", "share", "95 % from", "to"), cells)


def mean_table(found: Sequence[Group], by: Sequence[str], unit: str) -> Table:
    """Return a table of means with bounds and range, by group."""

    def cells(sample: BoundSample) -> list[str]:
        mean = sample.mean
        ends = sample.values[0], sample.values[-1]
        return [*map(number, (mean.value, mean.low, mean.high, *ends))]

    return _table(found, by, (f"mean ({unit})", "95 % from", "to", "least", "most"), cells)
