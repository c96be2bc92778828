"""Screen of ``skipring top``: tables of topics, nodes and supervisors, and pages above them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipring.admin.diagnosis import Explanation, explain
from skipring.admin.inspector import Inspection, Inspector
from skipring.cli.options import Exit
from skipring.cli.output.ring import PATIENCE_S, RingWatch
from skipring.cli.output.tables import NONE, changes_in, explanation_view, plain_table, time_of_day
from skipring.core.limits import listed
from skipring.errors import SkipringError
from skipring.view.model import ROOT_DIGITS
from skipring.view.overview import (
    REQUESTS_BOUND,
    Observer,
    Overview,
    SupervisorRow,
    TopicRow,
    differing,
    roots_of,
)
from skipring.view.panel import RIGHT_STYLE, WRONG_STYLE, RingPanel
from skipring.view.text import DEAD_STYLE, STYLES, Glyphs, GlyphState, layout

NAMED_MAX: Final = 2  # Guess: an operator does not read more names in a cell.
SUPERVISORS_MAX: Final = 5  # Guess: rows of supervisors, so that topics and nodes have room.
SORTED_SIGN: Final = " v"
ABOVE_STYLE: Final = "yellow"
_FIRST: Final = float("-inf")

HELP: Final = """\
arrows    choose a topic or a node
1-9       choose a topic
tab       go to the other table
enter     open the ring of a topic, or the changes of a node
escape    go back
s         sort by the next column
q         quit

