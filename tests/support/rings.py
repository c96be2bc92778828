"""Rings of real sockets on loopback, in one process: start, wait and stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from skipring.core.batches import BatchRecord
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Deliver
from skipring.core.peers import NodeId
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.storage.store import LogStore
from skipring.world.legitimacy import publication_violations, violations
from skipring.world.snapshot import Snapshot

LOOPBACK = "127.0.0.1"
TOPIC = "news"
DEADLINE_S = 20.0  # deadline of steps that take a second or two
POLL_S = 0.01


class LiveRing:
    """Supervisor and nodes, and the deliveries to their applications."""

    def __init__(self, tick_s: float, answer_s: float | None = None) -> None:
        self._tick_s = tick_s
        self._answer_s = answer_s  # setting of the supervisor
        self.settings = NodeSettings()
        self.supervisor = self._new_supervisor()
        self.nodes: dict[NodeId, NodeHost] = {}
        self.delivered: dict[NodeId, list[bytes]] = {}

    def _new_supervisor(self) -> SupervisorHost:
        settings = NodeSettings(tick_s=self._tick_s, answer_s=self._answer_s)
        return SupervisorHost(settings, rng=Random(0))

    async def start(self) -> None:
        await self.supervisor.start(LOOPBACK, 0)
        self.settings = NodeSettings(
            supervisors=(self.supervisor.address,),
            tick_s=self._tick_s,
            flush_s=self._tick_s / 10,
            config=ProtocolConfig(
                detects_failures=True, backfills=True, requests_handover=True, confirms_sync=True
            ),
        )

    async def restart_supervisor(self) -> None:
        """Lose the supervisor and its database; start a new one at the same address."""
        port = int(self.supervisor.address.rpartition(":")[2])
        await self.supervisor.close()
        self.supervisor = self._new_supervisor()
        await self.supervisor.start(LOOPBACK, port)

    async def join(self, name: NodeId, store: LogStore | None = None, port: int = 0) -> NodeHost:
        """Start a node that becomes a member of the topic."""
        got = self.delivered.setdefault(name, [])

        def deliver(delivery: Deliver) -> None:
            for records in delivery.records:
                got.extend(record.payload for record in records)

        node = NodeHost(name, self.settings, rng=Random(name), store=store)
        self.nodes[name] = await node.start(LOOPBACK, port)
        node.subscribe(TOPIC)
        node.attach(TOPIC, deliver)
        return node

    async def leave(self, name: NodeId) -> bool:
        """Let a node leave the topic and stop; return True if the supervisor permitted it."""
        node = self.nodes.pop(name)
        is_released = await node.unsubscribe(TOPIC, DEADLINE_S)
        await node.close()
        return is_released

    async def kill(self, name: NodeId) -> None:
        """Stop a node without notice."""
        await self.nodes.pop(name).close()

    async def publish(self, name: NodeId, payload: bytes) -> bytes:
        (made,) = await self.nodes[name].publish(TOPIC, BatchRecord(payload))
        return made

    def snapshot(self) -> Snapshot:
        """Return the state of the topic, without messages in flight."""
        return Snapshot(
            topic=TOPIC,
            supervisor=self.supervisor.state(TOPIC),
            subscribers={name: node.states()[TOPIC] for name, node in self.nodes.items()},
        )

    def faults(self) -> list[str]:
        """Return the violations and missing publications of the ring as text."""
        seen = self.snapshot()
        return [
            str(fault) for judge in (violations, publication_violations) for fault in judge(seen)
        ]

    async def wait_healthy(self) -> None:
        """Wait until the ring is legitimate and in sync."""
        await until(lambda: not self.faults(), lambda: "\n".join(self.faults()))

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.close()
        await self.supervisor.close()


async def until(
    holds: Callable[[], bool], why: Callable[[], str] = str, *, deadline_s: float = DEADLINE_S
) -> None:
    """Wait for a condition, with a deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            while not holds():  # noqa: ASYNC110  (no event says that a ring is legitimate)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"not in {deadline_s:.0f} s: {why()}") from None


@asynccontextmanager
async def live_ring(
    *names: NodeId, tick_s: float = 0.05, answer_s: float | None = None
) -> AsyncIterator[LiveRing]:
    """Yield a ring of nodes without a disk."""
    ring = LiveRing(tick_s, answer_s)
    await ring.start()
    try:
        for name in names:
            await ring.join(name)
        yield ring
    finally:
        await ring.stop()
