"""Panel of a ring for a terminal: drawing, one light per layer, history, legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipring.admin.diagnosis import LAYERS
from skipring.view.canvas import Size
from skipring.view.text import (
    DEAD_STYLE,
    MARGIN,
    STYLES,
    Glyphs,
    GlyphState,
    RingLayout,
    draw_bars,
    draw_ring,
    glyphs_for,
)
from skipring.world.legitimacy import Layer

RIGHT_STYLE: Final = "green"
WRONG_STYLE: Final = "bold red"
PANEL_COLUMNS: Final = 31  # the width of its longest line
GAP_COLUMNS: Final = 2
PICTURE_ROWS_MAX: Final = 25  # Guess: a larger ring is not easier to read.
PICTURE_ROWS_MIN: Final = 9  # a smaller ring is not readable
BAR_ROWS_MAX: Final = 4


class RingPanel(Struct, frozen=True):
    """Room for a drawing, and its characters."""

    columns: int
    rows: int
    glyphs: Glyphs

    @classmethod
    def of(cls, console: Console) -> RingPanel:
        """Return the current room of a terminal; the last row is reserved for the cursor."""
        return cls(console.width, console.height - 1, glyphs_for(console.encoding))

    def draw(self, content: RingContent, rows: int) -> RenderableType:
        """Return the ring with its lights next to it; only the lights if there is no room."""
        size = self._picture_size(rows)
        if size.rows < PICTURE_ROWS_MIN:
            return _lights(content.wrong, self.glyphs)
        grid = Table.grid(padding=(0, GAP_COLUMNS, 0, 0))
        grid.add_column(width=size.columns, no_wrap=True)
        grid.add_column(width=PANEL_COLUMNS)
        picture = draw_ring(content.layout, size, self.glyphs, content.centre)
        grid.add_row(Text("\n").join(picture), _beside(content, self.glyphs, size.rows))
        return grid

    def rows_of(self, content: RingContent, rows: int) -> int:
        """Return the number of rows that ``draw`` uses."""
        size = self._picture_size(rows)
        return size.rows if size.rows >= PICTURE_ROWS_MIN else len(content.wrong)

    def _picture_size(self, rows: int) -> Size:
        """Return the largest ellipse that looks like a circle and leaves room for the lights."""
        room = self.columns - PANEL_COLUMNS - GAP_COLUMNS
        rows = min(rows, PICTURE_ROWS_MAX, (room - 2 * MARGIN + 1) // 2)
        rows -= 1 - rows % 2  # odd, so that there is a middle
        return Size(2 * rows - 1 + 2 * MARGIN, rows)


class RingContent(Struct, frozen=True, kw_only=True):
    """Content of a panel about a ring at one moment."""

    layout: RingLayout
    wrong: Mapping[Layer, int]  # faults of each visible layer
    history: Sequence[int]  # total number of faults, by inspection
    history_name: str
    centre: Sequence[Text]  # inside the ring
    below: Sequence[Text] = ()  # below the legend


def _beside(content: RingContent, glyphs: Glyphs, rows: int) -> RenderableType:
    """Return the lights, with bars and a legend if there is room."""
    legend = [*_legend(content.layout, glyphs), *content.below]
    spare = rows - len(content.wrong) - 1 - len(legend)
    if spare < 0:
        return _lights(content.wrong, glyphs)
    parts: list[RenderableType] = [_lights(content.wrong, glyphs), Text()]
    bars = min(spare - 2, BAR_ROWS_MAX)
    if bars > 0 and len(content.history) > 1:
        none = "" if any(content.history) else ": none"
        parts += [Text(content.history_name + none, "dim")]
        parts += [*draw_bars(content.history, PANEL_COLUMNS, bars, glyphs), Text()]
    return Group(*parts, *legend)


def _lights(wrong: Mapping[Layer, int], glyphs: Glyphs) -> Table:
    """Return a light for each layer, with its name."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for layer, count in wrong.items():
        state = Text(f"{glyphs.right} right", RIGHT_STYLE)
        if count:
            state = Text(f"{glyphs.wrong} {count} wrong", WRONG_STYLE)
        grid.add_row(Text(str(layer), "bold"), LAYERS[layer], state)
    return grid


def _legend(layout: RingLayout, glyphs: Glyphs) -> list[Text]:
    """Return the meaning of the marks, and the number of nodes with each."""
    lines = [
        Text.assemble((glyphs.marks[mark], STYLES[mark]), f" {layout.count(mark):2} {mark.value}")
        for mark in GlyphState
    ]
    if layout.dead:
        text = f" {len(layout.dead):2} crashed, still recorded"
        return [*lines, Text.assemble((glyphs.dead, DEAD_STYLE), text)]
    filled = {dot.label for dot in layout.dots}
    empty = sum(label not in filled for label in layout.places)
    return [*lines, Text.assemble((glyphs.vacant, "dim"), f" {empty:2} places empty")]
