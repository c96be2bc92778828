"""What the processes of one run are told, and the parts that they play."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from msgspec import Struct

TOPIC: Final = "bench"  # and with a number behind it, if there are several
FIRST: Final = "first"  # the member that joins first, and its process if it has one of its own
POLL_S: Final = 0.002  # Our guess: soon enough, and costs a process less than 1 % of a core.
READY_S: Final = 60.0  # Our guess: the slowest system has all its connections by then.
# Our guess: what has not come by then does not come. Measured: 64 members of one process that keep
# 16,384 publications each, at the same time, take 6 s for it.
STALLED_S: Final = 30.0

Receive = Callable[[bytes], None]


class BenchRun(Struct, frozen=True, kw_only=True):
    """One run of one system: n subscribers, and a publisher that publishes so much."""

    system: str
    n: int
    size: int = 128
    topics: int = 1  # every subscriber has all of them, a publication goes to one
    count: int = 0
    rate: float = 0.0  # publications per second; 0: as fast as it goes, within the window
    window: int = 1000  # publications under way
    directory: Path = Path()  # for all that the run writes
    address: str = ""  # of the broker; without one, where the publisher listens
    certificates: Path | None = None  # the directory of an authority, if links are secured
    profiles: Path | None = None  # where profiles are written, if they are wanted
    is_first_apart: bool = False  # has the member that joins first a process of its own?
    loss: float = 0.0  # share of the frames that are dropped
    repairs: bool = True  # False to see what is missing then
    deadline_s: float = 120.0  # until when all that was lost has to be there


def topics_of(run: BenchRun) -> list[str]:
    """What the topics are called."""
    return [TOPIC, *(f"{TOPIC}{number}" for number in range(1, run.topics))]


class Publisher:
    """The process that publishes."""

    def __init__(self, run: BenchRun) -> None:
        self.run = run

    async def connect(self) -> None:
        """Be able to publish."""
        raise NotImplementedError

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these, to the topics in turn."""
        raise NotImplementedError

    async def calm(self) -> None:
        """Wait until nothing happens that has to do with the beginning."""

    def begin(self) -> None:
        """All others are calm too: the run begins."""

    async def settle(self) -> None:
        """Wait until all work that follows from the run is done."""

    def figures(self) -> dict[str, float]:
        """What it has counted itself."""
        return {}


class Subscribers:
    """The process that holds all subscribers, each with a connection of its own."""

    def __init__(self, run: BenchRun, receivers: Sequence[Receive]) -> None:
        self.run = run
        self.receivers = receivers  # one of each subscriber, and of each of its topics

    async def connect(self) -> None:
        """Let all subscribers subscribe."""
        raise NotImplementedError

    async def calm(self) -> None:
        """Wait until nothing happens that has to do with the beginning."""

    def begin(self) -> None:
        """All others are calm too: the run begins."""

    async def settle(self) -> None:
        """Wait until all work that follows from the run is done."""

    def figures(self) -> dict[str, float]:
        """What they have counted themselves."""
        return {}


class Newcomer:
    """The process that gets a history."""

    def __init__(self, run: BenchRun) -> None:
        self.run = run
        self.count = 0  # how much it has got
        self.first_ns = 0  # when the first of it came; 0: not yet

    async def prepare(self) -> None:
        """Do what is not measured."""

    async def fetch(self) -> None:
        """Connect, and get all that was ever published."""
        raise NotImplementedError

    def note_first(self) -> None:
        """Something has come: remember when, if nothing had before."""
        self.first_ns = self.first_ns or perf_counter_ns()

    async def settle(self) -> None:
        """Wait until all work that follows from it is done."""

    async def leave(self) -> None:
        """Leave no trace."""


async def until(
    condition: Callable[[], object], what: str, timeout_s: float = READY_S, poll_s: float = POLL_S
) -> None:
    """Wait for a condition; TimeoutError if it does not come true in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            raise TimeoutError(f"{what}: not after {timeout_s:.0f} s")
        await asyncio.sleep(poll_s)
