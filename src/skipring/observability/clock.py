"""Wall clock of this machine, in microseconds since 1970."""

from __future__ import annotations

from time import time_ns
from typing import Final

from skipring.errors import SkipringError

BEFORE_1970: Final = (
    "the clock of this machine is set to a time before 1970, which no publication can have; "
    "set the clock, for example with NTP, and publish again"
)


def time_us() -> int:
    """Return the time; 0 while the clock is set before 1970."""
    return max(time_ns() // 1000, 0)


def publication_time_us() -> int:
    """Return the time for a publication; raise SkipringError if the clock is before 1970."""
    now_us = time_ns() // 1000
    if now_us < 0:
        raise SkipringError(BEFORE_1970)
    return now_us
