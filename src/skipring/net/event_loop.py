"""Event loop of a process, uvloop where it is installed, and its periodic timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

JITTER: Final = 0.1  # Guess: enough to spread the ticks of processes that start together.


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's, or asyncio's if uvloop is not installed."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415  (not on every system)
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


class Timer:
    """Timer that calls a function once per period, with 10 % jitter; its calls never overlap."""

    def __init__(self, call: Callable[[], None], period_s: float, rng: Random) -> None:
        self._call = call
        self._period_s = period_s
        self._rng = rng
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self.calls = 0
        self.late_calls = 0  # late by more than a period
        self.lag_s = 0.0  # delay of the last call

    def start(self, period_s: float | None = None) -> None:
        """Start the timer, with another period if it is given.

        The first call follows after a random part of the period.
        """
        self._period_s = period_s or self._period_s
        self.stop()
        self._schedule(self._rng.uniform(0, self._period_s))

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + delay_s
        self._timer = loop.call_later(delay_s, self._run)

    def _run(self) -> None:
        self.calls += 1
        self.lag_s = max(0.0, asyncio.get_running_loop().time() - self._due_s)
        self.late_calls += self.lag_s > self._period_s
        self._schedule(self._period_s * self._rng.uniform(1 - JITTER, 1 + JITTER))
        self._call()
