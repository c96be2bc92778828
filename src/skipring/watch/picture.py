"""The ring as text: the two drawings of a portrait.

It is drawn as an ellipse, each node at the angle
of r(label), label 0 on top and clockwise from there, with the longest shortcuts as chords; and
unrolled, with one row a level, which shows all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import cos, sin, tau
from typing import Final

from msgspec import Struct
from rich.text import Text

from skipring.core import topology
from skipring.core.labels import CIRCLE, Label
from skipring.core.topology import Edge, levels, ring_edges, shortcut_edges
from skipring.watch.canvas import Canvas, Dots, Point, Size, Spot
from skipring.watch.portrait import Dot, Mark, Portrait


class Glyphs(Struct, frozen=True, kw_only=True):
    """The characters of a drawing; none says by its colour alone what it is."""

    marks: Mapping[Mark, str]
    dead: str
    vacant: str
    outline: str
    edge: str
    broken_edge: str
    cut: str
    bars: str  # from nothing to a full cell
    right: str
    wrong: str
    above: str
    arrow: str
    has_dots: bool  # braille, for lines finer than a character


UNICODE: Final = Glyphs(
    marks={Mark.RIGHT: "●", Mark.EDGES: "◐", Mark.LABEL: "✗"},
    dead="†",
    vacant="○",
    outline="·",
    edge="─",
    broken_edge="┄",
    cut="…",
    bars=" ▁▂▃▄▅▆▇█",
    right="✓",
    wrong="✗",
    above="▲",
    arrow="→",
    has_dots=True,
)
ASCII: Final = Glyphs(
    marks={Mark.RIGHT: "O", Mark.EDGES: "%", Mark.LABEL: "X"},
    dead="+",
    vacant="_",
    outline=".",
    edge="-",
    broken_edge=" ",
    cut="~",
    bars=" .:|",
    right="ok",
    wrong="X",
    above="^",
    arrow="->",
    has_dots=False,
)


def glyphs_for(encoding: str) -> Glyphs:
    """The glyphs that an output in this encoding can show."""
    return UNICODE if "utf" in encoding.lower() else ASCII


STYLES: Final[Mapping[Mark, str]] = {
    Mark.RIGHT: "green",
    Mark.EDGES: "yellow",
    Mark.LABEL: "bold red",
}
DEAD_STYLE: Final = "bold red"
_SEVERITY: Final = {mark: rank for rank, mark in enumerate(Mark)}
# The longest shortcuts first; green, yellow and red say how well something stands.
LEVEL_STYLES: Final = ("magenta", "blue", "cyan", "bright_black")
RING_STYLE: Final = "green"
BROKEN_STYLE: Final = "red"
_LABEL_BITS_SHOWN: Final = 5
MARGIN: Final = _LABEL_BITS_SHOWN + 2  # columns on each side of the ellipse, for the labels


# --- the ellipse -----------------------------------------------------------------------


def spot(label: Label, size: Size) -> Spot:
    """Where a label stands on the ellipse; beside it there is room for the labels."""
    return _on_ellipse(label.position / CIRCLE, size)


def _on_ellipse(turn: float, size: Size) -> Spot:
    x, y = _point(turn, size)
    return round(x), round(y)


def _point(turn: float, size: Size) -> Point:
    middle, centre = (size.columns - 1) // 2, (size.rows - 1) // 2
    x = middle + (middle - MARGIN) * sin(tau * turn)
    y = centre - centre * cos(tau * turn)
    return x, y


def draw_ring(
    portrait: Portrait, size: Size, glyphs: Glyphs = UNICODE, centre: Sequence[Text] = ()
) -> list[Text]:
    """Draw the nodes on an ellipse, with some lines of text in its middle."""
    canvas = Canvas(size)
    if glyphs.has_dots and portrait.members > 1:
        _put_edges(canvas, portrait)
    else:
        _put_outline(canvas, glyphs)
    _put_places(canvas, portrait, glyphs)
    _put_dots(canvas, portrait, glyphs)
    _put_centre(canvas, portrait, glyphs, centre)
    return canvas.lines()


def _put_outline(canvas: Canvas, glyphs: Glyphs) -> None:
    steps = 8 * canvas.size.rows
    for step in range(steps):
        canvas.put(_on_ellipse(step / steps, canvas.size), glyphs.outline, "dim")


def _put_edges(canvas: Canvas, portrait: Portrait) -> None:
    """The ring as arcs, the longest shortcuts as chords; those that are not sound first."""
    dots, arcs = Dots(), _arcs(portrait.members)
    for is_sound in (False, True):
        for edge in _chords(portrait.members):
            if (edge in portrait.sound) == is_sound:
                style = LEVEL_STYLES[topology.level(edge) - 1] if is_sound else BROKEN_STYLE
                dots.draw(_chord(edge, canvas.size), style, is_broken=not is_sound)
        for edge in arcs:
            if (edge in portrait.sound) == is_sound:
                style = RING_STYLE if is_sound else BROKEN_STYLE
                arc = _arc(edge, canvas.size, is_short=len(arcs) > 1)
                dots.draw(arc, style, is_broken=not is_sound)
    dots.put_on(canvas)


@lru_cache(maxsize=16)
def _chords(members: int) -> tuple[Edge, ...]:
    """The shortcuts that are long enough to be told from the ring, the shortest first."""
    edges = shortcut_edges(min(members, 2 << len(LEVEL_STYLES)))
    return tuple(sorted(edges, key=topology.level, reverse=True))


@lru_cache(maxsize=16)
def _arcs(members: int) -> tuple[Edge, ...]:
    return tuple(sorted(ring_edges(members)))


def _chord(edge: Edge, size: Size) -> list[Point]:
    return [_point(label.position / CIRCLE, size) for label in edge]


def _arc(edge: Edge, size: Size, *, is_short: bool) -> list[Point]:
    """The shorter way along the ellipse from one label to the other; of two nodes both ways."""
    begin, end = (label.position / CIRCLE for label in edge)
    way = (end - begin + 0.5) % 1 - 0.5 if is_short else 1.0
    steps = 1 + round(abs(way) * 8 * size.rows)
    return [_point(begin + way * step / steps, size) for step in range(steps + 1)]


def _put_places(canvas: Canvas, portrait: Portrait, glyphs: Glyphs) -> None:
    """The places that should be filled, to be covered by those who fill them."""
    for label in portrait.places:
        canvas.put(spot(label, canvas.size), glyphs.vacant, "dim")
    for label in portrait.dead:
        canvas.put(spot(label, canvas.size), glyphs.dead, DEAD_STYLE, take=True)


def _put_dots(canvas: Canvas, portrait: Portrait, glyphs: Glyphs) -> None:
    """The nodes first, so that no label hides one; then the labels, the shortest first."""
    crowd: dict[Spot, list[Dot]] = {}
    for dot in portrait.dots:
        if dot.label is not None:
            crowd.setdefault(spot(dot.label, canvas.size), []).append(dot)
    captions: dict[Spot, tuple[str, str]] = {}
    for label in (*portrait.places, *portrait.dead):
        captions[spot(label, canvas.size)] = (_short(label, glyphs), "dim")
    for at, dots in crowd.items():
        mark = max((dot.mark for dot in dots), key=_SEVERITY.__getitem__)
        canvas.put(at, glyphs.marks[mark], STYLES[mark], take=True)
        captions[at] = (_caption(dots, glyphs), STYLES[mark] if mark is Mark.LABEL else "")
    for at, (text, style) in sorted(captions.items(), key=lambda item: len(item[1][0])):
        canvas.put_beside(at, text, style)


def _caption(dots: list[Dot], glyphs: Glyphs) -> str:
    """The label of the one who stands in a spot, or how many they are."""
    if len(dots) > 1 or dots[0].label is None:
        return f"x{len(dots)}"
    return _short(dots[0].label, glyphs)


def _short(label: Label, glyphs: Glyphs) -> str:
    if label.length <= _LABEL_BITS_SHOWN:
        return label.bits
    return label.bits[: _LABEL_BITS_SHOWN - 1] + glyphs.cut


def _put_centre(canvas: Canvas, portrait: Portrait, glyphs: Glyphs, centre: Sequence[Text]) -> None:
    lines = list(centre)
    if portrait.homeless:
        count = len(portrait.homeless)
        lines.append(Text(f"{count} without a label", "red"))
        lines.append(Text(" ".join(glyphs.marks[Mark.LABEL] * min(count, 10)), STYLES[Mark.LABEL]))
    row = (canvas.size.rows - len(lines)) // 2
    for offset, line in enumerate(lines):
        column = (canvas.size.columns - len(line.plain)) // 2
        canvas.put((column - 1, row + offset), f" {line.plain} ", str(line.style))


# --- unrolled --------------------------------------------------------------------------


def draw_levels(portrait: Portrait, columns: int, glyphs: Glyphs = UNICODE) -> list[Text]:
    """Draw the ring unrolled, one row a level; at the right end stands label 0 again."""
    if portrait.members == 0:
        return []
    top = levels(portrait.members)
    names = [*(f"level {level}" for level in range(1, top)), "ring"]
    gutter = max(len(name) for name in names) + 2
    shown = [i for i in range(1, top + 1) if 1 << i <= columns - gutter - 1]
    step = (columns - gutter - 1) >> max(shown, default=0)
    width = step << max(shown, default=0)
    rows = []
    for level in shown:
        name = (names[level - 1].ljust(gutter), _level_style(level, top))
        rows.append(Text.assemble(name, _level_row(portrait, level, width, glyphs)))
    return rows


def _level_style(level: int, top: int) -> str:
    """The style of a level's edges, the same in both drawings."""
    if level == top:
        return RING_STYLE
    return LEVEL_STYLES[min(level, len(LEVEL_STYLES)) - 1]


