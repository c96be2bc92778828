"""Whether everybody ends with everything though frames are lost and nodes are killed.

Part of ``skipring bench fanout``: nothing that makes us quick may cost a publication.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from skipring.errors import SkipringError
from skipring.lab.bench.board import Board, Moment, Slot
from skipring.lab.bench.contest import Workers, supervisor
from skipring.lab.bench.goals import at_least
from skipring.lab.bench.peers.catalogue import OURS
from skipring.lab.bench.peers.lossy import PUBLISHER, SURVIVORS, VICTIMS, victims_of
from skipring.lab.bench.peers.ring import forming_tick_s
from skipring.lab.bench.peers.run import BenchRun
from skipring.lab.bench.player import BOARD_FILE
from skipring.lab.bench.servers import ending_in_order
from skipring.lab.bench.turns import Row, failed, in_turns, is_measured

JOB: Final = "loss"
PLAYER: Final = "skipring.lab.bench.peers.lossy"
N: Final = 64
PUBLICATIONS: Final = 2000
LOSS: Final = 0.05  # of all frames


def measure(
    *,
    n: int = N,
    count: int = PUBLICATIONS,
    share: float = LOSS,
    repairs: bool = True,
    deadline_s: float = 120.0,
) -> Row:
    """Publish in a ring that loses frames, kill a tenth of it, and wait until all is there."""
    with ending_in_order(), ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))
        board = Board(directory / BOARD_FILE)
        tick = ("--tick", str(forming_tick_s(n)))
        run = BenchRun(
            system=OURS,
            n=n,
            count=count,
            directory=directory,
            address=stack.enter_context(supervisor(directory, None, *tick)).address,
            loss=share,
            repairs=repairs,
            deadline_s=deadline_s,
        )
        cast = Workers(run, PLAYER, (PUBLISHER, SURVIVORS, VICTIMS), stack)
        _watch(run, board, cast)
        return _row(run, board, cast.figures())


def measured(n: int) -> Row:
    """What ``measure`` finds, or why it did not."""
    found = in_turns({OURS: lambda _: measure(n=n)}, 1)[OURS]
    named = {"job": JOB, "system": OURS, "n": n}
    return named | failed(found) if isinstance(found, SkipringError) else found[0]


def _watch(run: BenchRun, board: Board, cast: Workers) -> None:
    while not (board[Slot.PUBLISHER_CALM] and board[Slot.SUBSCRIBERS_CALM]):
        cast.pause()
    board[Slot.BEGIN] = 1
    while board[Slot.PUBLISHED] < run.count // 2:
        cast.pause()
    cast.kill(VICTIMS)
    while not (board[Slot.PUBLISHER_DONE] and board[Slot.SUBSCRIBERS_DONE]):
        cast.pause()


def _row(run: BenchRun, board: Board, figures: dict[str, float]) -> Row:
    began, ended = board.noted(Moment.BEGAN), board.noted(Moment.ENDED)
    assert began is not None
    assert ended is not None
    wrong = figures["incomplete"] + figures["missing"] + figures["invented"]
    return {
        "job": JOB,
        "system": OURS,
        "n": run.n,
        "killed": victims_of(run.n),
        "survivors": int(figures["survivors"]),
        "publications": int(figures["published"]),
        "loss": run.loss,
        "frames_dropped": int(figures["dropped"] + figures["publisher_dropped"]),
        "missing": int(figures["missing"]),
        "complete": not wrong,
        "seconds_until_complete": None if wrong else round(max(0, ended[0] - began[0]) / 1e9, 2),
    }


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """1 if all was there in the end, else 0."""
    found: dict[str, float] = {}
    for row in rows:
        if row["job"] == JOB and is_measured(row):
            found |= at_least(f"complete_after_loss_n{row['n']}", float(row["complete"]), 1.0)
    return found
