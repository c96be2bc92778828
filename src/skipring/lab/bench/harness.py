"""Harness: one run of one system, and runs of all systems in rotation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final, NoReturn
from urllib.request import urlopen

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.peers import SUPERVISOR
from skipring.lab.bench.report import Row, check_count, in_turns, spread
from skipring.lab.bench.run import FIRST, PUBLISHER, SUBSCRIBERS, BenchRun, Board, Moment, Slot
from skipring.lab.bench.servers import BROKER, BenchProcesses, free_address, make_certificates
from skipring.lab.bench.systems.catalog import OURS_SECURED, RINGS, SYSTEMS
from skipring.lab.usage import MIB, cpu_ns, resident_bytes_of

SIGNALLED: Final = 128  # a shell adds this to the number of the signal that ended a process
# Guess: nothing arrives after a pause of this length.
STALLED_S: Final = 30.0
SCRAPE_S: Final = 5.0
FRAMES: Final = "skipring_received_frames_total"
DELIVERIES: Final = 320_000  # Guess: a second or two for most systems.
COUNT_MIN: Final = 2000
COUNT_MAX: Final = 20_000
DEVIATIONS: Final = 2.0  # of a count; random noise stays below in 19 of 20 runs


class RunResult(Struct, frozen=True, kw_only=True):
    """Cost of one run, in seconds."""

    wall_s: float
    cpu_s: dict[str, float]  # by part, from the first publication to the last delivery
    cpu_settled_s: dict[str, float]  # until all subsequent work is done
    settled_s: float
    figures: dict[str, float]  # from the workers


@contextmanager
def run_directory() -> Iterator[Path]:
    """Create a temporary directory; remove it and end all processes, even after SIGTERM."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(SIGNALLED + number)

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # handlers are allowed only there
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, end))
        yield Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))


def run_once(run: BenchRun) -> RunResult:
    """Run a system once, with its own directory and processes."""
    with run_directory() as directory, BenchProcesses(directory) as processes:
        run = replace(run, directory=directory)
        board = Board(directory)
        if run.system == OURS_SECURED:
            run = replace(run, certificates=make_certificates(directory))
        broker = SYSTEMS[run.system].broker
        if run.system in RINGS:
            address = processes.start_supervisor(run.certificates)
        else:
            address = processes.start_broker(broker) if broker is not None else free_address()
        phases = _SupervisorPhases(processes)
        first = (FIRST,) if run.is_first_apart else ()
        run = replace(run, address=address)
        processes.start_workers(run, (*first, PUBLISHER, SUBSCRIBERS))
        return _RunWatch(board, processes, phases).result()


class _SupervisorPhases:
    """Frames and CPU time of the supervisor in each phase of a run; empty without one."""

    def __init__(self, processes: BenchProcesses) -> None:
        self.figures: dict[str, float] = {}
        self.has_supervisor = SUPERVISOR in processes.running
        self._processes = processes
        self._before = self._counts()

    def end(self, phase: str) -> None:
        """Record the counts of a phase."""
        now = self._counts()
        for name, count in now.items():
            self.figures[f"{phase}_{name}"] = count - self._before[name]
        self._before = now

    def _counts(self) -> dict[str, float]:
        if not self.has_supervisor:
            return {}
        url = f"http://{self._processes.metrics_address(SUPERVISOR)}/metrics"
        with urlopen(url, timeout=SCRAPE_S) as page:
            lines = page.read().decode().splitlines()
        frames = next(float(line.split()[1]) for line in lines if line.startswith(FRAMES))
        pid = self._processes.running[SUPERVISOR].pid
        return {"frames": frames, "cpu_us": cpu_ns(pid) / 1e3}


class _RunWatch:
    """Phases of a run as the harness observes them."""

    def __init__(self, board: Board, processes: BenchProcesses, phases: _SupervisorPhases) -> None:
        self._board = board
        self._processes = processes
        self._phases = phases
        pids = {name: process.pid for name, process in processes.running.items()}
        if SUPERVISOR in pids:
            pids[BROKER] = pids.pop(SUPERVISOR)  # the part of a ring that corresponds to a broker
        self._parts = list(pids)
        board.set_pids(list(pids.values()))

    def result(self) -> RunResult:
        """Start the run, wait for its end, and return its cost."""
        board, workers, phases = self._board, self._processes, self._phases
        has_first = FIRST in self._parts
        first = (Slot.FIRST_CALM,) if has_first else ()
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
        first = (Slot.FIRST_DONE,) if has_first else ()
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
        """Wait for the last delivery: the run ends with it once STALLED_S pass without another."""
        board = self._board
        seen, clocks, since = -1, board.clocks(), monotonic()
        while not board.is_past(Moment.ENDED):
            delivered = board[Slot.DELIVERED]
            if delivered != seen:
                seen, clocks, since = delivered, board.clocks(), monotonic()
            elif monotonic() - since > STALLED_S:
                board.record(Moment.ENDED, clocks)
            self._processes.pass_time()

    def _memory(self) -> dict[str, float]:
        sizes = (resident_bytes_of(pid) / MIB for pid in self._board.pids)
        return {rss_figure(part): size for part, size in zip(self._parts, sizes, strict=True)}


def rss_figure(part: str) -> str:
    """Return the name of the figure for the final resident memory of a part."""
    return f"rss_mib_{part}"


# -- jobs ------------------------------------------------------------------------------------


def usual_count(n: int) -> int:
    """Return the number of publications that keeps most systems busy for a second or two."""
    return min(max(DELIVERIES // n, COUNT_MIN), COUNT_MAX)


def run_of(template: BenchRun, system: str) -> BenchRun:
    """Return the run of a job by one system; slow systems have fewer publications."""
    entry, count = SYSTEMS[system], template.count or usual_count(template.n)
    if entry.deliveries_max is not None:
        count = max(1, min(count, entry.deliveries_max // template.n))
    return replace(
        template, system=system, driver=entry.driver, packages=entry.packages, count=count
    )


def compare(
    runs: Sequence[BenchRun], repeats: int, row_of: Callable[[BenchRun, list[RunResult]], Row]
) -> Iterator[Row]:
    """Run all systems in rotation; yield one row for each run."""
    able = [run for run in runs if SYSTEMS[run.system].skipped is None]
    found = in_turns({run: partial(_run_once, run) for run in able}, repeats)
    for run in runs:
        results = found.get(run)
        if isinstance(results, list):
            row = row_of(run, results)
        else:
            row = SYSTEMS[run.system].skipped or {"failed": str(results)}
        yield {"job": run.job, "system": run.system, "n": run.n + run.is_first_apart} | row


def _run_once(run: BenchRun, _: int) -> RunResult:
    return run_once(run)


def delivery_row(run: BenchRun, results: list[RunResult]) -> Row:
    """Return the cost per delivery."""
    row = {
        "size": run.size,
        "topics": run.topics,
        "count": run.count,
        "rate": run.rate,
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
    if run.system in RINGS:
        row |= _ring_figures(run, results)
    return row | check_count(
        [int(each.figures["delivered"]) for each in results], run.n * run.count
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
