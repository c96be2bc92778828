"""A live ring on the terminal: its picture, and a line for each node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from skipring.core.peers import NodeId, Peer
from skipring.demo.picture import (
    DEAD_STYLE,
    STYLES,
    Dot,
    Glyphs,
    Size,
    draw_ring,
    glyphs_for,
    portray,
)
from skipring.errors import UnreachableError
from skipring.runtime.diagnosis import LAYERS, REPAIRS, Diagnosis, Explanation
from skipring.runtime.inspector import Contents, Inspection, Inspector
from skipring.wire.runtime_messages import JournalEntry, NodeStatus
from skipring.world.legitimacy import Layer, Violation

SIZE: Final = Size(79, 21)  # fits a terminal of 80 columns, with some lines left for the table
REPAINT_S: Final = 1.0  # Our guess: often enough to see a ring heal.
PATIENCE_S: Final = 1.0  # a picture that is to be new does not wait long for those who are gone
ROOT_DIGITS: Final = 8
TIME_MAX: Final = 1 << 57  # the year 6536: a node may say anything
SHOWN_MAX: Final = 20  # Our guess: violations of one layer that somebody reads.


# -- the ring --------------------------------------------------------------------------------


def print_ring(inspection: Inspection) -> None:
    """Print a ring once."""
    console = Console()
    console.print(ring_view(inspection, glyphs_for(console.encoding)))


async def watch_ring(inspector: Inspector) -> None:
    """Print a ring again and again, until somebody stops us; only once if nobody can see it."""
    console = Console()
    glyphs = glyphs_for(console.encoding)
    inspector.patience_s = PATIENCE_S
    view = ring_view(await inspector.inspect(Contents.NOTHING), glyphs)
    if not console.is_terminal:
        console.print(view)
        return
    with Live(view, console=console, auto_refresh=False, screen=True) as live:
        while True:
            await asyncio.sleep(REPAINT_S)
            try:
                view = ring_view(await inspector.inspect(Contents.NOTHING), glyphs)
                live.update(view, refresh=True)
            except UnreachableError as error:  # it may come back: the last picture stays
                live.update(Group(view, Text(str(error), DEAD_STYLE)), refresh=True)


def ring_view(inspection: Inspection, glyphs: Glyphs) -> Group:
    """The picture of a ring, and a table of its nodes."""
    snapshot = inspection.snapshot
    if not inspection.is_known:
        return Group(Text(f"nobody subscribes to {snapshot.topic!r}"))
    portrait = portray(snapshot)
    centre = [
        Text(_shortened(snapshot.topic), "bold"),
        Text(f"{portrait.members} members, {portrait.recorded} recorded"),
        Text(f"{len({s.root for s in inspection.statuses.values() if s.member})} root(s)"),
    ]
    picture = draw_ring(portrait, SIZE, glyphs, centre)
    return Group(*picture, Text(), _table(inspection, portrait.dots, glyphs))


def _shortened(topic: str) -> str:
    return topic if len(topic) <= SIZE.columns // 2 else topic[: SIZE.columns // 2 - 1] + "…"


def _table(inspection: Inspection, dots: Sequence[Dot], glyphs: Glyphs) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "node", "label", "left", "right", "ring", "shortcuts"):
        table.add_column(heading, no_wrap=True)
    table.add_column("stored", justify="right")
    table.add_column("root", no_wrap=True)
    marks = {dot.node: dot.mark for dot in dots}
    for node, status in sorted(inspection.statuses.items(), key=_by_place):
        mark = marks.get(node)
        sign = Text(glyphs.marks[mark], STYLES[mark]) if mark is not None else Text("-")
        table.add_row(sign, *_cells(node, status))
    for node in inspection.snapshot.subscribers.keys() - inspection.statuses.keys():
        table.add_row("-", node, "not in the topic")
    for node in inspection.snapshot.crashed:
        table.add_row(Text(glyphs.dead, DEAD_STYLE), node, Text("does not answer", DEAD_STYLE))
    return table


def _by_place(item: tuple[NodeId, NodeStatus]) -> tuple[int, NodeId]:
    node, status = item
    return (status.label.position if status.label is not None else -1, node)


def _cells(node: NodeId, status: NodeStatus) -> list[str]:
    held = sum(holder is not None for _, holder in status.shortcuts)
    return [
        node,
        str(status.label or "-"),
        *(_peer(peer) for peer in (status.left, status.right, status.ring)),
        f"{held} of {len(status.shortcuts)}",
        str(status.count),
        status.root.hex()[:ROOT_DIGITS],
    ]


def _peer(peer: Peer | None) -> str:
    return f"{peer.label} {peer.node}" if peer is not None else "-"


# -- what is wrong ---------------------------------------------------------------------------


def print_diagnosis(topic: str, diagnosis: Diagnosis) -> None:
    """Print whether a topic is in order, and if not, why and what to do."""
    console = Console(highlight=False, soft_wrap=True)
    members = f"{diagnosis.members} members, {diagnosis.publications} publications"
    if diagnosis.is_healthy:
        console.print(Text(f"{topic!r} is in order: {members}, all have all of them", "green"))
        return
    console.print(Text(f"{topic!r} is not in order: {members}", "bold red"))
    _print_violations(console, diagnosis.violations)
    for sentence in diagnosis.advice:
        console.print(Text(f"-> {sentence}"))


def _print_violations(console: Console, violations: Sequence[Violation]) -> None:
    by_layer: dict[Layer, list[Violation]] = {}
    for violation in violations:
        by_layer.setdefault(violation.layer, []).append(violation)
    for layer, found in by_layer.items():
        console.print(Text(f"{layer}, {LAYERS[layer]}:", "bold"))
        for violation in found[:SHOWN_MAX]:
            console.print(Text(f"  {violation.text}"))
        if len(found) > SHOWN_MAX:
            console.print(Text(f"  and {len(found) - SHOWN_MAX} more", "dim"))


def print_explanation(explanation: Explanation) -> None:
    """Print what changed a node, what is wrong with it, and what will mend that."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"{explanation.node}: {explanation.standing}", "bold"))
    if explanation.tick is not None:
        console.print(Text(f"tick {explanation.tick}; its last changes, the newest last:"))
    for entry in explanation.journal:
        console.print(_change(entry))
    if not explanation.violations:
        console.print(Text("by what was seen, nothing is wrong with it", "green"))
        return
    console.print(Text("wrong now:", "bold red"))
    _print_violations(console, explanation.violations)
    for layer in dict.fromkeys(violation.layer for violation in explanation.violations):
        console.print(Text(f"-> {LAYERS[layer]}: {REPAIRS[layer]}."))


def _change(entry: JournalEntry) -> Text:
    at = datetime.fromtimestamp(entry.time % TIME_MAX / 1e6, UTC).astimezone()
    by = f" from {entry.sender}" if entry.sender is not None else ""
    return Text.assemble(
        (f"  {at:%H:%M:%S} tick {entry.tick} ", "dim"),
        (entry.field, "bold"),
        f": {entry.before} -> {entry.after}, {entry.cause}{by}\n",
        (f"      {entry.why}", "italic"),
    )
