"""Clocks of a process: the wall clock, and the longest pause of the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time_ns
from typing import Final

from skipring.errors import SkipringError

BEFORE_1970: Final = (
    "the clock of this machine is set to a time before 1970, which no publication can have; "
    "set the clock, for example with NTP, and publish again"
)

# Beats in a tick. Measured: a wake-up of an idle process takes 0.1 ms of CPU; 50 a second made the
# supervisor's part of a join 50 % more expensive.
BEATS: Final = 4
SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
_BYTES_MAX: Final = 96  # three numbers
_NS: Final = 1e-9


def time_us() -> int:
    """Return the microseconds since 1970; 0 while the clock is set before 1970."""
    return max(time_ns() // 1000, 0)


def publication_time_us() -> int:
    """Return the time for a publication; raise SkipringError if the clock is before 1970."""
    now_us = time_ns() // 1000
    if now_us < 0:
        raise SkipringError(BEFORE_1970)
    return now_us


class LoopPause:
    """Longest pause of an event loop between ``start`` and ``stop``.

    A timer is due every period, a quarter of a tick. A pause is the delay of a beat, which is at
    most a period shorter than the time for which the loop was busy or blocked
    (``test_delay_of_a_beat_is_at_most_a_period_shorter_than_the_pause``). Time for which the thread
    waited for a processor does not count if the system reports it
    (``/proc/thread-self/schedstat``, Linux).
    """

    def __init__(self, tick_s: float, waited_s: Callable[[], float] | None = None) -> None:
        self.longest_s = 0.0
        self._period_s = tick_s / BEATS
        self._waited_s = waited_s  # wait for a processor since the thread started
        self._file = -1
        self._timer: asyncio.TimerHandle | None = None
        self._beat_s = self._waited_before_s = 0.0

    def start(self) -> None:
        """Begin to measure the running loop; call this in the thread of the loop."""
        if self._waited_s is None:
            self._waited_s = self._schedstat
            try:
                self._file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._file = -1  # not Linux: waiting counts as a pause
        self._schedule(monotonic(), self._waited_s())

    def stop(self) -> None:
        """End the measurement."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _schedule(self, now_s: float, waited_s: float) -> None:
        self._beat_s = now_s  # the time of a loop may be that of its last turn
        self._waited_before_s = waited_s
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._on_time)

    def _on_time(self) -> None:
        assert self._waited_s is not None
        now_s, waited_s = monotonic(), self._waited_s()
        pause_s = now_s - self._beat_s - self._period_s - (waited_s - self._waited_before_s)
        self.longest_s = max(self.longest_s, pause_s)
        self._schedule(now_s, waited_s)

    def _schedstat(self) -> float:
        """Return the seconds for which the thread has waited for a processor; 0 if unknown."""
        if self._file < 0:
            return 0.0
        fields = os.pread(self._file, _BYTES_MAX, 0).split()
        return int(fields[1]) * _NS if len(fields) > 1 else 0.0
