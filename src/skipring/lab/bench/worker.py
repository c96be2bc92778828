"""Worker processes: ``python -m skipring.lab.bench.worker ROLE DIRECTORY``.

The same code drives all systems: probes until each subscriber is reached, then publications in
groups within a window, or one at a time at a fixed rate. A newcomer fetches a stored history.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import quantiles
from struct import Struct as Layout
from time import perf_counter_ns
from typing import Any, Final

from skipring.lab.bench.report import Figures
from skipring.lab.bench.run import (
    CALM,
    PUBLISHER,
    RUN_S,
    SUBSCRIBERS,
    BenchRun,
    Board,
    Moment,
    Slot,
    flag_file,
    load_run,
    write_figures,
)
from skipring.lab.processes import STARTED_S, until
from skipring.lab.usage import MIB, resident_bytes, written_bytes
from skipring.net.event_loop import new_loop
from skipring.node.process import allow_files

FILL: Final = "fill"
NEWCOMER: Final = "newcomer"
GROUP: Final = 250  # Guess: publications per call, four groups to a window.
WINDOW: Final = 1000  # publications in flight
PROBE_S: Final = 0.05  # Guess: between probes.
ROOM_S: Final = 0.001  # Guess: between checks for room in the window.
POLL_S: Final = 0.02
FILES: Final = 4096  # sockets and stores of some hundred subscribers
STAMP: Final = Layout("<Bq")  # head of each payload: its kind, and a number
PROBE: Final = 0  # the number counts probes
MEASURED: Final = 1  # the number is the time of publishing
COUNTED_EACH: Final = 64  # Guess: a small part of a window, and rare enough to cost nothing.

Receive = Callable[[bytes], None]


# -- interfaces of a system ------------------------------------------------------------------


class Endpoint:
    """One side of a run; a system overrides the methods that it needs."""

    def __init__(self, run: BenchRun) -> None:
        self.run = run

    async def connect(self) -> None:
        """Connect the publisher, or subscribe all subscribers."""

    async def wait_calm(self) -> None:
        """Wait until the work of joining is done."""

    def begin(self) -> None:
        """Start the measurement: all processes are calm."""

    async def wait_idle(self) -> None:
        """Wait until all work caused by the run is done."""

    def figures(self) -> Figures:
        """Return figures that only this system has."""
        return {}


class PublisherEndpoint(Endpoint):
    """Process that publishes."""

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish payloads to the topics in turn."""
        raise NotImplementedError


class Subscribers(Endpoint):
    """Process with all subscribers, each with its own connection."""

    def __init__(self, run: BenchRun, receivers: Sequence[Receive]) -> None:
        super().__init__(run)
        self.receivers = receivers  # one for each topic of each subscriber


class Newcomer:
    """Process that fetches a stored history."""

    def __init__(self, run: BenchRun) -> None:
        self.run = run
        self.count = 0
        self.first_ns = 0  # when the first publication arrived; 0: not yet

    async def fill(self) -> None:
        """Publish the history."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Do the work that is not measured."""

    async def fetch(self) -> None:
        """Connect and fetch everything."""
        raise NotImplementedError

    def record_first(self) -> None:
        """Record the time of the first arrival."""
        self.first_ns = self.first_ns or perf_counter_ns()

    async def wait_idle(self) -> None:
        """Wait until all subsequent work is done."""

    async def leave(self) -> None:
        """Disconnect and close files."""


def driver_module(run: BenchRun) -> Any:  # noqa: ANN401  (chosen by name)
    """Import the module of a system; only the worker imports packages that may be absent."""
    return import_module(f"skipring.lab.bench.systems.{run.driver.partition('.')[0]}")


def _driver(run: BenchRun, part: str) -> Any:  # noqa: ANN401  (chosen by name)
    return getattr(driver_module(run), run.driver.partition(".")[2] + part)


# -- payloads --------------------------------------------------------------------------------


def make_payload(kind: int, number: int, size: int) -> bytes:
    """Return a payload of ``size`` bytes."""
    return STAMP.pack(kind, number).ljust(size, b"x")


def history_payload(number: int, size: int) -> bytes:
    """Return the payload at an index of a history."""
    return make_payload(MEASURED, number, size)


def age_ns(payload: bytes) -> int:
    """Return the time since a measured payload was published, also by another process."""
    return perf_counter_ns() - int(STAMP.unpack_from(payload)[1])


