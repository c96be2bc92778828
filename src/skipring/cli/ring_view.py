"""Live ring on the terminal: drawing, one line per node, changes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final

from rich.console import Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from skipring.admin.health import live_violations
from skipring.admin.inspector import Inspection, Inspector, TopicContents
from skipring.cli.ring_changes import GONE, NONE, OUTSIDE, RingChange, cells, changes
from skipring.cli.ring_page import (
    RIGHT_STYLE,
    Look,
    RingPanel,
    can_repaint,
    light,
    ring_page,
    rows_of_page,
    time_of_day,
    wide_console,
)
from skipring.core.peers import NodeId
from skipring.errors import UnreachableError
from skipring.view.model import SHOWN_LAYERS
from skipring.view.overview import differing, roots_of
from skipring.view.text import ASCII, DEAD_STYLE, STYLES, Glyphs, GlyphState, RingLayout, layout
from skipring.wire.rpc import NodeStatus
from skipring.world.legitimacy import Layer

REPAINT_S: Final = 1.0  # Guess: often enough to see a ring heal.
PATIENCE_S: Final = 1.0  # Guess: a refresh does not wait long for absent nodes
PICTURE_ROWS: Final = 21  # of the picture, if there is room
TABLE_ROWS_MIN: Final = 4  # with its heading and a blank line before it
TOPIC_SHOWN: Final = 30  # characters of a topic; it may have 255
LEAVING: Final = "leaving"
HISTORY_MAX: Final = 64  # inspections; more than there is room for bars
NEWS_MAX: Final = 64  # stored changes; more than there is room for
NEWS_ROWS_MIN: Final = 5  # with its heading
NAMED_MAX: Final = 3  # Guess: nodes named in a line, before "and 7 more".
CHANGED_STYLE: Final = "reverse"
_COLUMNS: Final = ("label", "left", "right", "ring", "shortcuts", "stored", "root")


def print_ring(inspection: Inspection) -> None:
    """Print a ring once."""
    console = wide_console()
    watch = RingWatch()
    watch.note(inspection)
    console.print(watch.printed(RingPanel.of(console)))


async def watch_ring(inspector: Inspector, repaint_s: float = REPAINT_S) -> None:
    """Print a ring repeatedly until interrupted; only once if the console cannot repaint."""
    console = wide_console()
    inspector.patience_s = PATIENCE_S
    watch = RingWatch()
    inspection = await inspector.inspect(TopicContents.NOTHING)
    watch.note(inspection)
    if not can_repaint(console):
        console.print(watch.printed(RingPanel.of(console)))
        return
    with _resizes() as resized, Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(watch.painted(RingPanel.of(console)), refresh=True)
            if await _passes(resized, repaint_s):
                continue  # repaint in the new size
            try:
                inspection, trouble = await inspector.inspect(TopicContents.NOTHING), None
            except UnreachableError as error:  # the supervisor may return; nodes answer meanwhile
                trouble = str(error)
                inspection = await inspector.inspect_again(inspection, TopicContents.NOTHING)
            watch.note(inspection, trouble)


@contextmanager
def _resizes() -> Iterator[asyncio.Event]:
    """Yield an event that is set whenever the terminal changes its size."""
    resized = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    try:
        yield resized
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _passes(resized: asyncio.Event, delay_s: float) -> bool:
    """Wait for a delay; return True at once if the terminal changes its size."""
    try:
        async with asyncio.timeout(delay_s):
            await resized.wait()
    except TimeoutError:
        return False
    resized.clear()
    return True


# -- pages -----------------------------------------------------------------------------------


class RingWatch:
    """History of a ring's inspections, and the pages that show it."""

    def __init__(self, hint: str = "Ctrl-C ends") -> None:
        self._hint = hint
        self._inspection: Inspection | None = None
        self._trouble: str | None = None
        self._seen_at = ""
        self._changes: list[RingChange] = []
        self._news: deque[tuple[str, RingChange]] = deque(maxlen=NEWS_MAX)  # the newest first
        self._history: deque[int] = deque(maxlen=HISTORY_MAX)

    def note(self, inspection: Inspection, trouble: str | None = None) -> None:
        """Record an inspection."""
        before, self._inspection = self._inspection, inspection
        self._trouble = trouble
        self._changes = changes(before, inspection) if before is not None else []
        self._seen_at = time_of_day()
        self._news.extendleft((self._seen_at, change) for change in reversed(self._changes))
        self._history.append(sum(wrong_by_layer(inspection).values()))

    @property
    def inspection(self) -> Inspection:
        """Return the last inspection."""
        assert self._inspection is not None, "nothing was noted"
        return self._inspection

    def printed(self, page: RingPanel) -> RenderableType:
        """Return the picture and a line for each node, without a limit of rows."""
        if not self.inspection.is_known:
            return self._nobody()
        portrait = layout(self.inspection.snapshot)
        picture = ring_page(self._look(portrait), page, PICTURE_ROWS)
        return Group(picture, Text(), self._table(portrait, page.glyphs))

    def painted(self, page: RingPanel) -> RenderableType:
        """Return the part that fits: state, picture, changes and nodes."""
        heads = self._headlines(page.glyphs)
        if not self.inspection.is_known:
            return Group(*heads, self._nobody())
        portrait = layout(self.inspection.snapshot)
        look = self._look(portrait)
        room = page.rows - len(heads)
        nodes = len(self._standings(portrait)) + 2  # with the heading and a blank
        most = max(room - NEWS_ROWS_MIN - nodes, min(room - NEWS_ROWS_MIN, PICTURE_ROWS))
        left = room - rows_of_page(look, page, most)
        table = min(nodes, left - NEWS_ROWS_MIN)
        parts = [*heads, ring_page(look, page, most)]
        if table < TABLE_ROWS_MIN:
            return Group(*parts, *self._newest(page.glyphs, left))
        parts += self._newest(page.glyphs, left - table)
        return Group(*parts, Text(), self._table(portrait, page.glyphs, table - 2))

    def _nobody(self) -> Text:
        return Text(f"{self.inspection.snapshot.topic!r} has no members")

    def _headlines(self, glyphs: Glyphs) -> list[RenderableType]:
        """Return a line with the state of the topic, and a line with an error, if any."""
        wrong = self._history[-1]
        stored = max((each.count for each in self.inspection.statuses.values()), default=0)
        line = Text(no_wrap=True, overflow="crop")
        line.append(_shortened(self.inspection.snapshot.topic, glyphs), "bold")
        state = light(wrong, glyphs) if wrong else Text(f"{glyphs.right} in order", RIGHT_STYLE)
        line.append("   ").append_text(state).append(f"   {stored} stored")
        line.append(f"   {self._seen_at}   {self._hint}", "dim")
        if self._trouble is None:
            return [line]
        return [line, Text(f"{glyphs.wrong} {self._trouble}", DEAD_STYLE, no_wrap=True)]

    def _look(self, portrait: RingLayout) -> Look:
        snapshot = self.inspection.snapshot
        roots = len(set(roots_of(self.inspection).values()))
        return Look(
            portrait=portrait,
            wrong=wrong_by_layer(self.inspection),
            history=list(self._history),
            history_name="wrong, look by look",
            centre=[
                Text(_shortened(snapshot.topic, ASCII), "bold"),
                Text(f"{portrait.members} members, {portrait.recorded} recorded"),
                Text("1 root" if roots == 1 else f"{roots} roots", "" if roots == 1 else "red"),
            ],
        )

    # -- changes -----------------------------------------------------------------------------

    def _newest(self, glyphs: Glyphs, rows: int) -> list[RenderableType]:
        """Return the last changes, the newest first, in at most ``rows`` rows."""
        lines: list[RenderableType] = [Text("what changed", "dim")]
        if not self._news:
            return [*lines, Text("nothing since we look", "dim")]
        for number, (at, change) in enumerate(islice(self._news, rows - 1)):
            is_new = number < len(self._changes)
            lines.append(_line_of(at, change, CHANGED_STYLE if is_new else "", glyphs))
        return lines

    # -- nodes -------------------------------------------------------------------------------

    def _table(self, portrait: RingLayout, glyphs: Glyphs, rows: int | None = None) -> Table:
        """Return a line for each node; wrong or changed nodes first if there is no room for all."""
        cut: OverflowMethod = "ellipsis" if glyphs.has_dots else "crop"
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("", "node", *_COLUMNS):
            table.add_column(
                heading,
                no_wrap=True,
                overflow=cut,
                justify="right" if heading == "stored" else "left",
            )
        standings = self._standings(portrait)
        changed = {(node, each.field) for each in self._changes for node in each.nodes}
        shown = self._chosen(standings, changed, rows)
        for node in shown:
            sign = _sign(standings[node], glyphs)
            table.add_row(sign, *self._cells(node, standings[node], changed))
        if len(shown) < len(standings):
            table.add_row("", f"and {len(standings) - len(shown)} more")
        return table

    def _standings(self, portrait: RingLayout) -> dict[NodeId, GlyphState | str]:
        """Return every node in ring order, with its standing."""
        statuses = self.inspection.statuses
        marks = {dot.node: dot.mark for dot in portrait.dots}
        members = sorted(statuses.items(), key=_by_place)
        found: dict[NodeId, GlyphState | str] = {
            node: marks.get(node, LEAVING) for node, _ in members
        }
        outside = self.inspection.snapshot.subscribers.keys() - statuses.keys()
        found |= dict.fromkeys(sorted(outside), OUTSIDE)
        return found | dict.fromkeys(self.inspection.snapshot.crashed, GONE)

    def _chosen(
        self,
        standings: Mapping[NodeId, GlyphState | str],
        changed: Collection[tuple[NodeId, str]],
        rows: int | None,
    ) -> list[NodeId]:
        if rows is None or len(standings) <= rows:
            return list(standings)
        moved = {node for node, _ in changed}

        def is_dull(node: NodeId) -> bool:
            return standings[node] is GlyphState.RIGHT and node not in moved

        first = set(sorted(standings, key=is_dull)[: max(rows - 1, 0)])
        return [node for node in standings if node in first]

    def _cells(
        self, node: NodeId, standing: GlyphState | str, changed: Collection[tuple[NodeId, str]]
    ) -> list[Text]:
        status = self.inspection.statuses.get(node)
        if status is None:
            style = DEAD_STYLE if standing == GONE else "dim"
            return [Text(node), Text(str(standing), style)]
        found = cells(status)
        return [Text(node)] + [
            Text(found[name], CHANGED_STYLE if (node, name) in changed else "") for name in _COLUMNS
        ]


