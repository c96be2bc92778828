"""A history to a newcomer, from us and from peers that keep one (``skipring bench history``).

Ours comes from members with everything on their disks, and counts as there once it was delivered
and is on the newcomer's disk too. The systems take turns, each several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.bench.board import Board, Moment, Slot, cpu_ns
from skipring.bench.contest import Cast, make_certificates, secured, supervisor
from skipring.bench.newcomer import FETCH, FILL
from skipring.bench.peers.catalogue import OURS, OURS_SECURED, STORED, missing
from skipring.bench.peers.run import TOPIC, Run
from skipring.bench.player import BOARD_FILE
from skipring.bench.servers import broker, ending_in_order, skipring_process
from skipring.bench.stores import fill_store
from skipring.errors import SkipringError

JOB: Final = "history"
PLAYER: Final = "skipring.bench.newcomer"
COUNT: Final = 100_000
PAYLOAD_BYTES: Final = 128
REPEATS: Final = 3
MEMBERS: Final = 3
# How many times the processor time of ours a peer has to need at least.
CPU_WANTED: Final[Mapping[str, float]] = {"jetstream": 2.0, "redis-streams": 1.0}
# Our guesses: servers that need less have done what the filling has left them.
IDLE_SHARE: Final = 0.04
IDLE_LOOK_S: Final = 0.5
IDLE_S: Final = 90.0

Row = dict[str, Any]


class Holder(Struct, frozen=True):
    """Processes that have a history."""

    run: Run  # what a newcomer has to know
    pids: list[int]


class Fetched(Struct, frozen=True):
    """What it has cost to get a history once; times are seconds."""

    wall_s: float
    settled_s: float
    cpu_newcomer_s: float
    cpu_servers_s: float
    cpu_settled_s: float  # of all, until nothing was left to be done
    delivered: int

    @property
    def cpu_s(self) -> float:
        """Of all processes."""
        return self.cpu_newcomer_s + self.cpu_servers_s


def measure(
    count: int = COUNT,
    *,
    size: int = PAYLOAD_BYTES,
    repeats: int = REPEATS,
    systems: Iterable[str] = tuple(STORED),
) -> Iterator[Row]:
    """Yield one row a measurement, the ratios last."""
    rows: list[Row] = []
    with ending_in_order(), ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))
        holders: dict[str, Holder] = {}
        for system in systems:
            command = missing(STORED[system])
            if command is not None:
                rows.append({**_named(system, count), "skipped": f"not installed: {command}"})
                continue
            place = directory / system
            place.mkdir()
            run = Run(system=system, n=MEMBERS, count=count, size=size, directory=place)
            holders[system] = _holder(run, stack)
        rows += _compared(holders, repeats)
    yield from rows
    yield {"ratios": ratios(rows)}


# -- who has it ------------------------------------------------------------------------------


def _holder(run: Run, stack: ExitStack) -> Holder:
    """Start what has the history of a system, and wait until it has come to rest."""
    make = _ring if run.system in (OURS, OURS_SECURED) else _filled_broker
    holder = make(run, stack)
    _wait_for_rest(run.system, holder.pids)
    return holder


def _filled_broker(run: Run, stack: ExitStack) -> Holder:
    server = stack.enter_context(broker(run.system, run.directory))
    run = replace(run, address=server.address)
    board = Board(run.directory / BOARD_FILE)
    with ExitStack() as filling:
        cast = Cast(run, PLAYER, [FILL], filling)
        while not board[Slot.PUBLISHER_DONE]:
            cast.pause()
    return Holder(run, [server.pid])


def _ring(run: Run, stack: ExitStack) -> Holder:
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
    return Holder(replace(run, address=server.address), pids)


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


def _compared(holders: Mapping[str, Holder], repeats: int) -> Iterator[Row]:
    """One row a system; they take turns."""
    found: dict[str, list[Fetched]] = {system: [] for system in holders}
    for number in range(repeats):
        for system, holder in holders.items():
            _wait_for_rest(system, holder.pids)
            found[system].append(_fetched(holder, number))
    for system, fetched in found.items():
        yield _row(holders[system].run, fetched)


def _fetched(holder: Holder, number: int) -> Fetched:
    """Let a newcomer come."""
    directory = holder.run.directory / f"newcomer-{number}"
    directory.mkdir()
    board = Board(directory / BOARD_FILE)
    with ExitStack() as stack:
        cast = Cast(replace(holder.run, directory=directory), PLAYER, [FETCH], stack)
        board.set_pids([cast.players[FETCH].pid, *holder.pids])
        while not board[Slot.CONNECTED]:
            cast.pause()
        board[Slot.BEGIN] = 1
        while not board[Slot.SUBSCRIBERS_DONE]:
            cast.pause()
        return _cost(board, int(cast.figures()["delivered"]))


def _cost(board: Board, delivered: int) -> Fetched:
    began, ended, settled = (board.noted(moment) for moment in Moment)
    assert began is not None
    assert ended is not None
    assert settled is not None
    spent = [(late - early) / 1e9 for early, late in zip(began, ended, strict=True)]
    spent_settled = [(late - early) / 1e9 for early, late in zip(began, settled, strict=True)]
    return Fetched(
        wall_s=spent[0],
        settled_s=spent_settled[0],
        cpu_newcomer_s=spent[1],
        cpu_servers_s=sum(spent[2:]),
        cpu_settled_s=sum(spent_settled[1:]),
        delivered=delivered,
    )


# -- rows ------------------------------------------------------------------------------------


def _named(system: str, count: int) -> Row:
    return {"job": JOB, "system": system, "count": count}


def _row(run: Run, fetched: Sequence[Fetched]) -> Row:
    cpu = [each.cpu_s for each in fetched]
    row = _named(run.system, run.count) | {
        "size": run.size,
        "repeats": len(fetched),
        "cpu_s": round(median(cpu), 3),
        "cpu_s_min": round(min(cpu), 3),
        "cpu_s_max": round(max(cpu), 3),
        "cpu_us_per_publication": round(1e6 * median(cpu) / run.count, 2),
        "cpu_s_newcomer": round(median(each.cpu_newcomer_s for each in fetched), 3),
        "cpu_s_servers": round(median(each.cpu_servers_s for each in fetched), 3),
        "wall_s": round(median(each.wall_s for each in fetched), 3),
    }
    if run.system in (OURS, OURS_SECURED):
        row["cpu_s_settled"] = round(median(each.cpu_settled_s for each in fetched), 3)
        row["settled_s"] = round(median(each.settled_s for each in fetched), 3)
    delivered = min(each.delivered for each in fetched)
    return row | {"delivered": delivered, "expected": run.count}


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """How the peers compare with ours, and both with what is wanted: 1 or more is reached."""
    whole = (row for row in rows if "cpu_s" in row and row["delivered"] == row["expected"])
    costs = {row["system"]: row["cpu_s"] for row in whole}  # who stops early looks cheap
    own = costs.pop(OURS, None)
    found: dict[str, float] = {}
    for system, cost in costs.items() if own else ():
        name = f"cpu_{system}_over_skipring"
        found[name] = round(cost / own, 2)
        if system in CPU_WANTED:
            found[f"{name}_over_wanted"] = round(cost / own / CPU_WANTED[system], 2)
    return found
