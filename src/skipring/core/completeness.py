"""Whether a subscriber holds everything that a neighbour held (decision 0049).

A new member asks one ring neighbour after the other to hand everything over. It is complete once a
complete neighbour has done so, or all its ring neighbours have. A member without neighbours is
complete: nobody else has anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skipring.core.effects import Outbox
from skipring.core.messages import HandoverDone, RequestHandover
from skipring.core.peers import NodeId
from skipring.core.state import CompletenessState

ASKED_TIMES: Final = 8  # Guess: then another neighbour is asked; a handover may take many ticks.


class Completeness:
    """What neighbours have handed over to one subscriber."""

    __slots__ = ("_asked", "_asked_times", "_confirmed", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self._asked: NodeId | None = None
        self._asked_times = 0
        # None costs less memory than nothing in a dict.
        self._confirmed: dict[NodeId, None] | None = None

    def request(
        self,
        node: NodeId,
        neighbours: Sequence[NodeId],
        leaving: frozenset[NodeId],
        out: Outbox,
    ) -> None:
        """Ask a ring neighbour that stays to hand everything over, unless one has."""
        self._judge(neighbours)
        confirmed = self._confirmed or ()
        left = [each for each in neighbours if each not in confirmed and each not in leaving]
        if self.is_complete or not left:
            return
        # Memory may be corrupted: no counter is believed below 0.
        self._asked_times = max(self._asked_times, 0) + 1
        if self._asked not in left or self._asked_times > ASKED_TIMES:
            place = left.index(self._asked) + 1 if self._asked in left else 0
            self._asked, self._asked_times = left[place % len(left)], 1
        out.send(self._asked, RequestHandover(node))

    def on_done(self, message: HandoverDone, neighbours: Sequence[NodeId]) -> None:
        """Note that a node has handed everything over."""
        if message.complete:
            self.is_complete = True
        elif message.sender in neighbours:
            if self._confirmed is None:
                self._confirmed = {}
            self._confirmed[message.sender] = None
            self._judge(neighbours)

    def _judge(self, neighbours: Sequence[NodeId]) -> None:
        if all(node in (self._confirmed or ()) for node in neighbours):
            self.is_complete = True
        if self.is_complete:
            self._asked, self._asked_times, self._confirmed = None, 0, None

    def reset(self) -> None:
        """Begin again: the place in the ring is lost."""
        self.is_complete = False
        self._asked, self._asked_times, self._confirmed = None, 0, None

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> CompletenessState:
        """What we remember."""
        return CompletenessState(
            complete=self.is_complete,
            asked=self._asked,
            asked_times=self._asked_times,
            confirmed=tuple(self._confirmed or ()),
        )

    def load(self, state: CompletenessState) -> None:
        """Take over what we are supposed to remember."""
        self.is_complete, self._asked = state.complete, state.asked
        self._asked_times = state.asked_times
        self._confirmed = dict.fromkeys(state.confirmed) or None
