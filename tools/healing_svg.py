"""Animated SVG of a simulated repair, without scripts, for pages and READMEs.

``python tools/healing_svg.py > docs/images/healing.svg`` draws the picture of the README. Every
node is at the angle of r(label), clockwise from label 0 at the top; violations are red.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import accumulate, pairwise
from math import cos, sin, tau
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.labels import CIRCLE, Label
from skipring.core.peers import NodeId
from skipring.core.topology import Edge, level, levels, ring_edges, shortcut_edges
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario
from skipring.view.text import GlyphState, NodeGlyph, RingLayout, layout
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import Layer, census
from skipring.world.snapshot import SubscriberView, View

Point: TypeAlias = tuple[float, float]

# The picture of the README: an arbitrary state (A15) with publications at random nodes.
SCENARIO: Final = Scenario(n=16, adversary="A15", publications=48, seed=1)
WIDTH: Final = 900
HEIGHT: Final = 560
CENTRE: Final[Point] = (292.0, 280.0)
RADIUS: Final = 196.0
ASIDE: Final[Point] = (44.0, 518.0)  # position of nodes without a label
ROOM: Final = 17.0  # Guess: distance between two nodes with the same label
PANEL_X: Final = 596
BAR_X: Final = 704
BAR_WIDTH: Final = 134
ROW_Y: Final = 206
LEGEND_Y: Final = 432

# Seconds. Guesses: the time a reader needs for each frame.
BEFORE_S: Final = 2.2
DAMAGE_S: Final = 3.0
ROUND_S: Final = 1.5
END_S: Final = 4.0
GLIDE_S: Final = 0.7

ROWS: Final[Mapping[Layer, str]] = {
    Layer.DATABASE: "database",
    Layer.LABELS: "labels",
    Layer.RING: "ring",
    Layer.SHORTCUTS: "shortcuts",
    Layer.PUBLICATIONS: "publications",
}
FILLS: Final[Mapping[GlyphState, str]] = {
    GlyphState.RIGHT: "ok",
    GlyphState.EDGES: "half",
    GlyphState.LABEL: "bad",
}
LEVEL_COLOURS: Final = 4  # one per colour below; rings with more levels reuse them

# Both palettes define a background, so they work on any page. The levels have the colours of the
# dashboard.
STYLE: Final = """
svg{--card:#fff;--edge:#d0d7de;--ink:#1f2328;--dim:#656d76;--track:#eaeef2;
--ok:#1a7f37;--half:#bf8700;--bad:#cf222e;--l0:#4c40a0;--l1:#0080a7;--l2:#31a561;--l3:#cfa529}
@media(prefers-color-scheme:dark){svg{--card:#0d1117;--edge:#30363d;--ink:#e6edf3;--dim:#8d96a0;
--track:#21262d;--ok:#3fb950;--half:#d29922;--bad:#f85149;--l0:#8984e4;--l1:#00b9e2;--l2:#6bd597;
--l3:#efce65}}
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:var(--ink)}
.dim{fill:var(--dim)}.mono{font:11px ui-monospace,Menlo,Consolas,monospace;fill:var(--dim)}
.lost{fill:var(--bad)}path,line{fill:none;stroke-linecap:round;stroke-width:2}
.l0{stroke:var(--l0)}.l1{stroke:var(--l1)}.l2{stroke:var(--l2)}.l3{stroke:var(--l3)}
.ring{stroke-width:3}.tick{stroke:var(--ok);stroke-width:3}.one{stroke-dasharray:1 6}
.bad{stroke:var(--bad);stroke-width:1.3;stroke-opacity:.6;stroke-dasharray:5 4}
.card{fill:var(--card);stroke:var(--edge)}.way{fill:none;stroke:var(--track)}
.node{stroke:var(--card);stroke-width:2}
"""
STILL: Final = "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"


class Stroke(Struct, frozen=True):
    """Edge of the picture: its ends and its CSS classes."""

    a: NodeId
    b: NodeId
    look: str


class SvgFrame(Struct, frozen=True, kw_only=True):
    """One frame of the animation."""

    title: str
    text: str
    lasts_s: float
    dots: tuple[NodeGlyph, ...]
    strokes: tuple[Stroke, ...]
    wrong: Mapping[Layer, int]

    @property
    def places(self) -> dict[NodeId, Point]:
        """Return the position of each node."""
        return dict(_places(self.dots))


# --- frames ----------------------------------------------------------------------------


def film(scenario: Scenario) -> list[SvgFrame]:
    """Return the frames: legitimate ring, damage, and each round of the repair."""
    seen: list[SvgFrame] = []
    Simulation(scenario).run(lambda world: seen.append(_frame(world)))
    before = replace(
        seen[-1],
        title="In order",
        text=f"{scenario.n} subscribers, {scenario.publications} publications",
        lasts_s=BEFORE_S,
    )
    what = ADVERSARIES[scenario.adversary].title
    damaged = replace(seen[0], title="Scrambled", text=what, lasts_s=DAMAGE_S)
    healed = replace(seen[-1], text="Right again, and so it stays", lasts_s=END_S)
    return [before, damaged, *seen[1:-1], healed]


def _frame(world: World) -> SvgFrame:
    portrait = layout(world)
    wrong = census(world)
    return SvgFrame(
        title=f"Round {world.round}",
        text=_caption(wrong),
        lasts_s=ROUND_S,
        dots=portrait.dots,
        strokes=tuple(_strokes(world, portrait)),
        wrong={layer: wrong[layer] for layer in ROWS},
    )


def _caption(wrong: Counter[Layer]) -> str:
    """Return the caption of a round: the lowest layer with violations."""
    busy = next((name for layer, name in ROWS.items() if wrong[layer]), None)
    return f"The {busy} heal" + ("s" if busy in ("database", "ring") else "")


def _strokes(view: View, portrait: RingLayout) -> Iterator[Stroke]:
    """Yield correct edges first, then wrong edges and edges that only one end has."""
    at = {dot.label: dot.node for dot in portrait.dots if dot.mark is not GlyphState.LABEL}
    drawn = set[frozenset[NodeId]]()
    for a, b in sorted(portrait.sound):
        drawn.add(frozenset((at[a], at[b])))
        yield Stroke(at[a], at[b], _css((a, b), portrait.members))
    wanted = ring_edges(portrait.members) | shortcut_edges(portrait.members)
    for node, seen in sorted(view.subscribers.items()):
        for label, holder in sorted(_beliefs(seen)):
            ends = frozenset((node, holder))
            if holder in view.subscribers and ends not in drawn:
                drawn.add(ends)
                edge = _edge(seen.label, label)
                is_true = at.get(seen.label) == node and at.get(label) == holder
                is_half = is_true and edge in wanted
                yield Stroke(
                    node,
                    holder,
                    f"{_css(edge, portrait.members)} one" if is_half else "bad",
                )


def _edge(a: Label | None, b: Label) -> Edge:
    """Return two labels as an edge; a node without a label has no ring edge."""
    return (min(a, b), max(a, b)) if a is not None else (b, b)


def _beliefs(seen: SubscriberView) -> Iterator[tuple[Label, NodeId]]:
    """Yield every reference of a node, with the label it believes the other node has."""
    for peer in (seen.left, seen.right, seen.ring):
        if peer is not None:
            yield peer.label, peer.node
    for label, holder in seen.shortcuts.items():
        if holder is not None:
            yield label, holder


def _css(edge: Edge, n: int) -> str:
    """Return CSS classes: ring edges have the first colour, shortcuts one by level."""
    above = levels(n) - level(edge)
    return f"l{above % LEVEL_COLOURS}" + ("" if above else " ring")


# --- positions -------------------------------------------------------------------------


def _places(dots: Sequence[NodeGlyph]) -> Iterator[tuple[NodeId, Point]]:
    """Yield positions: on the ring, further out if occupied, beside it without a label."""
    taken: list[Point] = []
    for dot in sorted(dots, key=lambda dot: (dot.mark is GlyphState.LABEL, dot.node)):
        if dot.label is None:
            continue
        reach = RADIUS
        while any(_distance(_on_ring(dot.label, reach), other) < ROOM for other in taken):
            reach += ROOM
        taken.append(_on_ring(dot.label, reach))
        yield dot.node, taken[-1]
    for number, dot in enumerate(dot for dot in dots if dot.label is None):
        yield dot.node, (ASIDE[0] + 1.5 * ROOM * number, ASIDE[1])


def _on_ring(label: Label, radius: float) -> Point:
    turn = tau * label.position / CIRCLE
    return CENTRE[0] + radius * sin(turn), CENTRE[1] - radius * cos(turn)


def _distance(a: Point, b: Point) -> float:
    return float(((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5)


# --- animation -------------------------------------------------------------------------


class Reel:
    """Frames on a common time line: all animations have the same key times."""

    def __init__(self, frames: Sequence[SvgFrame]) -> None:
        self.frames = frames
        ends = list(accumulate(frame.lasts_s for frame in frames))
        self.total_s = ends[-1]
        self._spans = [(0.0, ends[0]), *pairwise(ends)]

    def keyframes(self, name: str, state: Callable[[SvgFrame], str]) -> str:
        """Return a CSS rule with one state per frame and a transition to the next."""
        steps = []
        for frame, (begin, end) in zip(self.frames, self._spans, strict=True):
            steps.append(f"{self._at(begin)},{self._at(end - GLIDE_S)}{{{state(frame)}}}")
        return f"@keyframes {name}{{{''.join(steps)}100%{{{state(self.frames[0])}}}}}"

    def _at(self, second: float) -> str:
        return f"{100 * second / self.total_s:.2f}".rstrip("0").rstrip(".") + "%"

    def animated(self, name: str) -> str:
        """Return the style of an element that a rule animates."""
        return f"animation:{name} {self.total_s:.1f}s infinite"


# --- picture ---------------------------------------------------------------------------


def draw(scenario: Scenario = SCENARIO) -> str:
    """Draw the repair of a scenario in which no node leaves; the still image shows the end."""
    reel = Reel(film(scenario))
    rules = [STYLE, *_node_rules(reel), *_bar_rules(reel), *_frame_rules(reel), STILL]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>A ring of {scenario.n} subscribers is scrambled, and heals</title>",
            f"<style>{''.join(rules)}</style>",
            f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="14"/>',
            f'<circle class="way" cx="{CENTRE[0]:g}" cy="{CENTRE[1]:g}" r="{RADIUS:g}"/>',
            *_frames(reel),
            *_nodes(reel),
            *_panel(reel),
            "</svg>\n",
        ]
    )


def _node_rules(reel: Reel) -> Iterator[str]:
    for node in reel.frames[0].places:
        yield reel.keyframes(f"n-{node}", partial(_standing, node=node))


def _standing(frame: SvgFrame, node: NodeId) -> str:
    x, y = frame.places[node]
    (mark,) = (dot.mark for dot in frame.dots if dot.node == node)
    return f"transform:translate({x:.1f}px,{y:.1f}px);fill:var(--{FILLS[mark]})"


def _nodes(reel: Reel) -> Iterator[str]:
    for node in reel.frames[-1].places:
        style = f"{_standing(reel.frames[-1], node)};{reel.animated(f'n-{node}')}"
        yield f'<circle class="node" r="10" style="{style}"/>'


def _bar_rules(reel: Reel) -> Iterator[str]:
    for row, layer in enumerate(ROWS):
        most = max(1, *(frame.wrong[layer] for frame in reel.frames))
        yield reel.keyframes(f"b{row}", partial(_length, layer=layer, most=most))


def _length(frame: SvgFrame, layer: Layer, most: int) -> str:
    return f"transform:scaleX({frame.wrong[layer] / most:.3f})"


def _frame_rules(reel: Reel) -> Iterator[str]:
    for number, shown in enumerate(reel.frames):
        yield reel.keyframes(f"f{number}", partial(_opacity, shown=shown))


def _opacity(frame: SvgFrame, shown: SvgFrame) -> str:
    return f"opacity:{int(frame is shown)}"


def _frames(reel: Reel) -> Iterator[str]:
    """Yield the elements that appear per frame: edges, labels, captions and counts."""
    last = len(reel.frames) - 1
    for number, frame in enumerate(reel.frames):
        yield f'<g style="opacity:{int(number == last)};{reel.animated(f"f{number}")}">'
        places = frame.places
        yield from (_path(stroke, places) for stroke in frame.strokes)
        yield from (_label(dot.label) for dot in frame.dots if dot.label and _is_at_home(dot))
        if any(dot.label is None for dot in frame.dots):
            yield _text((ASIDE[0] - 10, ASIDE[1] + 26), "without a label", "mono")
        yield _text((PANEL_X, 84), frame.title, size=34, weight=700)
        yield _text((PANEL_X, 116), frame.text, "dim", size=16)
        yield from _figures(frame)
        yield from _progress(number, last)
        yield "</g>"


def _path(stroke: Stroke, places: Mapping[NodeId, Point]) -> str:
    """Return a line between ring neighbours, and a curve towards the centre otherwise."""
    (ax, ay), (bx, by) = places[stroke.a], places[stroke.b]
    bend = 0.0 if "ring" in stroke.look else 0.22
    x, y = (ax + bx) / 2, (ay + by) / 2
    x, y = x + bend * (CENTRE[0] - x), y + bend * (CENTRE[1] - y)
    way = f"M{ax:.0f} {ay:.0f}Q{x:.0f} {y:.0f} {bx:.0f} {by:.0f}"
    return f'<path class="{stroke.look}" d="{way}"/>'


def _is_at_home(dot: NodeGlyph) -> bool:
    return dot.mark is not GlyphState.LABEL


def _label(label: Label) -> str:
    x, y = _on_ring(label, RADIUS + 26)
    return _text((x, y + 4), label.bits, "mono", anchor="middle")


def _figures(frame: SvgFrame) -> Iterator[str]:
    for row, layer in enumerate(ROWS):
        y, count = ROW_Y + 38 * row, frame.wrong[layer]
        if count:
            yield _text((WIDTH - 24, y + 5), str(count), "lost", size=15, anchor="end")
        else:
            tick = f"M{WIDTH - 39} {y}l5 5 9-11"
            yield f'<path class="tick" d="{tick}"/>'


def _progress(number: int, last: int) -> Iterator[str]:
    """Yield the dots that show the number of the frame."""
    for each in range(last + 1):
        fill = "var(--ink)" if each == number else "var(--edge)"
        yield f'<circle cx="{PANEL_X + 6 + 20 * each}" cy="148" r="5" fill="{fill}"/>'


def _panel(reel: Reel) -> Iterator[str]:
    """Yield the static part: names of layers with their bars, and the legend."""
    for row, name in enumerate(ROWS.values()):
        y = ROW_Y + 38 * row
        track = f'x="{BAR_X}" y="{y - 5}" width="{BAR_WIDTH}" height="10" rx="5"'
        yield _text((PANEL_X, y + 5), name, size=15)
        yield f'<rect {track} fill="var(--track)"/>'
        style = f"transform-origin:{BAR_X}px 0;transform:scaleX(0);{reel.animated(f'b{row}')}"
        yield f'<rect {track} fill="var(--bad)" style="{style}"/>'
    yield from _legend(levels(len(reel.frames[0].dots)))


def _legend(count: int) -> Iterator[str]:
    edges = [(f"l{above}", f"shortcut, level {count - above}") for above in range(1, count)]
    looks = [("l0 ring", "ring"), *edges[: LEVEL_COLOURS - 1]]
    for row, (look, name) in enumerate(looks):
        y = LEGEND_Y + 26 * row
        yield f'<line class="{look}" x1="{PANEL_X}" y1="{y}" x2="{PANEL_X + 26}" y2="{y}"/>'
        yield _text((PANEL_X + 36, y + 5), name, "dim", size=13)
    marks = [("ok", "right"), ("half", "edges wrong"), ("bad", "label wrong")]
    for row, (fill, name) in enumerate(marks):
        y = LEGEND_Y + 26 * row
        yield f'<circle cx="{PANEL_X + 176}" cy="{y}" r="6" fill="var(--{fill})"/>'
        yield _text((PANEL_X + 192, y + 5), name, "dim", size=13)
    y = LEGEND_Y + 26 * len(marks)
    yield f'<line class="bad" x1="{PANEL_X + 164}" y1="{y}" x2="{PANEL_X + 188}" y2="{y}"/>'
    yield _text((PANEL_X + 192, y + 5), "edge wrong", "dim", size=13)


def _text(
    at: Point,
    text: str,
    look: str = "",
    *,
    size: int | None = None,
    weight: int | None = None,
    anchor: str | None = None,
) -> str:
    """Return a line of text; omitted attributes come from the style."""
    given = {"class": look, "font-size": size, "font-weight": weight, "text-anchor": anchor}
    extra = "".join(f' {name}="{value}"' for name, value in given.items() if value)
    return f'<text x="{at[0]:.0f}" y="{at[1]:.0f}"{extra}>{escape(text)}</text>'


if __name__ == "__main__":
    sys.stdout.write(draw())
