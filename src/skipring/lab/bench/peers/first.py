"""A process of a ring whose first member has one of its own.

``python -m skipring.lab.bench.peers.first ROLE DIRECTORY``. Who joins first has the shortest
label, and so most of all below it in the tree.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from skipring.lab.bench.board import Board, Moment, Slot
from skipring.lab.bench.peers.ring import FIRST_FILE, SETTLING_S, BenchMember, calm
from skipring.lab.bench.peers.run import FIRST, BenchRun, until
from skipring.lab.bench.player import LOOK_S, RUN_S, Part, play, tidy
from skipring.lab.bench.player import ROLES as OTHER_ROLES
from skipring.lab.bench.tally import MEASURED


class First(BenchMember):
    """The member that joins first; it counts what it gets."""

    count = 0

    def read_on(self) -> None:
        """Read all, from now on."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while publications := await self.subscription.read_many():
            self.count += sum(each.payload[0] == MEASURED for each in publications)


async def be_first(run: BenchRun, board: Board) -> dict[str, float]:
    """Join before all others, and take part as they do."""
    member = First(run, FIRST)
    await member.join()
    member.read_on()
    (run.directory / FIRST_FILE).touch()
    await until(lambda: board[Slot.IS_PROBED], "the last probe", RUN_S)
    await calm([member])
    board[Slot.FIRST_CALM] = 1
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S, LOOK_S)
    member.begin()
    tidy()
    await until(lambda: board.noted(Moment.ENDED), "deliveries", RUN_S, LOOK_S)
    await until(lambda: member.is_durable, "a durable store", SETTLING_S, LOOK_S)
    await until(lambda: board[Slot.STOP], "the end", RUN_S, LOOK_S)
    return {"first_delivered": member.count, "first_bytes": member.bytes_sent}


ROLES: Final[Mapping[str, tuple[Part, Slot]]] = {
    **OTHER_ROLES,
    FIRST: (be_first, Slot.FIRST_DONE),
}

if __name__ == "__main__":
    play(ROLES, sys.argv[1], Path(sys.argv[2]))
