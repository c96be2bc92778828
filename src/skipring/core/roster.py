"""The supervisor's database and its four repairs (section 3.1).

Kept as a dense list from index to node and its inverse, so that missing and surplus labels,
conditions (iii) and (iv), cannot be represented (S9). What is loaded may hold them all, in the
paper's own form, a multiset of (label, node) pairs; ``repair`` turns it into the dense list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import UNRECORDED, SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.topology import neighbours_of


class Roster:
    """Who is recorded, and under which label."""

    __slots__ = ("_digest", "_index", "_labels", "_loaded", "_nodes", "cursor")

    def __init__(self) -> None:
        self._nodes: list[NodeId] = []
        self._index: dict[NodeId, int] = {}
        self._labels: list[Label] = []  # l(0), l(1), …: made once, told to many
        self._loaded: tuple[tuple[str, NodeId | None], ...] | None = None
        self.cursor = 0
        self._digest: int | None = None  # worked out when first asked for, then kept up to date

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: NodeId) -> bool:
        return node in self._index

    @property
    def nodes(self) -> Sequence[NodeId]:
        """The members in the order of their labels' indices."""
        return self._nodes

    @property
    def is_loaded(self) -> bool:
        """True while a loaded database waits for its repair."""
        return self._loaded is not None

    @property
    def first(self) -> NodeId | None:
        """The member with label 0."""
        return self._nodes[0] if self._nodes else None

    @property
    def digest(self) -> int:
        """The sum of the weights of all members, to compare with the ring's own (R14)."""
        if self._digest is None:
            self._digest = (
                sum(self._peer(index).weight for index in range(len(self._nodes))) % CIRCLE
            )
        return self._digest

    def configuration_of(self, node: NodeId) -> SetConfiguration:
        """The triple (pred, label, succ) of a node; without a label if it is not recorded (S1)."""
        index = self._index.get(node)
        if index is None:
            return UNRECORDED
        if len(self._nodes) == 1:
            return SetConfiguration(None, Label.nth(0), None)  # S7
        before, after = neighbours_of(index, len(self._nodes))
        return SetConfiguration(self._peer(before), self._label(index), self._peer(after))

    def label_of(self, node: NodeId) -> Label | None:
        """The label of a node; None if it is not recorded."""
        index = self._index.get(node)
        return self._label(index) if index is not None else None

    def _peer(self, index: int) -> Peer:
        return Peer(self._label(index), self._nodes[index])

    def _label(self, index: int) -> Label:
        while len(self._labels) <= index:
            self._labels.append(Label.nth(len(self._labels)))
        return self._labels[index]

    def advance(self) -> NodeId:
        """The next member in round robin; any cursor is taken modulo n (S6)."""
        self.cursor = (self.cursor + 1) % len(self._nodes)
        return self._nodes[self.cursor]

    # -- changes; each returns those whose configuration it changed -------------------------

    def add(self, node: NodeId) -> list[NodeId]:
        """Record a node under the next free label l(n) (section 4.1, subscribe)."""
        index = len(self._nodes)
        self._nodes.append(node)
        self._index[node] = index
        self._change_digest(self._peer(index).weight)
        if index == 0:
            return [node]
        before, after = neighbours_of(index, index + 1)
        return list(dict.fromkeys([self._nodes[before], self._nodes[after], node]))

    def remove(self, node: NodeId) -> list[NodeId]:
        """Drop a node and move the last member into its place (section 4.1, unsubscribe)."""
        index, last = self._index.get(node), len(self._nodes) - 1
        if index is None:
            return []
        near = dict.fromkeys(self._around(index) + self._around(last))
        self._change_digest(-self._peer(index).weight)
        del self._index[node]
        mover = self._nodes.pop()
        if mover != node:
            self._nodes[index] = mover
            self._index[mover] = index
            self._change_digest(self._peer(index).weight - Peer(Label.nth(last), mover).weight)
        return [other for other in near if other != node]

    def _around(self, index: int) -> list[NodeId]:
        if len(self._nodes) == 1:
            return [self._nodes[index]]
        return [self._nodes[i] for i in (*neighbours_of(index, len(self._nodes)), index)]

    def _change_digest(self, difference: int) -> None:
        if self._digest is not None:
            self._digest = (self._digest + difference) % CIRCLE

    # -- repair ----------------------------------------------------------------------------

    def load(self, database: Iterable[tuple[str, NodeId | None]], cursor: int) -> None:
        """Take over a database in the paper's form, however corrupted."""
        self._loaded = tuple(database)
        self.cursor = cursor
        self._replace([])

    def database(self) -> tuple[tuple[str, NodeId | None], ...]:
        """The database in the paper's form; as it was loaded while not yet repaired."""
        if self._loaded is not None:
            return self._loaded
        return tuple((Label.nth(index).bits, node) for index, node in enumerate(self._nodes))

    def repair(self) -> list[NodeId]:
        """Mend conditions (i) to (iv) of section 3.1; return who must hear of it.

        A clean roster stays as it is.
        """
        if self._loaded is None:
            return []
        loaded, self._loaded = self._loaded, None
        self._replace(_dense(_lowest_labels(loaded)))
        if self.database() == loaded:
            return []
        told = _told_by(loaded)
        return [node for node in self._nodes if self.configuration_of(node) != told.get(node)]

    def audit(self) -> bool:
        """Look at the slot under the cursor; mend the list if it contradicts itself (S9)."""
        if not self._nodes:
            return False
        index = self.cursor % len(self._nodes)
        node = self._nodes[index]
        if self._index.get(node) == index and len(self._index) == len(self._nodes):
            return False
        self._replace([node for node in dict.fromkeys(self._nodes) if node != SUPERVISOR])
        return True

    def _replace(self, nodes: list[NodeId]) -> None:
        self._nodes = nodes
        self._index = {node: index for index, node in enumerate(nodes)}
        self._digest = None


