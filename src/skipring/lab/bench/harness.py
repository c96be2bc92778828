"""Harness: one run of one system, and jobs that all systems run in turns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Final
from urllib.request import urlopen

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.processes import (
    MIB,
    cpu_ns,
    exit_on_sigterm,
    last_line,
    process,
    resident_bytes_of,
    stop,
)
from skipring.lab.bench.report import Row, check_count, in_turns, spread
from skipring.lab.bench.run import (
    FIRST,
    PUBLISHER,
    RUN_S,
    SUBSCRIBERS,
    BenchRun,
    Board,
    Moment,
    Slot,
)
from skipring.lab.bench.servers import (
    Server,
    free_address,
    make_certificates,
    running_broker,
    running_supervisor,
)
from skipring.lab.bench.systems.catalog import OURS_SECURED, RINGS, SYSTEMS

WORKER: Final = "skipring.lab.bench.worker"
BROKER: Final = "broker"  # the part of a run that is the broker, or the supervisor of a ring
POLL_S: Final = 0.01  # Guess.
# Guess: nothing arrives after a pause of this length. Measured: 64 members of one process that
# store 16,384 publications each at the same time take 6 s.
STALLED_S: Final = 30.0
SCRAPE_S: Final = 5.0
FRAMES: Final = "skipring_received_frames_total"
DELIVERIES: Final = 320_000  # Guess: a second or two for most systems.
COUNT_MIN: Final = 2000
COUNT_MAX: Final = 20_000
DEVIATIONS: Final = 2.0  # of a count: chance stays below in 19 of 20 runs


class RunResult(Struct, frozen=True, kw_only=True):
    """Cost of one run, in seconds."""

    wall_s: float
    cpu_s: dict[str, float]  # by part, from the first publication to the last delivery
    cpu_settled_s: dict[str, float]  # until all work that follows is done
    settled_s: float
    figures: dict[str, float]  # from the workers


@contextmanager
def run_directory() -> Iterator[Path]:
    """Create a temporary directory that SIGTERM removes, too."""
    with exit_on_sigterm(), TemporaryDirectory(prefix="skipring-bench-") as directory:
        yield Path(directory)


def run_once(run: BenchRun) -> RunResult:
    """Run a system once, with its own directory and processes."""
    with run_directory() as directory, ExitStack() as stack:
        run = replace(run, directory=directory)
        board = Board(directory)
        if run.system == OURS_SECURED:
            run = replace(run, certificates=make_certificates(directory))
        server = stack.enter_context(_server(run))
        run = replace(run, address=server.address if server else free_address())
        phases = _SupervisorPhases(server)
        first = (FIRST,) if run.is_first_apart else ()
        workers = Workers(run, (*first, PUBLISHER, SUBSCRIBERS), stack)
        pids = {role: worker.pid for role, worker in workers.running.items()}
        if server is not None:
            pids[BROKER] = server.pid
        board.set_pids(list(pids.values()))
        return _RunWatch(board, workers, list(pids), phases).result()


@contextmanager
def _server(run: BenchRun) -> Iterator[Server | None]:
    """Run the broker of a system, or the supervisor of a ring; None if it has neither."""
    broker = SYSTEMS[run.system].broker
    if run.system in RINGS:
        with running_supervisor(run.directory, run.certificates) as server:
            yield server
    elif broker is not None:
        with running_broker(broker, run.directory) as server:
            yield server
    else:
        yield None


class Workers:
    """The worker processes of a run, by role."""

    def __init__(self, run: BenchRun, roles: Iterable[str], stack: ExitStack) -> None:
        self._run = run
        self._deadline = monotonic() + RUN_S
        run.save()
        self.running = {role: stack.enter_context(self._started(role)) for role in roles}

    @contextmanager
    def _started(self, role: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", WORKER, role, str(self._run.directory)]
        with process(command, self._log(role), is_killed=True) as worker:
            yield worker

    def _log(self, role: str) -> Path:
        return self._run.directory / f"{role}.log"

    def kill(self, role: str) -> None:
        """Kill a worker."""
        stop(self.running.pop(role), is_killed=True)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; raise SkipringError if a worker ends or time is up."""
        while not condition():
            self.pause()

    def wait_set(self, board: Board, *slots: Slot) -> None:
        """Wait until all these slots of the board are set."""
        self.wait(lambda: all(board[slot] for slot in slots))

    def pause(self) -> None:
        """Sleep for one poll; raise SkipringError if a worker has ended or time is up."""
        for role, worker in self.running.items():
            if worker.poll() is not None:
                error = last_line(self._log(role))
                raise SkipringError(f"the {role} of {self._run.system} ended early: {error}")
        if monotonic() > self._deadline:
            raise SkipringError(f"a run of {self._run.system} took longer than {RUN_S:.0f} s")
        sleep(POLL_S)

    def figures(self) -> dict[str, float]:
        """Return the figures of all running workers."""
        found: dict[str, float] = {}
        for role in self.running:
            text = (self._run.directory / f"{role}.json").read_bytes()
            found |= msgspec.json.decode(text, type=dict[str, float])
        return found


