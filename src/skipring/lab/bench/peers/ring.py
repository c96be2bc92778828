"""skipring itself, with all that it has: ids, hashes, stores on disk, repair; TLS on or off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import skipring
from skipring.api.connection import Connection
from skipring.api.subscription import Subscription
from skipring.core.config import ProtocolConfig
from skipring.core.messages import Publications, PublishMany, PublishNew
from skipring.core.peers import NodeId
from skipring.core.subscriber import Subscriber
from skipring.lab.bench.peers.run import BenchRun, Publisher, Receive, Subscribers, topics_of, until
from skipring.node.host import NodeHost
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.rpc import WireMessage

TICK_S: Final = 1.0  # as users have it
# While a ring forms time goes faster. Measured: a tick of a node costs 0.5 ms.
FORMING_TICK_S: Final = 0.05
FORMING_TICK_OF_A_NODE_S: Final = 0.002
JOINED_AT_ONCE: Final = 32  # Our guess: handshakes that do not time out on one core.
CERTIFICATE: Final = "bench"  # its holder may act as any node called bench.something
ROOT_FILE: Final = "publisher.root"
FIRST_FILE: Final = "first.joined"
FORMING_S: Final = 180.0  # Our guess: some hundred nodes on one core have a ring by then.
SETTLING_S: Final = 120.0
SETTLING_POLL_S: Final = 0.02  # Our guess: rarely, since looking at all members is counted too.

View = tuple[object, ...]


class BenchPlace:
    """A member's place in the ring of one topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self.subscription: Subscription = connection.subscribe(topic)
        self._topic = topic
        self._connection = connection
        self._view: View = ()
        self._seen_at = 0  # the tick at which our view became what it is

    @property
    def _machine(self) -> Subscriber:
        machine = self._connection.node.machine(self._topic)
        assert machine is not None, "a member has a machine"
        return machine

    @property
    def is_calm(self) -> bool:
        """True if new publications go over the tree: our view is as old as that takes."""
        machine, ticks = self._machine, self._connection.node.ticker.calls
        peers = [each for each in (machine.left, machine.right, machine.ring) if each is not None]
        shortcuts = machine.shortcuts
        view = (machine.label, *peers, *shortcuts.values())
        if view != self._view:
            self._view, self._seen_at = view, ticks
        if machine.label is None or None in shortcuts.values():
            return False
        levels = max([machine.label.length, *(each.label.length for each in peers)])
        # One more than needed: our first look at a view may be some time after it has come.
        return ticks - self._seen_at > levels + ProtocolConfig().calm_ticks

    @property
    def root(self) -> bytes:
        """The digest of all that we have."""
        return self._machine.index().root

    @property
    def is_read(self) -> bool:
        """True if all that we have been handed was read."""
        return self.subscription.reader.end == self._machine.archive.end


