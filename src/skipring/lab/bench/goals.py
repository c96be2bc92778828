"""What is wanted of a figure, large or small, and how far it is reached: from 1 on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

AT_LEAST: Final = "_at_least"
AT_MOST: Final = "_at_most"
REACHED: Final = "_reached"


def at_least(name: str, found: float, wanted: float) -> dict[str, float]:
    """A figure that has to be so large, beside what is wanted."""
    return {
        name: _rounded(found),
        f"{name}{AT_LEAST}": _rounded(wanted),
        f"{name}{REACHED}": _rounded(found / wanted),
    }


def beside(name: str, found: float, wanted: float | None) -> dict[str, float]:
    """A figure of which the larger is the better, beside what is wanted if something is."""
    return {name: round(found, 2)} if wanted is None else at_least(name, found, wanted)


def at_most(name: str, found: float, wanted: float) -> dict[str, float]:
    """A figure that may be so large, beside what is wanted; nothing at all is always reached."""
    return {
        name: _rounded(found),
        f"{name}{AT_MOST}": _rounded(wanted),
        f"{name}{REACHED}": _rounded(wanted / found) if found > 0 else 1.0,
    }


def _rounded(value: float) -> float:
    """Finer below 1, so that what is missed by a hair does not look reached."""
    return round(value, 2 if value >= 1 else 4)


def lines(ratios: Mapping[str, float | None]) -> Iterator[str]:
    """Ratios for people: one a line, with what is wanted, and whether it is reached."""
    for name, found in ratios.items():
        if not name.endswith((AT_LEAST, AT_MOST, REACHED)):
            yield f"{name} {found}{_beside(name, ratios)}"


def _beside(name: str, ratios: Mapping[str, float | None]) -> str:
    for suffix, words in ((AT_LEAST, "at least"), (AT_MOST, "at most")):
        wanted, reached = ratios.get(name + suffix), ratios.get(name + REACHED)
        if wanted is not None and reached is not None:
            return f"  {words} {wanted}: {'reached' if reached >= 1 else 'missed'} ({reached})"
    return ""
