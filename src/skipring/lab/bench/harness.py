"""Harness: one run of one system, and runs of several systems in rotation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final, NoReturn
from urllib.request import urlopen

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.peers import SUPERVISOR
from skipring.errors import SkipringError
from skipring.lab.bench.report import Figures, Row, in_turns, spreads
from skipring.lab.bench.run import (
    PUBLISHER,
    SUBSCRIBERS,
    BenchRun,
    Board,
    Moment,
    Slot,
    apart_roles,
)
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
LATENCY_S: Final = 4.0  # Guess: runs at a rate are this long.
DEVIATIONS: Final = 2.0  # of a count; random noise stays below in 19 of 20 runs


class RunResult(Struct, frozen=True, kw_only=True):
    """Cost of one run, in seconds."""

    wall_s: float
    cpu_s: dict[str, float]  # by part, from the first publication to the last delivery
    cpu_settled_s: dict[str, float]  # until all subsequent work is done
    settled_s: float
    figures: Figures  # from the workers


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
        if run.system == OURS_SECURED:
            run = replace(run, certificates=make_certificates(directory))
        broker = SYSTEMS[run.system].broker
        if run.system in RINGS:
            address = processes.start_supervisor(run.certificates)
        else:
            address = processes.start_broker(broker) if broker is not None else free_address()
        return _RunWatch(replace(run, address=address), processes).result()


class _SupervisorPhases:
    """Frames and CPU time of the supervisor in each phase of a run; empty without one."""

    def __init__(self, processes: BenchProcesses) -> None:
        self.figures: Figures = {}
        self.has_supervisor = SUPERVISOR in processes.running
        self._processes = processes
        self._before = self._counts()

    def end(self, phase: str) -> None:
        """Record the counts of a phase."""
        now = self._counts()
        for name, count in now.items():
            self.figures[f"{phase}_{name}"] = count - self._before[name]
        self._before = now

    def _counts(self) -> Figures:
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

    def __init__(self, run: BenchRun, processes: BenchProcesses) -> None:
        self._run = run
        self._processes = processes
        self._board = Board(run.directory)
        self._phases = _SupervisorPhases(processes)
        self._roles = (*apart_roles(run), PUBLISHER, SUBSCRIBERS)
        processes.start_workers(run, self._roles)
        pids = {name: process.pid for name, process in processes.running.items()}
        if SUPERVISOR in pids:
            pids[BROKER] = pids.pop(SUPERVISOR)  # the part of a ring that corresponds to a broker
        self._parts = list(pids)
        self._board.set_pids(list(pids.values()))

    def result(self) -> RunResult:
        """Start the run, wait for its end, and return its cost."""
        board, workers, phases = self._board, self._processes, self._phases
        workers.wait_calm(self._roles)
        phases.end("joining")
        if self._run.is_busy:
            workers.start_competitors()
        began = monotonic()
        board[Slot.BEGIN] = 1
        self._wait_delivered()
        workers.wait(lambda: board.is_past(Moment.SETTLED))
        workers.kill_competitors()
        phases.end("run")
        memory = self._memory()
        ended = monotonic()
        # An idle ring sends some frames to its supervisor: count them for as long as the run took.
        workers.wait(lambda: not phases.has_supervisor or monotonic() >= 2 * ended - began)
        phases.end("idle")
        board[Slot.STOP] = 1
        figures = workers.wait_figures(self._roles)
        wall_s, *cpu_s = board.seconds(Moment.ENDED)
        settled_s, *cpu_settled_s = board.seconds(Moment.SETTLED)
        return RunResult(
            wall_s=wall_s,
            settled_s=settled_s,
            cpu_s=dict(zip(self._parts, cpu_s, strict=True)),
            cpu_settled_s=dict(zip(self._parts, cpu_settled_s, strict=True)),
            figures=figures | phases.figures | memory,
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

    def _memory(self) -> Figures:
        sizes = (resident_bytes_of(pid) / MIB for pid in self._board.pids)
        return {rss_figure(part): size for part, size in zip(self._parts, sizes, strict=True)}


def rss_figure(part: str) -> str:
    """Return the name of the figure for the final resident memory of a part."""
    return f"rss_mib_{part}"


# -- figures of a run ------------------------------------------------------------------------


def delivery_figures(run: BenchRun, result: RunResult) -> Figures:
    """Return the costs of a run per delivery."""
    given, delivered = result.figures, _deliveries(run, result.figures)
    scale = 1e6 / delivered
    figures = {
        "cpu_us_per_delivery": scale * sum(result.cpu_s.values()),
        "cpu_us_per_delivery_settled": scale * sum(result.cpu_settled_s.values()),
        **{f"cpu_us_{part}": scale * spent for part, spent in result.cpu_s.items()},
        **{f"cpu_us_{part}_settled": scale * spent for part, spent in result.cpu_settled_s.items()},
        "wall_s": result.wall_s,
        "settled_s": result.settled_s,
        "deliveries_per_s": delivered / result.wall_s,
        "written_bytes_per_publication": given["written_bytes_publisher"] / run.count,
        "written_bytes_per_delivery": given["written_bytes_subscribers"] / (run.n * run.count),
        "delivered": delivered,
    }
    names = ("p50_ms", "p99_ms", "rss_kib_per_subscriber")
    figures |= {name: given[name] for name in names if name in given}
    return figures | (_ring_figures(run, given) if run.system in RINGS else {})


def _deliveries(run: BenchRun, given: Figures) -> int:
    """Return the number of deliveries; raise SkipringError if one is missing."""
    parts = ("delivered", *(f"{role}_delivered" for role in apart_roles(run)))
    delivered = int(sum(given[name] for name in parts))
    expected = (run.n + run.apart) * run.count
    if delivered != expected:
        raise SkipringError(f"{delivered} of {expected} publications arrived")
    return delivered


def _ring_figures(run: BenchRun, given: Figures) -> Figures:
    """Return the figures that only a ring has."""
    frames, idle, joins = given["run_frames"], given["idle_frames"], run.n + run.apart + 1
    # An idle ring sends frames at random times: only the excess is caused by publications.
    excess = max(0.0, frames - idle - DEVIATIONS * sqrt(frames + idle))
    return {
        "messages_per_delivery": given["messages"] / given["delivered"],
        # A broker sends n copies of each publication.
        "hottest_copies_per_publication": given["hottest_bytes"] / run.count / run.size,
        "supervisor_cpu_us_per_join": given["joining_cpu_us"] / joins,
        "supervisor_messages_per_join": given["joining_frames"] / joins,
        "supervisor_cpu_us_per_publication": (
            max(0.0, given["run_cpu_us"] - given["idle_cpu_us"]) / run.count
        ),
        "supervisor_messages": frames,
        "supervisor_messages_idle": idle,
        "supervisor_messages_per_publication": excess / run.count,
    }


# -- jobs ------------------------------------------------------------------------------------


class Job(Struct, frozen=True):
    """Runs of some systems with the same parameters, and the figures of each run."""

    run: BenchRun
    systems: tuple[str, ...] = tuple(SYSTEMS)
    figures: Callable[[BenchRun, RunResult], Figures] = delivery_figures

    def measure(self, system: str) -> Figures:
        """Run a system once; return its figures."""
        run = run_of(self.run, system)
        return self.figures(run, run_once(run))


def usual_count(n: int) -> int:
    """Return the number of publications that keeps most systems busy for a second or two."""
    return min(max(DELIVERIES // n, COUNT_MIN), COUNT_MAX)


def run_of(template: BenchRun, system: str) -> BenchRun:
    """Return the run of a job by one system; slow systems have fewer publications."""
    entry, n, apart = SYSTEMS[system], template.n, template.apart
    if system not in RINGS:
        n, apart = n + apart, 0
    count = template.count or round(template.rate * LATENCY_S) or usual_count(n)
    if entry.deliveries_max is not None:
        count = max(1, min(count, entry.deliveries_max // n))
    return replace(
        template,
        system=system,
        driver=entry.driver,
        packages=entry.packages,
        count=count,
        n=n,
        apart=apart,
    )


def compare(name: str, job: Job, systems: Sequence[str], repeats: int) -> Iterator[Row]:
    """Run the systems of a job in rotation; yield one row for each."""
    chosen = [system for system in systems if system in job.systems]
    able = [system for system in chosen if SYSTEMS[system].missing is None]
    found = in_turns({system: partial(job.measure, system) for system in able}, repeats)
    for system in chosen:
        run = run_of(job.run, system)
        results = found.get(system)
        row: Row = {"job": name, "system": system, "n": run.n + run.apart}
        if isinstance(results, list):
            case = {"size": run.size, "topics": run.topics, "count": run.count, "rate": run.rate}
            yield row | case | spreads(results)
        else:
            yield row | (SYSTEMS[system].skipped or {"failed": str(results)})
