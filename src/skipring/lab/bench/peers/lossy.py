"""Process of a ring that loses frames.

``python -m skipring.lab.bench.peers.lossy ROLE DIRECTORY``.

Who survives has to end with every publication; it is the ids that are compared.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from msgspec.structs import replace

from skipring.api.connection import Connection
from skipring.core.peers import NodeId
from skipring.core.publications import ID_BYTES
from skipring.lab.bench.board import Board, Moment, Slot
from skipring.lab.bench.peers.ring import BenchMember, calm, forming_tick_s, join
from skipring.lab.bench.peers.run import BenchRun, until
from skipring.lab.bench.player import RUN_S, Part, play
from skipring.node.settings import NodeSettings
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.rpc import Address, WireMessage

PUBLISHER: Final = "publisher"
SURVIVORS: Final = "survivors"
VICTIMS: Final = "victims"
GROUP: Final = 10  # publications at once
PAUSE_S: Final = 0.02  # Our guess: so a run takes some ticks, and somebody can die in it.
IDS_FILE: Final = "published.ids"


def victims_of(n: int) -> int:
    """How many of so many nodes are killed: a tenth."""
    return max(1, n // 10)


class LossyMember(BenchMember):
    """A member that loses a share of the frames that come, and of those for the supervisor."""

    def __init__(self, run: BenchRun, name: str) -> None:
        super().__init__(run, name)
        self.dropped = 0
        self.ids: set[bytes] = set()
        self._rng = Random(name)
        self._loss = run.loss

    def _connect(self, run: BenchRun, name: str) -> Connection:
        tick_s = forming_tick_s(run.n)
        settings = NodeSettings(
            supervisors=(run.address,),
            tick_s=tick_s,
            flush_s=tick_s / 10,
            config=replace(NodeSettings().config, repairs=run.repairs),
        )
        listen = (run.address.rpartition(":")[0], 0)
        return Connection(settings, listen=listen, data_dir=run.directory / name, name=name)

    def begin(self) -> None:
        """Lose frames from now on."""
        links = self.node.links
        receive, send = links.receive, links.send_to_supervisor

        def receive_some(sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
            if not self._is_lost():
                receive(sender, envelope, frame)

        def send_some(address: Address, frame: bytes) -> None:
            if not self._is_lost():
                send(address, frame)

        links.receive = receive_some  # type: ignore[method-assign]
        links.send_to_supervisor = send_some  # type: ignore[method-assign]

    def _is_lost(self) -> bool:
        is_lost = self._rng.random() < self._loss
        self.dropped += is_lost
        return is_lost

    def read_on(self) -> None:
        """Note the ids of all that is delivered, from now on."""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while publications := await self.subscription.read_many():
            self.ids.update(publication.id for publication in publications)


# -- roles -----------------------------------------------------------------------------------


async def publish(run: BenchRun, board: Board) -> dict[str, float]:
    """Publish, while some lose frames and some die; say which ids there are."""
    member = LossyMember(run, PUBLISHER)
    await member.join()
    await until(lambda: board[Slot.CONNECTED], "the survivors")
    await until(lambda: board[Slot.VICTIMS_CONNECTED], "the victims")
    await calm([member])
    board[Slot.PUBLISHER_CALM] = 1
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    member.begin()
    ids: list[bytes] = []
    while len(ids) < run.count:
        size = min(GROUP, run.count - len(ids))
        payloads = [b"%d" % (len(ids) + number) for number in range(size)]
        ids += await member.subscription.publish_many(payloads)
        board[Slot.PUBLISHED] = len(ids)
        await asyncio.sleep(PAUSE_S)
    board.note(Moment.BEGAN)  # nothing is added from now on
    unfinished = run.directory / f"{IDS_FILE}.new"
    unfinished.write_bytes(b"".join(ids))
    unfinished.rename(run.directory / IDS_FILE)
    await until(lambda: board[Slot.SUBSCRIBERS_DONE], "the others", RUN_S)
    return {"published": len(set(ids)), "publisher_dropped": member.dropped}


async def survive(run: BenchRun, board: Board) -> dict[str, float]:
    """Read until all is there, or time is up; say what is missing."""
    count = run.n - victims_of(run.n) - 1
    members = await _join_and_read(run, [f"s{number:04}" for number in range(count)])
    board[Slot.CONNECTED] = 1
    await calm(members)
    board[Slot.SUBSCRIBERS_CALM] = 1
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    for member in members:
        member.begin()
    file = run.directory / IDS_FILE
    await until(file.exists, "the publisher's ids", RUN_S)
    text = file.read_bytes()
    wanted = {text[start : start + ID_BYTES] for start in range(0, len(text), ID_BYTES)}
    with suppress(TimeoutError):  # what is missing is said below
        await until(lambda: all(each.ids == wanted for each in members), "all", run.deadline_s)
    board.note(Moment.ENDED)
    return {
        "survivors": len(members) + 1,
        "incomplete": sum(member.ids != wanted for member in members),
        "missing": sum(len(wanted - member.ids) for member in members),
        "invented": sum(len(member.ids - wanted) for member in members),
        "dropped": sum(member.dropped for member in members),
    }


async def die(run: BenchRun, board: Board) -> dict[str, float]:
    """Take part until somebody kills the process."""
    names = [f"v{number:04}" for number in range(victims_of(run.n))]
    members = await _join_and_read(run, names)
    board[Slot.VICTIMS_CONNECTED] = 1
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    for member in members:
        member.begin()
    await asyncio.sleep(RUN_S)
    return {}


async def _join_and_read(run: BenchRun, names: Sequence[str]) -> list[LossyMember]:
    members = [LossyMember(run, name) for name in names]
    await join(members)
    for member in members:
        member.read_on()
    return members


ROLES: Final[Mapping[str, tuple[Part, Slot]]] = {
    PUBLISHER: (publish, Slot.PUBLISHER_DONE),
    SURVIVORS: (survive, Slot.SUBSCRIBERS_DONE),
    VICTIMS: (die, Slot.STOP),
}

if __name__ == "__main__":
    play(ROLES, sys.argv[1], Path(sys.argv[2]))
