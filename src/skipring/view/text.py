"""Text drawing of a ring.

The ellipse shows each node at the angle of r(label), label 0 on top and clockwise from there, with
the longest shortcuts as chords.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from math import cos, sin, tau
from typing import Final

from msgspec import Struct
from rich.text import Text

from skipring.core import topology
from skipring.core.labels import CIRCLE, Label
from skipring.core.peers import NodeId
from skipring.core.state import legitimate_state
from skipring.core.topology import Edge, ring_edges, shortcut_edges
from skipring.view.canvas import Canvas, Dots, Point, Size, Spot
from skipring.world.legitimacy import repaired
from skipring.world.snapshot import SubscriberView, View


class GlyphState(Enum):
    """State of a node in a drawing; the worst comes last."""

    RIGHT = "right"
    EDGES = "label right, edges wrong"
    LABEL = "wrong label"


class NodeGlyph(Struct, frozen=True):
    """Node at the position of its own label; without a label it has no position."""

    node: NodeId
    label: Label | None
    mark: GlyphState


class RingLayout(Struct, frozen=True, kw_only=True):
    """Values of a topic that a drawing needs."""

    members: int
    recorded: int  # members that the roster has
    dots: tuple[NodeGlyph, ...]
    dead: tuple[Label, ...]  # labels that the database assigns to crashed nodes
    sound: frozenset[Edge]  # edges that both ends have correctly

    @property
    def places(self) -> list[Label]:
        """Return the labels of a legitimate ring with this number of members."""
        return [Label.nth(index) for index in range(self.members)]

    def count(self, mark: GlyphState) -> int:
        """Return the number of nodes in a state."""
        return sum(dot.mark is mark for dot in self.dots)

    @property
    def homeless(self) -> list[NodeGlyph]:
        """Return the nodes without a label."""
        return [dot for dot in self.dots if dot.label is None]


def layout(view: View) -> RingLayout:
    """Return the layout of a topic; nodes are compared with the repaired database."""
    roster = repaired(view.roster)
    index = {node: i for i, node in enumerate(roster.nodes)}
    members = [node for node, seen in view.subscribers.items() if seen.member]
    return RingLayout(
        members=len(members),
        recorded=sum(node in index for node in members),
        dots=tuple(
            NodeGlyph(node, seen.label, _judge(seen, index.get(node), roster.nodes, view.crashed))
            for node, seen in view.subscribers.items()
            if seen.member or seen.label is not None
        ),
        dead=tuple(Label.nth(i) for node, i in index.items() if node in view.crashed),
        sound=frozenset(_sound_edges(view, roster.nodes)),
    )


def _judge(
    seen: SubscriberView, index: int | None, nodes: Sequence[NodeId], crashed: Collection[NodeId]
) -> GlyphState:
    if index is None or not seen.member:
        return GlyphState.LABEL
    should = legitimate_state(index, nodes)
    if seen.label != should.label:
        return GlyphState.LABEL
    edges = (seen.left, seen.right, seen.ring, dict(seen.shortcuts))
    if edges != (should.left, should.right, should.ring, should.shortcuts):
        return GlyphState.EDGES
    # While the database has a dead node, a node with an edge to it matches the database, but is not
    # healthy.
    leads_to_dead = any(holder in crashed for _, holder in _references(seen))
    return GlyphState.EDGES if leads_to_dead else GlyphState.RIGHT


def _sound_edges(view: View, nodes: Sequence[NodeId]) -> Iterator[Edge]:
    """Yield edges between nodes with correct labels that refer to each other by these labels."""
    right: dict[Label, NodeId] = {}
    for index, node in enumerate(nodes):
        if node in view.subscribers and view.subscribers[node].label == Label.nth(index):
            right[Label.nth(index)] = node
    known = {label: _references(view.subscribers[node]) for label, node in right.items()}
    for label, node in right.items():
        for other, holder in known[label]:
            is_true = holder is not None and right.get(other) == holder
            if label < other and is_true and (label, node) in known[other]:
                yield label, other


def _references(seen: SubscriberView) -> set[tuple[Label, NodeId | None]]:
    peers = (seen.left, seen.right, seen.ring)
    ring = {(peer.label, peer.node) for peer in peers if peer is not None}
    return ring | set(seen.shortcuts.items())


class Glyphs(Struct, frozen=True, kw_only=True):
    """Characters of a drawing; none is distinguished by colour alone."""

    marks: Mapping[GlyphState, str]
    dead: str
    vacant: str
    outline: str
    edge: str
    cut: str
    bars: str  # from empty to a full cell
    right: str
    wrong: str
    above: str
    arrow: str
    has_dots: bool  # braille, for lines finer than a character


UNICODE: Final = Glyphs(
    marks={GlyphState.RIGHT: "●", GlyphState.EDGES: "◐", GlyphState.LABEL: "✗"},
    dead="†",
    vacant="○",
    outline="·",
    edge="─",
    cut="…",
    bars=" ▁▂▃▄▅▆▇█",
    right="✓",
    wrong="✗",
    above="▲",
    arrow="→",
    has_dots=True,
)
ASCII: Final = Glyphs(
    marks={GlyphState.RIGHT: "O", GlyphState.EDGES: "%", GlyphState.LABEL: "X"},
    dead="+",
    vacant="_",
    outline=".",
    edge="-",
    cut="~",
    bars=" .:|",
    right="ok",
    wrong="X",
    above="^",
    arrow="->",
    has_dots=False,
)


def glyphs_for(encoding: str) -> Glyphs:
    """Return the glyphs that an output with this encoding can show."""
    return UNICODE if "utf" in encoding.lower() else ASCII


STYLES: Final[Mapping[GlyphState, str]] = {
    GlyphState.RIGHT: "green",
    GlyphState.EDGES: "yellow",
    GlyphState.LABEL: "bold red",
}
DEAD_STYLE: Final = "bold red"
_SEVERITY: Final = {mark: rank for rank, mark in enumerate(GlyphState)}
# The longest shortcuts first; green, yellow and red are reserved for states.
LEVEL_STYLES: Final = ("magenta", "blue", "cyan", "bright_black")
RING_STYLE: Final = "green"
BROKEN_STYLE: Final = "red"
_LABEL_BITS_SHOWN: Final = 5
MARGIN: Final = _LABEL_BITS_SHOWN + 2  # columns on each side of the ellipse, for the labels


# --- ellipse ---------------------------------------------------------------------------


def spot(label: Label, size: Size) -> Spot:
    """Return the position of a label on the ellipse; MARGIN columns beside it are for labels."""
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
    ring: RingLayout, size: Size, glyphs: Glyphs = UNICODE, centre: Sequence[Text] = ()
) -> list[Text]:
    """Draw the nodes on an ellipse, with lines of text in its middle."""
    canvas = Canvas(size)
    if glyphs.has_dots and ring.members > 1:
        _put_edges(canvas, ring)
    else:
        _put_outline(canvas, glyphs)
    _put_places(canvas, ring, glyphs)
    _put_dots(canvas, ring, glyphs)
    _put_centre(canvas, ring, glyphs, centre)
    return canvas.lines()


def _put_outline(canvas: Canvas, glyphs: Glyphs) -> None:
    steps = 8 * canvas.size.rows
    for step in range(steps):
        canvas.put(_on_ellipse(step / steps, canvas.size), glyphs.outline, "dim")


def _put_edges(canvas: Canvas, ring: RingLayout) -> None:
    """Draw the ring as arcs and the longest shortcuts as chords; broken edges first."""
    dots, arcs = Dots(), _arcs(ring.members)
    for is_sound in (False, True):
        for edge in _chords(ring.members):
            if (edge in ring.sound) == is_sound:
                style = LEVEL_STYLES[topology.level(edge) - 1] if is_sound else BROKEN_STYLE
                dots.draw(_chord(edge, canvas.size), style, is_broken=not is_sound)
        for edge in arcs:
            if (edge in ring.sound) == is_sound:
                style = RING_STYLE if is_sound else BROKEN_STYLE
                arc = _arc(edge, canvas.size, is_short=len(arcs) > 1)
                dots.draw(arc, style, is_broken=not is_sound)
    dots.put_on(canvas)


@lru_cache(maxsize=16)
def _chords(members: int) -> tuple[Edge, ...]:
    """Return the shortcuts that are long enough to differ from the ring, the shortest first."""
    edges = shortcut_edges(min(members, 2 << len(LEVEL_STYLES)))
    return tuple(sorted(edges, key=topology.level, reverse=True))


@lru_cache(maxsize=16)
def _arcs(members: int) -> tuple[Edge, ...]:
    return tuple(sorted(ring_edges(members)))


def _chord(edge: Edge, size: Size) -> list[Point]:
    return [_point(label.position / CIRCLE, size) for label in edge]


def _arc(edge: Edge, size: Size, *, is_short: bool) -> list[Point]:
    """Return the shorter arc between two labels; both arcs if there are two nodes."""
    begin, end = (label.position / CIRCLE for label in edge)
    way = (end - begin + 0.5) % 1 - 0.5 if is_short else 1.0
    steps = 1 + round(abs(way) * 8 * size.rows)
    return [_point(begin + way * step / steps, size) for step in range(steps + 1)]


def _put_places(canvas: Canvas, ring: RingLayout, glyphs: Glyphs) -> None:
    """Draw the expected labels and the dead nodes; nodes are drawn over them."""
    for label in ring.places:
        canvas.put(spot(label, canvas.size), glyphs.vacant, "dim")
    for label in ring.dead:
        canvas.put(spot(label, canvas.size), glyphs.dead, DEAD_STYLE, is_reserved=True)


def _put_dots(canvas: Canvas, ring: RingLayout, glyphs: Glyphs) -> None:
    """Draw all nodes, so that no label hides one; then the labels, the shortest first."""
    crowd: dict[Spot, list[NodeGlyph]] = {}
    for dot in ring.dots:
        if dot.label is not None:
            crowd.setdefault(spot(dot.label, canvas.size), []).append(dot)
    captions: dict[Spot, tuple[str, str]] = {}
    for label in (*ring.places, *ring.dead):
        captions[spot(label, canvas.size)] = (_short(label, glyphs), "dim")
    for at, dots in crowd.items():
        mark = max((dot.mark for dot in dots), key=_SEVERITY.__getitem__)
        canvas.put(at, glyphs.marks[mark], STYLES[mark], is_reserved=True)
        captions[at] = (_caption(dots, glyphs), STYLES[mark] if mark is GlyphState.LABEL else "")
    for at, (text, style) in sorted(captions.items(), key=lambda item: len(item[1][0])):
        canvas.put_beside(at, text, style)


def _caption(dots: list[NodeGlyph], glyphs: Glyphs) -> str:
    """Return the label of the node in a spot, or the number of nodes."""
    if len(dots) > 1 or dots[0].label is None:
        return f"x{len(dots)}"
    return _short(dots[0].label, glyphs)


def _short(label: Label, glyphs: Glyphs) -> str:
    if label.length <= _LABEL_BITS_SHOWN:
        return label.bits
    return label.bits[: _LABEL_BITS_SHOWN - 1] + glyphs.cut


def _put_centre(canvas: Canvas, ring: RingLayout, glyphs: Glyphs, centre: Sequence[Text]) -> None:
    lines = list(centre)
    if ring.homeless:
        count = len(ring.homeless)
        lines.append(Text(f"{count} without a label", "red"))
        lines.append(
            Text(
                " ".join(glyphs.marks[GlyphState.LABEL] * min(count, 10)), STYLES[GlyphState.LABEL]
            )
        )
    row = (canvas.size.rows - len(lines)) // 2
    for offset, line in enumerate(lines):
        column = (canvas.size.columns - len(line.plain)) // 2
        canvas.put((column - 1, row + offset), f" {line.plain} ", str(line.style))


# --- bars ------------------------------------------------------------------------------


def draw_bars(
    values: Sequence[int], columns: int, rows: int, glyphs: Glyphs = UNICODE
) -> list[Text]:
    """Draw the newest values as bars, scaled to the largest value."""
    steps = len(glyphs.bars) - 1
    most = max(values, default=0)
    heights = [-(-value * rows * steps // most) if value else 0 for value in values[-columns:]]
    return [
        Text("".join(glyphs.bars[min(max(h - row * steps, 0), steps)] for h in heights), "cyan")
        for row in reversed(range(rows))
    ]
