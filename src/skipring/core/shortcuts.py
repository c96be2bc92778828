"""Shortcuts: the labels to hold, and the nodes that hold them (section 3.2.2, Algorithm 4).

This module writes no ring edge: it probes a displaced shortcut (R1), and the ring handles the
reply. This keeps the paper's induction over levels valid.
"""

from __future__ import annotations

from collections.abc import Mapping

from skipring.core.effects import Outbox
from skipring.core.labels import Label
from skipring.core.messages import IntroduceShortcut, RemoveConnections
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId, Peer
from skipring.core.ring import Ring
from skipring.core.topology import Chains, chains_around


class Shortcuts:
    """Shortcuts of one subscriber."""

    __slots__ = ("_chains", "_ring", "slots")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._chains: Chains | None = None
        self.slots: dict[Label, NodeId | None] = {}

    def nodes(self) -> list[NodeId]:
        """Return the known holders of shortcuts."""
        return [node for node in self.slots.values() if node is not None]

    def holder(self, label: Label, pred: Peer | None, succ: Peer | None) -> NodeId | None:
        """Return the holder of a chain label: a ring neighbour, a shortcut or None."""
        if pred is not None and pred.label == label:
            return pred.node
        if succ is not None and succ.label == label:
            return succ.node
        return self.slots.get(label)

    def tree_nodes(
        self, chains: Chains, pred: Peer | None, succ: Peer | None
    ) -> tuple[list[NodeId], NodeId | None]:
        """Return the known children in the tree, and the parent if it is known."""
        holders = [self.holder(label, pred, succ) for label in chains.children]
        parent = self.holder(chains.parent, pred, succ) if chains.parent is not None else None
        return [node for node in holders if node is not None], parent

    def on_tick(self, me: Peer, pred: Peer | None, succ: Peer | None, out: Outbox) -> Chains:
        """Hold exactly the chain labels, and introduce the level neighbours to each other."""
        chains = self.chains(me, pred, succ)
        if tuple(self.slots) != chains.slots:
            self._hold(chains.slots, out)
        for label, node in self.slots.items():
            if node in (self._ring.node, SUPERVISOR):
                self.slots[label] = None  # B2; no key changes, so the iteration stays valid
        self._introduce_ends(me, chains, pred, succ, out)
        return chains

    def chains(self, me: Peer, pred: Peer | None, succ: Peer | None) -> Chains:
        """Return the chains around this node; derive them only after a label has changed."""
        before = pred.label if pred is not None else None
        after = succ.label if succ is not None else None
        known = self._chains
        if known is None or known.own != me.label or known.pred != before or known.succ != after:
            known = self._chains = chains_around(me.label, before, after)
        return known

    def drop_derived(self) -> None:
        """Drop the chains, which may be corrupted; the next use derives them again."""
        self._chains = None

    @property
    def remembered(self) -> Chains | None:
        """Return the cached chains."""
        return self._chains

    def wrong_chains(self) -> Chains | None:
        """Return the cached chains if they do not follow from their labels, else None."""
        known = self._chains
        if known is None or known == chains_around(known.own, known.pred, known.succ):
            return None
        return known

    def load_slots(self, slots: Mapping[Label, NodeId | None]) -> None:
        """Replace the slots, which may be corrupted.

        They are sorted: equal states must act alike, and dropped slots are probed in order.
        """
        self.slots = dict(sorted(slots.items()))

    def load(self, chains: Chains | None) -> None:
        """Replace the chains; the value may be corrupted."""
        self._chains = chains

    def _hold(self, labels: tuple[Label, ...], out: Outbox) -> None:
        """Keep the slots of these labels, open the missing ones and drop the rest (C5)."""
        before = self.slots
        self.slots = {label: before.get(label) for label in labels}
        for label, node in before.items():
            if node is not None and label not in self.slots:
                self._release(Peer(label, node), out)

    def _introduce_ends(
        self, me: Peer, chains: Chains, pred: Peer | None, succ: Peer | None, out: Outbox
    ) -> None:
        """Introduce the ends of both chains, the neighbours in the ring of this level (C3)."""
        left, right = chains.left_end, chains.right_end
        if left is None or right is None:
            return
        left_node = self.holder(left, pred, succ)
        right_node = self.holder(right, succ, pred)
        if left_node is None or right_node is None or left_node == right_node:
            return  # C4
        if me.node in (left_node, right_node):
            return
        out.send(left_node, IntroduceShortcut(Peer(right, right_node)))
        out.send(right_node, IntroduceShortcut(Peer(left, left_node)))

    def on_introduce_shortcut(self, peer: Peer, out: Outbox) -> None:
        """Record the newest holder of a label (Algorithm 4, IntroduceShortcut)."""
        ring = self._ring
        if ring.is_self_or_supervisor(peer):
            return
        if ring.me is None:
            out.send(peer.node, RemoveConnections(ring.node))
        elif peer.label in self.slots:
            before = self.slots[peer.label]
            if before == peer.node:
                return
            self.slots[peer.label] = peer.node
            if before is not None:
                self._release(Peer(peer.label, before), out)
        else:
            self._release(peer, out)

    def _release(self, peer: Peer, out: Outbox) -> None:
        """Probe a dropped reference (R1), or linearize it as in the paper."""
        if self._ring.rules.probe:
            self._ring.probe(peer, EdgeKind.LINE, out)
        else:
            self._ring.linearize(peer, out, first_hand=False)

    def on_remove_connections(self, node: NodeId) -> None:
        """Empty the slots of a node, but keep their labels (RemoveConnections, B9)."""
        for label, holder in self.slots.items():
            if holder == node:
                self.slots[label] = None

    def forget_all(self) -> None:
        """Drop every shortcut."""
        self.slots = {}


def derived_chains(me: Peer, pred: Peer | None, succ: Peer | None) -> Chains:
    """Derive the chains from the ring neighbours."""
    return chains_around(
        me.label,
        pred.label if pred is not None else None,
        succ.label if succ is not None else None,
    )
