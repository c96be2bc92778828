"""Numbers that the processes of a run share, so that nobody has to ask anybody.

Also processor time: whoever sees the first publication or the last delivery reads the clocks of all
processes at that moment.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from enum import IntEnum, auto
from pathlib import Path
from time import clock_gettime_ns, perf_counter_ns
from typing import Final

PIDS_MAX: Final = 16  # Limit of ours: processes of a run.


class Slot(IntEnum):
    """What a number is about."""

    CONNECTED = 0  # the subscribers have subscribed
    VICTIMS_CONNECTED = auto()  # also those who will be killed
    PROBED = auto()  # the last probe that has come to all subscribers
    IS_PROBED = auto()  # the last probe of all has come to all
    PUBLISHER_CALM = auto()
    SUBSCRIBERS_CALM = auto()
    FIRST_CALM = auto()  # who joined first, where it has a process of its own
    BEGIN = auto()  # the run begins
    BEGUN = auto()  # the subscribers know: the publisher may publish
    PUBLISHED = auto()
    DELIVERED = auto()
    STOP = auto()  # write what you know
    PUBLISHER_DONE = auto()  # its figures are written
    SUBSCRIBERS_DONE = auto()
    FIRST_DONE = auto()
    PIDS = auto()  # how many processes there are


class Moment(IntEnum):
    """When clocks are read."""

    BEGAN = 0
    ENDED = auto()
    SETTLED = auto()


_PIDS: Final = len(Slot)
_CLOCKS: Final = _PIDS + PIDS_MAX
_SLOTS: Final = _CLOCKS + len(Moment) * (1 + PIDS_MAX)
_NUMBER_BYTES: Final = 8


class Board:
    """The numbers of one run, in a file that every process of it has mapped."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_SLOTS * _NUMBER_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._memory).cast("q")

    def __getitem__(self, slot: Slot) -> int:
        return self._numbers[slot]

    def __setitem__(self, slot: Slot, value: int) -> None:
        self._numbers[slot] = value

    def set_pids(self, pids: Sequence[int]) -> None:
        """These are the processes whose time is read."""
        assert len(pids) <= PIDS_MAX, "a run has few processes"
        for number, pid in enumerate(pids):
            self._numbers[_PIDS + number] = pid
        self[Slot.PIDS] = len(pids)

    @property
    def pids(self) -> list[int]:
        """The processes whose time is read."""
        return self._numbers[_PIDS : _PIDS + self[Slot.PIDS]].tolist()

    def clocks(self) -> list[int]:
        """The time now, and the processor time of each process, in nanoseconds."""
        return [perf_counter_ns(), *map(cpu_ns, self.pids)]

    def note(self, moment: Moment, clocks: Sequence[int] | None = None) -> None:
        """Keep what the clocks show now, or have shown; the time last, since others wait for it."""
        first = _CLOCKS + moment * (1 + PIDS_MAX)
        now, *times = clocks or self.clocks()
        for number, time in enumerate(times, 1):
            self._numbers[first + number] = time
        self._numbers[first] = now

    def noted(self, moment: Moment) -> list[int] | None:
        """What the clocks have shown at a moment; None if it has not come."""
        first = _CLOCKS + moment * (1 + PIDS_MAX)
        if not self._numbers[first]:
            return None
        return self._numbers[first : first + 1 + self[Slot.PIDS]].tolist()


def cpu_ns(pid: int) -> int:
    """Processor time of a process, with all its threads; of one that has ended 0."""
    try:
        return clock_gettime_ns((~pid << 3) | 2)  # how Linux names the clock of a process
    except OSError:
        return 0