def wrong_by_layer(inspection: Inspection) -> dict[Layer, int]:
    """Return the number of violations of each layer that is visible from outside."""
    found = Counter(violation.layer for violation in live_violations(inspection))
    found[Layer.PUBLICATIONS] = sum(1 for _ in differing(roots_of(inspection)))
    return {layer: found[layer] for layer in SHOWN_LAYERS}


def _line_of(at: str, change: RingChange, style: str, glyphs: Glyphs) -> Text:
    more = len(change.nodes) - NAMED_MAX
    names = ", ".join(change.nodes[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return Text.assemble(
        (f"{at} ", "dim"),
        (f"{names}", style or "bold"),
        f" {change.field} ",
        (f"{change.before} {glyphs.arrow} {change.after}", style),
        no_wrap=True,
        overflow="crop",
    )


def _sign(standing: GlyphState | str, glyphs: Glyphs) -> Text:
    if isinstance(standing, GlyphState):
        return Text(glyphs.marks[standing], STYLES[standing])
    return Text(glyphs.dead, DEAD_STYLE) if standing == GONE else Text(NONE)


def _by_place(item: tuple[NodeId, NodeStatus]) -> tuple[int, NodeId]:
    node, status = item
    return (status.label.position if status.label is not None else -1, node)


def _shortened(topic: str, glyphs: Glyphs) -> str:
    return topic if len(topic) <= TOPIC_SHOWN else topic[: TOPIC_SHOWN - 1] + glyphs.cut
