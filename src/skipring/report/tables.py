"""Tables of a report, as HTML."""

from __future__ import annotations

from enum import StrEnum
from html import escape
from math import floor, inf, isfinite, log10
from typing import Final, TypeAlias

from msgspec import Struct

_DIGITS: Final = 3  # Guess: more digits are not significant and harder to read.


class Tone(StrEnum):
    """Meaning of a cell: none, good, bad or open."""

    NONE = ""
    GOOD = "good"
    BAD = "bad"
    OPEN = "open"


_SIGNS: Final = {Tone.NONE: "", Tone.GOOD: "✓ ", Tone.BAD: "✗ ", Tone.OPEN: "? "}


class Cell(Struct, frozen=True):
    """Text and its tone, which a sign shows in addition to the colour."""

    text: str
    tone: Tone = Tone.NONE

    @property
    def signed(self) -> str:
        """Return the text with the sign of its tone."""
        return _SIGNS[self.tone] + self.text


Cells: TypeAlias = tuple[str | Cell, ...]


class Table(Struct, frozen=True):
    """Headings and rows; columns whose heading is in ``figures`` are right-aligned."""

    headings: tuple[str, ...]
    rows: tuple[Cells, ...]
    figures: frozenset[str] = frozenset()


def _cell(value: str | Cell) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


# --- HTML ------------------------------------------------------------------------------


def as_html(table: Table) -> str:
    """Return the table as HTML; all texts are escaped."""
    sides = [' class="figure"' if name in table.figures else "" for name in table.headings]
    head = "".join(
        f'<th scope="col"{side}>{escape(name)}</th>'
        for name, side in zip(table.headings, sides, strict=True)
    )
    body = "\n".join(
        "<tr>" + "".join(map(_cell_html, map(_cell, row), sides)) + "</tr>" for row in table.rows
    )
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="table">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _cell_html(cell: Cell, side: str) -> str:
    if cell.tone is Tone.NONE:
        return f"<td{side}>{escape(cell.text)}</td>"
    return f'<td{side}><span class="{cell.tone}">{escape(cell.signed)}</span></td>'


# --- numbers ---------------------------------------------------------------------------


def number(value: float) -> str:
    """Return a number with its significant digits; integers are exact."""
    if not isfinite(value):
        return "never" if value == inf else "–"  # noqa: RUF001  (as it is printed)
    sign, size = "−" if value < 0 else "", abs(value)  # noqa: RUF001  (as it is printed)
    if size == int(size):
        return f"{sign}{int(size):,}"
    places = max(0, _DIGITS - 1 - floor(log10(size)))
    return f"{sign}{size:,.{min(places, 4)}f}"


def percent(share: float) -> str:
    """Return a share in percent; only exact values are shown as 100 % or 0 %."""
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    places = 1 if 0.001 <= share <= 0.999 else 3  # noqa: PLR2004  (beyond these a share is written out)
    return f"{100 * share:.{places}f} %"
