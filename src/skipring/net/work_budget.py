"""Share of the event loop that the connections of a process get (decision 0045).

The process handles frames when they arrive, until the work of one turn of the loop exceeds TURN_S.
From then on connections wait in a queue: each turn of the loop handles frames of one connection
after the other for TURN_S and then returns to the loop. A burst on one connection therefore delays
neither timers nor other connections.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

# A tick is 1 s and a flush 0.25 s: both stay on time. Measured: the largest page takes 20 ms.
TURN_S: Final = 0.02
SLICE_S: Final = 0.005  # Guess: for one connection, before the next has its turn.
NEXT_TURN_S: Final = TURN_S - SLICE_S  # with less left, another turn of the loop begins
# Guess: a client gives up after 2.5 s; a later answer is wasted work.
REQUEST_WAIT_S: Final = 2.0
# Guess: a connection with more waiting frames is not read.
WAITING_BYTES_MAX: Final = 64 * 1024

Clock = Callable[[], float]
Spent = Callable[[], bool]


if TYPE_CHECKING:  # cycles: connections and peers share the budget
    from skipring.net.connection import PeerConnection
    from skipring.net.peer import RemotePeer


class WorkBudget:
    """Turns of one event loop, and the connections that wait for their share."""

    def __init__(self, clock: Clock = perf_counter) -> None:
        self.clock = clock
        # The time left for frames in this turn of the loop. Earlier turns may have spent up to
        # SLICE_S of it. 0 while connections wait: further connections queue behind them.
        self.left_s = TURN_S
        self.gathered: list[RemotePeer] | None = None  # peers with frames to send, during a batch
        self._is_scheduled = False  # True if the next turn is scheduled
        self._waiting: OrderedDict[PeerConnection, None] = OrderedDict()

    def schedule(self) -> None:
        """Start the next turn of the loop with a new budget."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def begin(self) -> float:
        """Begin a batch of frames: gather the frames to send. Return when the turn ends."""
        self.gathered = []
        return self.clock() + self.left_s

    def end(self, connection: PeerConnection, end_s: float | None = None) -> None:
        """End a batch: write the gathered frames, one write per peer.

        Answers go over the connection of the batch. ``end_s`` is the end of the turn that the batch
        is charged to.
        """
        gathered, self.gathered = self.gathered, None
        for peer in gathered or ():
            peer.flush(connection)
        if end_s is not None:
            self.left_s = end_s - self.clock()
            if self.left_s < NEXT_TURN_S:
                self.schedule()

    def add(self, connection: PeerConnection) -> None:
        """Queue a connection for its share; a no-op if it is queued already."""
        self._waiting.setdefault(connection)
        self.left_s = 0.0
        self.schedule()

    def _next_turn(self) -> None:
        """Handle frames of waiting connections, one connection after the other."""
        self._is_scheduled = False
        end_s = self.clock() + TURN_S
        while self._waiting and self.clock() < end_s:
            connection, _ = self._waiting.popitem(last=False)
            if connection.handle_some(min(self.clock() + SLICE_S, end_s)):
                self._waiting.setdefault(connection)
        self.left_s = 0.0 if self._waiting else end_s - self.clock()
        if self.left_s < NEXT_TURN_S:
            self.schedule()


def never_spent() -> bool:
    """Return False: only the other limits end a scan."""
    return False


def time_limit(clock: Clock = perf_counter) -> Spent:
    """Return a function that returns True once TURN_S have passed, to end a scan."""
    end_s = clock() + TURN_S
    return lambda: clock() >= end_s
