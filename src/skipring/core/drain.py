"""Drain: handover of a subscriber's publications to one remaining member before it leaves.

A leaver announces its departure, so two leavers do not wait for each other. It also names its
remaining neighbours, so a member whose neighbours all leave finds a receiver. When one of the
named neighbours leaves too, it informs the other leavers. The leaver replaces a receiver that
leaves, cannot be reached or does not answer, and prefers receivers with a disk if it has one
itself. The drain ends when one receiver has confirmed everything, or when no reachable receiver
remains (decision 0049).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from skipring.core.effects import Drained, Outbox
from skipring.core.events import DrainRequested
from skipring.core.handover import Handovers
from skipring.core.messages import REMAINING_MAX, Draining, Held
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import ALL
from skipring.core.replica import Replica
from skipring.core.state import DrainState

# Guess: longer than any drain. It bounds how long a corrupted value keeps a node leaving.
DRAIN_TICKS_MAX: Final = 1 << 12
# Guess: a member that announced its departure longer ago has left, or has cancelled it.
LEAVING_TICKS: Final = 64
NAMED_MAX: Final = REMAINING_MAX  # Limit: also of the nodes recorded from announcements.


class Drain:
    """Drain of one subscriber, and the announced departures of other members."""

    __slots__ = (
        "_absent",
        "_accepts_volatile",
        "_everything",
        "_handovers",
        "_ids",
        "_leaving",
        "_named",
        "_node",
        "_receiver",
        "_rejected",
        "_replica",
        "_ticks",
    )

    def __init__(self, node: NodeId, replica: Replica, handovers: Handovers) -> None:
        self._node = node
        self._replica = replica
        self._handovers = handovers
        self._ticks = 0  # ticks left in which this node counts as leaving
        self._receiver: NodeId | None = None
        self._ids: tuple[bytes, ...] = ()
        self._everything = False
        self._accepts_volatile = False
        # None uses less memory than an empty dict.
        self._named: dict[NodeId, NodeId] | None = None  # remaining node -> leaver that named it
        self._rejected: dict[NodeId, None] | None = None  # receivers without progress or a disk
        self._absent: dict[NodeId, None] | None = None  # nodes that the host cannot reach
        self._leaving: dict[NodeId, int] | None = None  # leaver -> ticks until it is forgotten

    @property
    def is_leaving(self) -> bool:
        """Return True while other members should hand nothing over to this node."""
        return self._ticks > 0

    @property
    def is_in_use(self) -> bool:
        """Return True if this node leaves, or knows of another node that does."""
        return self._ticks > 0 or self._leaving is not None

    @property
    def unconfirmed(self) -> int:
        """Return an upper bound on the publications that the receiver has not confirmed.

        Without a receiver, count all publications to hand over.
        """
        if self._receiver is not None and self._receiver in self._handovers:
            return self._handovers.unconfirmed(self._receiver)
        return self._replica.records_of(self._ids, (ALL,) if self._everything else ())

    def is_known_to_leave(self, node: NodeId) -> bool:
        """Return True if a node has announced that it leaves."""
        return self._leaving is not None and node in self._leaving

    # -- requests of the application ---------------------------------------------------------

    def leave(self) -> None:
        """Accept no handover from other members."""
        self._ticks = DRAIN_TICKS_MAX

    def stay(self) -> None:
        """End the drain and accept handovers again."""
        self._ticks = 0
        self._stop()
        self._rejected = self._absent = None

    def request(self, event: DrainRequested, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Announce that this node leaves, and start to hand over."""
        self.stay()
        self.leave()
        self._ids, self._everything = event.ids, event.everything
        self._accepts_volatile = not self._replica.log.is_durable
        self.announce(self.candidates(neighbours), neighbours, out)
        self._choose(neighbours, out)

    def announce(self, to: Iterable[NodeId], neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Announce to nodes that this node leaves, and name the neighbours that do not."""
        remaining = self._staying(neighbours)[:NAMED_MAX]
        for node in to:
            others = tuple(each for each in remaining if each != node)
            out.send(node, Draining(self._node, others))

    def candidates(self, neighbours: Sequence[NodeId]) -> list[NodeId]:
        """Return the possible receivers: neighbours, and nodes that leavers have named."""
        return list(dict.fromkeys((*neighbours, *(self._named or ()))))

    def _staying(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Return the nodes that have not announced their departure, including unreachable ones."""
        excluded = {self._node, SUPERVISOR, *(self._leaving or ())}
        return [node for node in nodes if node not in excluded]

    def _choose(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Hand over to the next remaining node; end the drain if there is none."""
        staying = self._staying(self.candidates(neighbours))
        remaining = [node for node in staying if node not in (self._absent or ())]
        fresh = [node for node in remaining if node not in (self._rejected or ())]
        if remaining and not fresh:  # start again, and accept a receiver without a disk
            self._rejected, self._accepts_volatile, fresh = None, True, remaining
        for node in fresh:
            if self._handovers.start(
                node, out, ids=self._ids, everything=self._everything, is_drain=True
            ):
                self._receiver = node
                return
        if not remaining:
            self._stop()
            out.append(Drained(None, absent=bool(staying)))

    @property
    def _is_over(self) -> bool:
        return not self._ids and not self._everything

    def _stop(self) -> None:
        if self._receiver is not None:
            self._handovers.stop(self._receiver)
        self._receiver, self._ids, self._everything = None, (), False

    def _replace_receiver(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Replace the receiver with another node."""
        assert self._receiver is not None
        self._handovers.stop(self._receiver)
        self._receiver = None
        self._choose(neighbours, out)

    # -- messages and reports ----------------------------------------------------------------

    def on_draining(self, message: Draining, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Record that another node leaves; replace the receiver if it is no longer a candidate."""
        named = self._staying(neighbours)
        if self._leaving is None:
            self._leaving = {}
        self._leaving[message.sender] = LEAVING_TICKS
        if self.is_leaving and message.sender in named:  # withdraw it from the named nodes
            self.announce(self._leavers(message.sender), neighbours, out)
        self._record_named(message, neighbours, out)
        if message.sender != self._receiver:
            self._handovers.stop(message.sender)
        if self._receiver not in (None, *self._staying(self.candidates(neighbours))):
            self._replace_receiver(neighbours, out)

    def _leavers(self, but: NodeId) -> list[NodeId]:
        return [node for node in self._leaving or () if node not in (but, self._node, SUPERVISOR)]

    def _record_named(self, message: Draining, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Record remaining nodes that a leaver names: this node may leave, now or later.

        Forget nodes that the leaver named before and no longer names. A node that leaves announces
        this to the others.
        """
        named = {
            node: leaver
            for node, leaver in (self._named or {}).items()
            if leaver != message.sender or node in message.remaining
        }
        known = {*neighbours, *named}
        news = [node for node in self._staying(message.remaining) if node not in known]
        for node in dict.fromkeys(news[: max(NAMED_MAX - len(named), 0)]):
            named[node] = message.sender
            if self.is_leaving:
                self.announce((node,), neighbours, out)
        self._named = named or None

    def on_absent(self, node: NodeId, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Record that the host cannot reach a node; replace it if it is the receiver."""
        if self._is_over:
            return
        if self._absent is None:
            self._absent = {}
        self._absent[node] = None
        if node == self._receiver:
            self._replace_receiver(neighbours, out)

    def refuses(self, message: Held, neighbours: Sequence[NodeId], out: Outbox) -> bool:
        """Replace a receiver without a disk while another may have one; return True if so."""
        is_refused = (
            message.sender == self._receiver and not message.durable and not self._accepts_volatile
        )
        if is_refused:
            self._record_rejected(message.sender)
            self._replace_receiver(neighbours, out)
        return is_refused

    def _record_rejected(self, node: NodeId) -> None:
        if self._rejected is None:
            self._rejected = {}
        self._rejected[node] = None

    def on_finished(self, nodes: Sequence[NodeId], out: Outbox) -> None:
        """End the drain if the receiver is among the nodes that have confirmed everything."""
        if self._receiver is not None and self._receiver in nodes:
            receiver = self._receiver
            self._stop()
            out.append(Drained(receiver))

    def on_tick(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Replace a silent receiver; forget old announcements."""
        # Memory may be corrupted: clamp counters to their valid range.
        self._ticks = max(min(self._ticks, DRAIN_TICKS_MAX) - 1, 0)
        if self._leaving is not None:
            self._leaving = {
                node: min(ticks, LEAVING_TICKS) - 1
                for node, ticks in self._leaving.items()
                if ticks > 1
            } or None
        if self._ticks == 0:
            self.stay()
            leaving, named = self._leaving or (), (self._named or {}).items()
            self._named = {node: leaver for node, leaver in named if leaver in leaving} or None
        elif not self._is_over and (
            self._receiver is None or self._receiver not in self._handovers
        ):
            if self._receiver is not None:
                self._record_rejected(self._receiver)
                self._receiver = None
            self._choose(neighbours, out)

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> DrainState:
        """Return the variables as a value."""
        return DrainState(
            ticks=self._ticks,
            receiver=self._receiver,
            ids=self._ids,
            everything=self._everything,
            takes_memory=self._accepts_volatile,
            told=dict(self._named or {}),
            passed=tuple(self._rejected or ()),
            absent=tuple(self._absent or ()),
            leaving=dict(self._leaving or {}),
        )

    def load(self, state: DrainState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._ticks, self._receiver = state.ticks, state.receiver
        self._ids, self._everything = state.ids, state.everything
        self._accepts_volatile = state.takes_memory
        self._named = dict(state.told) or None
        self._rejected = dict.fromkeys(state.passed) or None
        self._absent = dict.fromkeys(state.absent) or None
        self._leaving = dict(state.leaving) or None
