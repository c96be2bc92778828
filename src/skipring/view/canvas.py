"""Canvas of a text drawing: characters with styles, and lines of braille dots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from math import ceil, floor, hypot
from typing import Final, TypeAlias

from msgspec import Struct
from rich.text import Text

Spot: TypeAlias = tuple[int, int]  # column and row, counted from the upper left corner
Point: TypeAlias = tuple[float, float]  # column and row, also between characters


class Size(Struct, frozen=True):
    """Columns and rows of a drawing; an odd number has a middle."""

    columns: int
    rows: int


class Canvas:
    """Grid of characters, each with a style."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._cells = [[(" ", "")] * size.columns for _ in range(size.rows)]
        self._reserved: set[Spot] = set()

    def put(self, at: Spot, text: str, style: str, *, is_reserved: bool = False) -> None:
        """Write to the right of a spot; later calls overwrite it."""
        column, row = at
        for offset, character in enumerate(text):
            if 0 <= column + offset < self.size.columns and 0 <= row < self.size.rows:
                self._cells[row][column + offset] = (character, style)
                if is_reserved:
                    self._reserved.add((column + offset, row))

    def put_beside(self, at: Spot, text: str, style: str) -> None:
        """Write on the outer side of a spot, with a blank on each side, if there is room."""
        column, row = at
        is_left = 2 * column < self.size.columns - 2
        start = column - 1 - len(text) if is_left else column + 2
        fits = start >= 0 and start + len(text) <= self.size.columns
        around = range(start - 1, start + len(text) + 1)
        if fits and not any((place, row) in self._reserved for place in around):
            self.put((start - 1, row), f" {text} ", style, is_reserved=True)

    def lines(self) -> list[Text]:
        """Return the drawing, row by row."""
        return [_joined(row) for row in self._cells]


def _joined(row: Sequence[tuple[str, str]]) -> Text:
    """Return a row as one text; join cells of the same style, so a terminal reads less."""
    text = Text(no_wrap=True)
    for style, cells in groupby(row, key=lambda cell: cell[1]):
        text.append("".join(character for character, _ in cells), style)
    return text


# --- dots ------------------------------------------------------------------------------

DOTS_WIDE: Final = 2
DOTS_HIGH: Final = 4
_BLANK: Final = 0x2800  # U+2800: a character without dots; each dot adds its bit
_BITS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column
_BROKEN_EVERY: Final = 4  # Guess: one dot in this many of a broken line is drawn.


class Dots:
    """Lines of dots; a character has the style of the last line drawn through it."""

    def __init__(self) -> None:
        self._bits: dict[Spot, int] = {}
        self._styles: dict[Spot, str] = {}

    def draw(self, path: Sequence[Point], style: str, *, is_broken: bool = False) -> None:
        """Draw a line through some points, with gaps if it is broken."""
        dots = (dot for begin, end in pairwise(path) for dot in _line(begin, end))
        for number, dot in enumerate(dots):
            if not is_broken or number % _BROKEN_EVERY == 0:
                self._put(dot, style)

    def _put(self, at: Point, style: str) -> None:
        """Draw one dot; whole numbers are the middle of a character."""
        column, row = floor(at[0] * DOTS_WIDE + 1), floor(at[1] * DOTS_HIGH + 2)
        spot = column // DOTS_WIDE, row // DOTS_HIGH
        bit = _BITS[row % DOTS_HIGH][column % DOTS_WIDE]
        self._bits[spot] = self._bits.get(spot, 0) | bit
        self._styles[spot] = style

    def put_on(self, canvas: Canvas) -> None:
        """Write every character that has a dot."""
        for spot, bits in self._bits.items():
            canvas.put(spot, chr(_BLANK + bits), self._styles[spot])


def _line(begin: Point, end: Point) -> Iterator[Point]:
    """Yield points from ``begin`` to ``end``, about one dot apart."""
    (x, y), (to_x, to_y) = begin, end
    steps = max(1, ceil(hypot((to_x - x) * DOTS_WIDE, (to_y - y) * DOTS_HIGH)))
    for step in range(steps + 1):
        share = step / steps
        yield x + (to_x - x) * share, y + (to_y - y) * share