def percentiles_ms(latencies_ns: Sequence[int]) -> Figures:
    """Return percentiles of latencies in milliseconds; nothing without two of them."""
    if len(latencies_ns) < 2:  # noqa: PLR2004  (quantiles need two values)
        return {}
    cuts = quantiles(latencies_ns, n=100)
    return {"p50_ms": cuts[49] / 1e6, "p99_ms": cuts[98] / 1e6}


class Tally:
    """Deliveries to all subscribers, counted and timed."""

    def __init__(self, run: BenchRun, board: Board) -> None:
        self.count = 0
        self._expected = run.n * run.count
        self._probes = [0] * (run.n * run.topics)
        self._latencies_ns: list[int] = []
        self._is_timed = run.rate > 0
        self._board = board

    def receivers(self) -> list[Receive]:
        """Return the callbacks for payloads, one for each topic of each subscriber."""
        return [self._receiver(number) for number in range(len(self._probes))]

    def _receiver(self, subscriber: int) -> Receive:
        def receive(payload: bytes) -> None:
            if payload[0] == PROBE:
                number = STAMP.unpack_from(payload)[1]
                self._probes[subscriber] = max(number, self._probes[subscriber])
                return
            if self._is_timed:
                self._latencies_ns.append(age_ns(payload))
            self.count = count = self.count + 1
            if count % COUNTED_EACH == 0 or count == self._expected:
                self._publish_count()

        return receive

    def _publish_count(self) -> None:
        self._board[Slot.DELIVERED] = self.count
        if self.count == self._expected:
            self._board.record(Moment.ENDED)

    def publish_probes(self) -> bool:
        """Store the last probe that all received; return True once the publisher has enough."""
        self._board[Slot.PROBED] = min(self._probes)
        return bool(self._board[Slot.IS_PROBED])

    def percentiles(self) -> Figures:
        """Return percentiles of the latency."""
        return percentiles_ms(self._latencies_ns)


# -- roles -----------------------------------------------------------------------------------


async def publish(run: BenchRun, board: Board) -> Figures:
    """Run the publisher."""
    publisher: PublisherEndpoint = _driver(run, "Publisher")(run)
    await publisher.connect()
    await until(lambda: board[Slot.CONNECTED], "subscribers")
    await _probe(publisher, run, board)
    await publisher.wait_calm()
    flag_file(run.directory, PUBLISHER, CALM).touch()
    await until(lambda: board[Slot.BEGUN], "the beginning", RUN_S)
    publisher.begin()
    collect_and_freeze()
    written = written_bytes()
    with _profiled(run, PUBLISHER):
        await (_publish_at_rate if run.rate else _publish_in_window)(publisher, run, board)
        await until(lambda: board.is_past(Moment.ENDED), "deliveries", RUN_S)
    await publisher.wait_idle()
    written = written_bytes() - written
    await until(lambda: board[Slot.STOP], "the end", RUN_S)
    return {"written_bytes_publisher": written, **publisher.figures()}


async def _probe(publisher: PublisherEndpoint, run: BenchRun, board: Board) -> None:
    """Publish probes until each subscriber received one, then wait for the last."""
    loop = asyncio.get_running_loop()
    deadline, sent = loop.time() + STARTED_S, 0
    while not board[Slot.PROBED]:
        if loop.time() > deadline:
            raise TimeoutError(f"not all subscribers were reached after {STARTED_S:.0f} s")
        sent += 1
        await publisher.send([make_payload(PROBE, sent, run.size)] * run.topics)  # one to each
        await asyncio.sleep(PROBE_S)
    await until(lambda: board[Slot.PROBED] >= sent, "the last probe")
    board[Slot.IS_PROBED] = 1


async def _publish_in_window(publisher: PublisherEndpoint, run: BenchRun, board: Board) -> None:
    board.record(Moment.BEGAN)
    sent = 0
    while sent < run.count:
        room = board[Slot.DELIVERED] // run.n + WINDOW - sent
        size = min(GROUP, run.count - sent)
        if room < size:
            await asyncio.sleep(ROOM_S)
            if board[Slot.STOP]:
                return
            continue
        now = perf_counter_ns()
        await publisher.send([make_payload(MEASURED, now, run.size) for _ in range(size)])
        sent += size
        board[Slot.PUBLISHED] = sent
        await asyncio.sleep(0)


