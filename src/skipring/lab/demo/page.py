"""Scenes of the story as text: what a person reads and sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from skipring.lab.demo.story import (
    PUBLISHING,
    Analysis,
    Chapter,
    DemoCast,
    DemoFrame,
    End,
    Note,
    Opening,
    Scoreboard,
    StepResult,
    Told,
)
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
)
from skipring.world.legitimacy import Layer

COLUMNS_MAX: Final = 100  # Lines longer than this are hard to read.
COLUMNS_MIN: Final = 78
ROWS_MIN: Final = 24
ROWS_PLAIN: Final = 24  # where there is no terminal to fill
ROLES_MAX: Final = 20  # Our guess: of more processes nobody reads where they are.
FAULTS_MAX: Final = 4  # Our guess: the first say what it is.
_PANEL_COLUMNS: Final = 29
_WRONG_PER_NODE: Final = 8  # Measured: about what the scrambled ring has.
_ROUND_THE_PICTURE: Final = 8  # rows for the heading, its text, the verdict and the cursor
_PICTURE_ROWS_MAX: Final = 25
_PICTURE_ROWS_BESIDE_LEVELS: Final = 19

_LAYERS: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "database",
    Layer.LABELS: "labels",
    Layer.RING: "neighbours",
    Layer.SHORTCUTS: "shortcuts",
    Layer.LEAVERS: "leavers",
    Layer.PUBLICATIONS: "content",
}


class DemoPage(Struct, frozen=True):
    """How much room there is, and with which characters to fill it."""

    columns: int
    rows: int
    glyphs: Glyphs


def to_copy(scene: Told) -> list[Text]:
    """Lines below a scene that are to be copied, and must stay in one piece."""
    match scene:
        case Analysis(report=Path() as place):
            return [Text.assemble("The report stays: ", (str(place), "bold cyan"))]
        case End(commands=commands):
            return [Text(f"  {command}", "cyan") for command in commands]
        case _:
            return []


# --- the beginning ---------------------------------------------------------------------


def address(url: str | None) -> Text:
    """Where all of it can be seen in a browser."""
    if url is None:
        return Text("In the browser too, with: pip install 'skipring[dashboard]'")
    return Text.assemble("In the browser: ", (url, "bold cyan"))


def introduce(opening: Opening) -> RenderableType:
    """What this is, in a sentence or two."""
    plan = opening.plan
    return Group(
        Text(),
        Text.assemble(
            ("skipring", "bold"),
            " is publish/subscribe without a broker: subscribers form a ring with shortcuts, pass "
            "on what is published, and mend each other, whatever state they are in.",
        ),
        Text(
            f"Now {plan.n} of them run here as processes, on loopback only, with a round every "
            f"{plan.tick_s:g} s (seed {plan.seed}). They will be treated badly.",
            "dim",
        ),
    )


def head(chapter: Chapter) -> RenderableType:
    """A chapter's title, what is done in it and what to look at."""
    title = Text(f"{chapter.number}  {chapter.title}", "bold cyan")
    return Group(
        Text(),
        Rule(title, align="left", style="cyan"),
        Text(chapter.deed),
        Text(chapter.look, "italic"),
    )


def list_cast(cast: DemoCast) -> RenderableType:
    """What runs where."""
    table = _table("process", "pid", "address", "data")
    for role in cast.roles[:ROLES_MAX]:
        table.add_row(role.name, str(role.pid), role.address, role.data)
    more = len(cast.roles) - ROLES_MAX
    rest = [Text(f"and {more} more nodes", "dim")] if more > 0 else []
    return Group(Text(), table, *rest, Text(f"data below {cast.directory}", "dim"), Text())


def tell(note: Note, glyphs: Glyphs) -> Text:
    """A sentence on what has happened."""
    return Text(f"{glyphs.edge * 2} {note.text}", "yellow")


# --- the ring --------------------------------------------------------------------------


