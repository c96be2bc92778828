"""Draining: a subscriber that leaves hands its publications over to one remaining member first.

It announces that it leaves, so that two members that leave do not wait for each other. A
member whose neighbours all leave is told by them which other members remain. A receiver
that leaves as well, cannot be reached or does not answer is replaced by another neighbour. The
drain is over when one has confirmed everything, or when no neighbour remains (decision 0049).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from skipring.core.effects import Drained, Outbox
from skipring.core.events import DrainRequested
from skipring.core.handover import Handovers
from skipring.core.holdings import Holdings
from skipring.core.messages import Draining, Held
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.state import DrainState

# Guess: longer than any drain. Corrupted memory may say that we leave: it is believed so long.
DRAIN_TICKS_MAX: Final = 1 << 12
# Guess: a member that announced its end so long ago is gone, or has changed its mind.
LEAVING_TICKS: Final = 64
TOLD_MAX: Final = 8  # Limit of ours: nodes that remain, as others say.


class Drain:
    """What one subscriber does before it leaves, and what it knows of others that leave."""

    __slots__ = (
        "_absent",
        "_everything",
        "_handovers",
        "_holdings",
        "_ids",
        "_leaving",
        "_node",
        "_passed",
        "_receiver",
        "_takes_memory",
        "_ticks",
        "_told",
    )

    def __init__(self, node: NodeId, holdings: Holdings, handovers: Handovers) -> None:
        self._node = node
        self._holdings = holdings
        self._handovers = handovers
        self._ticks = 0  # for which we still leave
        self._receiver: NodeId | None = None
        self._ids: tuple[bytes, ...] = ()
        self._everything = False
        self._takes_memory = False
        # None costs less memory than nothing in a dict.
        self._told: dict[NodeId, None] | None = None  # that remain, as others that leave say
        self._passed: dict[NodeId, None] | None = None  # receivers that did not answer in time
        self._absent: dict[NodeId, None] | None = None  # that the host cannot reach
        self._leaving: dict[NodeId, int] | None = None  # that have announced it, and for how long

    @property
    def is_leaving(self) -> bool:
        """True if nothing should be handed over to us."""
        return self._ticks > 0

    @property
    def unconfirmed(self) -> int:
        """How many publications the receiver has not confirmed yet, at most."""
        return self._handovers.unconfirmed(self._receiver) if self._receiver is not None else 0

    def is_known_to_leave(self, node: NodeId) -> bool:
        """True if a node has announced that it leaves."""
        return self._leaving is not None and node in self._leaving

    # -- what the application wants ----------------------------------------------------------

    def leave(self) -> None:
        """Accept nothing that others hand over."""
        self._ticks = DRAIN_TICKS_MAX

    def stay(self) -> None:
        """Be a member like others again."""
        self._ticks = 0
        self._stop()
        self._told = self._passed = self._absent = None

    def request(self, event: DrainRequested, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Announce that we leave, and begin to hand over."""
        self.stay()
        self.leave()
        self._ids, self._everything = event.ids, event.everything
        self._takes_memory = not self._holdings.is_durable
        self.announce(neighbours, neighbours, out)
        self._choose(neighbours, out)

    def announce(self, to: Iterable[NodeId], neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Tell nodes that we leave, and which neighbours remain as far as we know."""
        remaining = tuple(self._remaining(neighbours)[:TOLD_MAX])
        for node in to:
            others = tuple(each for each in remaining if each != node)
            out.send(node, Draining(self._node, others))

    def candidates(self, neighbours: Sequence[NodeId]) -> list[NodeId]:
        """The nodes that may be the receiver: neighbours, and nodes that others have named."""
        return list(dict.fromkeys((*neighbours, *(self._told or ()))))

    def _remaining(self, neighbours: Sequence[NodeId]) -> list[NodeId]:
        gone = {self._node, SUPERVISOR, *(self._leaving or ()), *(self._absent or ())}
        return [node for node in self.candidates(neighbours) if node not in gone]

    def _choose(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Hand over to the next node that remains; end if there is none."""
        remaining = self._remaining(neighbours)
        fresh = [node for node in remaining if node not in (self._passed or ())]
        if remaining and not fresh:  # begin again, and be content with less
            self._passed, self._takes_memory, fresh = None, True, remaining
        for node in fresh:
            started = self._handovers.start(node, out, ids=self._ids, everything=self._everything)
            if started:
                self._receiver = node
                return
        if not remaining:
            self._stop()
            out.effects.append(Drained(None))

    @property
    def _is_over(self) -> bool:
        return not self._ids and not self._everything

    def _stop(self) -> None:
        if self._receiver is not None:
            self._handovers.stop(self._receiver)
        self._receiver, self._ids, self._everything = None, (), False

    def _pass_over(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Hand over to another node than the receiver."""
        assert self._receiver is not None
        self._handovers.stop(self._receiver)
        self._receiver = None
        self._choose(neighbours, out)

    # -- what others say ---------------------------------------------------------------------

    def on_draining(self, message: Draining, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Another node leaves."""
        if self._leaving is None:
            self._leaving = {}
        self._leaving[message.sender] = LEAVING_TICKS
        if self.is_leaving:
            self._note_told(message, neighbours, out)
        if message.sender == self._receiver:
            self._pass_over(neighbours, out)
        else:
            self._handovers.stop(message.sender)

    def _note_told(self, message: Draining, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Note which nodes remain, as another that leaves says; tell them that we leave."""
        known = {self._node, SUPERVISOR, *self.candidates(neighbours), *(self._leaving or ())}
        told = dict(self._told or {})
        news = [node for node in message.remaining if node not in known]
        for node in dict.fromkeys(news[: max(TOLD_MAX - len(told), 0)]):
            told[node] = None
            self.announce((node,), neighbours, out)
        self._told = told or None

    def on_absent(self, node: NodeId, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Note that the host cannot reach a node."""
        if self._is_over:
            return
        if self._absent is None:
            self._absent = {}
        self._absent[node] = None
        if node == self._receiver:
            self._pass_over(neighbours, out)

    def refuses(self, message: Held, neighbours: Sequence[NodeId], out: Outbox) -> bool:
        """Pass over a receiver without a disk while there may be another; return True if so."""
        is_refused = (
            message.sender == self._receiver and not message.durable and not self._takes_memory
        )
        if is_refused:
            self._note_passed(message.sender)
            self._pass_over(neighbours, out)
        return is_refused

    def _note_passed(self, node: NodeId) -> None:
        if self._passed is None:
            self._passed = {}
        self._passed[node] = None

    def on_finished(self, nodes: Sequence[NodeId], out: Outbox) -> None:
        """Note that these nodes have confirmed all they were asked about."""
        if self._receiver is not None and self._receiver in nodes:
            receiver = self._receiver
            self._stop()
            out.effects.append(Drained(receiver))

    def on_tick(self, neighbours: Sequence[NodeId], out: Outbox) -> None:
        """Replace a receiver that is silent; forget what was announced long ago."""
        # Memory may be corrupted: no counter is believed beyond what it can have been set to.
        self._ticks = max(min(self._ticks, DRAIN_TICKS_MAX) - 1, 0)
        if self._leaving is not None:
            self._leaving = {
                node: min(ticks, LEAVING_TICKS) - 1
                for node, ticks in self._leaving.items()
                if ticks > 1
            } or None
        if self._ticks == 0:
            self.stay()
        elif not self._is_over and (
            self._receiver is None or self._receiver not in self._handovers
        ):
            if self._receiver is not None:
                self._note_passed(self._receiver)
                self._receiver = None
            self._choose(neighbours, out)

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> DrainState:
        """What we remember."""
        return DrainState(
            ticks=self._ticks,
            receiver=self._receiver,
            ids=self._ids,
            everything=self._everything,
            memory=self._takes_memory,
            told=tuple(self._told or ()),
            passed=tuple(self._passed or ()),
            absent=tuple(self._absent or ()),
            leaving=dict(self._leaving or {}),
        )

    def load(self, state: DrainState) -> None:
        """Take over what we are supposed to remember."""
        self._ticks, self._receiver = state.ticks, state.receiver
        self._ids, self._everything = state.ids, state.everything
        self._takes_memory = state.memory
        self._told = dict.fromkeys(state.told) or None
        self._passed = dict.fromkeys(state.passed) or None
        self._absent = dict.fromkeys(state.absent) or None
        self._leaving = dict(state.leaving) or None
