"""A process of a run: ``python -m skipring.lab.bench.player ROLE DIRECTORY``.

All systems are driven by the same code: probes until every subscriber is reached, then so many
publications, in groups, as far as the window allows, or one by one at a fixed rate.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final, Protocol, cast

import msgspec

from skipring.lab.bench.board import Board, Moment, Slot
from skipring.lab.bench.memory import resident_bytes
from skipring.lab.bench.peers.catalogue import SYSTEMS
from skipring.lab.bench.peers.run import READY_S, BenchRun, Publisher, Receive, Subscribers, until
from skipring.lab.bench.tally import MEASURED, PROBE, Tally, payload_of
from skipring.net.event_loop import new_loop
from skipring.node.process import allow_files

GROUP: Final = 250  # Our guess: publications that are handed over at once: four to a window.
PROBE_S: Final = 0.05  # Our guess: between probes, while somebody is not reached.
RUN_S: Final = 600.0  # Limit of ours: no run takes longer.
ROOM_S: Final = 0.001  # Our guess: between looks for room in the window.
LOOK_S: Final = 0.02
FILES: Final = 4096  # sockets and stores of some hundred subscribers
RUN_FILE: Final = "run.json"
BOARD_FILE: Final = "board"


class PeerModule(Protocol):
    """What the module of a system has."""

    def publisher(self, run: BenchRun) -> Publisher:
        """The process that publishes."""

    def subscribers(self, run: BenchRun, receivers: list[Receive]) -> Subscribers:
        """The process with all subscribers."""


def module_of(system: str) -> PeerModule:
    """The module that plays a system; it imports what only that system needs."""
    return cast("PeerModule", import_module(f"skipring.lab.bench.peers.{SYSTEMS[system].module}"))


def write_run(run: BenchRun) -> None:
    """Leave what the processes of a run have to know in its directory."""
    (run.directory / RUN_FILE).write_bytes(msgspec.json.encode(run, enc_hook=str))


def read_run(directory: Path) -> BenchRun:
    """What the processes of a run have to know."""
    text = (directory / RUN_FILE).read_bytes()
    return msgspec.json.decode(text, type=BenchRun, dec_hook=lambda _, path: Path(path))


# -- the publisher ---------------------------------------------------------------------------


async def publish(run: BenchRun, board: Board) -> dict[str, float]:
    """Play the publisher; return what it has counted."""
    publisher = module_of(run.system).publisher(run)
    await publisher.connect()
    await until(lambda: board[Slot.CONNECTED], "subscribers")
    await _probe(publisher, run, board)
    await publisher.calm()
    board[Slot.PUBLISHER_CALM] = 1
    await until(lambda: board[Slot.BEGUN], "the beginning", RUN_S)
    publisher.begin()
    tidy()
    with _profiled(run, "publisher"):
        await (_publish_at_rate if run.rate else _publish_in_window)(publisher, run, board)
        await until(lambda: board.noted(Moment.ENDED), "deliveries", RUN_S)
    await publisher.settle()
    await until(lambda: board[Slot.STOP], "the end", RUN_S)
    return publisher.figures()


async def _probe(publisher: Publisher, run: BenchRun, board: Board) -> None:
    """Publish until every subscriber has got something, and then the last of it."""
    loop = asyncio.get_running_loop()
    deadline, sent = loop.time() + READY_S, 0
    while not board[Slot.PROBED]:
        if loop.time() > deadline:
            raise TimeoutError(f"not all subscribers were reached after {READY_S:.0f} s")
        sent += 1
        await publisher.send([payload_of(PROBE, sent, run.size)] * run.topics)  # one to each
        await asyncio.sleep(PROBE_S)
    await until(lambda: board[Slot.PROBED] >= sent, "the last probe")
    board[Slot.IS_PROBED] = 1


async def _publish_in_window(publisher: Publisher, run: BenchRun, board: Board) -> None:
    board.note(Moment.BEGAN)
    sent = 0
    while sent < run.count:
        room = board[Slot.DELIVERED] // run.n + run.window - sent
        size = min(GROUP, run.window, run.count - sent)
        if room < size:
            await asyncio.sleep(ROOM_S)
            if board[Slot.STOP]:
                return
            continue
        now = perf_counter_ns()
        await publisher.send([payload_of(MEASURED, now, run.size) for _ in range(size)])
        sent += size
        board[Slot.PUBLISHED] = sent
        await asyncio.sleep(0)


async def _publish_at_rate(publisher: Publisher, run: BenchRun, board: Board) -> None:
    """Begin to publish when it is time, whether or not the last one is done."""
    board.note(Moment.BEGAN)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as sending:
        for sent in range(run.count):
            await asyncio.sleep(max(0.0, began + sent / run.rate - loop.time()))
            payload = payload_of(MEASURED, perf_counter_ns(), run.size)
            sending.create_task(publisher.send([payload]))
            board[Slot.PUBLISHED] = sent + 1


# -- the subscribers -------------------------------------------------------------------------


async def subscribe(run: BenchRun, board: Board) -> dict[str, float]:
    """Play all subscribers; return what they have counted."""
    tally = Tally(run, board)
    subscribers = module_of(run.system).subscribers(run, tally.receivers())
    for package in SYSTEMS[run.system].packages:
        import_module(package)  # what it takes is no subscriber's
    before = resident_bytes()
    await subscribers.connect()
    board[Slot.CONNECTED] = 1
    await until(tally.note_probes, "probes")
    await subscribers.calm()
    rss_bytes = resident_bytes() - before
    board[Slot.SUBSCRIBERS_CALM] = 1
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    subscribers.begin()
    tidy()
    board[Slot.BEGUN] = 1
    with _profiled(run, "subscribers"):
        while not board.noted(Moment.ENDED):
            await asyncio.sleep(LOOK_S)
            board[Slot.DELIVERED] = tally.count  # the last few, if not all come
    await subscribers.settle()
    board.note(Moment.SETTLED)
    await until(lambda: board[Slot.STOP], "the end", RUN_S)
    return {
        "delivered": tally.count,
        "rss_kib_per_subscriber": rss_bytes / 1024 / run.n,
        **tally.latencies(),
        **subscribers.figures(),
    }


def tidy() -> None:
    """Leave what it took to get here out of all that is collected later: for every system alike."""
    gc.collect()
    gc.freeze()


@contextmanager
def _profiled(run: BenchRun, role: str) -> Iterator[None]:
    """Write a profile of what is done meanwhile, if somebody wants one."""
    if run.profiles is None:
        yield
        return
    from cProfile import Profile  # noqa: PLC0415  (few want one)

    with Profile() as profile:
        yield
    profile.dump_stats(run.profiles / f"{run.system}-n{run.n}-{role}.prof")


# -- the process -----------------------------------------------------------------------------

Part = Callable[[BenchRun, Board], Coroutine[Any, Any, dict[str, float]]]
ROLES: Final[Mapping[str, tuple[Part, Slot]]] = {
    "publisher": (publish, Slot.PUBLISHER_DONE),
    "subscribers": (subscribe, Slot.SUBSCRIBERS_DONE),
}


def play(roles: Mapping[str, tuple[Part, Slot]], role: str, directory: Path) -> None:
    """Play a role, write what was counted, and wait for the end that others bring."""
    allow_files(FILES)
    run, board = read_run(directory), Board(directory / BOARD_FILE)
    part, done = roles[role]

    async def play_and_tell() -> None:
        figures = await part(run, board)
        (directory / f"{role}.json").write_bytes(msgspec.json.encode(figures))
        board[done] = 1
        # Saying goodbye over hundreds of connections would take long, and nobody measures it.
        await asyncio.sleep(RUN_S)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(play_and_tell())


if __name__ == "__main__":
    play(ROLES, sys.argv[1], Path(sys.argv[2]))
