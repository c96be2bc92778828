"""A history to a newcomer, from us and from peers that keep one (``skipring bench history``).

Ours comes from members with everything on their disks, and counts as there once it was delivered
and is on the newcomer's disk too. The newcomers of peers only count what they get, or also put it
on their own disk (``-stored``). What is wanted is asked of those that store, because only they do
what ours does; the others stay beside them. The systems take turns, each several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.board import Board, Moment, Slot, cpu_ns
from skipring.lab.bench.contest import Workers, make_certificates, secured, supervisor
from skipring.lab.bench.goals import beside
from skipring.lab.bench.newcomer import FETCH, FILL
from skipring.lab.bench.peers.catalogue import (
    JETSTREAM_STORED,
    OURS,
    OURS_SECURED,
    REDIS_STREAMS_STORED,
    STORED,
)
from skipring.lab.bench.peers.run import TOPIC, BenchRun
from skipring.lab.bench.player import BOARD_FILE
from skipring.lab.bench.servers import broker, ending_in_order, skipring_process
from skipring.lab.bench.stores import fill_store
from skipring.lab.bench.turns import Row, counted, failed, in_turns, is_measured, skipped, spread

JOB: Final = "history"
PLAYER: Final = "skipring.lab.bench.newcomer"
COUNTS: Final = (10_000, 100_000)
PAYLOAD_BYTES: Final = 128
REPEATS: Final = 5  # Our guess: of three the median is not steady enough.
MEMBERS: Final = 3
# How many times the processor time of ours a peer has to need at least.
CPU_WANTED: Final[Mapping[str, float]] = {JETSTREAM_STORED: 2.0, REDIS_STREAMS_STORED: 1.0}
# Our guesses: servers that need less have done what the filling has left them.
IDLE_SHARE: Final = 0.04
IDLE_LOOK_S: Final = 0.5
IDLE_S: Final = 90.0


class HistoryHolder(Struct, frozen=True):
    """Processes that have a history."""

    run: BenchRun  # what a newcomer has to know
    pids: list[int]


class Fetched(Struct, frozen=True):
    """What it has cost to get a history once; times are seconds."""

    first_s: float  # until the first publication was handed over
    wall_s: float
    settled_s: float
    cpu_newcomer_s: float
    cpu_servers_s: float
    cpu_settled_s: float  # of all, until nothing was left to be done
    rss_mib_newcomer: float  # what it has gained
    delivered: int

    @property
    def cpu_s(self) -> float:
        """Of all processes."""
        return self.cpu_newcomer_s + self.cpu_servers_s


def measure(
    counts: Sequence[int] = COUNTS,
    *,
    size: int = PAYLOAD_BYTES,
    repeats: int = REPEATS,
    systems: Iterable[str] = tuple(STORED),
) -> Iterator[Row]:
    """Yield one row a measurement, the ratios last."""
    rows: list[Row] = []
    chosen = list(systems)
    for count in counts:
        for row in _compared([_run(system, count, size) for system in chosen], repeats):
            rows.append(row)
            yield row
    yield {"ratios": ratios(rows)}


def _run(system: str, count: int, size: int) -> BenchRun:
    return BenchRun(system=system, n=MEMBERS, count=count, size=size)


def _compared(runs: Sequence[BenchRun], repeats: int) -> list[Row]:
    """One row a system; they take turns."""
    lacking = {run.system: skipped(STORED[run.system]) for run in runs}
    able = [run for run in runs if lacking[run.system] is None]
    with ending_in_order(), ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))
        held = in_turns({run.system: partial(_holder, run, directory, stack) for run in able}, 1)
        found = in_turns(
            {system: partial(_fetched, each) for system, each in held.items()}, repeats
        )
    return [_named(run) | (lacking[run.system] or _row(run, found[run.system])) for run in runs]


# -- who has it ------------------------------------------------------------------------------


def _holder(run: BenchRun, directory: Path, stack: ExitStack, _: int) -> HistoryHolder:
    """Start what has the history of a system, and wait until it has come to rest."""
    run = replace(run, directory=directory / run.system)
    run.directory.mkdir()
    holder = (_ring if run.system in (OURS, OURS_SECURED) else _filled_broker)(run, stack)
    _wait_for_rest(run.system, holder.pids)
    return holder


def _filled_broker(run: BenchRun, stack: ExitStack) -> HistoryHolder:
    server = stack.enter_context(broker(run.system, run.directory))
    run = replace(run, address=server.address)
    board = Board(run.directory / BOARD_FILE)
    with ExitStack() as filling:
        cast = Workers(run, PLAYER, [FILL], filling)
        while not board[Slot.PUBLISHER_DONE]:
            cast.pause()
    return HistoryHolder(run, [server.pid])


def _ring(run: BenchRun, stack: ExitStack) -> HistoryHolder:
    directory = run.directory
    if run.system == OURS_SECURED:
        run = replace(run, certificates=make_certificates(directory))
    server = stack.enter_context(supervisor(directory, run.certificates))
    pids = [server.pid]
    for number in range(MEMBERS):
        name = f"bench.n{number}"
        fill_store(directory / name, run.count, run.size)
        options = [
            *("--supervisor", server.address, "--topic", TOPIC),
            *("--name", name, "--data", str(directory / name)),
            *secured(run.certificates, "bench"),
        ]
        log = directory / f"{name}.log"
        pids.append(stack.enter_context(skipring_process("node", *options, log=log)).pid)
    return HistoryHolder(replace(run, address=server.address), pids)


def _wait_for_rest(system: str, pids: Sequence[int]) -> None:
    """Wait until processes need hardly any processor time."""
    deadline = monotonic() + IDLE_S
    before, spent = sum(map(cpu_ns, pids)), IDLE_LOOK_S
    while spent > IDLE_SHARE * IDLE_LOOK_S:
        if monotonic() > deadline:
            raise SkipringError(f"{system} is not at rest {IDLE_S:.0f} s after it was filled")
        sleep(IDLE_LOOK_S)
        now = sum(map(cpu_ns, pids))
        before, spent = now, (now - before) / 1e9


# -- who gets it -----------------------------------------------------------------------------


def _fetched(holders: list[HistoryHolder] | SkipringError, number: int) -> Fetched:
    """Let a newcomer come, if somebody has what it comes for."""
    if isinstance(holders, SkipringError):
        raise holders
    (holder,) = holders
    _wait_for_rest(holder.run.system, holder.pids)
    directory = holder.run.directory / f"newcomer-{number}"
    directory.mkdir()
    board = Board(directory / BOARD_FILE)
    with ExitStack() as stack:
        cast = Workers(replace(holder.run, directory=directory), PLAYER, [FETCH], stack)
        board.set_pids([cast.players[FETCH].pid, *holder.pids])
        while not board[Slot.CONNECTED]:
            cast.pause()
        board[Slot.BEGIN] = 1
        while not board[Slot.SUBSCRIBERS_DONE]:
            cast.pause()
        return _cost(board, cast.figures())


def _cost(board: Board, figures: Mapping[str, float]) -> Fetched:
    began, ended, settled = (board.noted(moment) for moment in Moment)
    assert began is not None
    assert ended is not None
    assert settled is not None
    spent = [(late - early) / 1e9 for early, late in zip(began, ended, strict=True)]
    spent_settled = [(late - early) / 1e9 for early, late in zip(began, settled, strict=True)]
    return Fetched(
        first_s=figures["first_s"],
        wall_s=spent[0],
        settled_s=spent_settled[0],
        cpu_newcomer_s=spent[1],
        cpu_servers_s=sum(spent[2:]),
        cpu_settled_s=sum(spent_settled[1:]),
        rss_mib_newcomer=figures["rss_mib"],
        delivered=int(figures["delivered"]),
    )


# -- rows ------------------------------------------------------------------------------------


def _named(run: BenchRun) -> Row:
    return {"job": JOB, "system": run.system, "count": run.count}


def _row(run: BenchRun, fetched: list[Fetched] | SkipringError) -> Row:
    if isinstance(fetched, SkipringError):
        return failed(fetched)
    each_us = [1e6 * each.cpu_s / run.count for each in fetched]
    row = {
        "size": run.size,
        "repeats": len(fetched),
        **spread("cpu_s", [each.cpu_s for each in fetched]),
        "cpu_us_per_publication": round(median(each_us), 2),
        "cpu_s_newcomer": round(median(each.cpu_newcomer_s for each in fetched), 3),
        "cpu_s_servers": round(median(each.cpu_servers_s for each in fetched), 3),
        **spread("rss_mib_newcomer", [each.rss_mib_newcomer for each in fetched]),
        **spread("first_s", [each.first_s for each in fetched]),
        **spread("wall_s", [each.wall_s for each in fetched]),
    }
    if run.system in (OURS, OURS_SECURED):
        row["cpu_s_settled"] = round(median(each.cpu_settled_s for each in fetched), 3)
        row["settled_s"] = round(median(each.settled_s for each in fetched), 3)
    return row | counted([each.delivered for each in fetched], run.count)


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """How the peers compare with ours, what is wanted of the longest, and how all grow with it."""
    measured = [row for row in rows if is_measured(row)]
    ours = {row["count"]: row["cpu_s"] for row in measured if row["system"] == OURS}
    longest = max((row["count"] for row in measured), default=0)
    found: dict[str, float] = {}
    for row in measured:
        own, wanted = ours.get(row["count"]), CPU_WANTED.get(row["system"])
        name = f"cpu_{row['system']}_over_skipring_{row['count']}"
        if own is not None and row["system"] != OURS:
            found |= beside(name, row["cpu_s"] / own, wanted if row["count"] == longest else None)
    return found | _growth(measured)


def _growth(rows: Sequence[Row]) -> dict[str, float]:
    """How many times as much a publication costs as in the shortest history."""
    shortest = min((row["count"] for row in rows), default=0)
    costs = {
        row["system"]: row["cpu_us_per_publication"] for row in rows if row["count"] == shortest
    }
    return {
        f"cpu_{row['system']}_history_{row['count']}_over_{shortest}": round(
            row["cpu_us_per_publication"] / costs[row["system"]], 2
        )
        for row in rows
        if row["count"] != shortest and row["system"] in costs
    }
