"""Live ring on the terminal: drawing, one line per node, changes between two inspections."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from skipring.admin.diagnosis import REPAIRS, live_violations
from skipring.admin.inspector import Inspection, Inspector, TopicContents
from skipring.cli.output.tables import NONE, plain_table, time_of_day, wide_console
from skipring.core.limits import listed
from skipring.core.peers import NodeId, Peer
from skipring.errors import UnreachableError
from skipring.view.model import ROOT_DIGITS
from skipring.view.overview import differing, roots_of
from skipring.view.panel import RIGHT_STYLE, WRONG_STYLE, RingContent, RingPanel
from skipring.view.text import ASCII, DEAD_STYLE, STYLES, Glyphs, GlyphState, RingLayout, layout
from skipring.wire.rpc import NodeStatus
from skipring.world.legitimacy import Layer

INSPECTION_S: Final = 1.0  # Guess: often enough to see a ring heal.
PATIENCE_S: Final = 1.0  # Guess: an inspection does not wait long for absent nodes.
PICTURE_ROWS: Final = 21  # height of the picture, if there is room
TABLE_ROWS_MIN: Final = 4  # including its heading and a blank line
TOPIC_SHOWN: Final = 30  # characters of a topic; it may have 255
HISTORY_MAX: Final = 64  # inspections; more than there is room for bars
CHANGES_MAX: Final = 64  # stored changes; more than there is room for
CHANGE_ROWS_MIN: Final = 5  # including their heading
NAMED_MAX: Final = 3  # Guess: nodes named in a line, before "and 7 more".
CHANGED_STYLE: Final = "reverse"
LEAVING: Final = "leaving"
NO_ANSWER: Final = "does not answer"
OUTSIDE: Final = "not in the topic"
_COLUMNS: Final = ("label", "left", "right", "ring", "shortcuts", "stored", "root")


def print_ring(inspection: Inspection) -> None:
    """Print a ring once."""
    console = wide_console()
    watch = RingWatch()
    watch.record(inspection)
    console.print(watch.printed(RingPanel.of(console)))


async def watch_ring(inspector: Inspector) -> None:
    """Print a ring repeatedly until interrupted; only once if the console cannot repaint."""
    console = wide_console()
    watch = RingWatch()
    inspection = await inspector.inspect(TopicContents.NOTHING)
    watch.record(inspection)
    if not console.is_terminal or console.is_dumb_terminal:
        console.print(watch.printed(RingPanel.of(console)))
        return
    resized = asyncio.Event()
    with on_resize(resized), Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(watch.painted(RingPanel.of(console)), refresh=True)
            if await wait_event(resized, INSPECTION_S):
                continue  # repaint in the new size
            try:
                inspection, trouble = await inspector.inspect(TopicContents.NOTHING), None
            except UnreachableError as error:  # the supervisor may return; nodes answer meanwhile
                trouble = str(error)
                inspection = await inspector.inspect_again(inspection, TopicContents.NOTHING)
            watch.record(inspection, trouble)


@contextmanager
def on_resize(resized: asyncio.Event) -> Iterator[None]:
    """Set an event whenever the terminal changes its size."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def wait_event(event: asyncio.Event, delay_s: float) -> bool:
    """Wait for an event and clear it; return False if it is not set within a delay."""
    try:
        async with asyncio.timeout(delay_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True


# --- changes ---------------------------------------------------------------------------


class RingChange(Struct, frozen=True, kw_only=True):
    """Changed cell of the table, for all nodes with the same change."""

    nodes: tuple[NodeId, ...]
    field: str
    before: str
    after: str

    def line(self, at: str, style: str, glyphs: Glyphs) -> Text:
        """Return the time, the first nodes and the change."""
        return Text.assemble(
            (f"{at} ", "dim"),
            (listed(self.nodes, NAMED_MAX), style or "bold"),
            f" {self.field} ",
            (f"{self.before} {glyphs.arrow} {self.after}", style),
            no_wrap=True,
            overflow="crop",
        )


def changes(before: Inspection, after: Inspection) -> list[RingChange]:
    """Return the changes between two inspections, in order of nodes; join equal changes."""
    nodes: dict[tuple[str, str, str], list[NodeId]] = {}
    old, new = _rows(before), _rows(after)
    for node in sorted(old.keys() | new.keys()):
        was, now = (rows.get(node, {"standing": "unknown"}) for rows in (old, new))
        # If a node joined or left, show only its standing; the root follows from "stored".
        is_same = was["standing"] == now["standing"]
        for field in now if is_same else ("standing",):
            if was[field] != now[field] and field != "root":
                nodes.setdefault((field, was[field], now[field]), []).append(node)
    return [
        RingChange(nodes=tuple(found), field=field, before=was, after=now)
        for (field, was, now), found in nodes.items()
    ]


def _rows(inspection: Inspection) -> dict[NodeId, dict[str, str]]:
    """Return every known node in ring order, with the cells of its row by column."""
    statuses = sorted(inspection.statuses.items(), key=_by_place)
    outside = sorted(inspection.snapshot.subscribers.keys() - inspection.statuses.keys())
    return (
        {node: _cells(status) for node, status in statuses}
        | {node: {"standing": OUTSIDE} for node in outside}
        | {node: {"standing": NO_ANSWER} for node in inspection.snapshot.crashed}
    )


def _by_place(item: tuple[NodeId, NodeStatus]) -> tuple[int, NodeId]:
    node, status = item
    return (status.label.position if status.label is not None else -1, node)


def _cells(status: NodeStatus) -> dict[str, str]:
    known = sum(holder is not None for _, holder in status.shortcuts)
    return {
        "standing": "member" if status.member else LEAVING,
        "label": str(status.label or NONE),
        "left": _peer(status.left),
        "right": _peer(status.right),
        "ring": _peer(status.ring),
        "shortcuts": f"{known} of {len(status.shortcuts)}",
        "stored": str(status.count),
        "root": status.root.hex()[:ROOT_DIGITS],
    }


def _peer(peer: Peer | None) -> str:
    return f"{peer.label} {peer.node}" if peer is not None else NONE


# --- pages -----------------------------------------------------------------------------


class RingWatch:
    """History of a ring's inspections, and the pages that show it."""

    def __init__(self, hint: str = "Ctrl-C ends") -> None:
        self._hint = hint
        self._inspection: Inspection | None = None
        self._trouble: str | None = None
        self._seen_at = ""
        self._changes: list[RingChange] = []
        self._recent: deque[tuple[str, RingChange]] = deque(maxlen=CHANGES_MAX)  # newest first
        self._history: deque[int] = deque(maxlen=HISTORY_MAX)

    def record(self, inspection: Inspection, trouble: str | None = None) -> None:
        """Record an inspection, and an error that is shown above it."""
        before, self._inspection = self._inspection, inspection
        self._trouble = trouble
        self._changes = changes(before, inspection) if before is not None else []
        self._seen_at = time_of_day()
        self._recent.extendleft((self._seen_at, change) for change in reversed(self._changes))
        self._history.append(sum(_wrong_by_layer(inspection).values()))

    @property
    def inspection(self) -> Inspection:
        """Return the last inspection."""
        assert self._inspection is not None, "nothing was recorded"
        return self._inspection

    def printed(self, page: RingPanel) -> RenderableType:
        """Return the picture and a line for each node, without a limit of rows."""
        if not self.inspection.is_known:
            return self._no_members()
        ring = layout(self.inspection.snapshot)
        picture = page.draw(self._content(ring), PICTURE_ROWS)
        return Group(picture, Text(), self._table(ring, page.glyphs))

    def painted(self, page: RingPanel) -> RenderableType:
        """Return the part that fits: state, picture, changes and nodes."""
        heads = self._headlines(page.glyphs)
        if not self.inspection.is_known:
            return Group(*heads, self._no_members())
        ring = layout(self.inspection.snapshot)
        content = self._content(ring)
        room = page.rows - len(heads)
        nodes = len(_rows(self.inspection)) + 2  # with the heading and a blank
        most = max(room - CHANGE_ROWS_MIN - nodes, min(room - CHANGE_ROWS_MIN, PICTURE_ROWS))
        left = room - page.rows_of(content, most)
        table = min(nodes, left - CHANGE_ROWS_MIN)
        parts = [*heads, page.draw(content, most)]
        if table < TABLE_ROWS_MIN:
            return Group(*parts, *self._newest(page.glyphs, left))
        parts += self._newest(page.glyphs, left - table)
        return Group(*parts, Text(), self._table(ring, page.glyphs, table - 2))

    def _no_members(self) -> Text:
        return Text(f"{self.inspection.snapshot.topic!r} has no members")

    def _headlines(self, glyphs: Glyphs) -> list[RenderableType]:
        """Return a line with the state of the topic, and a line with an error, if any."""
        wrong = self._history[-1]
        stored = max((each.count for each in self.inspection.statuses.values()), default=0)
        line = Text(no_wrap=True, overflow="crop")
        line.append(_shortened(self.inspection.snapshot.topic, glyphs), "bold")
        state = Text(f"{glyphs.right} healthy", RIGHT_STYLE)
        if wrong:
            state = Text(f"{glyphs.wrong} degraded: {wrong} wrong", WRONG_STYLE)
        line.append("   ").append_text(state).append(f"   {stored} stored")
        line.append(f"   {self._seen_at}   {self._hint}", "dim")
        if self._trouble is None:
            return [line]
        return [line, Text(f"{glyphs.wrong} {self._trouble}", DEAD_STYLE, no_wrap=True)]

    def _content(self, ring: RingLayout) -> RingContent:
        snapshot = self.inspection.snapshot
        roots = len(set(roots_of(self.inspection).values()))
        return RingContent(
            layout=ring,
            wrong=_wrong_by_layer(self.inspection),
            history=list(self._history),
            history_name="wrong, by inspection",
            centre=[
                Text(_shortened(snapshot.topic, ASCII), "bold"),
                Text(f"{ring.members} members, {ring.recorded} recorded"),
                Text("1 root" if roots == 1 else f"{roots} roots", "" if roots == 1 else "red"),
            ],
        )

    def _newest(self, glyphs: Glyphs, rows: int) -> list[RenderableType]:
        """Return the last changes, the newest first, in at most ``rows`` rows."""
        lines: list[RenderableType] = [Text("changes", "dim")]
        if not self._recent:
            return [*lines, Text("none since the first inspection", "dim")]
        for number, (at, change) in enumerate(islice(self._recent, rows - 1)):
            is_new = number < len(self._changes)
            lines.append(change.line(at, CHANGED_STYLE if is_new else "", glyphs))
        return lines

    def _table(self, ring: RingLayout, glyphs: Glyphs, rows_max: int | None = None) -> Table:
        """Return a line for each node; wrong or changed nodes first if there is no room for all."""
        table = plain_table(("", "node", *_COLUMNS), glyphs, numbers=("stored",))
        rows, marks = _rows(self.inspection), {dot.node: dot.mark for dot in ring.dots}
        changed = {(node, each.field) for each in self._changes for node in each.nodes}
        shown = list(rows)
        if rows_max is not None and len(rows) > rows_max:
            moved = {node for node, _ in changed}
            is_dull = {n: marks.get(n) is GlyphState.RIGHT and n not in moved for n in rows}
            first = set(sorted(rows, key=is_dull.__getitem__)[: max(rows_max - 1, 0)])
            shown = [node for node in rows if node in first]
        for node in shown:
            table.add_row(*_row(node, rows[node], marks.get(node), changed, glyphs))
        if len(shown) < len(rows):
            table.add_row("", f"and {len(rows) - len(shown)} more")
        return table


def _row(
    node: NodeId,
    cells: Mapping[str, str],
    mark: GlyphState | None,
    changed: Collection[tuple[NodeId, str]],
    glyphs: Glyphs,
) -> Iterator[Text]:
    """Yield the cells of a node: its sign, its name and its variables, or why it has none."""
    is_dead = cells["standing"] == NO_ANSWER
    if mark is not None and "label" in cells:
        yield Text(glyphs.marks[mark], STYLES[mark])
    else:
        yield Text(glyphs.dead, DEAD_STYLE) if is_dead else Text(NONE)
    yield Text(node)
    if "label" not in cells:
        yield Text(cells["standing"], DEAD_STYLE if is_dead else "dim")
        return
    for name in _COLUMNS:
        yield Text(cells[name], CHANGED_STYLE if (node, name) in changed else "")


def _wrong_by_layer(inspection: Inspection) -> dict[Layer, int]:
    """Return the number of violations of each layer that is visible from outside."""
    found = Counter(violation.layer for violation in live_violations(inspection))
    found[Layer.PUBLICATIONS] = sum(1 for _ in differing(roots_of(inspection)))
    return {layer: found[layer] for layer in REPAIRS}


def _shortened(topic: str, glyphs: Glyphs) -> str:
    return topic if len(topic) <= TOPIC_SHOWN else topic[: TOPIC_SHOWN - 1] + glyphs.cut
