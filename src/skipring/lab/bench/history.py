"""Transfer of a stored history to a newcomer, compared with JetStream and Redis Streams.

``skipring bench history``. The members of a ring have the history on disk; a fetch ends when the
newcomer has delivered all of it and stored it on its own disk. Newcomers of other systems only
count messages, or also store them (``-stored``). The systems run several times, in rotation, each
time with new servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Final

from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.harness import run_directory
from skipring.lab.bench.report import Figures, Row, in_turns, spreads
from skipring.lab.bench.run import BenchRun, Board, Moment, Slot
from skipring.lab.bench.servers import BenchProcesses, fill_store, make_certificates
from skipring.lab.bench.systems.catalog import OURS_SECURED, RINGS, STORED
from skipring.lab.bench.worker import FILL, NEWCOMER
from skipring.lab.usage import cpu_ns

JOB: Final = "history"
COUNTS: Final = (10_000, 100_000)
PAYLOAD_BYTES: Final = 128
REPEATS: Final = 5  # Guess: the median of three is not steady enough.
MEMBERS: Final = 3
# Guesses: servers below this share of a core have finished storing the history.
IDLE_SHARE: Final = 0.04
IDLE_POLL_S: Final = 0.5
IDLE_S: Final = 90.0


def measure(
    counts: Sequence[int] = COUNTS,
    *,
    size: int = PAYLOAD_BYTES,
    repeats: int = REPEATS,
    systems: Iterable[str] = tuple(STORED),
) -> Iterator[Row]:
    """Yield one row per measurement."""
    chosen = list(systems)
    for count in counts:
        yield from _compare(chosen, count, size, repeats)


def _compare(systems: Sequence[str], count: int, size: int, repeats: int) -> Iterator[Row]:
    """Yield one row per system; they take turns."""
    able = [system for system in systems if STORED[system].missing is None]
    found = in_turns({each: partial(fetch_once, each, count, size) for each in able}, repeats)
    for system in systems:
        results = found.get(system)
        row: Row = {"job": JOB, "system": system, "count": count, "size": size}
        if isinstance(results, list):
            yield row | spreads(results)
        else:
            yield row | (STORED[system].skipped or {"failed": str(results)})


def fetch_once(system: str, count: int, size: int = PAYLOAD_BYTES) -> Figures:
    """Start the servers of a history, and fetch it with one newcomer; return the figures."""
    run = BenchRun(system=system, driver=STORED[system].driver, n=MEMBERS, count=count, size=size)
    with run_directory() as directory, BenchProcesses(directory) as processes:
        run = replace(run, directory=directory)
        run = (_filled_ring if system in RINGS else _filled_broker)(run, processes)
        servers = [each.pid for each in processes.running.values()]
        _wait_idle(system, servers)
        return _fetch(run, processes, servers)


# -- servers ---------------------------------------------------------------------------------


def _filled_broker(run: BenchRun, processes: BenchProcesses) -> BenchRun:
    broker = STORED[run.system].broker
    assert broker is not None
    run = replace(run, address=processes.start_broker(broker))
    processes.start_workers(run, [FILL])
    processes.wait_figures([FILL])
    processes.kill(FILL)
    return run


def _filled_ring(run: BenchRun, processes: BenchProcesses) -> BenchRun:
    if run.system == OURS_SECURED:
        run = replace(run, certificates=make_certificates(run.directory))
    run = replace(run, address=processes.start_supervisor(run.certificates))
    for name in (f"bench.n{number}" for number in range(MEMBERS)):
        fill_store(run.directory / name, run.count, run.size)
        processes.start_node(name, run.certificates)
    return run


def _wait_idle(system: str, pids: Sequence[int]) -> None:
    """Wait until servers use less than IDLE_SHARE of a core."""
    deadline = monotonic() + IDLE_S
    before, spent_s = sum(map(cpu_ns, pids)), IDLE_POLL_S
    while spent_s > IDLE_SHARE * IDLE_POLL_S:
        if monotonic() > deadline:
            raise SkipringError(f"{system} is not at rest {IDLE_S:.0f} s after it was filled")
        sleep(IDLE_POLL_S)
        now = sum(map(cpu_ns, pids))
        before, spent_s = now, (now - before) / 1e9


def _fetch(run: BenchRun, processes: BenchProcesses, servers: Sequence[int]) -> Figures:
    """Run one newcomer; return its figures."""
    board = Board(run.directory)
    processes.start_workers(run, [NEWCOMER])
    board.set_pids([processes.running[NEWCOMER].pid, *servers])
    processes.wait_set(board, Slot.CONNECTED)
    board[Slot.BEGIN] = 1
    figures = processes.wait_figures([NEWCOMER])
    if figures["delivered"] != run.count:
        raise SkipringError(f"{figures['delivered']:.0f} of {run.count} publications arrived")
    wall_s, *cpu_s = board.seconds(Moment.ENDED)
    settled_s, *cpu_settled_s = board.seconds(Moment.SETTLED)
    return figures | {
        "cpu_s": sum(cpu_s),
        "cpu_us_per_publication": sum(cpu_s) * 1e6 / run.count,
        "cpu_s_newcomer": cpu_s[0],
        "cpu_s_servers": sum(cpu_s[1:]),
        "cpu_s_settled": sum(cpu_settled_s),
        "wall_s": wall_s,
        "settled_s": settled_s,
    }
