"""Process of ``skipring bench history``.

``python -m skipring.lab.bench.newcomer ROLE DIRECTORY``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import Final, Protocol, cast

from skipring.lab.bench.board import Board, Moment, Slot
from skipring.lab.bench.memory import MIB, resident_bytes
from skipring.lab.bench.peers.catalogue import STORED
from skipring.lab.bench.peers.run import BenchRun, Newcomer, until
from skipring.lab.bench.player import RUN_S, Part, play, tidy

FILL: Final = "fill"
FETCH: Final = "newcomer"


class StoredModule(Protocol):
    """What the module of a system has that keeps what was published."""

    def newcomer(self, run: BenchRun) -> Newcomer:
        """Who comes later."""

    async def fill(self, run: BenchRun) -> None:
        """Publish all that there is to get."""


def _module_of(system: str) -> StoredModule:
    return cast("StoredModule", import_module(f"skipring.lab.bench.peers.{STORED[system].module}"))


async def fill(run: BenchRun, _: Board) -> dict[str, float]:
    """Make the history."""
    await _module_of(run.system).fill(run)
    return {}


async def fetch(run: BenchRun, board: Board) -> dict[str, float]:
    """Get the history, once we are told to."""
    newcomer = _module_of(run.system).newcomer(run)
    await newcomer.prepare()
    board[Slot.CONNECTED] = 1
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    tidy()
    before = resident_bytes()
    board.note(Moment.BEGAN)
    began_ns = perf_counter_ns()
    await newcomer.fetch()
    board.note(Moment.ENDED)
    rss_bytes = resident_bytes() - before
    await newcomer.settle()
    board.note(Moment.SETTLED)
    await newcomer.leave()
    return {
        "delivered": newcomer.count,
        "first_s": max(0, newcomer.first_ns - began_ns) / 1e9,  # 0 if nothing has come
        "rss_mib": rss_bytes / MIB,
    }


ROLES: Final[Mapping[str, tuple[Part, Slot]]] = {
    FILL: (fill, Slot.PUBLISHER_DONE),
    FETCH: (fetch, Slot.SUBSCRIBERS_DONE),
}

if __name__ == "__main__":
    play(ROLES, sys.argv[1], Path(sys.argv[2]))
