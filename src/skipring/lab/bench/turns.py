"""Systems that take turns: what one of them fails at is no reason to forget the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

from skipring.errors import SkipringError
from skipring.lab.bench.peers.catalogue import System, missing

Row = dict[str, Any]

_K = TypeVar("_K")
_T = TypeVar("_T")


def in_turns(
    actions: Mapping[_K, Callable[[int], _T]], repeats: int
) -> dict[_K, list[_T] | SkipringError]:
    """Do all so often, one after the other; what each has found, or why it did not."""
    found: dict[_K, list[_T] | SkipringError] = {key: [] for key in actions}
    for number in range(repeats):
        for key, action in actions.items():
            results = found[key]
            if isinstance(results, list):
                try:
                    results.append(action(number))
                except SkipringError as error:
                    found[key] = error
    return found


def skipped(system: System) -> Row | None:
    """What a row says of a system that is not here; None if it is."""
    command = missing(system)
    return None if command is None else {"skipped": f"not installed: {command}"}


def failed(error: SkipringError) -> Row:
    """What a row says of a system that could not be measured."""
    return {"failed": str(error)}


def counted(delivered: Sequence[int], expected: int) -> Row:
    """How much has come in each run; a run in which it is not all has failed, however quick."""
    row: Row = {"delivered": min(delivered), "expected": expected}
    wrong = [count for count in delivered if count != expected]
    if wrong:
        row["failed"] = f"in {len(wrong)} of {len(delivered)} runs {wrong[0]} came of {expected}"
    return row


def is_measured(row: Row) -> bool:
    """True if a row may be compared: its system is here, and all of it has come."""
    return not row.keys() & {"skipped", "failed"}


def spread(name: str, values: Sequence[float], digits: int = 3) -> Row:
    """The median of some values, the least and the most."""
    return {
        name: round(median(values), digits),
        f"{name}_min": round(min(values), digits),
        f"{name}_max": round(max(values), digits),
    }