class BenchMember:
    """A node in the rings of all topics, over sockets of its own, with a store on the disk."""

    def __init__(self, run: BenchRun, name: str, *, is_hurried: bool = True) -> None:
        self._forming_tick_s = forming_tick_s(run.n * run.topics) if is_hurried else TICK_S
        self._connection = self._connect(run, name)
        self._places = [BenchPlace(self._connection, topic) for topic in topics_of(run)]
        self.messages = 0  # publications that have come in messages, also those that we had

    def _connect(self, run: BenchRun, name: str) -> Connection:
        return connection(run, name)

    @property
    def node(self) -> NodeHost:
        """The node below."""
        return self._connection.node

    @property
    def subscriptions(self) -> list[Subscription]:
        """One of each topic."""
        return [place.subscription for place in self._places]

    @property
    def subscription(self) -> Subscription:
        """That of the first topic, which often is the only one."""
        return self._places[0].subscription

    async def join(self) -> None:
        """Subscribe, and let time go fast until the ring has formed."""
        await self._connection.__aenter__()
        for subscription in self.subscriptions:
            await subscription.__aenter__()
        self._set_tick(self._forming_tick_s)

    async def leave(self) -> None:
        """Leave the ring, and close the store."""
        for subscription in self.subscriptions:
            await subscription.__aexit__(None, None, None)
        await self._connection.__aexit__(None, None, None)

    def begin(self) -> None:
        """The ring has formed: time goes as usual."""
        self._set_tick(TICK_S)
        self._count_messages()
        self._bytes_before = self.node.links.bytes_sent

    @property
    def bytes_sent(self) -> int:
        """How much we have sent since then."""
        return self.node.links.bytes_sent - self._bytes_before

    def _count_messages(self) -> None:
        links = self.node.links
        receive = links.receive

        def count(sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
            self.messages += _carried(envelope.message)
            receive(sender, envelope, frame)

        links.receive = count  # type: ignore[method-assign]

    def _set_tick(self, period_s: float) -> None:
        ticker = self.node.ticker
        ticker._period_s = period_s  # noqa: SLF001  (users have no reason to change it)
        ticker.start()

    @property
    def is_calm(self) -> bool:
        """True if new publications go over the tree, in all topics."""
        found = [place.is_calm for place in self._places]  # every one has to be looked at
        return all(found)

    @property
    def root(self) -> bytes:
        """The digests of all that we have."""
        return b"".join(place.root for place in self._places)

    @property
    def is_durable(self) -> bool:
        """True if all that we have been handed is on the disk."""
        return self.node.durability.unwritten == 0 and all(each.is_read for each in self._places)


def forming_tick_s(n: int) -> float:
    """How long a tick is while a ring of so many nodes forms."""
    return max(FORMING_TICK_S, n * FORMING_TICK_OF_A_NODE_S)


def connection(run: BenchRun, name: str) -> Connection:
    """A connection as a user makes it."""
    files: dict[str, Path] = {}
    if run.certificates is not None:
        files = {
            "ca": run.certificates / "ca.pem",
            "cert": run.certificates / f"{CERTIFICATE}.pem",
            "key": run.certificates / f"{CERTIFICATE}.key",
        }
    return skipring.connect(
        f"skipring://{run.address}",
        data_dir=run.directory / name,
        name=f"{CERTIFICATE}.{name}",
        tick_s=TICK_S,
        **files,  # type: ignore[arg-type]
    )


async def join(members: Sequence[BenchMember]) -> None:
    """Let members join, some at a time."""
    for start in range(0, len(members), JOINED_AT_ONCE):
        joining = members[start : start + JOINED_AT_ONCE]
        await asyncio.gather(*(member.join() for member in joining))


async def calm(members: Iterable[BenchMember]) -> None:
    """Wait until all members of this process are calm, and have what their neighbours have."""
    waiting = list(members)

    def are_calm() -> bool:
        found = [member.is_calm for member in waiting]  # every one has to be looked at
        return all(found)

    await until(are_calm, "a calm ring", FORMING_S)
    subscriptions = [each for member in waiting for each in member.subscriptions]
    await asyncio.gather(*(each.synced(FORMING_S) for each in subscriptions))


async def _first_has_joined(run: BenchRun) -> None:
    """Wait for who has to be the first, if somebody has."""
    if run.is_first_apart:
        await until((run.directory / FIRST_FILE).exists, "the first member")


class RingPublisher(Publisher):
    """A member that publishes."""

    async def connect(self) -> None:
        """Join."""
        await _first_has_joined(self.run)
        self._member = BenchMember(self.run, "publisher")
        await self._member.join()

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these: when it returns they are on our disk."""
        subscriptions = self._member.subscriptions
        if len(subscriptions) == 1:
            await subscriptions[0].publish_many(payloads)
            return
        turns = [payloads[turn :: len(subscriptions)] for turn in range(len(subscriptions))]
        publishing = (
            subscription.publish_many(some)
            for subscription, some in zip(subscriptions, turns, strict=True)
            if some
        )
        await asyncio.gather(*publishing)

    async def calm(self) -> None:
        """Wait until new publications go over the tree."""
        await calm([self._member])

    def begin(self) -> None:
        """Let time go as usual."""
        self._member.begin()

    async def settle(self) -> None:
        """Wait until all is on the disk, and say what we have."""
        await until(lambda: self._member.is_durable, "a durable store", SETTLING_S)
        unfinished = self.run.directory / f"{ROOT_FILE}.new"
        unfinished.write_bytes(self._member.root)
        unfinished.rename(self.run.directory / ROOT_FILE)


class RingSubscribers(Subscribers):
    """Members that read."""

    async def connect(self) -> None:
        """Join, some at a time."""
        await _first_has_joined(self.run)
        names = (f"s{number:04}" for number in range(self.run.n))
        self._members = [BenchMember(self.run, name) for name in names]
        await join(self._members)
        subscriptions = [each for member in self._members for each in member.subscriptions]
        self._reading = [
            asyncio.create_task(_read(subscription, receive))
            for subscription, receive in zip(subscriptions, self.receivers, strict=True)
        ]

    async def calm(self) -> None:
        """Wait until new publications go over the tree."""
        await calm(self._members)

    def begin(self) -> None:
        """Let time go as usual."""
        for member in self._members:
            member.begin()

    async def settle(self) -> None:
        """Wait until all stores are durable and all roots are the publisher's."""
        file, members = self.run.directory / ROOT_FILE, self._members

        async def all_are(what: str, is_so: Callable[[BenchMember], bool]) -> None:
            await until(lambda: all(map(is_so, members)), what, SETTLING_S, SETTLING_POLL_S)

        await all_are("durable stores", lambda member: member.is_durable)
        await until(file.exists, "the publisher's root", SETTLING_S)
        root = file.read_bytes()
        await all_are("equal roots", lambda member: member.root == root)

    def figures(self) -> dict[str, float]:
        """How many messages have brought a publication, and how much one member sent at most."""
        return {
            "messages": sum(member.messages for member in self._members),
            "hottest_bytes": max(member.bytes_sent for member in self._members),
        }


def _carried(message: object) -> int:
    """How many publications a message has brought."""
    match message:
        case PublishNew():
            return 1
        case PublishMany(publications=publications) | Publications(publications=publications):
            return len(publications)
        case _:
            return 0


async def _read(subscription: Subscription, receive: Receive) -> None:
    while publications := await subscription.read_many():
        for publication in publications:
            receive(publication.payload)


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return RingPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return RingSubscribers(run, receivers)