class _SupervisorPhases:
    """Frames and CPU time of the supervisor in each phase of a run; empty without one."""

    def __init__(self, server: Server | None) -> None:
        self.figures: dict[str, float] = {}
        self._server = server if server is not None and server.metrics else None
        self._before = self._counts()

    @property
    def has_supervisor(self) -> bool:
        """Return True if the run has a supervisor."""
        return self._server is not None

    def end(self, phase: str) -> None:
        """Record the counts of a phase."""
        now = self._counts()
        for name, count in now.items():
            self.figures[f"{phase}_{name}"] = count - self._before[name]
        self._before = now

    def _counts(self) -> dict[str, float]:
        if self._server is None:
            return {}
        with urlopen(f"http://{self._server.metrics}/metrics", timeout=SCRAPE_S) as page:
            lines = page.read().decode().splitlines()
        frames = next(float(line.split()[1]) for line in lines if line.startswith(FRAMES))
        return {"frames": frames, "cpu_us": cpu_ns(self._server.pid) / 1e3}


class _RunWatch:
    """The phases of a run as the harness sees them."""

    def __init__(
        self, board: Board, workers: Workers, parts: Sequence[str], phases: _SupervisorPhases
    ) -> None:
        self._board = board
        self._workers = workers
        self._parts = parts
        self._phases = phases
        self._has_first = FIRST in parts

    def result(self) -> RunResult:
        """Start the run, wait for its end, and return its cost."""
        board, workers, phases = self._board, self._workers, self._phases
        first = (Slot.FIRST_CALM,) if self._has_first else ()
        workers.wait_set(board, Slot.PUBLISHER_CALM, Slot.SUBSCRIBERS_CALM, *first)
        phases.end("joining")
        began = monotonic()
        board[Slot.BEGIN] = 1
        self._wait_delivered()
        workers.wait(lambda: board.is_past(Moment.SETTLED))
        phases.end("run")
        memory = self._memory()
        ended = monotonic()
        # An idle ring sends some frames to its supervisor: count them for as long as the run took.
        workers.wait(lambda: not phases.has_supervisor or monotonic() >= 2 * ended - began)
        phases.end("idle")
        board[Slot.STOP] = 1
        first = (Slot.FIRST_DONE,) if self._has_first else ()
        workers.wait_set(board, Slot.PUBLISHER_DONE, Slot.SUBSCRIBERS_DONE, *first)
        wall_s, *cpu_s = board.seconds(Moment.ENDED)
        settled_s, *cpu_settled_s = board.seconds(Moment.SETTLED)
        return RunResult(
            wall_s=wall_s,
            settled_s=settled_s,
            cpu_s=dict(zip(self._parts, cpu_s, strict=True)),
            cpu_settled_s=dict(zip(self._parts, cpu_settled_s, strict=True)),
            figures=workers.figures() | phases.figures | memory,
        )

    def _wait_delivered(self) -> None:
        """Wait for the last delivery; after STALLED_S without one, the run ended with it."""
        board = self._board
        seen, clocks, since = -1, board.clocks(), monotonic()
        while not board.is_past(Moment.ENDED):
            delivered = board[Slot.DELIVERED]
            if delivered != seen:
                seen, clocks, since = delivered, board.clocks(), monotonic()
            elif monotonic() - since > STALLED_S:
                board.record(Moment.ENDED, clocks)
            self._workers.pause()

    def _memory(self) -> dict[str, float]:
        sizes = (resident_bytes_of(pid) / MIB for pid in self._board.pids)
        return {rss_figure(part): size for part, size in zip(self._parts, sizes, strict=True)}


def rss_figure(part: str) -> str:
    """Return the name of the figure for the memory of a part at the end of a run."""
    return f"rss_mib_{part}"


# -- jobs ------------------------------------------------------------------------------------


class Job(Struct, frozen=True, kw_only=True):
    """A task for all systems."""

    name: str
    n: int
    size: int
    topics: int = 1
    count: int | None = None  # publications; None: usual_count(n)
    rate: float = 0.0
    repeats: int = 1
    profiles: Path | None = None

    def header(self, system: str) -> Row:
        """Return the first fields of each row."""
        return {"job": self.name, "system": system, "n": self.n}


