"""Panel about a ring for a terminal: drawing, one light per layer, history, legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipring.view.canvas import Size
from skipring.view.text import (
    DEAD_STYLE,
    MARGIN,
    STYLES,
    Glyphs,
    GlyphState,
    RingLayout,
    draw_bars,
    draw_levels,
    draw_ring,
)
from skipring.world.legitimacy import Layer

PANEL_COLUMNS: Final = 29  # the width of its longest line
GAP_COLUMNS: Final = 2
PICTURE_ROWS_MAX: Final = 25  # Guess: a larger ring is not easier to read.
PICTURE_ROWS_BESIDE_LEVELS: Final = 19  # levels are shown only if the ring stays this large
BAR_ROWS_MAX: Final = 5

LAYER_NAMES: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "database",
    Layer.LABELS: "labels",
    Layer.RING: "neighbours",
    Layer.SHORTCUTS: "shortcuts",
    Layer.LEAVERS: "leavers",
    Layer.PUBLICATIONS: "content",
}


class PanelContent(Struct, frozen=True, kw_only=True):
    """Content of a panel about a ring at one moment."""

    layout: RingLayout
    violations: Mapping[Layer, int]
    history: Sequence[int]  # number of faults, by check
    centre: Sequence[Text]  # inside the ring
    below: Sequence[Text]  # below the legend


def ring_panel(content: PanelContent, size: Size, glyphs: Glyphs) -> RenderableType:
    """Return the ring with its panel; below them the unrolled ring, if there is room."""
    levels = draw_levels(content.layout, size.columns, glyphs)
    picture = _picture_size(Size(size.columns, size.rows - len(levels) - 1))
    has_levels = picture.rows >= PICTURE_ROWS_BESIDE_LEVELS
    picture = picture if has_levels else _picture_size(size)
    grid = Table.grid(padding=(0, GAP_COLUMNS, 0, 0))
    grid.add_column(width=picture.columns, no_wrap=True)
    grid.add_column(width=PANEL_COLUMNS)
    ring = draw_ring(content.layout, picture, glyphs, content.centre)
    grid.add_row(Text("\n").join(ring), _panel(content, glyphs, picture.rows))
    return Group(grid, Text(), *levels) if has_levels else grid


def _picture_size(size: Size) -> Size:
    """Return the largest ellipse that looks like a circle and leaves room for the panel."""
    columns = size.columns - PANEL_COLUMNS - GAP_COLUMNS
    rows = min(size.rows, PICTURE_ROWS_MAX, (columns - 2 * MARGIN + 1) // 2)
    rows -= 1 - rows % 2  # odd, so that there is a middle
    return Size(2 * rows - 1 + 2 * MARGIN, rows)


def _panel(content: PanelContent, glyphs: Glyphs, rows: int) -> RenderableType:
    legend = [*_legend(content.layout, glyphs), *content.below]
    lines: list[RenderableType] = [_lights(content.violations, glyphs), Text()]
    spare = rows - len(LAYER_NAMES) - len(legend) - 2  # a heading and a blank line
    if spare > 1:
        lines += [Text("faults, by check", "dim")]
        lines += draw_bars(content.history, PANEL_COLUMNS, min(spare - 1, BAR_ROWS_MAX), glyphs)
        lines += [Text()]
    return Group(*lines, *legend)


def _lights(violations: Mapping[Layer, int], glyphs: Glyphs) -> Table:
    """Return a line for each layer: healthy, or the number of violations."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=3)
    grid.add_column(width=10)
    for layer, name in LAYER_NAMES.items():
        count = violations.get(layer, 0)
        light = Text(f"{glyphs.wrong} {count} wrong", "red") if count else None
        grid.add_row(Text(str(layer), "bold"), name, light or Text(glyphs.right, "green"))
    return grid


def _legend(layout: RingLayout, glyphs: Glyphs) -> list[Text]:
    """Return the meaning of the marks, and the number of nodes with each."""
    lines = [
        Text.assemble((glyphs.marks[mark], STYLES[mark]), f" {layout.count(mark):2} {mark.value}")
        for mark in GlyphState
    ]
    dead = f" {len(layout.dead):2} dead, not evicted yet"
    return [*lines, Text.assemble((glyphs.dead, DEAD_STYLE), dead)]
