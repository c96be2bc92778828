"""Panel about a live or simulated ring: drawing, layers of legitimacy, history, legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from rich.console import Console, Group, RenderableType
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
    glyphs_for,
)
from skipring.world.legitimacy import Layer

RIGHT_STYLE: Final = "green"
WRONG_STYLE: Final = "bold red"
PANEL_COLUMNS: Final = 31  # the width of its longest line
GAP_COLUMNS: Final = 2
PICTURE_ROWS_MAX: Final = 25  # Guess: a larger ring is not easier to read.
PICTURE_ROWS_MIN: Final = 9  # a smaller ring is not readable
PICTURE_ROWS_BESIDE_LEVELS: Final = 17  # levels are shown only if the ring stays this large
LEVEL_COLUMNS_MAX: Final = 100
BAR_ROWS_MAX: Final = 4

PIPE_COLUMNS: Final = 1000  # a pipe gets no cut or wrapped lines

LAYER_NAMES: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "database",
    Layer.LABELS: "labels",
    Layer.RING: "neighbours",
    Layer.SHORTCUTS: "shortcuts",
    Layer.LEAVERS: "leavers",
    Layer.LINKS: "links",
    Layer.PROCESSES: "processes",
    Layer.CHANNELS: "in flight",
    Layer.PUBLICATIONS: "publications",
}


def wide_console() -> Console:
    """Return the console of stdout; a pipe has no line limit."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def can_repaint(console: Console) -> bool:
    """Return True if the console is a terminal that can repaint a picture."""
    return console.is_terminal and not console.is_dumb_terminal


def time_of_day() -> str:
    """Return the local time of day."""
    return f"{datetime.now().astimezone():%H:%M:%S}"


class RingPanel(Struct, frozen=True):
    """Room for a drawing, and its characters."""

    columns: int
    rows: int
    glyphs: Glyphs

    @classmethod
    def of(cls, console: Console) -> RingPanel:
        """Return the current room of a terminal; the last row is reserved for the cursor."""
        return cls(console.width, console.height - 1, glyphs_for(console.encoding))


class Look(Struct, frozen=True, kw_only=True):
    """Content of a panel about a ring at one moment."""

    portrait: RingLayout
    wrong: Mapping[Layer, int]  # violations of each visible layer
    history: Sequence[int]  # total number of violations, by inspection
    history_name: str
    centre: Sequence[Text]


def ring_page(look: Look, page: RingPanel, rows: int) -> RenderableType:
    """Return the ring with its panel in some rows; only the lights if there is no room."""
    size = _picture_size(page.columns, rows)
    if size.rows < PICTURE_ROWS_MIN:
        return lights(look.wrong, page.glyphs)
    grid = Table.grid(padding=(0, GAP_COLUMNS, 0, 0))
    grid.add_column(width=size.columns, no_wrap=True)
    grid.add_column(width=PANEL_COLUMNS)
    picture = draw_ring(look.portrait, size, page.glyphs, look.centre)
    grid.add_row(Text("\n").join(picture), _panel(look, page.glyphs, size.rows))
    return grid


def rows_of_page(look: Look, page: RingPanel, rows: int) -> int:
    """Return the number of rows that the ring and its panel take."""
    size = _picture_size(page.columns, rows)
    return size.rows if size.rows >= PICTURE_ROWS_MIN else len(look.wrong)


def ring_page_with_levels(look: Look, page: RingPanel, rows: int) -> RenderableType:
    """Return the page with the unrolled ring below it, if there is room for both."""
    levels = draw_levels(look.portrait, min(page.columns, LEVEL_COLUMNS_MAX), page.glyphs)
    left = rows - len(levels) - 1
    if rows_of_page(look, page, left) < PICTURE_ROWS_BESIDE_LEVELS:
        return ring_page(look, page, rows)
    return Group(ring_page(look, page, left), Text(), *levels)


def _picture_size(columns: int, rows: int) -> Size:
    """Return the largest ellipse that looks like a circle and leaves room for the panel."""
    room = columns - PANEL_COLUMNS - GAP_COLUMNS
    rows = min(rows, PICTURE_ROWS_MAX, (room - 2 * MARGIN + 1) // 2)
    rows -= 1 - rows % 2  # odd, so that there is a middle
    return Size(2 * rows - 1 + 2 * MARGIN, rows)


# --- panel -----------------------------------------------------------------------------


def _panel(look: Look, glyphs: Glyphs, rows: int) -> RenderableType:
    """Return the lights, with bars and a legend if there is room."""
    legend = _legend(look.portrait, glyphs)
    spare = rows - len(look.wrong) - 1 - len(legend)
    if spare < 0:
        return lights(look.wrong, glyphs)
    parts: list[RenderableType] = [lights(look.wrong, glyphs), Text()]
    bars = min(spare - 2, BAR_ROWS_MAX)
    if bars > 0 and len(look.history) > 1:
        none = "" if any(look.history) else ": nothing"
        parts += [Text(look.history_name + none, "dim")]
        parts += [*draw_bars(look.history, PANEL_COLUMNS, bars, glyphs), Text()]
    return Group(*parts, *legend)


def lights(wrong: Mapping[Layer, int], glyphs: Glyphs) -> Table:
    """Return a light for each layer, with its name."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for layer, count in wrong.items():
        grid.add_row(Text(str(layer), "bold"), LAYER_NAMES[layer], light(count, glyphs))
    return grid


def light(wrong: int, glyphs: Glyphs) -> Text:
    """Return a sign and a word: right, or the number of violations."""
    if wrong:
        return Text(f"{glyphs.wrong} {wrong} wrong", WRONG_STYLE)
    return Text(f"{glyphs.right} right", RIGHT_STYLE)


def _legend(portrait: RingLayout, glyphs: Glyphs) -> list[Text]:
    """Return the meaning of the marks, and the number of nodes with each."""
    lines = [
        Text.assemble((glyphs.marks[mark], STYLES[mark]), f" {portrait.count(mark):2} {mark.value}")
        for mark in GlyphState
    ]
    if portrait.dead:
        text = f" {len(portrait.dead):2} crashed, still recorded"
        return [*lines, Text.assemble((glyphs.dead, DEAD_STYLE), text)]
    filled = {dot.label for dot in portrait.dots}
    empty = sum(label not in filled for label in portrait.places)
    return [*lines, Text.assemble((glyphs.vacant, "dim"), f" {empty:2} places empty")]
