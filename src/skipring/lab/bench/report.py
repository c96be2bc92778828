"""Rows and ratios: spread of repeated runs, figures with goals, Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from time import monotonic
from typing import Any, Final, TypeVar

from skipring.errors import SkipringError

AT_LEAST: Final = "_at_least"
AT_MOST: Final = "_at_most"
REACHED: Final = "_reached"

Row = dict[str, Any]
Figures = dict[str, float]  # of one run, by name

_K = TypeVar("_K")
_T = TypeVar("_T")


def _unobserved(key: object, seconds: float) -> None:
    """Ignore the end of an action."""


def in_turns(
    actions: Mapping[_K, Callable[[], _T]],
    repeats: int,
    observe: Callable[[_K, float], None] = _unobserved,
    *,
    fewer: Mapping[_K, int] | None = None,
) -> dict[_K, list[_T] | SkipringError]:
    """Run all actions in rotation; return the results of each, or its first error.

    ``observe`` is called after each action, with its duration. Actions in ``fewer`` have their own
    number of repeats.
    """
    found: dict[_K, list[_T] | SkipringError] = {key: [] for key in actions}
    for number in range(repeats):
        for key, action in actions.items():
            results, began = found[key], monotonic()
            if isinstance(results, SkipringError) or number >= (fewer or {}).get(key, repeats):
                continue
            try:
                results.append(action())
            except SkipringError as error:
                found[key] = error
            observe(key, monotonic() - began)
    return found


def is_measured(row: Row) -> bool:
    """Return True if a row is comparable: the system is installed and delivered everything."""
    return not row.keys() & {"skipped", "failed"}


def with_ratios(
    rows: Iterable[Row], ratios: Callable[[list[Row]], Mapping[str, float | None]]
) -> Iterator[Row]:
    """Yield the rows as they are measured, and their ratios last."""
    measured: list[Row] = []
    for row in rows:
        measured.append(row)
        yield row
    yield {"ratios": ratios(measured)}


def spread(name: str, values: Sequence[float], digits: int | None = 3) -> Row:
    """Return median, minimum and maximum of some values; whole numbers have no decimals."""
    return {
        name: round(median(values), digits),
        f"{name}_min": round(min(values), digits),
        f"{name}_max": round(max(values), digits),
    }


def spreads(repeats: Sequence[Figures]) -> Row:
    """Return the number of repeats, and the spread of each figure."""
    row: Row = {"repeats": len(repeats)}
    for name in repeats[0]:
        row |= spread(name, [each[name] for each in repeats])
    return row


# -- goals -----------------------------------------------------------------------------------


def at_least(name: str, found: float, goal: float) -> dict[str, float]:
    """Return a figure with its lower bound; ``reached`` is 1 or more if the bound holds."""
    return {
        name: _rounded(found),
        f"{name}{AT_LEAST}": _rounded(goal),
        f"{name}{REACHED}": _rounded(found / goal),
    }


def against_goal(name: str, found: float, goal: float | None) -> dict[str, float]:
    """Return a figure, with its lower bound if it has a goal."""
    return {name: round(found, 2)} if goal is None else at_least(name, found, goal)


def at_most(name: str, found: float, goal: float) -> dict[str, float]:
    """Return a figure with its upper bound; 0 always reaches it."""
    return {
        name: _rounded(found),
        f"{name}{AT_MOST}": _rounded(goal),
        f"{name}{REACHED}": _rounded(goal / found) if found > 0 else 1.0,
    }


def _rounded(value: float) -> float:
    """Round to more digits below 1, so 0.999 is not printed as reached."""
    return round(value, 2 if value >= 1 else 4)


def ratio_lines(ratios: Mapping[str, float | None]) -> Iterator[str]:
    """Yield one line per ratio for terminals, with its goal and whether it is reached."""
    for name, found in ratios.items():
        if not name.endswith((AT_LEAST, AT_MOST, REACHED)):
            yield f"{name} {found}{_goal_text(name, ratios)}"


def _goal_text(name: str, ratios: Mapping[str, float | None]) -> str:
    for suffix, words in ((AT_LEAST, "at least"), (AT_MOST, "at most")):
        goal, reached = ratios.get(name + suffix), ratios.get(name + REACHED)
        if goal is not None and reached is not None:
            return f"  {words} {goal}: {'reached' if reached >= 1 else 'missed'} ({reached})"
    return ""


# -- Markdown --------------------------------------------------------------------------------


def table_header(first: str, others: Sequence[str]) -> Iterator[str]:
    """Yield the two header lines of a table: text left-aligned, figures right-aligned."""
    yield table_row(first, others)
    yield table_row("---", ["---:"] * len(others))


def table_row(first: str, others: Sequence[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join([first, *others])} |"