def _lowest_labels(
    database: Iterable[tuple[str, NodeId | None]],
) -> list[tuple[int | None, NodeId]]:
    """Drop vacant entries (i) and all but a node's lowest index (ii, S4); lowest first.

    A label that l never produces counts as index infinity (S5), written None.
    """
    lowest: dict[NodeId, tuple[bool, int, str]] = {}
    for bits, node in database:
        if node is None or node == SUPERVISOR:
            continue
        index = index_of(bits)
        key = (index is None, index or 0, bits)
        if node not in lowest or key < lowest[node]:
            lowest[node] = key
    ordered = sorted(lowest.items(), key=lambda item: (item[1], item[0]))
    return [(None if infinite else index, node) for node, (infinite, index, _) in ordered]


def _dense(entries: list[tuple[int | None, NodeId]]) -> list[NodeId]:
    """Close the gaps: each free index takes the entry with the largest label (iii, iv)."""
    placed: dict[int, NodeId] = {}
    homeless: list[NodeId] = []
    for index, node in entries:
        if index is not None and index < len(entries) and index not in placed:
            placed[index] = node
        else:
            homeless.append(node)
    return [placed[i] if i in placed else homeless.pop() for i in range(len(entries))]


def _told_by(database: Iterable[tuple[str, NodeId | None]]) -> dict[NodeId, SetConfiguration]:
    """What a supervisor with this database, unrepaired, would have told its subscribers."""
    peers = sorted(
        Peer(Label.nth(index), node)
        for index, node in _lowest_labels(database)
        if index is not None
    )
    if len(peers) == 1:
        return {peers[0].node: SetConfiguration(None, peers[0].label, None)}
    return {
        peer.node: SetConfiguration(peers[i - 1], peer.label, peers[(i + 1) % len(peers)])
        for i, peer in enumerate(peers)
    }


def index_of(bits: str) -> int | None:
    """The index of a label as written in a database; None if l never produces it (S5)."""
    try:
        return Label.parse(bits).index
    except ValueError:
        return None
