"""Confirmations of the ring neighbours: handovers to this node, and equal tries.

Completeness (decision 0049): a new member asks its ring neighbours, one after the other, to hand
everything over. It is complete once a complete neighbour has done so, or all its ring neighbours
have. A member without neighbours is complete: no other member has publications. A complete member
asks again after CONFIRMED_TICKS requests, because the value may be corrupted; equal tries make this
a single question.

T19: a member also asks its ring neighbours whether their tries equal its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Outbox
from skipring.core.handover import SESSIONS
from skipring.core.messages import HandoverDone, RequestHandover
from skipring.core.peers import NodeId
from skipring.core.state import CompletenessState, SyncState

ASKED_TIMES: Final = 8  # Guess: after that, ask another neighbour. A handover may take many ticks.
CONFIRMED_TICKS: Final = 64  # Guess: a complete member asks again after 64 requests.


class Completeness:
    """Handovers that one subscriber has received from its neighbours."""

    __slots__ = ("_age", "_asked", "_asked_times", "_confirmed", "_session", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self._age = 0  # requests since this node became complete, or was confirmed to be
        self._session = 0  # of the last request for a handover
        self._asked: NodeId | None = None
        self._asked_times = 0
        # None uses less memory than an empty dict.
        self._confirmed: dict[NodeId, None] | None = None

    def request(
        self,
        node: NodeId,
        neighbours: Sequence[NodeId],
        leaving: frozenset[NodeId],
        out: Outbox,
    ) -> None:
        """Request a handover from a ring neighbour that is not leaving.

        Do nothing if this node became complete, or was confirmed to be complete, recently.
        """
        # Memory may be corrupted: a counter below 0 counts as 0.
        self._age = min(max(self._age, 0) + 1, CONFIRMED_TICKS)
        if self._is_sure():
            return
        self._judge(neighbours)
        confirmed = self._confirmed or ()
        left = [each for each in neighbours if each not in confirmed and each not in leaving]
        if self._is_sure() or not left:
            return
        # Memory may be corrupted: a counter below 0 counts as 0.
        self._asked_times = max(self._asked_times, 0) + 1
        if self._asked not in left or self._asked_times > ASKED_TIMES:
            place = left.index(self._asked) + 1 if self._asked in left else 0
            self._asked, self._asked_times = left[place % len(left)], 1
            self._session += 1
        self._session %= SESSIONS
        out.send(self._asked, RequestHandover(node, self._session))

    def on_done(self, message: HandoverDone, neighbours: Sequence[NodeId]) -> None:
        """Record that the asked neighbour has handed everything over."""
        if (message.sender, message.session) != (self._asked, self._session):
            return
        if message.complete:
            self._finish()
        elif message.sender in neighbours:
            if self._confirmed is None:
                self._confirmed = {}
            self._confirmed[message.sender] = None
            self._judge(neighbours)

    def _judge(self, neighbours: Sequence[NodeId]) -> None:
        if all(node in (self._confirmed or ()) for node in neighbours):
            self._finish()

    def _finish(self) -> None:
        self.reset()
        self.is_complete = True

    def _is_sure(self) -> bool:
        return self.is_complete and self._age < CONFIRMED_TICKS

    def reset(self) -> None:
        """Reset all variables to those of an incomplete member."""
        self.is_complete, self._age = False, 0
        self._asked, self._asked_times, self._confirmed = None, 0, None

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> CompletenessState:
        """Return the variables as a value."""
        return CompletenessState(
            complete=self.is_complete,
            age=self._age,
            session=self._session,
            asked=self._asked,
            asked_times=self._asked_times,
            confirmed=tuple(self._confirmed or ()),
        )

    def load(self, state: CompletenessState) -> None:
        """Replace the variables; the value may be corrupted."""
        self.is_complete, self._asked = state.complete, state.asked
        self._age, self._session = state.age, state.session
        self._asked_times = state.asked_times
        self._confirmed = dict.fromkeys(state.confirmed) or None


class SyncConfirmations:
    """Ring neighbours of one subscriber that have confirmed being in sync since the last repair."""

    __slots__ = ("_ask_ticks", "_config", "_period", "nodes")

    def __init__(self, config: ProtocolConfig) -> None:
        self._config = config
        self.nodes: tuple[NodeId, ...] = ()  # an empty frozenset would take 216 bytes
        self._ask_ticks = 0  # until the next question
        self._period = 1

    def on_tick(self, neighbours: Sequence[NodeId]) -> bool:
        """Return True if a question to the neighbours is due; the intervals double."""
        kept = [node for node in self.nodes if node in neighbours]
        if len(kept) < len(self.nodes):
            self.nodes = tuple(kept)
        # Memory may be corrupted: clamp counters to their valid range.
        ticks_max = self._config.quiet_ticks_max
        self._ask_ticks = min(self._ask_ticks, ticks_max)
        self._period = min(max(self._period, 1), ticks_max)
        if len(self.nodes) == len(neighbours):
            self._ask_ticks, self._period = 0, 1
            return False
        if self._ask_ticks > 0:
            self._ask_ticks -= 1
            return False
        self._ask_ticks = self._period - 1
        self._period = min(2 * self._period, ticks_max)
        return True

    def add(self, node: NodeId) -> None:
        """Record that a ring neighbour is in sync."""
        if node not in self.nodes:
            self.nodes = (*self.nodes, node)

    def reset(self) -> None:
        """Drop the confirmations: a repair has brought publications that were missing here."""
        self.nodes = ()
        self._ask_ticks, self._period = 0, 1

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> SyncState:
        """Return the variables as a value."""
        return SyncState(
            confirmed=tuple(sorted(self.nodes)), ask_ticks=self._ask_ticks, period=self._period
        )

    def load(self, state: SyncState) -> None:
        """Replace the variables; the value may be corrupted."""
        self.nodes = tuple(dict.fromkeys(state.confirmed))
        self._ask_ticks, self._period = state.ask_ticks, state.period
