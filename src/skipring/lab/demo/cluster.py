"""Cluster of the demo: its processes, the orders that they publish, and the damage to them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from time import time_ns
from typing import Final

from skipring.admin.chaos_client import ChaosClient
from skipring.admin.chaos_plans import Damages, adversarial, spoilt_tries
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.errors import UnreachableError
from skipring.lab.demo.state import Checker, ClusterState
from skipring.lab.processes import Processes, numbered, until
from skipring.rpc.client import RpcClient
from skipring.storage.segment import SUFFIX
from skipring.storage.store import TOPICS
from skipring.wire.chaos import CorruptTrie
from skipring.wire.rpc import Address, NodeStatus, Publish, PublishAck

TOPIC: Final = "orders"


class DemoCluster:
    """Supervisor and nodes as processes, with a checker and a publisher."""

    def __init__(self, n: int, seed: int, directory: Path, processes: Processes) -> None:
        self.names = numbered(n)
        self.witness = self.names[0]  # never killed, so its ticks count the rounds
        self.rng = Random(seed)  # chooses the victims and nothing else
        self.directory = directory
        self._seed = seed
        self.processes = processes

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Start the supervisor; connect the checker and the publisher."""
        self.processes.fork_supervisor()
        await self._until_listening([SUPERVISOR])
        async with RpcClient([self.supervisor], rng=Random()) as client:
            self._client = client
            self._checker = Checker(client, TOPIC)
            rng = Random(f"{self._seed}/orders")
            self.orders = OrderPublisher(client, TOPIC, self.addresses, rng)
            yield

    async def start_nodes(self) -> None:
        """Start all nodes; return once they listen."""
        for name in self.names:
            self.processes.fork_node(name, TOPIC)
        await self._until_listening(self.names)

    async def _until_listening(self, names: Iterable[str]) -> None:
        for name in names:
            is_listening = partial(self.processes.is_listening, name)
            await until(is_listening, f"{name} does not listen")
        if nodes := self.addresses():
            self._client.book.learn(nodes)  # known even while the supervisor is down

    # -- observations --------------------------------------------------------------------------

    @property
    def supervisor(self) -> Address:
        """Return the address of the supervisor, even while it is down."""
        processes = self.processes
        return (processes.running.get(SUPERVISOR) or processes.ended[SUPERVISOR]).address

    def addresses(self) -> dict[NodeId, Address]:
        """Return the addresses of the running nodes."""
        running = self.processes.running
        return {name: running[name].address for name in self.processes.nodes}

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes."""
        return {name: process.pid for name, process in self.processes.running.items()}

    async def check(self, published: Iterable[bytes] | None = None) -> ClusterState:
        """Check the ring; every node should have ``published``, by default all orders."""
        ids = list(self.orders.acknowledged if published is None else published)
        has_supervisor = SUPERVISOR in self.processes.running
        nodes = self.processes.nodes
        return await self._checker.check(nodes, ids, has_supervisor=has_supervisor)

    async def rounds(self) -> int | None:
        """Return the ticks of a node since its start; None if it does not answer."""
        return await self._checker.tick(self.witness)

    # -- damage --------------------------------------------------------------------------------

    async def kill(self, names: Iterable[str]) -> None:
        """Send SIGKILL to all processes at once; return once they have ended."""
        victims = list(names)
        for name in victims:
            self.processes.send_signal(name, signal.SIGKILL)
        for name in victims:
            await until(partial(self._has_ended, name), f"{name} still runs")

    def _has_ended(self, name: str) -> bool:
        return self.processes.status(name) is not None

    async def restart(self, names: Iterable[str]) -> None:
        """Start processes again, with their data; return once they listen."""
        ended = list(names)
        for name in ended:
            self.processes.fork_again(name)
        await self._until_listening(ended)

    def delete_database(self) -> None:
        """Delete the data directory of the killed supervisor."""
        rmtree(self.processes.data(SUPERVISOR))

    def flip_bits(self, name: NodeId) -> int:
        """Damage the disk of a killed node; return the number of flipped bits."""
        return flip_bits(self.processes.data(name), self.rng)

    async def scramble(self) -> None:
        """Damage the memory of all processes, and remove half of the publications."""
        chaos = ChaosClient(self._client, TOPIC)
        await chaos.apply(scrambled(TOPIC, await chaos.members(), self._seed))


# --- orders ----------------------------------------------------------------------------

ANSWER_S: Final = 2.0  # Guess: after this, another member gets the same publication.
PAUSE_S: Final = 0.05  # Guess: short enough that a publication is always in flight.
SHOPS: Final = ("shop-hamburg", "shop-lisbon", "shop-oslo")
ITEMS: Final = (("tea", 450), ("coffee", 620), ("cocoa", 510), ("biscuits", 280), ("honey", 890))
CUSTOMERS: Final = 40


class OrderPublisher:
    """Publisher of orders through members in turn; it stores the acknowledged ids."""

    def __init__(
        self,
        client: RpcClient,
        topic: TopicId,
        members: Callable[[], Mapping[NodeId, Address]],
        rng: Random,
    ) -> None:
        self.acknowledged: list[bytes] = []  # ids of batches; each is one order
        self._client = client
        self._topic = topic
        self._members = members
        self._rng = rng
        self._made = 0

    async def publish(self, count: int) -> None:
        """Publish ``count`` orders concurrently; return when all are acknowledged."""
        await asyncio.gather(*(self._publish_one() for _ in range(count)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish one order after the other until the block ends."""
        is_over = asyncio.Event()
        task = asyncio.create_task(self._publish_until(is_over))
        try:
            yield
        except BaseException:
            task.cancel()
            raise
        finally:
            is_over.set()  # the publisher ends after its last acknowledgement
            await asyncio.wait([task])
        task.result()  # raises the error that ended it

    async def _publish_until(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await self._publish_one()
            await asyncio.sleep(PAUSE_S)

    async def _publish_one(self) -> None:
        """Publish through one member; if it does not acknowledge, through the next."""
        order = self._order()
        members = self._members()
        names = sorted(members)
        first = order.first % len(names)
        for name in (*names[first:], *names[:first]):
            self._client.book.learn({name: members[name]})
            request = partial(Publish, batch=order)
            answer = await self._client.request(self._topic, name, request, PublishAck, ANSWER_S)
            if isinstance(answer, PublishAck):
                self.acknowledged.append(answer.id)
                return
        raise UnreachableError(f"none of {len(names)} nodes has acknowledged order {order.first}")

    def _order(self) -> RecordBatch:
        """Return the next order; its id derives from its content, so a retry adds no order."""
        self._made += 1
        rng = self._rng
        item, cents = rng.choice(ITEMS)
        customer = f"customer-{rng.randrange(CUSTOMERS):02d}"
        order = {"order": self._made, "item": item, "cents": cents, "pieces": rng.randint(1, 5)}
        payload = json.dumps({**order, "customer": customer}).encode()
        record = BatchRecord(payload, time_ns() // 1000, customer.encode())
        shop = rng.choice(SHOPS)
        return RecordBatch.of([record], publisher=shop, first=self._made, topic=self._topic)


# --- damage ----------------------------------------------------------------------------

ARBITRARY: Final = "A15"  # the adversary of the catalog that sets every variable
LOST_SHARE: Final = 0.5  # share of a node's publications
BYTES_PER_FLIP: Final = 512  # Guess: damages about every second order.


def scrambled(topic: TopicId, members: Mapping[NodeId, NodeStatus], seed: int) -> Damages:
    """Return damage that sets all variables of all members and removes half of the publications."""
    damages = adversarial(ARBITRARY, topic, members, seed)
    for node, spoils in spoilt_tries(members, LOST_SHARE, seed).items():
        others = [each for each in damages.get(node, []) if not isinstance(each, CorruptTrie)]
        damages[node] = [*others, *spoils]
    return damages


def flip_bits(data: Path, rng: Random) -> int:
    """Flip bits in the segments of a closed store; return the number of flipped bits."""
    flipped = 0
    for path in sorted(data.glob(f"{TOPICS}/*/*{SUFFIX}")):
        content = bytearray(path.read_bytes())
        for place in rng.sample(range(len(content)), len(content) // BYTES_PER_FLIP):
            content[place] ^= 1 << rng.randrange(8)
            flipped += 1
        path.write_bytes(content)
    return flipped
