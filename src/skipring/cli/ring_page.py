"""Panel about a live or simulated ring: drawing, layers of legitimacy, history, legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipring.view.text import (
    DEAD_STYLE,
    MARGIN,
    STYLES,
    Glyphs,
    GlyphState,
    RingLayout,
    Size,
    draw_bars,
    draw_levels,
    draw_ring,
    glyphs_for,
)
from skipring.world.legitimacy import Layer

RIGHT_STYLE: Final = "green"
WRONG_STYLE: Final = "bold red"
PANEL_COLUMNS: Final = 31  # as wide as its longest line
GAP_COLUMNS: Final = 2
PICTURE_ROWS_MAX: Final = 25  # Our guess: a larger ring is not easier to read.
PICTURE_ROWS_MIN: Final = 9  # a smaller one cannot be read
PICTURE_ROWS_BESIDE_LEVELS: Final = 17  # there are levels only where the ring stays this large
LEVEL_COLUMNS_MAX: Final = 100
BAR_ROWS_MAX: Final = 4

PIPE_COLUMNS: Final = 1000  # nothing is cut off or wrapped where nobody looks

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
    """The output; a line ends early only where a terminal does."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def can_repaint(console: Console) -> bool:
    """True if this is a terminal on which one picture can be painted over another."""
    return console.is_terminal and not console.is_dumb_terminal


def time_of_day() -> str:
    """The time as a person at this clock reads it."""
    return f"{datetime.now().astimezone():%H:%M:%S}"


class RingPanel(Struct, frozen=True):
    """How much room there is, and with which characters to fill it."""

    columns: int
    rows: int
    glyphs: Glyphs

    @classmethod
    def of(cls, console: Console) -> RingPanel:
        """The room that a terminal has now; the last row is left to the cursor."""
        return cls(console.width, console.height - 1, glyphs_for(console.encoding))


class Look(Struct, frozen=True, kw_only=True):
    """What there is to see of a ring at one time."""

    portrait: RingLayout
    wrong: Mapping[Layer, int]  # of the layers that can be seen, how many things are wrong
    history: Sequence[int]  # how many were wrong in all, look by look
    history_name: str
    centre: Sequence[Text]


def ring_page(look: Look, page: RingPanel, rows: int) -> RenderableType:
    """The ring with its panel in so many rows; where there is no room for both, the lights."""
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
    """How many of the rows the ring and its panel take."""
    size = _picture_size(page.columns, rows)
    return size.rows if size.rows >= PICTURE_ROWS_MIN else len(look.wrong)


def ring_page_with_levels(look: Look, page: RingPanel, rows: int) -> RenderableType:
    """The same, and the ring unrolled below it, where there is room for both."""
    levels = draw_levels(look.portrait, min(page.columns, LEVEL_COLUMNS_MAX), page.glyphs)
    left = rows - len(levels) - 1
    if rows_of_page(look, page, left) < PICTURE_ROWS_BESIDE_LEVELS:
        return ring_page(look, page, rows)
    return Group(ring_page(look, page, left), Text(), *levels)


def _picture_size(columns: int, rows: int) -> Size:
    """The largest ellipse that looks like a circle and leaves room for the panel."""
    room = columns - PANEL_COLUMNS - GAP_COLUMNS
    rows = min(rows, PICTURE_ROWS_MAX, (room - 2 * MARGIN + 1) // 2)
    rows -= 1 - rows % 2  # odd, so that there is a middle
    return Size(2 * rows - 1 + 2 * MARGIN, rows)


# --- the panel -------------------------------------------------------------------------


def _panel(look: Look, glyphs: Glyphs, rows: int) -> RenderableType:
    """Lights, and bars and a legend where they have room."""
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
    """A light for each layer, with a word beside it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for layer, count in wrong.items():
        grid.add_row(Text(str(layer), "bold"), LAYER_NAMES[layer], light(count, glyphs))
    return grid


def light(wrong: int, glyphs: Glyphs) -> Text:
    """What is right or how much is wrong, as a sign and a word."""
    if wrong:
        return Text(f"{glyphs.wrong} {wrong} wrong", WRONG_STYLE)
    return Text(f"{glyphs.right} right", RIGHT_STYLE)


def _legend(portrait: RingLayout, glyphs: Glyphs) -> list[Text]:
    """What the marks mean, and how many there are of each."""
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