def show_frame(frame: DemoFrame, page: DemoPage) -> RenderableType:
    """The ring at a moment, and what is wrong with it."""
    portrait = frame.sight.portrait
    levels = draw_levels(portrait, page.columns, page.glyphs)
    size = _picture_size(page, rows_below=len(levels) + 1)
    has_levels = size.rows >= _PICTURE_ROWS_BESIDE_LEVELS
    size = size if has_levels else _picture_size(page)
    picture = draw_ring(portrait, size, page.glyphs, _centre(frame))
    both = _side_by_side(picture, _panel(frame, page.glyphs, size.rows), size)
    return Group(both, Text(), *levels) if has_levels else both


def _centre(frame: DemoFrame) -> list[Text]:
    sight = frame.sight
    if sight.has_supervisor:
        portrait = sight.portrait
        known = Text(f"supervisor knows {portrait.recorded} of {portrait.members}", "dim")
    else:
        known = Text("no supervisor", DEAD_STYLE)
    verdict = Text("all is well", "bold green")
    if not sight.is_whole:
        verdict = Text(f"{frame.history[-1]} wrong", "bold red")
    return [Text(f"{frame.seconds:.1f} s", "bold"), verdict, known]


def describe_frame(frame: DemoFrame, page: DemoPage) -> Text:
    """A moment in one line; above the first one there are headings."""
    sight = frame.sight
    counts = "".join(f"{sight.wrong.get(layer, 0) or '-':>{_width(layer)}}" for layer in _LAYERS)
    complete = f"{sight.complete} of {sight.portrait.members}"
    line = f"{frame.seconds:>7.1f} s {frame.rounds:>6}{counts}  {complete:>9}   "
    room = page.columns - len(line)
    bar = "all is well" if sight.is_whole else page.glyphs.bars[-1] * _bar_length(frame, room)
    if not frame.is_first:
        return Text(line + bar)
    headings = "".join(f"{layer:>{_width(layer)}}" for layer in _LAYERS)
    return Text(f"     time  round{headings}   have all   wrong in all\n{line}{bar}")


def _width(layer: Layer) -> int:
    return len(layer) + 2


def _bar_length(frame: DemoFrame, room: int) -> int:
    """On one scale for all moments and chapters, so that bars can be compared."""
    full = _WRONG_PER_NODE * max(frame.sight.portrait.members, 1)
    return min(-(-frame.history[-1] * room // full), room)


def _picture_size(page: DemoPage, rows_below: int = 0) -> Size:
    """The largest ellipse that looks like a circle and leaves room for the panel."""
    columns = page.columns - _PANEL_COLUMNS - 2
    rows = min(
        page.rows - _ROUND_THE_PICTURE - rows_below,
        _PICTURE_ROWS_MAX,
        (columns - 2 * MARGIN + 1) // 2,
    )
    rows -= 1 - rows % 2  # odd, so that there is a middle
    return Size(2 * rows - 1 + 2 * MARGIN, rows)


def _side_by_side(picture: list[Text], panel: RenderableType, size: Size) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=size.columns, no_wrap=True)
    grid.add_column(width=_PANEL_COLUMNS)
    grid.add_row(Text("\n").join(picture), panel)
    return grid


def _panel(frame: DemoFrame, glyphs: Glyphs, rows: int) -> RenderableType:
    sight = frame.sight
    lines: list[RenderableType] = [_lights(sight.wrong, glyphs), Text()]
    spare = rows - 14  # what the rest of the panel needs
    if spare > 1:
        lines += [Text("wrong in all, look by look", "dim")]
        lines += draw_bars(frame.history, _PANEL_COLUMNS, min(spare - 1, 5), glyphs)
        lines += [Text()]
    complete = f"{sight.complete} of {sight.portrait.members} have all {sight.published} orders"
    return Group(
        *lines,
        *_legend(sight.portrait, glyphs),
        Text(f"round {frame.rounds}"),
        Text(complete if sight.published else "no orders yet"),
    )


def _lights(wrong: Mapping[Layer, int], glyphs: Glyphs) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=3)
    grid.add_column(width=10)
    for layer, name in _LAYERS.items():
        count = wrong.get(layer, 0)
        light = (
            Text(f"{glyphs.wrong} {count} wrong", "red") if count else Text(glyphs.right, "green")
        )
        grid.add_row(Text(str(layer), "bold"), name, light)
    return grid


