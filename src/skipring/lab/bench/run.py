"""Shared state of one run: parameters in a file, counters and clocks in shared memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from enum import IntEnum, auto
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import msgspec
from msgspec import Struct

from skipring.lab.bench.report import Figures
from skipring.lab.usage import cpu_ns

TOPIC: Final = "bench"  # further topics have a number appended
APART: Final = "apart"  # and a number: the role of a member with a process of its own
PUBLISHER: Final = "publisher"
SUBSCRIBERS: Final = "subscribers"
RUN_S: Final = 600.0  # Limit: no run takes longer.
RUN_FILE: Final = "run.json"
# Flags of a process: it has joined, and the work of joining is done.
JOINED: Final = "joined"
CALM: Final = "calm"
BOARD_FILE: Final = "board"
PROCESSES_MAX: Final = 16  # Limit: processes of a run.


class BenchRun(Struct, frozen=True, kw_only=True):
    """Parameters of one run of one system; without a system, the template of a job."""

    job: str = ""
    system: str = ""
    driver: str = ""  # module of ``systems`` and prefix of its classes, as in "brokers.Nats"
    packages: tuple[str, ...] = ()  # imported before memory is measured
    n: int
    size: int = 128
    topics: int = 1  # each subscriber has all of them; a publication goes to one
    count: int = 0
    rate: float = 0.0  # publications per second; 0: as fast as the window allows
    directory: Path = Path()  # contains all files of the run
    address: str = ""  # address of the broker or, without a broker, of the publisher
    certificates: Path | None = None  # directory of the authority; None: no TLS
    profiles: Path | None = None  # directory for profiles; None: do not profile
    apart: int = 0  # further subscribers with processes of their own; they join first
    is_busy: bool = False  # during the run, another process competes for each core
    deadline_s: float = 120.0

    def save(self) -> None:
        """Write the parameters to the directory of the run."""
        (self.directory / RUN_FILE).write_bytes(msgspec.json.encode(self, enc_hook=str))


def load_run(directory: Path) -> BenchRun:
    """Read the parameters from the directory of a run."""
    text = (directory / RUN_FILE).read_bytes()
    return msgspec.json.decode(text, type=BenchRun, dec_hook=lambda _, path: Path(path))


def topics_of(run: BenchRun) -> list[str]:
    """Return the names of the topics."""
    return [TOPIC, *(f"{TOPIC}{number}" for number in range(1, run.topics))]


def apart_roles(run: BenchRun) -> tuple[str, ...]:
    """Return the roles of the members with processes of their own."""
    return tuple(f"{APART}-{number}" for number in range(run.apart))


# -- flags and figures of a process ----------------------------------------------------------


def figures_file(directory: Path, role: str) -> Path:
    """Return the file with the figures of a process; it exists once they are complete."""
    return directory / f"{role}.json"


def write_figures(directory: Path, role: str, figures: Figures) -> None:
    """Write the figures of a process."""
    unfinished = directory / f"{role}.unfinished"
    unfinished.write_bytes(msgspec.json.encode(figures))
    unfinished.rename(figures_file(directory, role))


def flag_file(directory: Path, role: str, flag: str) -> Path:
    """Return the file that exists once a process has set a flag."""
    return directory / f"{role}.{flag}"


# -- the board -------------------------------------------------------------------------------


class Slot(IntEnum):
    """Counters and flags of a run."""

    CONNECTED = 0  # the subscribers have subscribed
    PROBED = auto()  # the last probe that all subscribers received
    IS_PROBED = auto()  # all subscribers received the final probe
    BEGIN = auto()  # set by the harness to begin the run
    BEGUN = auto()  # set by the subscribers: the publisher may publish
    PUBLISHED = auto()
    DELIVERED = auto()
    STOP = auto()  # set by the harness to request the figures
    PROCESSES = auto()  # number of measured processes


class Moment(IntEnum):
    """Points of a run at which all CPU clocks are read."""

    BEGAN = 0
    ENDED = auto()
    SETTLED = auto()  # everything is stored and indexed


_PIDS: Final = len(Slot)
_CLOCKS: Final = _PIDS + PROCESSES_MAX
_NUMBERS: Final = _CLOCKS + len(Moment) * (1 + PROCESSES_MAX)
_NUMBER_BYTES: Final = 8


class Board:
    """Numbers of one run in a memory-mapped file that all its processes share.

    The process that sees the last delivery reads the clocks of all processes at that moment
    without sending a message.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / BOARD_FILE
        if not path.exists():
            path.write_bytes(bytes(_NUMBERS * _NUMBER_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._memory).cast("q")

    def __getitem__(self, slot: Slot) -> int:
        return self._numbers[slot]

    def __setitem__(self, slot: Slot, value: int) -> None:
        self._numbers[slot] = value

    def set_pids(self, pids: Sequence[int]) -> None:
        """Set the processes whose CPU time is read."""
        assert len(pids) <= PROCESSES_MAX, "a run has few processes"
        for number, pid in enumerate(pids):
            self._numbers[_PIDS + number] = pid
        self[Slot.PROCESSES] = len(pids)

    @property
    def pids(self) -> list[int]:
        """Return the processes whose CPU time is read."""
        return self._numbers[_PIDS : _PIDS + self[Slot.PROCESSES]].tolist()

    def clocks(self) -> list[int]:
        """Return the time and the CPU time of each process, in nanoseconds."""
        return [perf_counter_ns(), *map(cpu_ns, self.pids)]

    def record(self, moment: Moment, clocks: Sequence[int] | None = None) -> None:
        """Record clocks, by default the current ones; the time last, since others wait for it."""
        first = _CLOCKS + moment * (1 + PROCESSES_MAX)
        now, *times = clocks or self.clocks()
        for number, time in enumerate(times, 1):
            self._numbers[first + number] = time
        self._numbers[first] = now

    def is_past(self, moment: Moment) -> bool:
        """Return True if the clock values of a moment have been recorded."""
        return self._numbers[_CLOCKS + moment * (1 + PROCESSES_MAX)] != 0

    def seconds(self, end: Moment) -> list[float]:
        """Return wall time and CPU time of each process from BEGAN to ``end``."""
        assert self.is_past(Moment.BEGAN)
        assert self.is_past(end)
        began, ended = (self._recorded(moment) for moment in (Moment.BEGAN, end))
        return [(late - early) / 1e9 for early, late in zip(began, ended, strict=True)]

    def _recorded(self, moment: Moment) -> list[int]:
        first = _CLOCKS + moment * (1 + PROCESSES_MAX)
        return self._numbers[first : first + 1 + self[Slot.PROCESSES]].tolist()
