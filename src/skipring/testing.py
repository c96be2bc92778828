"""Real cluster in one process, for tests: supervisors and nodes on loopback.

It injects the faults of ``skipring chaos`` with direct calls instead of requests over sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from typing import Final, Self

from msgspec.structs import replace

from skipring.admin import chaos_plans
from skipring.admin.diagnosis import is_about
from skipring.admin.inspector import ring_state
from skipring.admin.local_cluster import (
    ForeignView,
    RestartableSupervisor,
    allow_files_of,
    known_addresses,
    member_statuses,
    root_violations,
)
from skipring.api.connection import connect
from skipring.api.keyvalue import KeyValue
from skipring.core.batches import BatchRecord
from skipring.core.effects import Deliver
from skipring.core.log import MemoryLog
from skipring.core.log_messages import Refused
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.roster import Roster
from skipring.core.state import SubscriberState
from skipring.core.subscriber import Subscriber
from skipring.errors import InputError
from skipring.net.addresses import LOOPBACK, supervisor_of
from skipring.node.host import NodeHost
from skipring.node.settings import FLUSHES_PER_TICK, NodeSettings
from skipring.node.status_server import node_status
from skipring.node.supervisor_host import SupervisorHost
from skipring.rpc.client import RpcClient
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import LogStore
from skipring.wire.chaos import ChaosAck, Damage
from skipring.wire.rpc import Address, NodeStatus
from skipring.world.legitimacy import publication_violations, violations
from skipring.world.snapshot import Snapshot

# Guess and measurement: a tick of a node costs 0.5 ms, so all nodes take a quarter of the time.
TICK_S: Final = 0.05
TICK_OF_A_NODE_S: Final = 0.002
POLL_S: Final = 0.01  # Guess: soon enough, and a large ring is still judged rarely.
JUDGING_SHARE: Final = 4  # Guess: judging takes a quarter of the time at most.
NAMED_MAX: Final = 5  # Guess: more violations in an error are not read.
UNLIMITED_TICKS: Final = 1 << 40


class Cluster:
    """Supervisors and ``n`` nodes in one topic, with real sockets.

    >>> import asyncio
    >>> from skipring.testing import Cluster
    >>> async def scene() -> list[list[bytes]]:
    ...     async with Cluster(n=3) as cluster:
    ...         await cluster.publish("n00", b"hello")
    ...         await cluster.wait_healthy(timeout=30)
    ...         return [cluster.payloads(name) for name in cluster.nodes]
    >>> asyncio.run(scene())
    [[b'hello'], [b'hello'], [b'hello']]

    The nodes are called n00, n01 and so on. Without ``data_dir`` everything is in memory; with it,
    nodes and supervisors keep folders there and restart with their content. An interval takes
    ``tick_s``, or longer if ``n`` nodes in one process need more time. Several supervisors share
    the topics; they are numbered from 0.

    The cluster heals after any damage (``kill``, ``corrupt``, ``spoil``, ``partition``,
    ``stop_supervisor``), and ``wait_healthy`` waits for that:

    >>> async def scene() -> None:
    ...     async with Cluster(n=4) as cluster:
    ...         cluster.corrupt()
    ...         with cluster.partition(["n00"], ["n01", "n02", "n03"]):
    ...             await cluster.publish("n00", b"not delivered yet")
    ...         await cluster.wait_healthy(timeout=30)
    >>> asyncio.run(scene())

    A program under test may connect to ``url`` and join the topic: ``wait_healthy`` asks it by RPC,
    while ``violations`` and ``snapshot`` cover only the processes of the cluster.
    """

    def __init__(
        self,
        n: int = 16,
        tick_s: float | None = None,
        topic: TopicId = "news",
        *,
        data_dir: Path | None = None,
        supervisors: int = 1,
    ) -> None:
        self.topic = topic
        self._n = n
        tick_s = tick_s if tick_s is not None else max(TICK_S, n * TICK_OF_A_NODE_S)
        flush_s = tick_s / FLUSHES_PER_TICK
        self._settings = NodeSettings(
            tick_s=tick_s, flush_s=flush_s, is_chaotic=True, policy_delay_s=0
        )
        self._data_dir = data_dir
        directories = (f"supervisor-{number}" for number in range(supervisors))
        self._seats = [
            RestartableSupervisor(self._settings, self._directory(name)) for name in directories
        ]
        self._nodes: dict[NodeId, NodeHost] = {}
        self._stores: dict[NodeId, LogStore] = {}
        self._numbers = count()
        self._killed: dict[NodeId, asyncio.Task[None]] = {}
        self._delivered: dict[NodeId, list[bytes]] = {}

    def _directory(self, name: str) -> Path | None:
        return self._data_dir / name if self._data_dir is not None else None

    async def __aenter__(self) -> Self:
        allow_files_of(self._n)
        try:
            for seat in self._seats:
                await seat.start()
            self.use_supervisors(*range(len(self._seats)))
            await self._join_all()
        except BaseException:
            await self._stop()
            raise
        return self

    async def _join_all(self) -> None:
        starting = (self.join() for _ in range(self._n))
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for name in self.nodes:
            self.kill(name)
        await asyncio.gather(*self._killed.values(), return_exceptions=True)
        for seat in self._seats:
            await seat.stop()

    @property
    def url(self) -> str:
        """Return the URL of this cluster for ``skipring.connect``."""
        return f"skipring://{','.join(self._settings.supervisors)}"

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Return the names of the live nodes, in order."""
        return tuple(sorted(self._nodes))

    def node(self, name: NodeId) -> NodeHost:
        """Return a live node, for operations that the cluster does not offer."""
        return self._nodes[self._known(name)]

    def supervisor(self, number: int = 0) -> SupervisorHost:
        """Return a live supervisor, for operations that the cluster does not offer."""
        server = self._seats[number].server
        if server is None:
            raise InputError(f"supervisor {number} is stopped; start it first")
        return server

    # -- start and stop nodes ----------------------------------------------------------------

    async def join(self, name: NodeId | None = None) -> NodeId:
        """Start a node that becomes a member of the topic; return its name."""
        if name is None:
            names = map("n{:02d}".format, self._numbers)
            name = next(free for free in names if free not in self._delivered)
        elif name in self._delivered:
            raise InputError(f"a node {name} exists or existed; choose another name")
        self._delivered[name] = []
        await self._start(name)
        return name

    async def _start(self, name: NodeId) -> None:
        store, trace, directory = None, None, self._directory(name)
        if directory is not None:
            store = await asyncio.to_thread(LogStore.open, directory, name)
            self._stores[name] = store
            trace = await asyncio.to_thread(DeliveryLog.open, directory, store)
        node = NodeHost(
            name,
            self._settings,
            rng=Random(name),
            crash=partial(self.kill, name),
            store=store,
            trace=trace,
        )
        self._nodes[name] = node
        await node.start(LOOPBACK, 0)
        node.subscribe(self.topic)
        node.attach(self.topic, partial(self._on_delivered, name))

    def _on_delivered(self, name: NodeId, delivery: Deliver) -> None:
        self._delivered[name] += (each.payload for records in delivery.records for each in records)

    def kill(self, name: NodeId) -> None:
        """Stop a node at once, as a crash would, without notification."""
        node = self._nodes.pop(self._known(name))
        ending = _end(node, self._stores.pop(name, None))
        self._killed[name] = asyncio.get_running_loop().create_task(ending)

    async def restart(self, name: NodeId) -> None:
        """Restart a killed node, with its disk if it has one."""
        if name not in self._killed:
            raise InputError(f"no killed node {name}")
        await self._killed.pop(name)
        await self._start(name)

    async def leave(self, name: NodeId, timeout: float = 30.0) -> bool:  # noqa: ASYNC109
        """Make a node leave the topic and stop; return True if the supervisor confirms in time.

        The node first hands over its publications to a remaining member.
        """
        node = self.node(name)
        await node.drain(self.topic, timeout)
        is_released = await node.unsubscribe(self.topic, timeout)
        self.kill(name)
        await self._killed[name]
        return is_released

    async def publish(self, name: NodeId, payload: bytes) -> bytes:
        """Publish at a node; return the id."""
        (made,) = await self.node(name).publish(self.topic, BatchRecord(payload))
        return made

    @asynccontextmanager
    async def keyvalue(self, topic: TopicId) -> AsyncIterator[KeyValue[bytes]]:
        """Yield a key-value view of a topic, at a node that joins its ring for the block."""
        tick_s = self._settings.tick_s
        async with (
            connect(self.url, tick_s=tick_s, drain_s=0, policy_delay_s=0) as node,
            node.keyvalue(topic) as view,
        ):
            yield view

    # -- start and stop supervisors ----------------------------------------------------------

    async def stop_supervisor(self, number: int = 0) -> None:
        """Stop a supervisor at once."""
        await self._seats[number].stop()

    async def start_supervisor(self, number: int = 0, *, lose_data: bool = False) -> None:
        """Restart a supervisor at its address, with its database or with an empty one."""
        await self._seats[number].start(lose_data=lose_data)

    def use_supervisors(self, *numbers: int) -> None:
        """Give the nodes another list of supervisors, by number; all supervisors keep running."""
        addresses = tuple(self._seats[number].address for number in numbers)
        self._settings = replace(self._settings, supervisors=addresses)
        for node in self._nodes.values():
            node.membership.set_supervisors(addresses)

    # -- damage ------------------------------------------------------------------------------

    def corrupt(self, adversary: str = "A15", seed: int = 0) -> None:
        """Put the topic into an initial state of the simulator's catalog.

        ``A15`` is everything arbitrary, ``A05`` a ring with an empty database;
        `skipring simulate` uses the same codes. The content of publications does not change.
        """
        self._inflict(chaos_plans.adversarial(adversary, self.topic, self._statuses(), seed))

    def spoil(self, share: float = 0.5, seed: int = 0) -> None:
        """Set wrong hashes at all nodes, and delete a share of the publications at all but one.

        No publication is lost permanently: at least one node keeps each.
        """
        self._inflict(chaos_plans.spoilt_tries(self._statuses(), share, seed))

    def partition(self, *groups: Iterable[NodeId]) -> AbstractContextManager[object]:
        """Block all traffic between groups of nodes, until ``heal``.

        It also ends with a block: ``with cluster.partition(["n00"], ["n01", "n02"]): ...``. Without
        groups there are two halves. A node in no group keeps all its connections, and so do
        supervisors, unless a group names them, as ``"supervisor"``.
        """
        nodes, half = list(self.nodes), len(self._nodes) // 2
        sides = [list(group) for group in groups] or [nodes[:half], nodes[half:]]
        chaos_plans.check_names(chain(*sides), nodes)
        self._inflict(chaos_plans.partition(sides, UNLIMITED_TICKS))
        until_the_end = ExitStack()
        until_the_end.callback(self.heal)
        return until_the_end

    def heal(self) -> None:
        """End every partition."""
        self._inflict(chaos_plans.healed(self.nodes))

    def _statuses(self) -> dict[NodeId, NodeStatus]:
        if machines := self._machines(self.topic):
            return {name: node_status(machine, 0) for name, machine in machines.items()}
        raise InputError("no node can be damaged; start one with join first")

    def _inflict(self, damages: chaos_plans.Damages) -> None:
        addresses = {name: node.address for name, node in self._nodes.items()}
        for node in self._nodes.values():
            node.links.book.learn(addresses)  # a node that refers to another one knows its address
        for name, planned in damages.items():
            for damage in planned:
                answer = self._damaged(name, damage)
                assert isinstance(answer, ChaosAck), answer

    def _damaged(self, name: NodeId, damage: Damage) -> ChaosAck | Refused:
        if name != SUPERVISOR:
            return self._nodes[name].chaos.handle(self.topic, damage)
        server = self._seat_of(self.topic).server
        if server is None:
            return ChaosAck(0)  # stopped: there is nothing to damage
        return server.chaos.handle(self.topic, damage)

    # -- queries -----------------------------------------------------------------------------

    def payloads(self, name: NodeId) -> list[bytes]:
        """Return the stored payloads of a node, in the order of arrival."""
        log = self.node(name).logs.by_topic.get(self.topic, MemoryLog())
        entries = log.read_range(0, log.end)
        return [each.payload for entry in entries for each in entry.batch.records()]

    def delivered(self, name: NodeId) -> list[bytes]:
        """Return the payloads that a node delivered, in order; also of a stopped node."""
        return self._delivered[name]

    def snapshot(self, topic: TopicId | None = None) -> Snapshot:
        """Return the state of the topic, or of another one, without messages in flight."""
        topic = topic if topic is not None else self.topic
        machines = self._machines(topic)
        return Snapshot(
            topic=topic,
            supervisor=self._seat_of(topic).state(topic),
            subscribers={name: machine.state() for name, machine in machines.items()},
            crashed=tuple(self._killed),
        )

    def violations(self, topic: TopicId | None = None) -> list[str]:
        """Return the violations of the ring and of complete publications, in words.

        Members that other processes run are assumed to be correct; ``wait_healthy`` asks them.
        """
        return list(self._violations(topic if topic is not None else self.topic))

    def _violations(
        self, topic: TopicId, statuses: Mapping[NodeId, NodeStatus] | None = None
    ) -> Iterator[str]:
        """Check the cluster's own nodes and, if statuses are given, the other members."""
        machines = self._machines(topic)
        trusted = self._foreign(topic) if statuses is None else {}
        others = {name: ring_state(status) for name, status in (statuses or {}).items()}
        others |= dict.fromkeys(trusted, SubscriberState())
        roster = Roster()
        state = self._seat_of(topic).state(topic)
        roster.load(state.database, state.next)
        killed = tuple(self._killed)
        for each in violations(ForeignView(topic, roster, {**machines, **others}, killed)):
            if not any(is_about(each, name) for name in trusted):
                yield str(each)
        yield from map(str, publication_violations(ForeignView(topic, roster, machines, killed)))
        if statuses:
            own = {n: (it.trie().root(), it.replica.log.records) for n, it in machines.items()}
            seen = own | {name: (it.root, it.count) for name, it in statuses.items()}
            yield from map(str, root_violations(seen))

    def _foreign(self, topic: TopicId) -> dict[NodeId, Address]:
        """Return the addresses of recorded members that other processes run."""
        seat = self._seat_of(topic)
        state = seat.state(topic)
        names = {node for _, node in state.database if node is not None}.union(state.queue)
        hosts = [*([seat.server] if seat.server else ()), *self._nodes.values()]
        books = [host.links.book for host in hosts]
        return known_addresses(names - self._nodes.keys() - self._killed.keys(), books)

    def _machines(self, topic: TopicId) -> dict[NodeId, Subscriber]:
        found = {name: self._nodes[name].machine(topic) for name in self.nodes}
        return {name: machine for name, machine in found.items() if machine is not None}

    def _seat_of(self, topic: TopicId) -> RestartableSupervisor:
        address = supervisor_of(topic, self._settings.supervisors)
        return next(seat for seat in self._seats if seat.address == address)

    async def wait_healthy(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  (it has a reason)
        """Wait until the ring is legitimate and every member is ready and has every publication.

        A member that another process runs counts once the supervisor has recorded it; await
        ``synced`` of its subscription first. Raise TimeoutError, which states what is wrong, if
        that takes longer.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        async with RpcClient(self._settings.supervisors, rng=Random()) as outsider:
            while True:
                await self._until(self._is_healthy, timeout, deadline)
                if not (foreign := self._foreign(self.topic)):
                    return
                statuses = await member_statuses(outsider, self.topic, foreign)
                wrong = list(islice(self._violations(self.topic, statuses), NAMED_MAX))
                if not wrong:
                    return
                if asyncio.get_running_loop().time() >= deadline:
                    raise TimeoutError(f"not healthy after {timeout:g} s: {'; '.join(wrong)}")
                await asyncio.sleep(POLL_S)

    def _is_healthy(self) -> bool:
        # Readiness first: it costs nothing, while judging reads every publication.
        is_incomplete = any(node.incompleteness(self.topic) for node in self._nodes.values())
        return not is_incomplete and not any(self._violations(self.topic))

    async def until(self, holds: Callable[[], bool], timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Wait until a condition holds; raise TimeoutError if that takes longer."""
        await self._until(holds, timeout, asyncio.get_running_loop().time() + timeout)

    async def _until(self, holds: Callable[[], bool], timeout_s: float, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if holds():
                return
            now = loop.time()
            if now >= deadline:
                found = islice(self._violations(self.topic), NAMED_MAX)
                wrong = "; ".join(found) or "nothing is wrong with the ring"
                raise TimeoutError(f"not true after {timeout_s:g} s: {wrong}")
            await asyncio.sleep(min(max(POLL_S, JUDGING_SHARE * (now - began)), deadline - now))

    def _known(self, name: NodeId) -> NodeId:
        if name not in self._nodes:
            raise InputError(f"no live node {name}; the live nodes are {', '.join(self.nodes)}")
        return name


async def _end(node: NodeHost, store: LogStore | None) -> None:
    try:
        await node.close()
    finally:
        if store is not None:
            store.close()
