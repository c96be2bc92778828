"""Scenes of the story as text: what a person reads and sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from skipring.demo.picture import (
    DEAD_STYLE,
    MARGIN,
    STYLES,
    Glyphs,
    Mark,
    Portrait,
    Size,
    draw_bars,
    draw_levels,
    draw_ring,
)
from skipring.demo.story import (
    CLOSURE_ROUNDS,
    Chapter,
    Comparison,
    End,
    Figures,
    Frame,
    Outcome,
    Plan,
    RingStands,
    Unrolled,
)
from skipring.world.legitimacy import Layer

COLUMNS_MAX: Final = 100  # Lines longer than this are hard to read.
COLUMNS_MIN: Final = 78
ROWS_MIN: Final = 24
ROWS_PLAIN: Final = 24  # where there is no terminal to fill
_PANEL_COLUMNS: Final = 29
_WRONG_PER_NODE: Final = 12  # Measured: about what A15 brings, the worst we show.
_ROUND_THE_PICTURE: Final = 7  # rows for the heading, its text, the verdict and the cursor
_PICTURE_ROWS_MAX: Final = 25
_PICTURE_ROWS_BESIDE_LEVELS: Final = 19

_LAYERS: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "database",
    Layer.LABELS: "labels",
    Layer.RING: "neighbours",
    Layer.SHORTCUTS: "shortcuts",
    Layer.LEAVERS: "leavers",
    Layer.CHANNELS: "in flight",
    Layer.PUBLICATIONS: "content",
}


_THINGS: Final[Mapping[Layer, tuple[str, str]]] = {
    Layer.DATABASE: ("database entry", "database entries"),
    Layer.LABELS: ("label", "labels"),
    Layer.RING: ("neighbour", "neighbours"),
    Layer.SHORTCUTS: ("shortcut", "shortcuts"),
    Layer.LEAVERS: ("leaver", "leavers"),
    Layer.CHANNELS: ("message in flight", "messages in flight"),
    Layer.PUBLICATIONS: ("subscriber without all publications", "without all publications"),
}


class Page(Struct, frozen=True):
    """How much room there is, and with which characters to fill it."""

    columns: int
    rows: int
    glyphs: Glyphs


def introduce(plan: Plan) -> RenderableType:
    """What this is, in a sentence or two."""
    return Group(
        Text.assemble(
            ("skipring", "bold"),
            " keeps the subscribers of a topic connected in a ring with shortcuts, and mends that "
            "ring by itself, whatever state it is in.",
        ),
        Text(
            f"A simulation with {plan.n} subscribers and one supervisor (seed {plan.seed}). In a "
            "round everybody acts once and every message sent before arrives.",
            "dim",
        ),
    )


def head(chapter: Chapter) -> RenderableType:
    """A chapter's title and what happens in it."""
    title = Text(f"{chapter.number}  {chapter.title}", "bold cyan")
    return Group(Text(), Rule(title, align="left", style="cyan"), Text(chapter.text))


# --- pictures --------------------------------------------------------------------------


def show_ring(scene: RingStands, page: Page) -> RenderableType:
    """The ring as it should be, and what it costs."""
    size = _picture_size(page)
    centre = [Text(f"{scene.figures.members} subscribers", "bold"), Text("in a ring", "bold")]
    panel = Group(_figures(scene.figures), Text(), *_legend(scene.portrait, page.glyphs))
    return _side_by_side(draw_ring(scene.portrait, size, page.glyphs, centre), panel, size)


def show_unrolled(scene: Unrolled, page: Page) -> RenderableType:
    """The levels of the ring, and how it came to be."""
    formed = scene.formed
    text = f"{page.glyphs.right} The ring formed from nothing in {_rounds(formed.rounds)}."
    return Group(
        Text(),
        Text("Unrolled, with label 0 at both ends; the rows above the ring are the shortcuts:"),
        *draw_levels(scene.portrait, page.columns, page.glyphs),
        Text(text, "green") if formed.is_healed else _not_healed(formed, page.glyphs),
    )


