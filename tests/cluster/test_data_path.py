"""Costs of forwarding: no task, no future and no log line per publication."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from skipring.core.messages import PublishNew
from skipring.node.host import NodeHost
from skipring.storage.store import LogStore
from skipring.wire.codec import encode
from tests.support.batches import batch
from tests.support.exchanges import logged
from tests.support.rings import TOPIC, LiveRing, live_ring

COUNT = 500
DEADLINE_S = 20.0


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts created tasks and futures."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: object) -> asyncio.Task[Any]:
        self.made.append(f"task {coro}")
        return super().create_task(coro, **options)  # type: ignore[arg-type]

    def create_future(self) -> asyncio.Future[Any]:
        self.made.append("future")
        return super().create_future()


def play(scene: Callable[[CountingLoop], Awaitable[None]]) -> None:
    loop = CountingLoop()
    try:
        loop.run_until_complete(scene(loop))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def turns_until(is_so: Callable[[], bool]) -> None:
    """Run loop turns until a condition holds; unlike a sleep, a turn creates no future."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not is_so():
        assert loop.time() < deadline
        await asyncio.sleep(0)


def stop_time(ring: LiveRing) -> None:
    for node in ring.nodes.values():
        node.ticker.stop()


def send_alone(sender: NodeHost, receiver: str, count: int, write: Callable[[], None]) -> None:
    """Send publications of another publisher, one frame each."""
    for seq in range(count):
        made = batch(bytes(100), publisher="maker", first=seq, topic=TOPIC)
        sender.links.send(receiver, encode(TOPIC, PublishNew(made, 0)))
        write()


@pytest.mark.parametrize("is_together", [True, False], ids=["in one write", "each by itself"])
def test_forwarded_publication_creates_no_task_no_future_and_no_log_line(
    tmp_path: Path, *, is_together: bool
) -> None:
    async def scene(loop: CountingLoop) -> None:
        with LogStore.open(tmp_path) as store, logged("debug") as lines:
            async with live_ring("first", "last") as ring:
                await ring.join("middle", store)
                await ring.wait_healthy()
                stop_time(ring)
                sender, got = ring.nodes["first"], ring.delivered
                peer = sender.links.peer("middle")
                loop.made.clear()
                said = len(lines())
                send_alone(sender, "middle", COUNT, (lambda: None) if is_together else peer.flush)
                await turns_until(lambda: len(got["middle"]) == len(got["last"]) == COUNT)
                assert loop.made == []
                assert lines()[said:] == []

    play(scene)
