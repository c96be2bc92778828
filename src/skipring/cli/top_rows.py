"""Topics, nodes and supervisors as rows of tables, for ``skipring top`` and for a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from skipring.admin.inspector import Inspection
from skipring.cli.ring_page import RIGHT_STYLE, WRONG_STYLE, wide_console
from skipring.core.labels import Label
from skipring.core.peers import NodeId
from skipring.view.model import ROOT_DIGITS
from skipring.view.overview import (
    REQUESTS_BOUND,
    Overview,
    SupervisorRow,
    TopicRow,
    differing,
    roots_of,
)
from skipring.view.text import DEAD_STYLE, STYLES, Glyphs, GlyphState, glyphs_for, layout
from skipring.wire.rpc import NodeStatus

NAMED_MAX: Final = 2  # nodes with another root that are named. Guess: more are not read
NONE: Final = "-"
ABOVE_STYLE: Final = "yellow"

Rank: TypeAlias = str | float  # of a cell: the smallest comes first


class Column(Struct, frozen=True):
    """Head of a column."""

    name: str
    is_number: bool = False


class TopRow(Struct, frozen=True):
    """Row: its key, its cells, and its sort key in each column."""

    key: str
    cells: tuple[Text, ...]
    ranks: tuple[Rank, ...]


TOPIC_COLUMNS: Final = (
    Column("topic"),
    Column("members", is_number=True),
    Column("stored", is_number=True),
    Column("per s", is_number=True),
    Column("lag", is_number=True),
    Column("roots"),
    Column("state"),
)
NODE_COLUMNS: Final = (
    Column("node"),
    Column("label"),
    Column("stored", is_number=True),
    Column("lag", is_number=True),
    Column("root"),
    Column("state"),
)
SUPERVISOR_COLUMNS: Final = (
    Column("supervisor"),
    Column("topics", is_number=True),
    Column("members", is_number=True),
    Column("requests/interval"),
    Column("suspects", is_number=True),
    Column("evicted", is_number=True),
)


def in_order(rows: Iterable[TopRow], column: int) -> list[TopRow]:
    """Return the rows sorted by one of their columns, then by key."""
    return sorted(rows, key=lambda row: (row.ranks[column], row.key))


# -- topics ----------------------------------------------------------------------------------


def topic_rows(overview: Overview, glyphs: Glyphs) -> list[TopRow]:
    """Return a row for each topic."""
    return [_topic_row(topic, glyphs) for topic in overview.topics]


def _topic_row(row: TopicRow, glyphs: Glyphs) -> TopRow:
    return TopRow(
        key=row.topic,
        cells=(
            Text(row.topic, "bold"),
            Text(f"{row.members:,}"),
            Text(f"{row.publications:,}"),
            Text(f"{row.rate:.1f}"),
            Text(f"{row.lag:,}", WRONG_STYLE if row.lag else ""),
            _roots(row, glyphs),
            _topic_state(row, glyphs),
        ),
        ranks=(
            row.topic,
            -row.members,
            -row.publications,
            -row.rate,
            -row.lag,
            -row.roots,
            -row.wrong,
        ),
    )


def _roots(row: TopicRow, glyphs: Glyphs) -> Text:
    """Return that all roots are equal, or the nodes that differ."""
    if row.roots <= 1:
        return Text(f"{glyphs.right} equal", RIGHT_STYLE)
    names = ", ".join(row.differs[:NAMED_MAX])
    more = f" +{len(row.differs) - NAMED_MAX}" if len(row.differs) > NAMED_MAX else ""
    return Text(f"{glyphs.wrong} {names}{more}", WRONG_STYLE)


def _topic_state(row: TopicRow, glyphs: Glyphs) -> Text:
    if row.wrong:
        return Text(f"{glyphs.wrong} {row.wrong} wrong", WRONG_STYLE)
    if not row.members:
        return Text(f"{NONE} nobody")
    return Text(f"{glyphs.right} in order", RIGHT_STYLE)


# -- nodes -----------------------------------------------------------------------------------


def node_rows(inspection: Inspection, glyphs: Glyphs) -> list[TopRow]:
    """Return a row for each node that the inspection knows."""
    snapshot, statuses = inspection.snapshot, inspection.statuses
    marks = {dot.node: dot.mark for dot in layout(snapshot).dots}
    most = max((status.count for status in statuses.values()), default=0)
    others = set(differing(roots_of(inspection)))
    rows = [_silent_row(node, f"{glyphs.dead} does not answer") for node in snapshot.crashed]
    outside = snapshot.subscribers.keys() - statuses.keys()
    rows += [_silent_row(node, f"{NONE} not in the topic") for node in outside]
    for node, status in statuses.items():
        standing = _Standing(marks.get(node, GlyphState.LABEL), most - status.count, node in others)
        rows.append(_node_row(node, status, standing, glyphs))
    return rows


class _Standing(Struct, frozen=True):
    """State of a node compared with the others."""

    mark: GlyphState
    lag: int
    is_other: bool  # its root differs from the most common one


def _node_row(node: NodeId, status: NodeStatus, standing: _Standing, glyphs: Glyphs) -> TopRow:
    mark, lag, root = standing.mark, standing.lag, status.root.hex()[:ROOT_DIGITS]
    return TopRow(
        key=node,
        cells=(
            Text(node, "bold"),
            Text(str(status.label or NONE)),
            Text(f"{status.count:,}"),
            Text(f"{lag:,}", WRONG_STYLE if lag else ""),
            Text(f"{root} {glyphs.wrong}", WRONG_STYLE) if standing.is_other else Text(root),
            Text(f"{glyphs.marks[mark]} {mark.value}", STYLES[mark]),
        ),
        ranks=(node, _place(status.label), -status.count, -lag, root, -_SEVERITY[mark]),
    )


_SEVERITY: Final = {mark: rank for rank, mark in enumerate(GlyphState)}
_FIRST: Final = float("-inf")


def _place(label: Label | None) -> float:
    return label.position if label is not None else _FIRST


def _silent_row(node: NodeId, why: str) -> TopRow:
    cells = (Text(node, "bold"), *(Text(NONE) for _ in range(4)), Text(why, DEAD_STYLE))
    return TopRow(node, cells, (node, _FIRST, 0, _FIRST, "", _FIRST))


# -- supervisors -----------------------------------------------------------------------------


def supervisor_rows(overview: Overview, glyphs: Glyphs) -> list[TopRow]:
    """Return a row for each supervisor."""
    return [_supervisor_row(each, glyphs) for each in overview.supervisors]


def _supervisor_row(row: SupervisorRow, glyphs: Glyphs) -> TopRow:
    if not row.answers:
        cells = (Text(row.address, "bold"), *(Text(NONE) for _ in range(2)))
        gone = Text(f"{glyphs.dead} does not answer", DEAD_STYLE)
        return TopRow(row.address, (*cells, gone, Text(NONE), Text(NONE)), (row.address,))
    return TopRow(
        key=row.address,
        cells=(
            Text(row.address, "bold"),
            Text(f"{row.topics:,}"),
            Text(f"{row.members:,}"),
            _requests(row, glyphs),
            Text(f"{row.suspects:,}", WRONG_STYLE if row.suspects else ""),
            Text(f"{row.evictions:,}"),
        ),
        ranks=(row.address,),
    )


def _requests(row: SupervisorRow, glyphs: Glyphs) -> Text:
    """Return requests and the mean of legitimate rings; warn only above chance."""
    text = f"{row.requests:.2f} (mean {REQUESTS_BOUND * row.topics:.2f})"
    if row.requests <= row.requests_max:
        return Text(f"{glyphs.right} {text}", RIGHT_STYLE)
    return Text(f"{glyphs.above} {text}", ABOVE_STYLE)


# -- plain text ------------------------------------------------------------------------------


def overview_view(overview: Overview, glyphs: Glyphs) -> RenderableType:
    """Return all topics and supervisors as tables."""
    topics = in_order(topic_rows(overview, glyphs), column=0)
    parts: list[RenderableType] = [_table(TOPIC_COLUMNS, topics) if topics else Text("no topics")]
    if overview.unlisted:
        parts.append(Text(f"and {overview.unlisted} smaller topics"))
    return Group(*parts, Text(), _table(SUPERVISOR_COLUMNS, supervisor_rows(overview, glyphs)))


def _table(columns: Sequence[Column], rows: Iterable[TopRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.name, no_wrap=True, justify="right" if column.is_number else "left")
    for row in rows:
        table.add_row(*row.cells)
    return table


def print_overview(overview: Overview) -> None:
    """Print all topics and supervisors once."""
    console = wide_console()
    console.print(overview_view(overview, glyphs_for(console.encoding)))
