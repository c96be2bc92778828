"""Ring that drops frames and loses a tenth of its members; survivors compare ids."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final

from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES
from skipring.errors import SkipringError
from skipring.lab.bench.report import Figures
from skipring.lab.bench.run import (
    CALM,
    PUBLISHER,
    RUN_S,
    BenchRun,
    Board,
    Moment,
    Slot,
    figures_file,
    flag_file,
)
from skipring.lab.bench.systems.ours import BenchMember, forming_tick_s, join, wait_calm
from skipring.lab.bench.worker import Role
from skipring.lab.processes import until
from skipring.net.transport import Receiver
from skipring.wire.bundle import SmallMessage
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.rpc import Address, WireMessage

DRIVER: Final = "lossy.Ring"
SURVIVORS: Final = "survivors"
VICTIMS: Final = "victims"
GROUP: Final = 10  # publications at once
PAUSE_S: Final = 0.02  # Guess: a run lasts some ticks, so members can be killed within it.
IDS_FILE: Final = "published.ids"


def victims_of(n: int) -> int:
    """Return the number of nodes out of n that are killed."""
    return max(1, n // 10)


class LossyMember(BenchMember):
    """Member that drops a share of the frames that it receives or sends to the supervisor."""

    def __init__(self, run: BenchRun, name: str) -> None:
        super().__init__(run, name, tick_s=forming_tick_s(run.n))
        self.dropped = 0
        self.ids: set[bytes] = set()
        self._rng = Random(name)
        self._loss = run.loss

    def begin(self) -> None:
        """Start to drop frames."""
        links = self.node.links
        send, bundle = links.send_to_supervisor, links.bundle_to_supervisor

        def lossy(receive: Receiver) -> Receiver:
            def receive_some(sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
                if not self._is_lost():
                    receive(sender, envelope, frame)

            return receive_some

        def send_some(address: Address, frame: bytes) -> None:
            if not self._is_lost():
                send(address, frame)

        def bundle_some(address: Address, topic: TopicId, message: SmallMessage) -> None:
            if not self._is_lost():
                bundle(address, topic, message)

        links.intercept(lossy)
        links.send_to_supervisor = send_some  # type: ignore[method-assign]
        links.bundle_to_supervisor = bundle_some  # type: ignore[method-assign]

    def _is_lost(self) -> bool:
        is_lost = self._rng.random() < self._loss
        self.dropped += is_lost
        return is_lost

    def start_reading(self) -> None:
        """Collect the ids of all deliveries."""
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while publications := await self.subscription.read_many():
            self.ids.update(publication.id for publication in publications)


# -- roles -----------------------------------------------------------------------------------


async def publish(run: BenchRun, board: Board) -> Figures:
    """Publish while frames are lost and members killed; write the ids for the survivors."""
    member = LossyMember(run, PUBLISHER)
    await member.join()
    await until(lambda: board[Slot.CONNECTED], "the survivors")
    await until(lambda: board[Slot.VICTIMS_CONNECTED], "the victims")
    await wait_calm([member])
    flag_file(run.directory, PUBLISHER, CALM).touch()
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    member.begin()
    ids: list[bytes] = []
    while len(ids) < run.count:
        size = min(GROUP, run.count - len(ids))
        payloads = [b"%d" % (len(ids) + number) for number in range(size)]
        ids += await member.subscription.publish_many(payloads)
        board[Slot.PUBLISHED] = len(ids)
        await asyncio.sleep(PAUSE_S)
    board.record(Moment.BEGAN)  # nothing is published after this
    unfinished = run.directory / f"{IDS_FILE}.new"
    unfinished.write_bytes(b"".join(ids))
    unfinished.rename(run.directory / IDS_FILE)
    await until(figures_file(run.directory, SURVIVORS).exists, "the others", RUN_S)
    return {"published": len(set(ids)), "publisher_dropped": member.dropped}


async def survive(run: BenchRun, board: Board) -> Figures:
    """Read until everything has arrived or the deadline passes; count the missing publications."""
    count = run.n - victims_of(run.n) - 1
    members = await _join_and_read(run, [f"s{number:04}" for number in range(count)])
    board[Slot.CONNECTED] = 1
    await wait_calm(members)
    flag_file(run.directory, SURVIVORS, CALM).touch()
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S)
    for member in members:
        member.begin()
    file = run.directory / IDS_FILE
    await until(file.exists, "the publisher's ids", RUN_S)
    text = file.read_bytes()
    wanted = {text[start : start + ID_BYTES] for start in range(0, len(text), ID_BYTES)}
    with suppress(SkipringError):  # counted below
        await until(lambda: all(each.ids == wanted for each in members), "all", run.deadline_s)
    board.record(Moment.ENDED)
    return {
        "survivors": len(members) + 1,
        "incomplete": sum(member.ids != wanted for member in members),
        "missing": sum(len(wanted - member.ids) for member in members),
        "invented": sum(len(member.ids - wanted) for member in members),
        "dropped": sum(member.dropped for member in members),
    }


async def die(run: BenchRun, board: Board) -> Figures:
    """Run the members that the harness kills."""
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
        member.start_reading()
    return members


ROLES: Final[Mapping[str, Role]] = {
    PUBLISHER: publish,
    SURVIVORS: survive,
    VICTIMS: die,
}
