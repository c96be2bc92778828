"""Share of the event loop that the connections of a process get (decision 0045).

Frames are handled when they come, until the work of one turn of the loop exceeds TURN_S. From then
on connections wait in a queue: each turn of the loop handles frames of one after the other for
TURN_S, and gives the loop back. So a burst on one connection delays neither timers nor others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter
from typing import Final, Protocol

# A tick is 1 s and a flush 0.1 s: both stay on time. Measured: the largest page takes 20 ms.
TURN_S: Final = 0.02
SLICE_S: Final = 0.005  # Guess: for one connection, before the next one has its turn.
# Guess: a client gives up after 2.5 s; an answer that comes later is work for nothing.
REQUEST_WAIT_S: Final = 2.0
# Guess: the frames that a connection may have waiting before it is not read any more.
WAITING_BYTES_MAX: Final = 64 * 1024

Clock = Callable[[], float]
Spent = Callable[[], bool]


class Waiting(Protocol):
    """A connection with frames that wait."""

    def handle_some(self, end_s: float) -> bool:
        """Handle one frame, and more until a time; return True if some can still be handled."""


class WorkBudget:
    """Turns of one event loop, and the connections that wait for their share."""

    def __init__(self, clock: Clock = perf_counter) -> None:
        self.clock = clock
        self._end_s: float | None = None  # of this turn; None before its first frame
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()

    @property
    def is_contended(self) -> bool:
        """Return True if connections wait: another one has to wait behind them."""
        return bool(self._waiting)

    def end_of_turn(self) -> float:
        """Return the time until which frames are handled in this turn of the loop."""
        if self._end_s is None:
            self._end_s = self.clock() + TURN_S
            asyncio.get_running_loop().call_soon(self._next_turn)
        return self._end_s

    def add(self, connection: Waiting) -> None:
        """Let a connection wait for its share; a no-op if it waits already."""
        self._waiting.setdefault(connection)
        self.end_of_turn()  # opens one, if none is open: the next one follows

    def _next_turn(self) -> None:
        """Handle frames of connections that wait, one connection after the other."""
        self._end_s = None
        if not self._waiting:
            return
        end_s = self.end_of_turn()
        while self._waiting:
            connection, _ = self._waiting.popitem(last=False)
            if connection.handle_some(min(self.clock() + SLICE_S, end_s)):
                self._waiting.setdefault(connection)
            if self.clock() >= end_s:
                return


def never_spent() -> bool:
    """Return False: a scan ends at its other limits only."""
    return False


def time_limit(clock: Clock = perf_counter) -> Spent:
    """Return a function that returns True once TURN_S have passed: a scan then stops."""
    end_s = clock() + TURN_S
    return lambda: clock() >= end_s
