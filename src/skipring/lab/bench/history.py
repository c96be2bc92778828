"""Transfer of a stored history to a newcomer, compared with JetStream and Redis Streams.

``skipring bench history``. The members of a ring have the history on disk; a fetch ends when the
newcomer has delivered all of it and stored it on its own disk. Newcomers of other systems only
count messages, or also store them (``-stored``); goals refer to those that store. The systems run
several times, in rotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.harness import middle, run_directory
from skipring.lab.bench.report import (
    Row,
    against_goal,
    check_count,
    in_turns,
    is_measured,
    spread,
    with_ratios,
)
from skipring.lab.bench.run import BenchRun, Board, Moment, Slot
from skipring.lab.bench.servers import BenchProcesses, fill_store, make_certificates
from skipring.lab.bench.systems.catalog import (
    JETSTREAM_STORED,
    OURS,
    OURS_SECURED,
    REDIS_STREAMS_STORED,
    RINGS,
    STORED,
)
from skipring.lab.bench.worker import FILL, NEWCOMER
from skipring.lab.usage import cpu_ns

JOB: Final = "history"
COUNTS: Final = (10_000, 100_000)
PAYLOAD_BYTES: Final = 128
REPEATS: Final = 5  # Guess: the median of three is not steady enough.
MEMBERS: Final = 3
# Goals: lower bounds on another system's CPU time relative to skipring's.
CPU_GOALS: Final[Mapping[str, float]] = {JETSTREAM_STORED: 2.0, REDIS_STREAMS_STORED: 1.0}
# Guesses: servers below this share of a core have finished storing the history.
IDLE_SHARE: Final = 0.04
IDLE_POLL_S: Final = 0.5
IDLE_S: Final = 90.0


class HistoryServer(Struct, frozen=True):
    """Processes that serve a history."""

    run: BenchRun  # the parameters of a newcomer
    pids: list[int]


def measure(
    counts: Sequence[int] = COUNTS,
    *,
    size: int = PAYLOAD_BYTES,
    repeats: int = REPEATS,
    systems: Iterable[str] = tuple(STORED),
) -> Iterator[Row]:
    """Return an iterator of one row per measurement, the ratios last."""
    chosen = list(systems)
    rows = (
        row
        for count in counts
        for row in _compare([_run(system, count, size) for system in chosen], repeats)
    )
    return with_ratios(rows, ratios)


def _run(system: str, count: int, size: int) -> BenchRun:
    driver = STORED[system].driver
    return BenchRun(system=system, driver=driver, n=MEMBERS, count=count, size=size)


def _compare(runs: Sequence[BenchRun], repeats: int) -> Iterator[Row]:
    """Yield one row per system; they take turns."""
    skipped = {run.system: STORED[run.system].skipped for run in runs}
    able = [run for run in runs if skipped[run.system] is None]
    with run_directory() as directory, ExitStack() as stack:
        servers = in_turns({run.system: partial(_serve, run, directory, stack) for run in able}, 1)
        found = in_turns(
            {system: partial(_fetch, server) for system, server in servers.items()}, repeats
        )
    for run in runs:
        row = {"job": JOB, "system": run.system, "count": run.count}
        yield row | (skipped[run.system] or _row(run, found[run.system]))


# -- servers ---------------------------------------------------------------------------------


def _serve(run: BenchRun, directory: Path, stack: ExitStack, _: int) -> HistoryServer:
    """Start the servers of a history and wait until they are idle."""
    run = replace(run, directory=directory / run.system)
    run.directory.mkdir()
    processes = stack.enter_context(BenchProcesses(run.directory))
    run = (_filled_ring if run.system in RINGS else _filled_broker)(run, processes)
    server = HistoryServer(run, [each.pid for each in processes.running.values()])
    _wait_idle(server)
    return server


def _filled_broker(run: BenchRun, processes: BenchProcesses) -> BenchRun:
    broker = STORED[run.system].broker
    assert broker is not None
    run = replace(run, address=processes.start_broker(broker))
    board = Board(run.directory)
    processes.start_workers(run, [FILL])
    processes.wait_set(board, Slot.PUBLISHER_DONE)
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


def _wait_idle(server: HistoryServer) -> None:
    """Wait until the servers use less than IDLE_SHARE of a core."""
    deadline = monotonic() + IDLE_S
    before, spent_s = sum(map(cpu_ns, server.pids)), IDLE_POLL_S
    while spent_s > IDLE_SHARE * IDLE_POLL_S:
        if monotonic() > deadline:
            name = server.run.system
            raise SkipringError(f"{name} is not at rest {IDLE_S:.0f} s after it was filled")
        sleep(IDLE_POLL_S)
        now = sum(map(cpu_ns, server.pids))
        before, spent_s = now, (now - before) / 1e9


# -- newcomers -------------------------------------------------------------------------------


def _fetch(servers: list[HistoryServer] | SkipringError, number: int) -> dict[str, float]:
    """Run one newcomer; return its figures."""
    if isinstance(servers, SkipringError):
        raise servers
    (server,) = servers
    _wait_idle(server)
    directory = server.run.directory / f"newcomer-{number}"
    directory.mkdir()
    board = Board(directory)
    with BenchProcesses(directory) as processes:
        processes.start_workers(replace(server.run, directory=directory), [NEWCOMER])
        board.set_pids([processes.running[NEWCOMER].pid, *server.pids])
        processes.wait_set(board, Slot.CONNECTED)
        board[Slot.BEGIN] = 1
        processes.wait_set(board, Slot.SUBSCRIBERS_DONE)
        figures = processes.figures()
    wall_s, *cpu_s = board.seconds(Moment.ENDED)
    settled_s, *cpu_settled_s = board.seconds(Moment.SETTLED)
    return figures | {
        "wall_s": wall_s,
        "settled_s": settled_s,
        "cpu_s": sum(cpu_s),
        "cpu_s_newcomer": cpu_s[0],
        "cpu_s_servers": sum(cpu_s[1:]),
        "cpu_s_settled": sum(cpu_settled_s),
    }


# -- rows ------------------------------------------------------------------------------------


def _row(run: BenchRun, fetches: list[dict[str, float]] | SkipringError) -> Row:
    if isinstance(fetches, SkipringError):
        return {"failed": str(fetches)}
    figures = {name: [each[name] for each in fetches] for name in fetches[0]}
    row = {
        "size": run.size,
        "repeats": len(fetches),
        **spread("cpu_s", figures["cpu_s"]),
        "cpu_us_per_publication": round(median(figures["cpu_s"]) * 1e6 / run.count, 2),
        "cpu_s_newcomer": middle(figures["cpu_s_newcomer"]),
        "cpu_s_servers": middle(figures["cpu_s_servers"]),
        **spread("rss_mib_newcomer", figures["rss_mib"]),
        **spread("first_s", figures["first_s"]),
        **spread("wall_s", figures["wall_s"]),
    }
    if run.system in RINGS:
        row |= {name: middle(figures[name]) for name in ("cpu_s_settled", "settled_s")}
    return row | check_count([int(count) for count in figures["delivered"]], run.count)


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Compare other systems with skipring, with goals for the longest history, and lengths."""
    measured = [row for row in rows if is_measured(row)]
    ours = {row["count"]: row["cpu_s"] for row in measured if row["system"] == OURS}
    longest = max((row["count"] for row in measured), default=0)
    found: dict[str, float] = {}
    for row in measured:
        own, goal = ours.get(row["count"]), CPU_GOALS.get(row["system"])
        name = f"cpu_{row['system']}_over_skipring_{row['count']}"
        if own is not None and row["system"] != OURS:
            goal = goal if row["count"] == longest else None
            found |= against_goal(name, row["cpu_s"] / own, goal)
    return found | _length_ratios(measured)


def _length_ratios(rows: Sequence[Row]) -> dict[str, float]:
    """Return the cost per publication relative to that of the shortest history."""
    shortest, key = min((row["count"] for row in rows), default=0), "cpu_us_per_publication"
    costs = {row["system"]: row[key] for row in rows if row["count"] == shortest}
    return {
        f"cpu_{row['system']}_history_{row['count']}_over_{shortest}": round(
            row[key] / costs[row["system"]], 2
        )
        for row in rows
        if row["count"] != shortest and row["system"] in costs
    }
