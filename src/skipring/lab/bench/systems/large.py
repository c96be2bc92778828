"""Nodes with a large store, or with many topics, in processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skipring.lab.bench.report import Figures
from skipring.lab.bench.run import CALM, RUN_S, BenchRun, Board, Moment, Slot, flag_file
from skipring.lab.bench.systems.ours import (
    FORMING_S,
    TICK_S,
    BenchMember,
    join,
    wait_calm,
)
from skipring.lab.bench.worker import POLL_S, Role, collect_and_freeze
from skipring.lab.processes import until
from skipring.lab.usage import MIB, resident_bytes
from skipring.observability.clock import BEATS, LoopPause

DRIVER: Final = "large.Node"
START: Final = "start"  # the role of a node that starts with the store STORE
STORE: Final = "node"
IDLE: Final = "idle"  # the role of the measured member of many rings
OTHERS: Final = "others"  # the role of the other members
BEAT_S: Final = 0.005  # Guess: a tenth of the longest pause that is allowed.


async def start(run: BenchRun, board: Board) -> Figures:
    """Start with a large store; measure until its log is indexed."""
    member = BenchMember(run, STORE, is_hurried=False)
    pause, before = LoopPause(BEAT_S * BEATS), resident_bytes()
    flag_file(run.directory, START, CALM).touch()
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    collect_and_freeze()
    pause.start()
    board.record(Moment.BEGAN)
    await member.join()
    await until(lambda: member.is_indexed, "an index", FORMING_S, POLL_S)
    board.record(Moment.ENDED)
    pause.stop()
    return {
        "pause_ms": 1000 * pause.longest_s,
        "rss_mib": (resident_bytes() - before) / MIB,
        "batches": member.batches,
    }


async def rest(run: BenchRun, board: Board, *, role: str, count: int) -> Figures:
    """Run some members of all topics; publish nothing."""
    members = [BenchMember(run, f"{role}{number}", is_hurried=False) for number in range(count)]
    await join(members)
    await wait_calm(members)
    collect_and_freeze()
    flag_file(run.directory, role, CALM).touch()
    await until(lambda: board[Slot.STOP], "the end", RUN_S, TICK_S)
    return {}


async def rest_alone(run: BenchRun, board: Board) -> Figures:
    """Run the measured member."""
    return await rest(run, board, role=IDLE, count=1)


async def rest_together(run: BenchRun, board: Board) -> Figures:
    """Run the other members."""
    return await rest(run, board, role=OTHERS, count=run.n - 1)


ROLES: Final[Mapping[str, Role]] = {START: start, IDLE: rest_alone, OTHERS: rest_together}
