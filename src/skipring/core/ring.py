"""BuildList and BuildRing with corrupted labels (Algorithms 1 and 2).

A node stores at most one neighbour on each side of the sorted line and, at the two ends of the
line, the edge that closes the ring. Only the supervisor or the neighbour itself changes them (R2);
the node probes other nodes it learns of, or leaves them to the supervisor (R10).
"""

from __future__ import annotations

from collections.abc import Iterator

from skipring.core.config import Rules
from skipring.core.effects import Outbox
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Introduce,
    RemoveConnections,
    SetConfiguration,
)
from skipring.core.peers import LEFT, RIGHT, SIDES, SUPERVISOR, EdgeKind, NodeId, Peer, farther


class Ring:
    """The ring edges of one subscriber."""

    __slots__ = ("me", "neighbours", "node", "rules", "wrap")

    def __init__(self, node: NodeId, rules: Rules) -> None:
        self.node = node
        self.rules = rules
        self.me: Peer | None = None
        self.neighbours: list[Peer | None] = [None, None]
        self.wrap: Peer | None = None

    @property
    def pred(self) -> Peer | None:
        """The neighbour before us on the circle, whichever variable holds it (section 3.2)."""
        left = self.neighbours[LEFT]
        if left is not None or self.wrap is None or self.me is None:
            return left
        return self.wrap if self.wrap > self.me else None

    @property
    def succ(self) -> Peer | None:
        """The neighbour after us on the circle, whichever variable holds it (section 3.2)."""
        right = self.neighbours[RIGHT]
        if right is not None or self.wrap is None or self.me is None:
            return right
        return self.wrap if self.wrap < self.me else None

    def peers(self) -> Iterator[Peer]:
        """The direct ring neighbours that are stored: left, right, wrap."""
        for peer in (*self.neighbours, self.wrap):
            if peer is not None:
                yield peer

    def neighbour_nodes(self) -> list[NodeId]:
        """The distinct ring neighbours (T16)."""
        nodes = {peer.node: None for peer in self.peers()}
        return [node for node in nodes if node not in (self.node, SUPERVISOR)]

    def forget_all(self) -> None:
        """Drop every edge."""
        self.neighbours = [None, None]
        self.wrap = None

    def is_self_or_supervisor(self, peer: Peer) -> bool:
        """True for a reference to ourselves or to the supervisor (B2)."""
        return peer.node in (self.node, SUPERVISOR)

    # -- Timeout ---------------------------------------------------------------------------

    def on_tick(self, me: Peer, out: Outbox) -> None:
        """BuildRingTimeout, then BuildListTimeout."""
        self._put_right(me, out)
        if self.wrap is None:
            self._offer_to_close(me, out)
        else:
            self._keep_closed(me, self.wrap, out)
        for neighbour in self.neighbours:
            if neighbour is not None:
                out.send(neighbour.node, CheckLabel(me, neighbour.label, EdgeKind.LINE))

    def _put_right(self, me: Peer, out: Outbox) -> None:
        """Drop void references; hand a neighbour on the wrong side to linearize."""
        self._drop_void()
        misplaced: list[Peer] = []
        for side in SIDES:
            peer = self.neighbours[side]
            if peer is not None and me.side_of(peer) is not side:
                self.neighbours[side] = None
                misplaced.append(peer)
        for peer in misplaced:  # only now: two that have changed places do not stand in the way
            self.linearize(peer, out, first_hand=True)

    def _drop_void(self) -> None:
        """Drop references that lead to ourselves or to the supervisor (B2)."""
        left, right = self.neighbours
        if left is not None and self.is_self_or_supervisor(left):
            self.neighbours[LEFT] = None
        if right is not None and self.is_self_or_supervisor(right):
            self.neighbours[RIGHT] = None
        if self.wrap is not None and self.is_self_or_supervisor(self.wrap):
            self.wrap = None

    def _offer_to_close(self, me: Peer, out: Outbox) -> None:
        """An end of the line without a wrap edge sends itself along the line to the other end."""
        left, right = self.neighbours
        if left is None and right is not None:
            out.send(right.node, Introduce(me, EdgeKind.WRAP, first_hand=True))
        elif right is None and left is not None:
            out.send(left.node, Introduce(me, EdgeKind.WRAP, first_hand=True))

    def _keep_closed(self, me: Peer, wrap: Peer, out: Outbox) -> None:
        """Check the wrap edge if we are an end of the line, else give it away."""
        side = me.side_of(wrap)
        beyond = self.neighbours[side.opposite]
        if beyond is not None:
            self.wrap = None
            self._forward_wrap(beyond, wrap, out)
            return
        if self.neighbours[side] is None:
            # Two nodes that know each other only as wrap would never form a line (B6).
            self.linearize(wrap, out, first_hand=False)
        out.send(wrap.node, CheckLabel(me, wrap.label, EdgeKind.WRAP))

    # -- messages --------------------------------------------------------------------------

    def on_check_label(self, message: CheckLabel, out: Outbox) -> None:
        """Check: tell a sender that is wrong about our label, else take it in (Algorithm 1)."""
        me, sender = self.me, message.sender
        if self.is_self_or_supervisor(sender):
            return
        if me is None:
            out.send(sender.node, RemoveConnections(self.node))  # B7
        elif me.label != message.believed:
            out.send(sender.node, Introduce(me, message.link, first_hand=True))
        else:
            self.introduce(sender, message.link, out, first_hand=True)

    def introduce(self, peer: Peer, link: EdgeKind, out: Outbox, *, first_hand: bool) -> None:
        """Introduce (Algorithm 2)."""
        me = self._accepts(peer, out)
        if me is None:
            return
        if self.rules.first_hand and not first_hand:
            if link is EdgeKind.LINE:
                self._on_hearsay(me, peer, out)
            else:
                self._on_wrap_hearsay(me, peer, out)
        elif not self._is_conflict(peer, out):
            has_moved = self._correct_wrap(me, peer)
            if link is EdgeKind.LINE or has_moved:
                self._adopt(me, peer, out)
            else:
                self._consider_wrap(me, peer, out)

    def _accepts(self, peer: Peer, out: Outbox) -> Peer | None:
        """Who we are to ``peer``, or None if there is no more to do about it."""
        me = self.me
        if self.is_self_or_supervisor(peer):
            return None
        if me is None:
            out.send(peer.node, RemoveConnections(self.node))
            return None
        self._drop_void()
        if self.rules.equal_label and peer.label == me.label:
            out.request_configuration(peer.node)  # R8
            return None
        return me

    def _correct_wrap(self, me: Peer, peer: Peer) -> bool:
        """Correct the label of the wrap edge; True if it turns out to belong to the line (B4)."""
        wrap = self.wrap
        if wrap is None or wrap.node != peer.node or wrap.label == peer.label:
            return False
        is_same_side = me.side_of(wrap) is me.side_of(peer)
        self.wrap = peer if is_same_side else None
        return not is_same_side

    def _on_wrap_hearsay(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Somebody else proposes a wrap edge: ask the proposed node, or pass it on (R2)."""
        if self.wrap == peer:
            return
        beyond = self.neighbours[me.side_of(peer).opposite]
        if self.wrap is None and beyond is not None:
            self._forward_wrap(beyond, peer, out)
        else:
            self.probe(peer, EdgeKind.WRAP, out)

    def _consider_wrap(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Take, keep or give away a candidate for the wrap edge (Algorithm 2, flag CYC)."""
        wrap, side = self.wrap, me.side_of(peer)
        if wrap is None:
            beyond = self.neighbours[side.opposite]
            if beyond is None:
                self.wrap = peer
            else:
                self._forward_wrap(beyond, peer, out)
        elif wrap.node == peer.node:
            return  # B5
        elif me.side_of(wrap) is side:
            far, near = (peer, wrap) if farther(peer, wrap, side) else (wrap, peer)
            self.wrap = far
            self.linearize(near, out, first_hand=near is peer)
            out.send(near.node, Introduce(far, EdgeKind.LINE, first_hand=False))
        else:
            self.wrap = None
            self.linearize(peer, out, first_hand=True)
            self.linearize(wrap, out, first_hand=False)

    def linearize(self, peer: Peer, out: Outbox, *, first_hand: bool) -> None:
        """Linearize (Algorithm 1)."""
        me = self._accepts(peer, out)
        if me is None:
            return
        if self.rules.first_hand and not first_hand:
            self._on_hearsay(me, peer, out)
        elif not self._is_conflict(peer, out):
            self._adopt(me, peer, out)

    def _adopt(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """A peer has spoken for itself: store it if it is nearer, else see that it gets home."""
        if peer in self.neighbours:
            self._forget_beliefs(peer)
        elif self._has_moved_away(me, peer) and self.rules.supervisor_first:
            out.request_configuration(self.node)
            out.request_configuration(peer.node)
        else:
            self._place(me, peer, out)

    def _on_hearsay(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Somebody else speaks of ``peer``: ask it, unless it belongs beyond a neighbour (R2)."""
        if peer in self.neighbours:
            return
        side = me.side_of(peer)
        neighbour = self.neighbours[side]
        known = any(other is not None and other.node == peer.node for other in self.neighbours)
        if not known and neighbour is not None and farther(peer, neighbour, side):
            self._forward(neighbour, peer, out)
        else:
            self.probe(peer, EdgeKind.LINE, out)

    def _forget_beliefs(self, peer: Peer) -> None:
        """Forget the same node under another label, on the other side."""
        for side in SIDES:
            other = self.neighbours[side]
            if other is not None and other.node == peer.node and other.label != peer.label:
                self.neighbours[side] = None

    def _has_moved_away(self, me: Peer, peer: Peer) -> bool:
        """Forget a neighbour under its old label; True if its new one is not nearer to us."""
        moved = False
        for side in SIDES:
            old = self.neighbours[side]
            if old is not None and old.node == peer.node:
                self.neighbours[side] = None
                nearer = me.side_of(peer) is side and not farther(peer, old, side)
                moved = moved or not nearer
        return moved

    def _place(self, me: Peer, peer: Peer, out: Outbox) -> None:
        side = me.side_of(peer)
        current = self.neighbours[side]
        if current is not None and farther(peer, current, side):
            self._forward(current, peer, out)
            return
        self.neighbours[side] = peer
        if current is not None:
            out.send(peer.node, Introduce(current, EdgeKind.LINE, first_hand=False))

    def _is_conflict(self, peer: Peer, out: Outbox) -> bool:
        """True, and the supervisor is asked, if a stored neighbour has the peer's label (R12)."""
        if not self.rules.conflict:
            return False
        label, node = peer.label, peer.node
        for other in (*self.neighbours, self.wrap):
            if other is not None and other.label == label and other.node != node:
                out.request_configuration(self.node)
                out.request_configuration(node)
                return True
        return False

    def on_remove_connections(self, node: NodeId) -> None:
        """RemoveConnections: forget the node (B9)."""
        for side in SIDES:
            peer = self.neighbours[side]
            if peer is not None and peer.node == node:
                self.neighbours[side] = None
        if self.wrap is not None and self.wrap.node == node:
            self.wrap = None

    # -- references that do not stay here --------------------------------------------------

    def probe(self, peer: Peer, link: EdgeKind, out: Outbox) -> None:
        """Ask a node who it is: it learns of us and answers first-hand (R1)."""
        if self.is_self_or_supervisor(peer):
            return
        if self.me is None:
            out.send(peer.node, RemoveConnections(self.node))
        else:
            out.send(peer.node, CheckLabel(self.me, peer.label, link))

    def _forward(self, neighbour: Peer, peer: Peer, out: Outbox) -> None:
        """Pass a peer on along the line, or leave it to the supervisor (R10)."""
        if self.rules.supervisor_first:
            out.request_configuration(peer.node)
        else:
            out.send(neighbour.node, Introduce(peer, EdgeKind.LINE, first_hand=False))

    def _forward_wrap(self, neighbour: Peer, peer: Peer, out: Outbox) -> None:
        """Pass a candidate for the wrap edge on, or leave it to the supervisor (R13)."""
        if self.rules.no_wrap_forwarding:
            out.request_configuration(peer.node)
        else:
            out.send(neighbour.node, Introduce(peer, EdgeKind.WRAP, first_hand=False))

    # -- configuration ---------------------------------------------------------------------

    def configure(self, label: Label, message: SetConfiguration, out: Outbox) -> None:
        """SetData with a label (Algorithm 4): take our place as the supervisor sees it."""
        me = self.me = Peer(label, self.node)
        pred = (
            message.pred
            if message.pred is not None and not self.is_self_or_supervisor(message.pred)
            else None
        )
        succ = (
            message.succ
            if message.succ is not None and not self.is_self_or_supervisor(message.succ)
            else None
        )
        if pred is None:
            succ = None  # alone: there is no ring with one neighbour only
        before = [peer for peer in self.peers() if not self.is_self_or_supervisor(peer)]
        if self.rules.overwrite:
            self._overwrite(me, pred, succ)
            self._report_displaced(me, before, pred, succ, out)
        else:
            self._report_displaced(me, before, pred, succ, out)
            for peer in (pred, succ):
                if peer is not None:
                    self.linearize(peer, out, first_hand=True)

    def _overwrite(self, me: Peer, pred: Peer | None, succ: Peer | None) -> None:
        """Make pred and succ our only ring neighbours (B13)."""
        self.forget_all()
        for peer, side in ((pred, LEFT), (succ, RIGHT)):
            if peer is not None:
                if me.side_of(peer) is side:
                    self.neighbours[side] = peer
                else:
                    self.wrap = peer

    def _report_displaced(
        self,
        me: Peer,
        before: list[Peer],
        pred: Peer | None,
        succ: Peer | None,
        out: Outbox,
    ) -> None:
        """Action (iii): the supervisor learns of neighbours that the configuration lacks."""
        done = {peer.node for peer in (pred, succ) if peer is not None}
        for peer in before:
            if peer.node in done:
                continue
            done.add(peer.node)
            if self.rules.supervisor_first or _is_closer(me.label, peer, pred, succ):
                out.request_configuration(peer.node)
            elif self.rules.overwrite:
                self.linearize(peer, out, first_hand=False)


def _is_closer(own: Label, peer: Peer, pred: Peer | None, succ: Peer | None) -> bool:
    """True if the peer is at most as far as the proposed neighbour, either way round (B11, B12)."""
    if pred is None or succ is None:
        return True
    return LEFT.distance(own, peer.label) <= LEFT.distance(own, pred.label) or RIGHT.distance(
        own, peer.label
    ) <= RIGHT.distance(own, succ.label)
