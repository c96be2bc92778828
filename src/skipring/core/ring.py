"""BuildList and BuildRing with corrupted labels (Algorithms 1 and 2).

A node stores at most one neighbour on each side of the sorted line and, at the two ends of the
line, the edge that closes the ring. Only the supervisor or the neighbour itself changes them (R2);
the node probes other nodes it learns of, or leaves them to the supervisor (R10).
"""

from __future__ import annotations

from random import Random
from zlib import crc32

from skipring.core.config import Rules
from skipring.core.effects import Outbox
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Introduce,
    RemoveConnections,
    SetConfiguration,
)
from skipring.core.peers import LEFT, RIGHT, SIDES, SUPERVISOR, EdgeKind, NodeId, Peer, is_farther


class Ring:
    """Ring edges of one subscriber."""

    __slots__ = ("ask_ticks", "me", "neighbours", "node", "rules", "wrap")

    def __init__(self, node: NodeId, rules: Rules) -> None:
        self.node = node
        self.rules = rules
        self.me: Peer | None = None
        self.neighbours: list[Peer | None] = [None, None]
        self.wrap: Peer | None = None
        # D1: since the last request; equal counters would make many nodes ask in the same tick.
        self.ask_ticks = crc32(node.encode()) if rules.deterministic else 0

    @property
    def pred(self) -> Peer | None:
        """Return the predecessor on the circle: left neighbour or wrap edge (section 3.2)."""
        left = self.neighbours[LEFT]
        if left is not None or self.wrap is None or self.me is None:
            return left
        return self.wrap if self.wrap > self.me else None

    @property
    def succ(self) -> Peer | None:
        """Return the successor on the circle: right neighbour or wrap edge (section 3.2)."""
        right = self.neighbours[RIGHT]
        if right is not None or self.wrap is None or self.me is None:
            return right
        return self.wrap if self.wrap < self.me else None

    def peers(self) -> list[Peer]:
        """Return the stored ring neighbours: left, right, wrap."""
        return [peer for peer in (*self.neighbours, self.wrap) if peer is not None]

    def neighbour_nodes(self) -> list[NodeId]:
        """Return the distinct ring neighbours (T16)."""
        nodes = {peer.node: None for peer in self.peers()}
        return [node for node in nodes if node not in (self.node, SUPERVISOR)]

    def load(
        self, me: Peer | None, left: Peer | None, right: Peer | None, wrap: Peer | None
    ) -> None:
        """Replace label and edges; the values may be corrupted."""
        self.me = me
        self.neighbours = [left, right]
        self.wrap = wrap

    def load_counter(self, ask_ticks: int) -> None:
        """Replace the counter of D1; the value may be corrupted."""
        self.ask_ticks = ask_ticks

    def remove_label(self) -> None:
        """Drop the label of this node and keep its edges."""
        self.me = None

    def forget_all(self) -> None:
        """Drop every edge."""
        self.neighbours = [None, None]
        self.wrap = None

    def is_self_or_supervisor(self, peer: Peer) -> bool:
        """Return True for a reference to this node or to the supervisor (B2)."""
        return peer.node in (self.node, SUPERVISOR)

    def asks_supervisor(self, length: int, rng: Random) -> bool:
        """Decide whether to ask for the configuration: by a coin, with D1 by a counter.

        A node that seems to be the minimum asks every other time, other nodes rarely (actions ii
        and iv, B14).
        """
        is_minimal = self.neighbours[LEFT] is None
        if self.rules.deterministic:
            period = 2 if is_minimal else length * length << (length + 1)
            # A corrupted counter, too, is below the period from now on.
            self.ask_ticks = (self.ask_ticks + 1) % period
            return self.ask_ticks == 0
        if is_minimal:
            return rng.getrandbits(1) == 0
        return asks_supervisor(length, rng, rare=self.rules.rare_requests)

    # -- Timeout ---------------------------------------------------------------------------

    def on_tick(self, me: Peer, out: Outbox) -> None:
        """Run BuildRingTimeout, then BuildListTimeout."""
        self._correct_sides(me, out)
        if self.wrap is None:
            self._offer_to_close(me, out)
        else:
            self._keep_closed(me, self.wrap, out)
        for neighbour in self.neighbours:
            if neighbour is not None:
                out.send(neighbour.node, CheckLabel(me, neighbour.label, EdgeKind.LINE))

    def _correct_sides(self, me: Peer, out: Outbox) -> None:
        """Drop void references; linearize a neighbour on the wrong side."""
        self._drop_void()
        misplaced: list[Peer] = []
        for side in SIDES:
            peer = self.neighbours[side]
            if peer is not None and not me.has_on(side, peer):
                self.neighbours[side] = None
                misplaced.append(peer)
        for peer in misplaced:  # only now: two swapped neighbours would block each other
            self.linearize(peer, out, first_hand=True)

    def _drop_void(self) -> None:
        """Drop references to this node or to the supervisor (B2)."""
        (left, right), void = self.neighbours, (self.node, SUPERVISOR)
        if left is not None and left.node in void:
            self.neighbours[LEFT] = None
        if right is not None and right.node in void:
            self.neighbours[RIGHT] = None
        if self.wrap is not None and self.wrap.node in void:
            self.wrap = None

    def _offer_to_close(self, me: Peer, out: Outbox) -> None:
        """Introduce this node to the other end of the line if it is an end without a wrap edge."""
        left, right = self.neighbours
        if left is None and right is not None:
            out.send(right.node, Introduce(me, EdgeKind.WRAP, first_hand=True))
        elif right is None and left is not None:
            out.send(left.node, Introduce(me, EdgeKind.WRAP, first_hand=True))

    def _keep_closed(self, me: Peer, wrap: Peer, out: Outbox) -> None:
        """Check the wrap edge if this node is an end of the line, else forward it."""
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
        """Correct a sender with a wrong belief, else introduce it (Algorithm 1, Check)."""
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
        """Handle an introduction of ``peer`` (Algorithm 2, Introduce)."""
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
        """Return this node as a peer, or None if ``peer`` needs no further handling."""
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
        """Correct the label of the wrap edge; return True if it belongs to the line (B4)."""
        wrap = self.wrap
        if wrap is None or wrap.node != peer.node or wrap.label == peer.label:
            return False
        is_same_side = me.side_of(wrap) is me.side_of(peer)
        self.wrap = peer if is_same_side else None
        return not is_same_side

    def _on_wrap_hearsay(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Probe or forward a wrap edge that another node proposes (R2)."""
        if self.wrap == peer:
            return
        beyond = self.neighbours[me.side_of(peer).opposite]
        if self.wrap is None and beyond is not None:
            self._forward_wrap(beyond, peer, out)
        else:
            self.probe(peer, EdgeKind.WRAP, out)

    def _consider_wrap(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Store, ignore or forward a candidate for the wrap edge (Algorithm 2, flag CYC)."""
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
            far, near = (peer, wrap) if is_farther(peer, wrap, side) else (wrap, peer)
            self.wrap = far
            self.linearize(near, out, first_hand=near is peer)
            out.send(near.node, Introduce(far, EdgeKind.LINE, first_hand=False))
        else:
            self.wrap = None
            self.linearize(peer, out, first_hand=True)
            self.linearize(wrap, out, first_hand=False)

    def linearize(self, peer: Peer, out: Outbox, *, first_hand: bool) -> None:
        """Place ``peer`` on the sorted line (Algorithm 1, Linearize)."""
        me = self._accepts(peer, out)
        if me is None:
            return
        if self.rules.first_hand and not first_hand:
            self._on_hearsay(me, peer, out)
        elif not self._is_conflict(peer, out):
            self._adopt(me, peer, out)

    def _adopt(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Store a first-hand peer if it is nearer, else forward it or ask the supervisor."""
        if peer in self.neighbours:
            self._forget_beliefs(peer)
        elif self._has_moved_away(me, peer) and self.rules.supervisor_first:
            out.request_configuration(self.node)
            out.request_configuration(peer.node)
        else:
            self._place(me, peer, out)

    def _on_hearsay(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Probe a peer that another node names; forward it if it is beyond a neighbour (R2)."""
        if peer in self.neighbours:
            return
        side = me.side_of(peer)
        neighbour = self.neighbours[side]
        known = any(other is not None and other.node == peer.node for other in self.neighbours)
        if not known and neighbour is not None and is_farther(peer, neighbour, side):
            self._forward(neighbour, peer, out)
        else:
            self.probe(peer, EdgeKind.LINE, out)

    def _forget_beliefs(self, peer: Peer) -> None:
        """Forget a neighbour that is the same node under another label."""
        for side in SIDES:
            other = self.neighbours[side]
            if other is not None and other.node == peer.node and other.label != peer.label:
                self.neighbours[side] = None

    def _has_moved_away(self, me: Peer, peer: Peer) -> bool:
        """Forget a neighbour under its old label; return True if its new label is not nearer."""
        moved = False
        for side in SIDES:
            old = self.neighbours[side]
            if old is not None and old.node == peer.node:
                self.neighbours[side] = None
                nearer = me.side_of(peer) is side and not is_farther(peer, old, side)
                moved = moved or not nearer
        return moved

    def _place(self, me: Peer, peer: Peer, out: Outbox) -> None:
        """Store a peer if its label is nearer than the neighbour's, else forward it."""
        for side in SIDES:
            current = self.neighbours[side]
            if not me.has_on(side, peer):
                continue
            if current is not None and is_farther(peer, current, side):
                self._forward(current, peer, out)
                continue
            self.neighbours[side] = peer
            if current is not None:
                out.send(peer.node, Introduce(current, EdgeKind.LINE, first_hand=False))

    def _is_conflict(self, peer: Peer, out: Outbox) -> bool:
        """Ask the supervisor and return True if another neighbour has the peer's label (R12)."""
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
        """Forget a node (RemoveConnections, B9)."""
        for side in SIDES:
            peer = self.neighbours[side]
            if peer is not None and peer.node == node:
                self.neighbours[side] = None
        if self.wrap is not None and self.wrap.node == node:
            self.wrap = None

    # -- probing and forwarding --------------------------------------------------------------

    def probe(self, peer: Peer, link: EdgeKind, out: Outbox) -> None:
        """Send a node a CheckLabel: it learns of this node and answers first-hand (R1)."""
        if self.is_self_or_supervisor(peer):
            return
        if self.me is None:
            out.send(peer.node, RemoveConnections(self.node))
        else:
            out.send(peer.node, CheckLabel(self.me, peer.label, link))

    def _forward(self, neighbour: Peer, peer: Peer, out: Outbox) -> None:
        """Forward a peer along the line, or leave it to the supervisor (R10)."""
        if self.rules.supervisor_first:
            out.request_configuration(peer.node)
        else:
            out.send(neighbour.node, Introduce(peer, EdgeKind.LINE, first_hand=False))

    def _forward_wrap(self, neighbour: Peer, peer: Peer, out: Outbox) -> None:
        """Forward a candidate for the wrap edge, or leave it to the supervisor (R13)."""
        if self.rules.no_wrap_forwarding:
            out.request_configuration(peer.node)
        else:
            out.send(neighbour.node, Introduce(peer, EdgeKind.WRAP, first_hand=False))

    # -- configuration ---------------------------------------------------------------------

    def configure(self, label: Label, message: SetConfiguration, out: Outbox) -> None:
        """Apply a configuration with a label (Algorithm 4, SetData)."""
        me = self.me
        if me is None or me.label != label:
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
            succ = None  # alone: a node in a ring has both
        edges, before = (*self.neighbours, self.wrap), self.peers()
        if self.rules.overwrite:
            self._overwrite(me, pred, succ)
            if (*self.neighbours, self.wrap) != edges:
                self._report_displaced(me, before, pred, succ, out)
        else:
            self._report_displaced(me, before, pred, succ, out)
            for peer in (pred, succ):
                if peer is not None:
                    self.linearize(peer, out, first_hand=True)

    def _overwrite(self, me: Peer, pred: Peer | None, succ: Peer | None) -> None:
        """Make pred and succ the only ring neighbours (B13)."""
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
        """Ask the supervisor about neighbours that the configuration lacks (action iii)."""
        done = {peer.node for peer in (pred, succ) if peer is not None}
        for peer in before:
            if peer.node in done or self.is_self_or_supervisor(peer):
                continue
            done.add(peer.node)
            if self.rules.supervisor_first or _is_closer(me.label, peer, pred, succ):
                out.request_configuration(peer.node)
            elif self.rules.overwrite:
                self.linearize(peer, out, first_hand=False)


def asks_supervisor(k: int, rng: Random, *, rare: bool) -> bool:
    """Return True with probability 1/(2^(k+1) k^2), k = |label|; 2^k if not rare (action ii)."""
    return rng.getrandbits(k + rare) == 0 and rng.randrange(k * k) == 0  # floats end at 2^-53


def _is_closer(own: Label, peer: Peer, pred: Peer | None, succ: Peer | None) -> bool:
    """Return True if the peer is no farther than pred or succ on that side (B11, B12)."""
    if pred is None or succ is None:
        return True
    return LEFT.distance(own, peer.label) <= LEFT.distance(own, pred.label) or RIGHT.distance(
        own, peer.label
    ) <= RIGHT.distance(own, succ.label)