def show_frame(frame: Frame, page: Page) -> RenderableType:
    """The ring after a round, and what is wrong with it."""
    levels = draw_levels(frame.portrait, page.columns, page.glyphs)
    size = _picture_size(page, rows_below=len(levels) + 1)
    has_levels = size.rows >= _PICTURE_ROWS_BESIDE_LEVELS
    size = size if has_levels else _picture_size(page)
    recorded = f"supervisor knows {frame.portrait.recorded} of {frame.portrait.members}"
    centre = [Text(f"round {frame.round}", "bold"), _verdict(frame), Text(recorded, "dim")]
    picture = draw_ring(frame.portrait, size, page.glyphs, centre)
    both = _side_by_side(picture, _panel(frame, page.glyphs, size.rows), size)
    return Group(both, Text(), *levels) if has_levels else both


def describe_frame(frame: Frame, page: Page) -> Text:
    """A round in one line; above the first one there are headings."""
    counts = "".join(f"{frame.wrong.get(layer, 0) or '-':>{_width(layer)}}" for layer in Layer)
    line = f"{frame.round:>7}{frame.history[-1]:>7}{counts}   "
    room = page.columns - len(line)
    bar = "healed" if frame.is_healed else page.glyphs.bars[-1] * _bar_length(frame, room)
    if frame.round > 1:
        return Text(line + bar)
    headings = "".join(f"{layer:>{_width(layer)}}" for layer in Layer)
    return Text(f"  round  wrong{headings}\n{line}{bar}")


def _width(layer: Layer) -> int:
    return len(layer) + 3


