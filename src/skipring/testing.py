"""A whole real cluster in one process, for tests: a supervisor and nodes on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from types import TracebackType
from typing import Final, Self

from skipring.core.config import ProtocolConfig
from skipring.core.effects import Deliver
from skipring.core.events import PublishRequested
from skipring.core.peers import NodeId, TopicId
from skipring.errors import InputError
from skipring.runtime.node import Node
from skipring.runtime.settings import Settings
from skipring.runtime.supervisor import SupervisorServer
from skipring.world.legitimacy import publication_violations, violations
from skipring.world.snapshot import Snapshot

LOOPBACK: Final = "127.0.0.1"
POLL_S: Final = 0.01  # Our guess: soon enough, and a large ring is still judged rarely.
JUDGING_SHARE: Final = 4  # Our guess: judging takes a quarter of the time at most.


class Cluster:
    """A supervisor and ``n`` nodes in one topic, with real sockets, all in memory.

    >>> import asyncio
    >>> from skipring.testing import Cluster
    >>> async def scene() -> list[list[bytes]]:
    ...     async with Cluster(n=3) as cluster:
    ...         await cluster.publish("n00", b"hello")
    ...         await cluster.settle(timeout=30)
    ...         return [cluster.payloads(name) for name in cluster.nodes]
    >>> asyncio.run(scene())
    [[b'hello'], [b'hello'], [b'hello']]

    Only its own nodes are judged: others may connect to ``url``, best in topics of their own.
    """

    def __init__(self, n: int = 16, tick_s: float = 0.05, topic: TopicId = "news") -> None:
        self.topic = topic
        self._n = n
        self._settings = Settings(tick_s=tick_s, config=ProtocolConfig())
        self._supervisor = SupervisorServer(self._settings, rng=Random(0))
        self._nodes: dict[NodeId, Node] = {}
        self._numbers = count()
        self._killed: dict[NodeId, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        await self._supervisor.start(LOOPBACK, 0)
        old = self._settings
        self._settings = Settings(
            supervisors=(self._supervisor.address,),
            tick_s=old.tick_s,
            flush_s=old.tick_s / 10,
            config=old.config,
        )
        try:
            for _ in range(self._n):
                await self.join()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for name in self.nodes:
            self.kill(name)
        await asyncio.gather(*self._killed.values(), return_exceptions=True)
        await self._supervisor.close()

    @property
    def url(self) -> str:
        """What ``skipring.connect`` takes to get to this cluster."""
        return f"skipring://{self._supervisor.address}"

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """The names of the nodes that live."""
        return tuple(self._nodes)

    # -- what happens ------------------------------------------------------------------------

    async def join(self, name: NodeId | None = None) -> NodeId:
        """Start a node that becomes a member of the topic; return its name."""
        if name is None:
            name = next(free for free in map("n{:02d}".format, self._numbers) if self._is_new(free))
        elif not self._is_new(name):
            raise InputError(f"there is or was a node called {name}; take another name")
        node = Node(name, self._settings, rng=Random(name), deliver=_ignore)
        self._nodes[name] = await node.start(LOOPBACK, 0)
        node.subscribe(self.topic)
        return name

    def _is_new(self, name: NodeId) -> bool:
        return name not in self._nodes and name not in self._killed

    def kill(self, name: NodeId) -> None:
        """Stop a node at once, as a crash would: nobody is told."""
        node = self._nodes.pop(self._known(name))
        self._killed[name] = asyncio.get_running_loop().create_task(node.close())

    async def publish(self, name: NodeId, payload: bytes) -> bytes:
        """Let a node publish; return the id."""
        node = self._nodes[self._known(name)]
        return await node.publish(self.topic, PublishRequested(payload=payload))

    # -- what can be seen --------------------------------------------------------------------

    def payloads(self, name: NodeId) -> list[bytes]:
        """What a node has stored, in the order in which it came."""
        stored = self._nodes[self._known(name)].states()[self.topic].publications
        return [publication.payload or b"" for publication in stored]

    def snapshot(self) -> Snapshot:
        """The state of the topic, without what is in flight."""
        return Snapshot(
            topic=self.topic,
            supervisor=self._supervisor.state(self.topic),
            subscribers={name: node.states()[self.topic] for name, node in self._nodes.items()},
            crashed=tuple(self._killed),
        )

    def violations(self) -> list[str]:
        """What keeps the ring from being legitimate, and all nodes from having all, in words."""
        seen = self.snapshot()
        return [str(each) for judge in (violations, publication_violations) for each in judge(seen)]

    async def settle(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  (it says what is wrong)
        """Wait until the ring is legitimate and every node has every publication.

        TimeoutError if that takes longer, which says what is wrong.
        """
        await self.until(lambda: not self.violations(), timeout)

    async def until(self, holds: Callable[[], bool], timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Wait until something holds; TimeoutError if that takes longer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            began = loop.time()
            if holds():
                return
            now = loop.time()
            if now >= deadline:
                wrong = "; ".join(self.violations()[:5]) or "nothing is wrong with the ring"
                raise TimeoutError(f"not in {timeout:g} s: {wrong}")
            await asyncio.sleep(min(max(POLL_S, JUDGING_SHARE * (now - began)), deadline - now))

    def _known(self, name: NodeId) -> NodeId:
        if name not in self._nodes:
            raise InputError(f"no node called {name} lives; there are {', '.join(self._nodes)}")
        return name


def _ignore(topic: TopicId, delivery: Deliver) -> None:
    """What is delivered can be read from the node's archive."""