def _level_row(portrait: Portrait, level: int, width: int, glyphs: Glyphs) -> Text:
    """The sorted ring over the labels of at most this length."""
    labels = sorted(Label.nth(i) for i in range(min(portrait.members, 1 << level)))
    signs = _signs(portrait, glyphs)
    sound_style = _level_style(level, levels(portrait.members))
    row = Text(no_wrap=True)
    for label, other in zip(labels, labels[1:] + labels[:1], strict=True):
        here = label.position * width // CIRCLE
        there = other.position * width // CIRCLE if other > label else width
        is_sound = (min(label, other), max(label, other)) in portrait.sound
        sign, style = signs[label]
        has_room = label.length == level and there - here > len(label.bits)
        is_named = has_room and sign == glyphs.marks[Mark.RIGHT]  # else only its colour would tell
        text = label.bits if is_named else sign
        row.append(text, style)
        edge = glyphs.edge if is_sound else glyphs.broken_edge
        row.append(edge * (there - here - len(text)), sound_style if is_sound else BROKEN_STYLE)
    return row.append(signs[Label(0)][0], "dim")


def _signs(portrait: Portrait, glyphs: Glyphs) -> dict[Label, tuple[str, str]]:
    """The character and style of every place."""
    signs = dict.fromkeys(portrait.places, (glyphs.vacant, "dim"))
    signs |= dict.fromkeys(portrait.dead, (glyphs.dead, DEAD_STYLE))
    for dot in sorted(portrait.dots, key=lambda dot: _SEVERITY[dot.mark]):
        if dot.label is not None:
            signs[dot.label] = (glyphs.marks[dot.mark], STYLES[dot.mark])
    return signs


# --- bars ------------------------------------------------------------------------------


def draw_bars(
    values: Sequence[int], columns: int, rows: int, glyphs: Glyphs = UNICODE
) -> list[Text]:
    """Draw the newest values as bars, the largest of all as high as there is room."""
    steps = len(glyphs.bars) - 1
    most = max(values, default=0)
    heights = [-(-value * rows * steps // most) if value else 0 for value in values[-columns:]]
    return [
        Text("".join(glyphs.bars[min(max(h - row * steps, 0), steps)] for h in heights), "cyan")
        for row in reversed(range(rows))
    ]
