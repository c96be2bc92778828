"""Database of the supervisor and its four repairs (section 3.1).

The roster is a dense list from index to node, and its inverse, so missing and surplus labels
(conditions iii and iv) cannot be represented (S9). A loaded database is a multiset of (label, node)
pairs as in the paper and may violate all four conditions; ``repair`` turns it into the dense list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from skipring.core.labels import CIRCLE, Label
from skipring.core.messages import UNRECORDED, SetConfiguration
from skipring.core.peers import SUPERVISOR, NodeId, Peer
from skipring.core.topology import neighbours_of


class Roster:
    """Recorded nodes and their labels."""

    __slots__ = ("_audited", "_audited_sum", "_digest", "_index", "_loaded", "_nodes", "cursor")

    def __init__(self) -> None:
        self._nodes: list[NodeId] = []
        self._index: dict[NodeId, int] = {}
        self._loaded: tuple[tuple[str, NodeId | None], ...] | None = None
        self.cursor = 0
        self._digest: int | None = None  # computed at the first use, then kept up to date
        self._audited = 0  # slots that the current pass of the audit has compared
        self._audited_sum = 0  # the sum of their weights, kept up to date like the digest

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: NodeId) -> bool:
        return self._index_of(node) is not None

    @property
    def nodes(self) -> Sequence[NodeId]:
        """Return the members in the order of their label indices."""
        return self._nodes

    @property
    def is_loaded(self) -> bool:
        """Return True while a loaded database waits for its repair."""
        return self._loaded is not None

    @property
    def first(self) -> NodeId | None:
        """Return the member with label 0, or None."""
        return self._nodes[0] if self._nodes else None

    def digest(self) -> int:
        """Return the sum of the weights of all members, to compare with the ring's (R14)."""
        if self._digest is None:
            self._digest = self._sum_of_weights()
        return self._digest

    def _sum_of_weights(self) -> int:
        return sum(self._peer(index).weight for index in range(len(self._nodes))) % CIRCLE

    def configuration_of(self, node: NodeId) -> SetConfiguration:
        """Return (pred, label, succ) of a node; without a label if it is not recorded (S1)."""
        index = self._index_of(node)
        if index is None:
            return UNRECORDED
        if len(self._nodes) == 1:
            return SetConfiguration(None, Label.nth(0), None)  # S7
        before, after = neighbours_of(index, len(self._nodes))
        return SetConfiguration(self._peer(before), Label.nth(index), self._peer(after))

    def label_of(self, node: NodeId) -> Label | None:
        """Return the label of a node; None if it is not recorded."""
        index = self._index_of(node)
        return Label.nth(index) if index is not None else None

    def _index_of(self, node: NodeId) -> int | None:
        """Return the index of a node; None if the list has another node there (S9)."""
        index = self._index.get(node)
        if index is None or not 0 <= index < len(self._nodes) or self._nodes[index] != node:
            return None
        return index

    def _peer(self, index: int) -> Peer:
        return Peer(Label.nth(index), self._nodes[index])

    def advance(self) -> NodeId:
        """Advance the cursor, modulo n, and return the next member in round robin (S6)."""
        self.cursor = (self.cursor + 1) % len(self._nodes)
        return self._nodes[self.cursor]

    # -- changes; each returns the members with a new configuration -------------------------

    def add(self, node: NodeId) -> list[NodeId]:
        """Record a node under the next free label l(n) (section 4.1, subscribe)."""
        index = len(self._nodes)
        self._nodes.append(node)
        self._index[node] = index
        self._change_digest(index, self._peer(index).weight)
        if index == 0:
            return [node]
        before, after = neighbours_of(index, index + 1)
        return list(dict.fromkeys([self._nodes[before], self._nodes[after], node]))

    def remove(self, node: NodeId) -> list[NodeId]:
        """Remove a node and move the last member into its place (section 4.1, unsubscribe)."""
        index, last = self._index_of(node), len(self._nodes) - 1
        if index is None:
            return []
        near = dict.fromkeys(self._around(index) + self._around(last))
        self._change_digest(index, -self._peer(index).weight)
        del self._index[node]
        mover = self._nodes.pop()
        if mover != node:
            self._change_digest(last, -Peer(Label.nth(last), mover).weight)
            self._nodes[index] = mover
            self._index[mover] = index
            self._change_digest(index, self._peer(index).weight)
        self._audited = min(self._audited, last)
        return [other for other in near if other != node]

    def _around(self, index: int) -> list[NodeId]:
        if len(self._nodes) == 1:
            return [self._nodes[index]]
        return [self._nodes[i] for i in (*neighbours_of(index, len(self._nodes)), index)]

    def _change_digest(self, index: int, difference: int) -> None:
        if self._digest is not None:
            self._digest = (self._digest + difference) % CIRCLE
        if index < self._audited:
            self._audited_sum = (self._audited_sum + difference) % CIRCLE

    # -- repair ----------------------------------------------------------------------------

    def load(self, database: Iterable[tuple[str, NodeId | None]], cursor: int) -> None:
        """Load a database in the paper's form; a corrupted one waits for ``repair``."""
        loaded = tuple(database)
        self.cursor = cursor
        nodes = [node for _, node in loaded if node is not None and node != SUPERVISOR]
        is_clean = len(set(nodes)) == len(loaded) and all(
            Label.nth(index).bits == bits for index, (bits, _) in enumerate(loaded)
        )
        self._loaded = None if is_clean else loaded
        self._replace(nodes if is_clean else [])

    def load_audit(
        self, digest: int | None, audited: int, audited_sum: int, index: Mapping[NodeId, int] | None
    ) -> None:
        """Replace the values derived from a clean database; they may be corrupted."""
        if self._loaded is None:
            self._digest, self._audited, self._audited_sum = digest, audited, audited_sum
            self._index = dict(index) if index is not None else self._index

    @property
    def audited(self) -> tuple[int, int]:
        """Return the number of slots compared in this pass, and the sum of their weights."""
        return self._audited, self._audited_sum

    @property
    def wrong_digest(self) -> int | None:
        """Return the digest if it is not the sum over the members, else None."""
        is_right = self._digest is None or self._digest == self._sum_of_weights()
        return None if is_right else self._digest

    @property
    def wrong_index(self) -> Mapping[NodeId, int] | None:
        """Return the index if it is not the inverse of the list, else None."""
        return None if self._index == _inverse(self._nodes) else self._index

    def database(self) -> tuple[tuple[str, NodeId | None], ...]:
        """Return the database in the paper's form; a loaded one is unchanged until its repair."""
        if self._loaded is not None:
            return self._loaded
        return tuple((Label.nth(index).bits, node) for index, node in enumerate(self._nodes))

    def repair(self) -> list[NodeId]:
        """Repair conditions (i) to (iv) of section 3.1; return the members to inform.

        A clean roster stays unchanged.
        """
        if self._loaded is None:
            return []
        loaded, self._loaded = self._loaded, None
        self._replace(_dense(_lowest_labels(loaded)))
        if self.database() == loaded:
            return []
        sent = _sent_from(loaded)
        return [node for node in self._nodes if self.configuration_of(node) != sent.get(node)]

    def audit(self, slots: int) -> bool:
        """Compare the next slots with the index; return True if the roster was repaired (S9).

        A pass over all slots adds up their weights, and its end replaces the digest. A wrong index
        is repaired within ceil(n / slots) audits, a wrong digest within twice as many
        (``test_wrong_digest_is_replaced_within_two_passes_of_the_audit``), because the sum of the
        current pass may be wrong, too.
        """
        nodes, begin = self._nodes, self._audited
        if not 0 <= begin < len(nodes):
            begin, self._audited_sum = 0, 0
        end = min(begin + slots, len(nodes))
        is_sound = len(self._index) == len(nodes)
        for index in range(begin, end):
            node = nodes[index]
            is_sound = is_sound and self._index.get(node) == index and node != SUPERVISOR
            self._audited_sum += self._peer(index).weight
        if not is_sound:
            self._replace([node for node in dict.fromkeys(nodes) if node != SUPERVISOR])
            return True
        self._audited, self._audited_sum = end, self._audited_sum % CIRCLE
        if end == len(nodes):
            self._audited, self._digest = 0, self._audited_sum
            self._audited_sum = 0
        return False

    def _replace(self, nodes: list[NodeId]) -> None:
        self._nodes = nodes
        self._index = _inverse(nodes)
        self._digest = None
        self._audited = self._audited_sum = 0


def _inverse(nodes: Sequence[NodeId]) -> dict[NodeId, int]:
    return {node: index for index, node in enumerate(nodes)}


def _lowest_labels(
    database: Iterable[tuple[str, NodeId | None]],
) -> list[tuple[int | None, NodeId]]:
    """Drop vacant entries (i) and all but a node's lowest index (ii, S4); lowest first.

    A label that l never produces has the index infinity (S5), represented as None.
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
    """Fill each free index with the entry that has the largest label (iii, iv)."""
    placed: dict[int, NodeId] = {}
    displaced: list[NodeId] = []
    for index, node in entries:
        if index is not None and index < len(entries) and index not in placed:
            placed[index] = node
        else:
            displaced.append(node)
    return [placed[i] if i in placed else displaced.pop() for i in range(len(entries))]


def _sent_from(database: Iterable[tuple[str, NodeId | None]]) -> dict[NodeId, SetConfiguration]:
    """Return the configurations that a supervisor sends from this unrepaired database."""
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
    """Return the index of a label in a database; None if l never produces it (S5)."""
    try:
        return Label.parse(bits).index
    except ValueError:
        return None