def _bar_length(frame: Frame, room: int) -> int:
    """On one scale for all rounds and chapters, so that bars can be compared."""
    full = _WRONG_PER_NODE * max(frame.portrait.members, 1)
    return min(-(-frame.history[-1] * room // full), room)


def _verdict(frame: Frame) -> Text:
    if frame.is_healed:
        return Text("healed", "bold green")
    return Text(f"{frame.history[-1]} wrong", "bold red")


def _picture_size(page: Page, rows_below: int = 0) -> Size:
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


# --- the panel beside a picture --------------------------------------------------------


def _panel(frame: Frame, glyphs: Glyphs, rows: int) -> RenderableType:
    spare = max(rows - 17, 0)
    bars = draw_bars(frame.history, _PANEL_COLUMNS, 2 + spare // 2, glyphs)
    return Group(
        _lights(frame.wrong, glyphs),
        Text(),
        Text("wrong in all, round by round", "dim"),
        *bars,
        Text(),
        *_legend(frame.portrait, glyphs),
        Text(f"{frame.messages:.0f} messages per node so far", "dim"),
    )


def _lights(wrong: Mapping[Layer, int], glyphs: Glyphs) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=6)
    grid.add_column(width=10)
    for layer, name in _LAYERS.items():
        count = wrong.get(layer, 0)
        light = (
            Text(f"{glyphs.wrong} {count} wrong", "red") if count else Text(glyphs.right, "green")
        )
        grid.add_row(Text(str(layer), "bold"), name, light)
    return grid


def _legend(portrait: Portrait, glyphs: Glyphs) -> list[Text]:
    """What the marks mean, and how many there are of each."""
    lines = [
        Text.assemble((glyphs.marks[mark], STYLES[mark]), f" {portrait.count(mark):2} {mark.value}")
        for mark in Mark
    ]
    if portrait.dead:
        text = f" {len(portrait.dead):2} crashed, still recorded"
        return [*lines, Text.assemble((glyphs.dead, DEAD_STYLE), text)]
    filled = {dot.label for dot in portrait.dots}
    empty = sum(label not in filled for label in portrait.places)
    return [*lines, Text.assemble((glyphs.vacant, "dim"), f" {empty:2} places empty")]


def _figures(figures: Figures) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(justify="right", style="bold")
    n = figures.members
    grid.add_row(str(n), "members")
    grid.add_row(f"{figures.average_degree:.2f}", f"edges a node (4 - 6/{n})")
    grid.add_row(str(figures.diameter), "hops at most (diameter)")
    grid.add_row(f"{figures.messages:.1f}", "messages a node a round")
    grid.add_row(f"{figures.requests:.1f}", "requests to the super-\nvisor a round, in all")
    return grid


# --- verdicts --------------------------------------------------------------------------


def conclude(outcome: Outcome, glyphs: Glyphs) -> Text:
    """How a chapter ended, in a sentence."""
    if not outcome.is_healed:
        return _not_healed(outcome, glyphs)
    healed = f"healed in {_rounds(outcome.rounds)}"
    if not outcome.is_closed:
        return Text(f"{glyphs.wrong} {healed}, but it did not stay so.", "bold red")
    return Text.assemble(
        (f"{glyphs.right} {healed}", "bold green"),
        f": {outcome.messages:.0f} messages per node, "
        f"{outcome.requests} requests to the supervisor.",
    )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _not_healed(outcome: Outcome, glyphs: Glyphs) -> Text:
    return Text.assemble(
        (f"{glyphs.wrong} not healed after {_rounds(outcome.rounds)}", "bold red"),
        f": still {_listed(outcome.wrong)}.",
    )


def _listed(wrong: Mapping[Layer, int]) -> str:
    """What is wrong, in words; messages in flight only if there is nothing else."""
    found: list[str] = []
    stored = [layer for layer in _LAYERS if wrong.get(layer)]
    for layer in stored[:-1] if stored[1:] and stored[-1] is Layer.CHANNELS else stored:
        count = wrong.get(layer, 0)
        found.append(f"{count} wrong {_THINGS[layer][count != 1]}")
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def compare(comparison: Comparison, glyphs: Glyphs) -> RenderableType:
    """What the paper's pseudocode and our rules made of the same damage."""
    parts = (
        ("Paper's pseudocode taken literally", comparison.paper),
        ("With the rules, from the same state", comparison.ours),
    )
    lines = []
    for name, outcome in parts:
        sign = glyphs.right if outcome.is_healed else glyphs.wrong
        rate = outcome.messages / max(outcome.rounds, 1)
        lines.append(
            Text.assemble(
                (f"{sign} {name}: ", "bold green" if outcome.is_healed else "bold red"),
                f"{_in_rounds(outcome)}, at {rate:.0f} messages per node and round.",
            )
        )
    return Group(*lines)


def _in_rounds(outcome: Outcome) -> str:
    if not outcome.is_healed:
        return f"still {_listed(outcome.wrong)} after {_rounds(outcome.rounds)}"
    return f"healed in {_rounds(outcome.rounds)}"


# --- the end ---------------------------------------------------------------------------


def finish(end: End) -> RenderableType:
    """All chapters at a glance, and what to try next."""
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("chapter")
    for heading in ("healed in\nrounds", "messages\nper node", "the same,\nif quiet"):
        table.add_column(heading, justify="right")
    table.add_column("supervisor\nrequests", justify="right")
    _add_row(table, "The ring forms from nothing", end.formed, end.figures)
    for outcome in end.healed:
        _add_row(table, outcome.chapter.title, outcome, end.figures)
    paper, ours = end.comparison.paper, end.comparison.ours
    _add_row(table, "Stale shortcuts, literal paper", paper, None)
    _add_row(table, "Stale shortcuts, with the rules", ours, None)
    commands = (
        "skipring simulate --adversary A15 --n 64",
        "skipring simulate --mode paper --adversary A12 --n 32",
    )
    return Group(
        Text(),
        Rule(Text("In short", "bold cyan"), align="left", style="cyan"),
        table,
        Text(),
        _last_word(end),
        Text("Try next:"),
        *(Text(f"  {command}", "cyan") for command in commands),
    )


def _add_row(table: Table, name: str, outcome: Outcome, quiet: Figures | None) -> None:
    rounds = Text(str(outcome.rounds), "green")
    if not outcome.is_healed:
        rounds = Text(f"not in {outcome.rounds}", "red")
    usual = f"{quiet.messages * outcome.rounds:.0f}" if quiet is not None else ""
    table.add_row(name, rounds, f"{outcome.messages:.0f}", usual, str(outcome.requests))


def _last_word(end: End) -> Text:
    if end.is_good:
        text = (
            f"With the rules all healed, and nothing changed in the {CLOSURE_ROUNDS} rounds after."
        )
        return Text(text, "bold green")
    return Text("Not everything healed.", "bold red")
