"""Costs of one node: the start with a large store, and idling with many topics."""

from __future__ import annotations

from time import monotonic, process_time
from typing import Final

from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.harness import run_directory
from skipring.lab.bench.report import Figures
from skipring.lab.bench.run import BenchRun, Board, Moment, Slot
from skipring.lab.bench.servers import POLL_S, BenchProcesses, fill_store
from skipring.lab.bench.systems.large import DRIVER, IDLE, OTHERS, START, STORE
from skipring.lab.usage import MIB, cpu_ns, resident_bytes_of

PAYLOAD_BYTES: Final = 128
MEMBERS: Final = 4


def start_once(records: int, batch: int) -> Figures:
    """Write a store of ``records`` in batches of ``batch``, and start a node with it."""
    run = BenchRun(driver=DRIVER, n=1, count=records)
    with run_directory() as directory, BenchProcesses(directory) as processes:
        before = process_time()
        fill_store(directory / STORE, records, PAYLOAD_BYTES, batch)
        spent_s, board = process_time() - before, Board(directory)
        run = replace(run, directory=directory, address=processes.start_supervisor())
        processes.start_workers(run, [START])
        board.set_pids([processes.running[START].pid])
        processes.wait_calm([START])
        board[Slot.BEGIN] = 1
        figures = processes.wait_figures([START])
        if figures["batches"] != -(-records // batch):
            raise SkipringError("the node has not found all batches of its store")
        wall_s, cpu_s = board.seconds(Moment.ENDED)
        return figures | {
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "written_us_per_record": 1e6 * spent_s / records,
        }


def idle_once(topics: int, pause_s: float, seconds: float) -> Figures:
    """Measure a member of ``topics`` idle rings for some seconds, and the memory of one of one."""
    share, rss = _idle(topics, pause_s, seconds)
    _, rss_of_one = _idle(1, 0.0, POLL_S)
    return {"percent_of_core": 100 * share, "mib_beyond_first_topic": (rss - rss_of_one) / MIB}


def _idle(topics: int, pause_s: float, seconds: float) -> tuple[float, int]:
    """Return the share of a core and the resident memory of a member of some idle rings."""
    with run_directory() as directory, BenchProcesses(directory) as processes:
        run = BenchRun(
            driver=DRIVER,
            n=MEMBERS,
            topics=topics,
            directory=directory,
            address=processes.start_supervisor(),
        )
        Board(directory)  # now: two workers would create its file at the same time
        processes.start_workers(run, (IDLE, OTHERS))
        processes.wait_calm((IDLE, OTHERS))
        pid = processes.running[IDLE].pid
        _pass(processes, pause_s)
        before, began = cpu_ns(pid), monotonic()
        _pass(processes, seconds)
        share = (cpu_ns(pid) - before) / 1e9 / (monotonic() - began)
        return share, resident_bytes_of(pid)


def _pass(processes: BenchProcesses, seconds: float) -> None:
    """Wait some seconds; raise SkipringError if a process ends."""
    deadline = monotonic() + seconds
    processes.wait(lambda: monotonic() >= deadline)