stored    publications; the maximum over all members
per s     growth of stored per second
lag       publications that the slowest member is missing
roots     equal roots mean that all members are in sync; else the nodes that differ
state     healthy, or degraded with the number of faults in the ring
requests  requests to the supervisor in an interval; the mean of a healthy
          topic is below 0.912, and a warning means more than chance explains"""

# --- rows ------------------------------------------------------------------------------

Cell = tuple[str, str]  # text and style


class TopRow(Struct, frozen=True):
    """Row of a table: its key, its cells, and its rank in each column; the smallest is first."""

    key: str
    cells: tuple[Cell, ...]
    ranks: tuple[str | float, ...]


TOPIC_COLUMNS: Final = ("topic", "members", "stored", "per s", "lag", "roots", "state")
NODE_COLUMNS: Final = ("node", "label", "stored", "lag", "root", "state")
SUPERVISOR_COLUMNS: Final = (
    *("supervisor", "topics", "members", "requests/interval", "suspects", "evicted"),
)
NUMBERS: Final = frozenset(("members", "stored", "per s", "lag", "topics", "suspects", "evicted"))


def in_order(rows: Iterable[TopRow], column: int) -> list[TopRow]:
    """Return the rows sorted by one of their columns, then by key."""
    return sorted(rows, key=lambda row: (row.ranks[column], row.key))


def topic_rows(overview: Overview, glyphs: Glyphs) -> list[TopRow]:
    """Return a row for each topic."""
    return [_topic_row(topic, glyphs) for topic in overview.topics]


def _topic_row(row: TopicRow, glyphs: Glyphs) -> TopRow:
    roots, state = (f"{glyphs.right} equal", RIGHT_STYLE), (f"{glyphs.right} healthy", RIGHT_STYLE)
    if row.roots > 1:
        roots = (f"{glyphs.wrong} {listed(row.differs, NAMED_MAX)}", WRONG_STYLE)
    if row.wrong:
        state = (f"{glyphs.wrong} degraded: {row.wrong}", WRONG_STYLE)
    elif not row.members:
        state = (f"{NONE} no members", "")
    elif row.roots > 1:
        state = (f"{glyphs.wrong} out of sync", WRONG_STYLE)
    cells = (
        (row.topic, "bold"),
        (f"{row.members:,}", ""),
        (f"{row.publications:,}", ""),
        (f"{row.rate:.1f}", ""),
        (f"{row.lag:,}", WRONG_STYLE if row.lag else ""),
        roots,
        state,
    )
    numbers = (row.members, row.publications, row.rate, row.lag, row.roots, row.wrong)
    return TopRow(row.topic, cells, (row.topic, *(-number for number in numbers)))


def node_rows(inspection: Inspection, glyphs: Glyphs) -> list[TopRow]:
    """Return a row for each node that the inspection knows."""
    snapshot, statuses = inspection.snapshot, inspection.statuses
    marks = {dot.node: dot.mark for dot in layout(snapshot).dots}
    severity = list(GlyphState)
    most = max((status.count for status in statuses.values()), default=0)
    others = set(differing(roots_of(inspection)))
    outside = snapshot.subscribers.keys() - statuses.keys()
    rows = [_silent_row(node, f"{glyphs.dead} does not answer") for node in snapshot.crashed]
    rows += [_silent_row(node, f"{NONE} not in the topic") for node in outside]
    for node, status in statuses.items():
        mark, lag = marks.get(node, GlyphState.LABEL), most - status.count
        root = status.root.hex()[:ROOT_DIGITS]
        cells = (
            (node, "bold"),
            (str(status.label or NONE), ""),
            (f"{status.count:,}", ""),
            (f"{lag:,}", WRONG_STYLE if lag else ""),
            (f"{root} {glyphs.wrong}", WRONG_STYLE) if node in others else (root, ""),
            (f"{glyphs.marks[mark]} {mark.value}", STYLES[mark]),
        )
        place = status.label.position if status.label is not None else _FIRST
        ranks = (node, place, -status.count, -lag, root, -severity.index(mark))
        rows.append(TopRow(node, cells, ranks))
    return rows


def _silent_row(node: str, why: str) -> TopRow:
    cells = ((node, "bold"), *[(NONE, "")] * 4, (why, DEAD_STYLE))
    return TopRow(node, cells, (node, _FIRST, 0, _FIRST, "", _FIRST))


def supervisor_rows(overview: Overview, glyphs: Glyphs) -> list[TopRow]:
    """Return a row for each supervisor."""
    return [_supervisor_row(each, glyphs) for each in overview.supervisors]


def _supervisor_row(row: SupervisorRow, glyphs: Glyphs) -> TopRow:
    if not row.answers:
        none, silent = (NONE, ""), (f"{glyphs.dead} does not answer", DEAD_STYLE)
        return TopRow(row.address, ((row.address, "bold"), none, none, silent, none, none), ())
    # Warn only above the maximum that random variation explains.
    sign, style = (
        (glyphs.right, RIGHT_STYLE)
        if row.requests <= row.requests_max
        else (glyphs.above, ABOVE_STYLE)
    )
    cells = (
        (row.address, "bold"),
        (f"{row.topics:,}", ""),
        (f"{row.members:,}", ""),
        (f"{sign} {row.requests:.2f} (mean {REQUESTS_BOUND * row.topics:.2f})", style),
        (f"{row.suspects:,}", WRONG_STYLE if row.suspects else ""),
        (f"{row.evictions:,}", ""),
    )
    return TopRow(row.address, cells, ())


def overview_view(overview: Overview, glyphs: Glyphs) -> RenderableType:
    """Return all topics and supervisors as tables."""
    topics = in_order(topic_rows(overview, glyphs), column=0)
    parts: list[RenderableType] = [
        _table(TOPIC_COLUMNS, topics, glyphs) if topics else "no topics",
        *([f"and {overview.unlisted} smaller topics"] if overview.unlisted else []),
        "",
        _table(SUPERVISOR_COLUMNS, supervisor_rows(overview, glyphs), glyphs),
    ]
    return Group(*parts)


def _table(
    headings: Sequence[str], rows: Iterable[TopRow], glyphs: Glyphs, chosen: str | None = None
) -> Table:
    """Return rows as a table; the row with the key ``chosen`` is highlighted."""
    numbers = [each for each in headings if each.removesuffix(SORTED_SIGN) in NUMBERS]
    table = plain_table(headings, glyphs, numbers=numbers)
    for row in rows:
        style = "reverse" if row.key == chosen else None
        table.add_row(*(Text(*cell) for cell in row.cells), style=style)
    return table


# --- screen ----------------------------------------------------------------------------


class TopTable:
    """Rows sorted by one column; the cursor stays on its row."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._sorted_by = 0
        self._rows: list[TopRow] = []
        self.chosen: str | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def keys(self) -> list[str]:
        """Return the keys of the rows, from the top down."""
        return [row.key for row in self._rows]

    def show(self, rows: Iterable[TopRow]) -> None:
        """Replace the rows; the cursor goes to the first row if its row is gone."""
        self._rows = in_order(rows, self._sorted_by)
        if self.chosen not in self.keys:
            self.choose(0)

    def sort(self) -> None:
        """Sort by the next column."""
        self._sorted_by = (self._sorted_by + 1) % len(self._columns)
        self.show(self._rows)

    def choose(self, number: int) -> None:
        """Move the cursor to a row, or to the nearest one."""
        number = max(min(number, len(self._rows) - 1), 0)
        self.chosen = self._rows[number].key if self._rows else None

    def move(self, step: int) -> None:
        """Move the cursor by some rows."""
        if self.chosen is not None:
            self.choose(self.keys.index(self.chosen) + step)

    def painted(
        self, title: str, glyphs: Glyphs, rows_max: int, *, has_focus: bool
    ) -> list[RenderableType]:
        """Return a title and the rows around the cursor."""
        at = self.keys.index(self.chosen) if self.chosen is not None else 0
        first = max(min(at - rows_max // 2, len(self) - rows_max), 0)
        shown = self._rows[first : first + rows_max]
        part = f" ({first + 1}-{first + len(shown)} of {len(self)})" if shown != self._rows else ""
        heads = [
            name + (SORTED_SIGN if number == self._sorted_by else "")
            for number, name in enumerate(self._columns)
        ]
        table = _table(heads, shown, glyphs, self.chosen if has_focus else None)
        return [Text(f"{title}{part}", "bold cyan" if has_focus else "bold"), table]


class TopPage:
    """Page that covers the tables until it is closed; this one explains keys and columns."""

    async def refresh(self) -> None:
        """Do nothing: the help page has no values to refresh."""

    def painted(self, _: RingPanel) -> RenderableType:
        """Return the page, sized for the terminal."""
        return Text(HELP)


class TopScreen:
    """Tables of topics, nodes of the selected topic and supervisors, and pages above them."""

    def __init__(self, observer: Observer, first: Overview, glyphs: Glyphs) -> None:
        self._observer = observer
        self._glyphs = glyphs
        self._overview = first
        self._trouble = ""
        self._topics, self._nodes = TopTable(TOPIC_COLUMNS), TopTable(NODE_COLUMNS)
        self._focused = self._topics
        self._page: TopPage | None = None
        self.status: int | None = None  # exit status, once the command should end
        self.due = asyncio.Event()  # set to request a refresh at once
        self._show(first)

    async def refresh(self) -> None:
        """Poll the cluster, and request the values of the open page."""
        try:
            self._show(await self._observer.overview())
        except SkipringError as error:
            self._trouble = str(error)
        if self._page is not None:
            await self._page.refresh()

    def _show(self, overview: Overview) -> None:
        self._overview = overview
        silent = [each.address for each in overview.supervisors if not each.answers]
        self._trouble = f"{', '.join(silent)}: no answer; nodes report the rest" if silent else ""
        self._topics.show(topic_rows(overview, self._glyphs))
        self._show_nodes()

    def _show_nodes(self) -> None:
        inspection = self._observer.inspections.get(self._topics.chosen or "")
        self._nodes.show(node_rows(inspection, self._glyphs) if inspection is not None else [])

    # -- keys ----------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Handle a key."""
        if key == "ctrl-c":
            self.quit(Exit.INTERRUPTED)
        elif self._page is not None:
            if key in ("escape", "enter", "?") or (key == "q" and type(self._page) is TopPage):
                self._page = None
            elif key == "q":
                self.quit(Exit.YES)
        elif key.isdecimal():
            self._topics.choose(int(key) - 1)
            self._show_nodes()
        elif (action := self._actions().get(key)) is not None:
            action()
            self._show_nodes()

    def _actions(self) -> dict[str, Callable[[], None]]:
        return {
            "up": lambda: self._focused.move(-1),
            "down": lambda: self._focused.move(1),
            "tab": self._focus_next,
            "s": self._focused.sort,
            "enter": self._open,
            "?": lambda: self._open_page(TopPage()),
            "q": lambda: self.quit(Exit.YES),
        }

    def quit(self, status: int) -> None:
        """Request the end of the command."""
        self.status = status

    def _focus_next(self) -> None:
        self._focused = self._nodes if self._focused is self._topics else self._topics

    def _open(self) -> None:
        topic, node = self._topics.chosen, self._nodes.chosen
        if topic is None or topic not in self._observer.inspections:
            return
        if self._focused is self._topics:
            self._open_page(RingPage(self._observer, topic))
        elif node is not None:
            self._open_page(NodePage(self._observer, topic, node))

    def _open_page(self, page: TopPage) -> None:
        self._page = page
        self.due.set()

    # -- painting ------------------------------------------------------------------------------

    def painted(self, panel: RingPanel) -> RenderableType:
        """Return the open page, or all tables."""
        if self._page is not None:
            return self._page.painted(panel)
        glyphs, supervisors = panel.glyphs, supervisor_rows(self._overview, panel.glyphs)
        banner = [Text(f"{glyphs.wrong} {self._trouble}", WRONG_STYLE, no_wrap=True)]
        parts: list[RenderableType] = [self._head(), *(banner if self._trouble else []), ""]
        table = _table(SUPERVISOR_COLUMNS, supervisors[:SUPERVISORS_MAX], glyphs)
        # Titles and headings of two tables, the blanks below them, and the last line.
        others = len(parts) + 2 * 3 + 1 + min(len(supervisors), SUPERVISORS_MAX) + 2
        room = max(panel.rows - others, 2)
        topics = max(min(len(self._topics), max(room // 2, room - len(self._nodes))), 1)
        is_first = self._focused is self._topics
        parts += [*self._topics.painted("topics", glyphs, topics, has_focus=is_first), ""]
        title = f"nodes of {self._topics.chosen}" if self._topics.chosen is not None else "nodes"
        parts += [
            *self._nodes.painted(title, glyphs, max(room - topics, 1), has_focus=not is_first),
            *("", table, ""),
            Text("arrows, 1-9 choose  tab other table  enter open  s sort  ? help  q quit", "dim"),
        ]
        return Group(*parts)

    def _head(self) -> RenderableType:
        topics = self._overview.topics
        members = sum(topic.members for topic in topics)
        more = f" and {self._overview.unlisted} not inspected" if self._overview.unlisted else ""
        about = f"   topics: {len(topics)}{more}   members: {members:,}"
        now = (f"   {time_of_day()}", "dim")
        return Text.assemble(("skipring top", "bold"), about, now, no_wrap=True)


class RingPage(TopPage):
    """Ring of one topic."""

    def __init__(self, observer: Observer, topic: str) -> None:
        self._observer = observer
        self._topic = topic
        self._watch = RingWatch(hint="Escape goes back")
        self._watch.record(observer.inspections[topic])

    async def refresh(self) -> None:
        """Record the last inspection of the topic, and an error if its supervisor is silent."""
        client = self._observer.client
        is_silent = self._observer.statuses.get(client.supervisor_of(self._topic)) is None
        trouble = client.no_supervisor_of(self._topic) if is_silent else None
        inspection = self._observer.inspections.get(self._topic, self._watch.inspection)
        self._watch.record(inspection, trouble)

    def painted(self, panel: RingPanel) -> RenderableType:
        """Return the ring, its changes and its nodes."""
        return self._watch.painted(panel)


class NodePage(TopPage):
    """State of one node, and its last changes."""

    def __init__(self, observer: Observer, topic: str, node: str) -> None:
        self._observer = observer
        self._topic = topic
        self._node = node
        self._found: Explanation | str = f"asking {node} ..."

    async def refresh(self) -> None:
        """Request the changes of the node."""
        inspection = self._observer.inspections.get(self._topic)
        if inspection is None:
            return
        inspector = Inspector(self._observer.client, self._topic, patience_s=PATIENCE_S)
        is_there = self._node in inspection.statuses
        journal = await inspector.journal(self._node) if is_there else None
        try:
            self._found = explain(inspection, self._node, journal)
        except SkipringError as error:  # the node has left meanwhile
            self._found = str(error)

    def painted(self, panel: RingPanel) -> RenderableType:
        """Return the state of the node, its changes and its violations."""
        if isinstance(self._found, str):
            return Text(self._found)
        return explanation_view(self._found, panel.glyphs, changes_in(panel.rows))