def usual_count(n: int) -> int:
    """Return how many publications keep most systems busy for a second or two."""
    return min(max(DELIVERIES // n, COUNT_MIN), COUNT_MAX)


def run_of(job: Job, system: str) -> BenchRun:
    """Return one run of a job; slow systems have fewer publications."""
    entry, count = SYSTEMS[system], job.count or usual_count(job.n)
    if entry.deliveries_max is not None:
        count = max(1, min(count, entry.deliveries_max // job.n))
    return BenchRun(
        system=system,
        driver=entry.driver,
        packages=entry.packages,
        n=job.n,
        size=job.size,
        topics=job.topics,
        count=count,
        rate=job.rate,
        profiles=job.profiles,
    )


RowOf = Callable[[Job, str, list[RunResult]], Row]


def compare(runs: Mapping[tuple[Job, str], BenchRun], repeats: int, row_of: RowOf) -> Iterator[Row]:
    """Run all in turns; yield one row for each job and system."""
    skipped = {key: SYSTEMS[key[1]].skipped for key in runs}
    able = {key: run for key, run in runs.items() if skipped[key] is None}
    found = in_turns({key: partial(_run_once, run) for key, run in able.items()}, repeats)
    for key in runs:
        job, system = key
        row = skipped[key]
        if row is None:
            results = found[key]
            if isinstance(results, SkipringError):
                row = {"failed": str(results)}
            else:
                row = row_of(job, system, results)
        yield job.header(system) | row


def _run_once(run: BenchRun, _: int) -> RunResult:
    return run_once(run)


def delivery_row(job: Job, system: str, results: list[RunResult]) -> Row:
    """Return the cost per delivery."""
    run = run_of(job, system)
    row = {
        "size": job.size,
        "topics": job.topics,
        "count": run.count,
        "rate": job.rate,
        "repeats": len(results),
        **spread("cpu_us_per_delivery", [_us(each, *each.cpu_s.values()) for each in results]),
        **spread(
            "cpu_us_per_delivery_settled",
            [_us(each, *each.cpu_settled_s.values()) for each in results],
        ),
    }
    for part in results[0].cpu_s:
        row[f"cpu_us_{part}"] = middle(_us(each, each.cpu_s[part]) for each in results)
    row |= spread("wall_s", [each.wall_s for each in results])
    row |= spread("deliveries_per_s", [each.figures["delivered"] / each.wall_s for each in results])
    for name in ("p50_ms", "p99_ms", "rss_kib_per_subscriber"):
        if name in results[0].figures:
            row |= spread(name, [each.figures[name] for each in results])
    if system in RINGS:
        row |= _ring_figures(run, results)
    return row | check_count(
        [int(each.figures["delivered"]) for each in results], job.n * run.count
    )


def _ring_figures(run: BenchRun, results: Sequence[RunResult]) -> Row:
    """Return the figures that only a ring has."""
    figures = [each.figures for each in results]
    frames = sum(each["run_frames"] for each in figures)
    idle = sum(each["idle_frames"] for each in figures)
    # An idle ring sends frames at random times: only the excess is caused by publications.
    excess = max(0.0, frames - idle - DEVIATIONS * sqrt(frames + idle))
    return {
        **spread("settled_s", [each.settled_s for each in results]),
        **spread(
            "messages_per_delivery",
            [each["messages"] / max(1, each["delivered"]) for each in figures],
        ),
        # A broker sends n copies of each publication.
        "hottest_copies_per_publication": middle(
            each["hottest_bytes"] / run.count / run.size for each in figures
        ),
        "supervisor_cpu_us_per_join": middle(
            each["joining_cpu_us"] / (run.n + 1) for each in figures
        ),
        "supervisor_messages_per_join": middle(
            each["joining_frames"] / (run.n + 1) for each in figures
        ),
        "supervisor_cpu_us_per_publication": middle(
            max(0.0, each["run_cpu_us"] - each["idle_cpu_us"]) / run.count for each in figures
        ),
        "supervisor_messages": int(frames),
        "supervisor_messages_idle": int(idle),
        "supervisor_messages_per_publication": round(excess / run.count / len(results), 4),
    }


def _us(result: RunResult, *seconds: float) -> float:
    """Return microseconds per delivery."""
    return 1e6 * sum(seconds) / max(1.0, result.figures["delivered"])


def middle(values: Iterable[float]) -> float:
    """Return the rounded median."""
    return round(median(values), 3)
