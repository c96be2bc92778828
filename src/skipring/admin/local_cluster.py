"""In-process cluster support: the supervisor, and the view of members in other processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Final

from msgspec import Struct

from skipring.core.events import Overwritten
from skipring.core.peers import NodeId, TopicId
from skipring.core.roster import Roster
from skipring.core.state import SupervisorState
from skipring.core.summaries import EMPTY_ROOT
from skipring.errors import InputError
from skipring.net.addresses import LOOPBACK, AddressBook, split_address
from skipring.node.process import allow_files
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.rpc.client import RpcClient
from skipring.storage.supervisor_store import SupervisorStore
from skipring.wire.rpc import Address, GetNodeStatus, NodeStatus
from skipring.world.legitimacy import Layer, Violation
from skipring.world.snapshot import Parcel, SubscriberView

# Measured: a node has 7 open files in a ring that has formed, and 22 after A15 at n=200.
FILES_OF_A_NODE: Final = 8
FILES_OF_A_NODE_MAX: Final = 64
FILES_ASIDE: Final = 256  # Guess: open files of the rest of the process.
ANSWER_S: Final = 1.0  # Guess: a running process on this machine answers within this time.


class RestartableSupervisor:
    """Supervisor that can stop and start again at the same address."""

    def __init__(self, settings: NodeSettings, directory: Path | None) -> None:
        self.server: SupervisorHost | None = None
        self.address: Address = f"{LOOPBACK}:0"  # picks a free port
        self._settings = settings
        self._directory = directory
        self._store: SupervisorStore | None = None
        self._kept: dict[TopicId, SupervisorState] = {}  # state of a stopped supervisor
        self._crashing: asyncio.Task[None] | None = None

    async def start(self, *, lose_data: bool = False) -> None:
        """Start a supervisor at the address."""
        if self.server is not None:
            raise InputError(f"the supervisor at {self.address} is running; stop it first")
        await self.stop()  # a crashed one may still be closing
        if lose_data:
            self._kept = {}
        if self._directory is not None:
            if lose_data:
                rmtree(self._directory, ignore_errors=True)
            self._store = SupervisorStore.open(self._directory)
        self.server = SupervisorHost(
            self._settings, rng=Random(0), store=self._store, crash=self._crash
        )
        host, port = split_address(self.address, "supervisor", is_secured=False)
        await self.server.start(host, port)
        self.address = self.server.address
        for topic, state in self._kept.items() if self._store is None else ():
            self.server.dispatch(topic, Overwritten(state))

    async def stop(self) -> None:
        """Stop the supervisor if it is running."""
        if self._crashing is not None:
            await self._crashing
        await self._stop()

    async def _stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            self._kept = {topic: server.state(topic) for topic in server.members()}
            await server.close()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _crash(self) -> None:
        """Stop the supervisor instead of the process, which runs the whole cluster."""
        self._crashing = asyncio.get_running_loop().create_task(self._stop())

    def state(self, topic: TopicId) -> SupervisorState:
        """Return the database of a topic, or its last state if the supervisor is stopped."""
        if self.server is not None:
            return self.server.state(topic)
        return self._kept.get(topic, SupervisorState())


# -- members of other processes ----------------------------------------------------------------


class ForeignView(Struct, frozen=True):
    """View of a topic for the legitimacy check; it refers to the local machines without a copy."""

    topic: TopicId
    roster: Roster
    subscribers: Mapping[NodeId, SubscriberView]
    crashed: Sequence[NodeId]

    def in_flight(self) -> Iterable[Parcel]:
        """Return no messages: those in sockets cannot be observed."""
        return ()


def known_addresses(nodes: Iterable[NodeId], books: Sequence[AddressBook]) -> dict[NodeId, Address]:
    """Return the addresses of nodes, from the first book that has each; omit unknown nodes."""
    return {
        node: address
        for node in sorted(nodes)
        if (address := next(filter(None, (book.find(node) for book in books)), None))
    }


async def member_statuses(
    client: RpcClient,
    topic: TopicId,
    addresses: Mapping[NodeId, Address],
    answer_s: float = ANSWER_S,
) -> dict[NodeId, NodeStatus]:
    """Ask members for their status, all at once; omit members that refuse or do not answer."""
    client.book.learn(addresses)
    answers = await asyncio.gather(
        *(client.request(topic, node, GetNodeStatus, NodeStatus, answer_s) for node in addresses)
    )
    return {
        node: answer
        for node, answer in zip(addresses, answers, strict=True)
        if isinstance(answer, NodeStatus)
    }


def root_violations(tries: Mapping[NodeId, tuple[bytes, int]]) -> Iterator[Violation]:
    """Yield the members whose trie differs from the most common one, given roots and sizes.

    A member whose index is behind reports the root of an empty trie, so it counts as different.
    """
    ranking = Counter(tries.values()).most_common(1)
    for node, (root, count) in tries.items():
        if (root, count) != ranking[0][0] or (root == EMPTY_ROOT and count > 0):
            yield Violation(
                Layer.PUBLICATIONS, f"{node} has {count} publications, and most members have others"
            )


def allow_files_of(n: int) -> None:
    """Increase the limit of open files for a cluster; raise InputError if it stays too low."""
    needed = FILES_ASIDE + FILES_OF_A_NODE * n
    allowed = allow_files(FILES_ASIDE + FILES_OF_A_NODE_MAX * n)
    if allowed < needed:
        raise InputError(
            f"a cluster of {n} nodes opens about {needed} files, and {allowed} are allowed; raise "
            "the limit (ulimit -Hn), or use fewer nodes"
        )