async def _publish_at_rate(publisher: PublisherEndpoint, run: BenchRun, board: Board) -> None:
    """Publish on schedule, whether or not the previous call has returned (open loop)."""
    board.record(Moment.BEGAN)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for sent in range(run.count):
            await asyncio.sleep(max(0.0, began + sent / run.rate - loop.time()))
            payload = make_payload(MEASURED, perf_counter_ns(), run.size)
            tasks.create_task(publisher.send([payload]))
            board[Slot.PUBLISHED] = sent + 1


async def subscribe(run: BenchRun, board: Board) -> Figures:
    """Run all subscribers."""
    tally = Tally(run, board)
    subscribers: Subscribers = _driver(run, "Subscribers")(run, tally.receivers())
    for package in run.packages:
        import_module(package)  # its memory does not count for a subscriber
    before = resident_bytes()
    await subscribers.connect()
    board[Slot.CONNECTED] = 1
    await until(tally.publish_probes, "probes")
    await subscribers.wait_calm()
    rss_bytes = resident_bytes() - before
    flag_file(run.directory, SUBSCRIBERS, CALM).touch()
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    subscribers.begin()
    collect_and_freeze()
    written = written_bytes()
    board[Slot.BEGUN] = 1
    with _profiled(run, SUBSCRIBERS):
        while not board.is_past(Moment.ENDED):
            await asyncio.sleep(POLL_S)
            board[Slot.DELIVERED] = tally.count  # includes the last few if some are lost
    await subscribers.wait_idle()
    board.record(Moment.SETTLED)
    written = written_bytes() - written
    await until(lambda: board[Slot.STOP], "the end", RUN_S)
    return {
        "delivered": tally.count,
        "rss_kib_per_subscriber": rss_bytes / 1024 / run.n,
        "written_bytes_subscribers": written,
        **tally.percentiles(),
        **subscribers.figures(),
    }


async def fill(run: BenchRun, _: Board) -> Figures:
    """Publish a history."""
    await _driver(run, "Newcomer")(run).fill()
    return {}


async def fetch(run: BenchRun, board: Board) -> Figures:
    """Fetch a history at the harness's signal."""
    newcomer: Newcomer = _driver(run, "Newcomer")(run)
    await newcomer.prepare()
    board[Slot.CONNECTED] = 1
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    collect_and_freeze()
    before = resident_bytes()
    board.record(Moment.BEGAN)
    began_ns = perf_counter_ns()
    await newcomer.fetch()
    board.record(Moment.ENDED)
    rss_bytes = resident_bytes() - before
    await newcomer.wait_idle()
    board.record(Moment.SETTLED)
    await newcomer.leave()
    return {
        "delivered": newcomer.count,
        "first_s": max(0, newcomer.first_ns - began_ns) / 1e9,  # 0 if nothing arrived
        "rss_mib_newcomer": rss_bytes / MIB,
    }


def collect_and_freeze() -> None:
    """Exclude objects created at startup from later garbage collections, for every system alike."""
    gc.collect()
    gc.freeze()


@contextmanager
def _profiled(run: BenchRun, role: str) -> Iterator[None]:
    """Write a profile of the block if the run has a directory for profiles."""
    if run.profiles is None:
        yield
        return
    from cProfile import Profile  # noqa: PLC0415  (rarely needed)

    with Profile() as profile:
        yield
    profile.dump_stats(run.profiles / f"{run.system}-n{run.n}-{role}.prof")


# -- the process -----------------------------------------------------------------------------

Role = Callable[[BenchRun, Board], Coroutine[Any, Any, Figures]]
# A system's own ROLES come first.
ROLES: Final[Mapping[str, Role]] = {
    PUBLISHER: publish,
    SUBSCRIBERS: subscribe,
    FILL: fill,
    NEWCOMER: fetch,
}


def main(role: str, directory: Path) -> None:
    """Run a role, write its figures, and wait to be killed."""
    allow_files(FILES)
    run, board = load_run(directory), Board(directory)
    roles: Mapping[str, Role] = {**ROLES, **getattr(driver_module(run), "ROLES", {})}

    async def perform() -> None:
        write_figures(directory, role, await roles[role](run, board))
        # Closing hundreds of connections one by one is slow and not part of the measurement.
        await asyncio.sleep(RUN_S)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(perform())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
