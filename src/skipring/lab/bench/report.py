"""Rows of a benchmark: spread of repeated runs, and Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from time import monotonic
from typing import Any, TypeVar

from skipring.errors import SkipringError

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


# -- Markdown --------------------------------------------------------------------------------


def table_header(first: str, others: Sequence[str]) -> Iterator[str]:
    """Yield the two header lines of a table: text left-aligned, figures right-aligned."""
    yield table_row(first, others)
    yield table_row("---", ["---:"] * len(others))


def table_row(first: str, others: Sequence[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join([first, *others])} |"