def _legend(portrait: RingLayout, glyphs: Glyphs) -> list[Text]:
    """What the marks mean, and how many there are of each."""
    lines = [
        Text.assemble((glyphs.marks[mark], STYLES[mark]), f" {portrait.count(mark):2} {mark.value}")
        for mark in GlyphState
    ]
    dead = f" {len(portrait.dead):2} dead, still recorded"
    return [*lines, Text.assemble((glyphs.dead, DEAD_STYLE), dead)]


# --- verdicts --------------------------------------------------------------------------


def conclude(outcome: StepResult, glyphs: Glyphs) -> Text:
    """How a chapter ended, in a sentence."""
    took = f"{outcome.seconds:.1f} s ({_rounds(outcome.rounds)})"
    if not outcome.is_good:
        verdict = (f"{glyphs.wrong} not healed after {took}", "bold red")
        return Text.assemble(verdict, f": {_listed(outcome.faults)}")
    done = "healed" if outcome.chapter.number > PUBLISHING.number else "done"
    return Text.assemble(
        (f"{glyphs.right} {done} in {took}", "bold green"),
        f": {outcome.members} of {outcome.members} in the ring, {outcome.published} publications, "
        f"{outcome.lost} lost",
    )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _listed(faults: Sequence[str]) -> str:
    more = len(faults) - FAULTS_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*faults[:FAULTS_MAX], *rest])


def show_board(board: Scoreboard, glyphs: Glyphs) -> RenderableType:
    """All chapters and all nodes at a glance."""
    parts = _table("chapter", "time", "rounds", "orders", "lost")
    for outcome in board.outcomes:
        sign = Text(glyphs.right, "green") if outcome.is_good else Text(glyphs.wrong, "bold red")
        title = Text(f"{outcome.chapter.number} {outcome.chapter.title}")
        figures = (f"{outcome.seconds:.1f} s", outcome.rounds, outcome.published, outcome.lost)
        parts.add_row(Text.assemble(sign, " ", title), *map(str, figures))
    nodes = _table("node", "pid", "label", "orders", "root hash")
    for it in board.standings:
        pid = str(board.pids.get(it.node, "-"))
        nodes.add_row(it.node, pid, it.label, str(it.stored), Text(it.root, "bold"))
    title = Text("Scoreboard", "bold cyan")
    return Group(
        Text(),
        Rule(title, align="left", style="cyan"),
        parts,
        Text(),
        nodes,
        _equality(board, glyphs),
    )


def _equality(board: Scoreboard, glyphs: Glyphs) -> Text:
    if board.fault is not None:
        return Text(f"{glyphs.wrong} {board.fault}", "bold red")
    text = f"{glyphs.right} equal root hashes: all {len(board.standings)} nodes have the same"
    return Text(text, "bold green")


def report(analysis: Analysis, glyphs: Glyphs) -> Text:
    """What Spark has made of the topic."""
    if analysis.skipped is not None:
        return Text(f"Left out: {analysis.skipped}", "yellow")
    if analysis.fault is not None:
        return Text(f"{glyphs.wrong} {analysis.fault}", "bold red")
    rows = ", ".join(f"{name} {count:,}" for name, count in analysis.rows.items())
    return Text.assemble(
        (f"{glyphs.right} every order once, in {analysis.seconds:.1f} s", "bold green"),
        f": rows of the tables: {rows}",
    )


def finish(end: End, glyphs: Glyphs) -> RenderableType:
    """The last word; what to try next stands below it."""
    verdict = Text(f"{glyphs.right} It healed each time, and nothing was lost.", "bold green")
    if not end.is_good:
        verdict = Text(f"{glyphs.wrong} Not all of it held: {_listed(end.faults)}", "bold red")
    return Group(Text(), verdict, Text("Try next:"))


def _table(*headings: str) -> Table:
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        is_number = heading in {"pid", "time", "rounds", "orders", "lost"}
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
    return table
