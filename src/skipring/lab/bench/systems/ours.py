"""skipring as deployed: ids, hashes, stores on disk and repair, with or without TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from skipring.api.connection import Connection
from skipring.api.session import Session, new_session
from skipring.api.subscription import Subscription
from skipring.api.topic_session import TopicSession
from skipring.core.config import ProtocolConfig
from skipring.core.messages import Publications, PublishMany, PublishNew
from skipring.core.peers import NodeId
from skipring.core.subscriber import Subscriber
from skipring.lab.bench.report import Figures
from skipring.lab.bench.run import (
    CALM,
    JOINED,
    PROCESSES_MAX,
    RUN_S,
    BenchRun,
    Board,
    Moment,
    Slot,
    apart_roles,
    flag_file,
    topics_of,
)
from skipring.lab.bench.worker import (
    MEASURED,
    POLL_S,
    Newcomer,
    PublisherEndpoint,
    Receive,
    Role,
    Subscribers,
    age_ns,
    collect_and_freeze,
    percentiles_ms,
)
from skipring.lab.processes import until
from skipring.net.transport import Receiver
from skipring.node.host import NodeHost
from skipring.wire.codec import Envelope
from skipring.wire.framing import Frame
from skipring.wire.rpc import WireMessage

TICK_S: Final = 1.0  # the default
# Ticks while a ring forms are shorter. Measured: a tick of a node costs 0.5 ms.
FORMING_TICK_S: Final = 0.05
FORMING_TICK_OF_A_NODE_S: Final = 0.002
JOINED_AT_ONCE: Final = 32  # Guess: handshakes that do not time out on one core.
CERTIFICATE: Final = "bench"  # valid for any node named bench.*
ROOT_FILE: Final = "publisher.root"
FORMING_S: Final = 180.0  # Guess: a few hundred nodes on one core have formed a ring by then.
CALM_POLL_S: Final = 0.25  # Guess: rarely, since polling 3,000 rings takes 30 ms.
IDLE_S: Final = 120.0
IDLE_POLL_S: Final = 0.02  # Guess: rarely, since polling all members is measured too.

View = tuple[object, ...]


class TopicMember:
    """Member of the ring of one topic."""

    def __init__(self, session: Session, topic: str) -> None:
        self._session = TopicSession(session, topic, "all")
        self.subscription = Subscription(self._session)
        self._view: View = ()
        self._seen_at = 0  # the tick of the last change of the view

    @property
    def _machine(self) -> Subscriber:
        machine = self._session.host.machine(self._session.topic)
        assert machine is not None, "a member has a machine"
        return machine

    def is_calm(self) -> bool:
        """Return True if new publications use the tree: neighbours have been stable long enough.

        Each call compares the neighbours with those of the last one.
        """
        machine, ticks = self._machine, self._session.host.ticker.calls
        peers = [each for each in (machine.left, machine.right, machine.ring) if each is not None]
        shortcuts = machine.shortcuts
        view = (machine.label, *peers, *shortcuts.values())
        if view != self._view:
            self._view, self._seen_at = view, ticks
        if machine.label is None or None in shortcuts.values():
            return False
        levels = max([machine.label.length, *(each.label.length for each in peers)])
        # One more than needed: a change may be older than the first poll that detects it.
        return ticks - self._seen_at > levels + ProtocolConfig.live().calm_ticks

    @property
    def root(self) -> bytes:
        """Return the digest of all publications."""
        return self._machine.replica.index().root()

    @property
    def is_indexed(self) -> bool:
        """Return True once the log of an earlier start is indexed."""
        return not self._machine.replica.is_starting

    @property
    def batches(self) -> int:
        """Return the number of batches in the log, as far as they are read."""
        return self._machine.replica.count

    @property
    def is_read(self) -> bool:
        """Return True if the application has read all deliveries."""
        return self._session.reader.end == self._machine.replica.log.end


class BenchMember:
    """Node with its own sockets and store, member of all topics."""

    def __init__(self, run: BenchRun, name: str, *, is_hurried: bool = True) -> None:
        self._forming_tick_s = forming_tick_s(run.n * run.topics) if is_hurried else TICK_S
        files: dict[str, Path] = {}
        if run.certificates is not None:
            files = {
                "ca": run.certificates / "ca.pem",
                "cert": run.certificates / f"{CERTIFICATE}.pem",
                "key": run.certificates / f"{CERTIFICATE}.key",
            }
        self._session = new_session(
            f"skipring://{run.address}",
            data_dir=run.directory / name,
            name=f"{CERTIFICATE}.{name}",
            tick_s=TICK_S,
            **files,  # type: ignore[arg-type]
        )
        self._connection = Connection(self._session)
        self._topics = [TopicMember(self._session, topic) for topic in topics_of(run)]
        self.messages = 0  # publications in received messages, duplicates included
        self.hops: list[int] = []  # from the publisher, of each message with new publications

    @property
    def node(self) -> NodeHost:
        """Return the host of the node."""
        return self._session.host

    @property
    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions to all topics."""
        return [topic.subscription for topic in self._topics]

    @property
    def subscription(self) -> Subscription:
        """Return the subscription to the first topic."""
        return self._topics[0].subscription

    async def join(self) -> None:
        """Subscribe; use short ticks until the ring has formed."""
        await self._connection.__aenter__()
        for subscription in self.subscriptions:
            await subscription.__aenter__()
        self.node.ticker.start(self._forming_tick_s)

    async def leave(self) -> None:
        """Leave the ring and close the store."""
        for subscription in self.subscriptions:
            await subscription.__aexit__(None, None, None)
        await self._connection.__aexit__(None, None, None)

    def begin(self) -> None:
        """Use default ticks, and start to count."""
        self.node.ticker.start(TICK_S)
        self._count_messages()
        self._bytes_before = self.node.links.traffic["bytes_sent"]

    @property
    def bytes_sent(self) -> int:
        """Return the bytes sent since begin()."""
        return self.node.links.traffic["bytes_sent"] - self._bytes_before

    def _count_messages(self) -> None:
        def counting(receive: Receiver) -> Receiver:
            def count(sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
                message = envelope.message
                if type(message) is PublishNew:  # in the job of lone publications: cheaply
                    self.messages += message.publication.count
                    self.hops.append(message.hops + 1)
                elif isinstance(message, PublishMany | Publications):
                    self.messages += sum(batch.count for batch in message.publications)
                    if isinstance(message, PublishMany):
                        self.hops.append(message.hops + 1)
                receive(sender, envelope, frame)

            return count

        self.node.links.intercept(counting)

    def is_calm(self) -> bool:
        """Return True if new publications use the tree in all topics."""
        found = [topic.is_calm() for topic in self._topics]  # each must be polled
        return all(found)

    @property
    def root(self) -> bytes:
        """Return the digests of all topics."""
        return b"".join(topic.root for topic in self._topics)

    @property
    def is_indexed(self) -> bool:
        """Return True once the logs of an earlier start are indexed."""
        return all(topic.is_indexed for topic in self._topics)

    @property
    def batches(self) -> int:
        """Return the number of batches in the logs."""
        return sum(topic.batches for topic in self._topics)

    @property
    def is_durable(self) -> bool:
        """Return True if all deliveries are read and on disk."""
        return self.node.durability.unwritten == 0 and all(topic.is_read for topic in self._topics)


def forming_tick_s(n: int) -> float:
    """Return the tick while n machines form rings."""
    return min(max(FORMING_TICK_S, n * FORMING_TICK_OF_A_NODE_S), TICK_S)


async def join(members: Sequence[BenchMember]) -> None:
    """Join with JOINED_AT_ONCE members at a time."""
    for start in range(0, len(members), JOINED_AT_ONCE):
        joining = members[start : start + JOINED_AT_ONCE]
        await asyncio.gather(*(member.join() for member in joining))


async def wait_calm(members: Iterable[BenchMember]) -> None:
    """Wait until all members of this process are calm and in sync with their neighbours."""
    waiting = list(members)

    def are_calm() -> bool:
        found = [member.is_calm() for member in waiting]  # each must be polled
        return all(found)

    await until(are_calm, "a calm ring", FORMING_S, CALM_POLL_S)
    subscriptions = [each for member in waiting for each in member.subscriptions]
    await asyncio.gather(*(each.synced(FORMING_S) for each in subscriptions))


async def _wait_apart(run: BenchRun) -> None:
    """Wait until the members with processes of their own have joined."""
    for role in apart_roles(run):
        await until(flag_file(run.directory, role, JOINED).exists, role)


class RingPublisher(PublisherEndpoint):
    """Member that publishes."""

    async def connect(self) -> None:
        """Join."""
        await _wait_apart(self.run)
        self._member = BenchMember(self.run, "publisher")
        await self._member.join()

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish; the payloads are on the publisher's disk when it returns."""
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

    async def wait_calm(self) -> None:
        """Wait until new publications use the tree."""
        await wait_calm([self._member])

    def begin(self) -> None:
        """Use default ticks."""
        self._member.begin()

    async def wait_idle(self) -> None:
        """Wait until all publications are on disk, and write the digest for the subscribers."""
        await until(lambda: self._member.is_durable, "a durable store", IDLE_S)
        unfinished = self.run.directory / f"{ROOT_FILE}.new"
        unfinished.write_bytes(self._member.root)
        unfinished.rename(self.run.directory / ROOT_FILE)


class RingSubscribers(Subscribers):
    """Members that read."""

    async def connect(self) -> None:
        """Join, JOINED_AT_ONCE at a time."""
        await _wait_apart(self.run)
        names = (f"s{number:04}" for number in range(self.run.n))
        self._members = [BenchMember(self.run, name) for name in names]
        await join(self._members)
        subscriptions = [each for member in self._members for each in member.subscriptions]
        self._tasks = [
            asyncio.create_task(_read(subscription, receive))
            for subscription, receive in zip(subscriptions, self.receivers, strict=True)
        ]

    async def wait_calm(self) -> None:
        """Wait until new publications use the tree."""
        await wait_calm(self._members)

    def begin(self) -> None:
        """Use default ticks."""
        for member in self._members:
            member.begin()

    async def wait_idle(self) -> None:
        """Wait until all stores are durable and all digests equal the publisher's."""
        file, members = self.run.directory / ROOT_FILE, self._members

        async def wait_all(what: str, condition: Callable[[BenchMember], bool]) -> None:
            await until(lambda: all(map(condition, members)), what, IDLE_S, IDLE_POLL_S)

        await wait_all("durable stores", lambda member: member.is_durable)
        await until(file.exists, "the publisher's root", IDLE_S)
        root = file.read_bytes()
        await wait_all("equal roots", lambda member: member.root == root)

    def figures(self) -> Figures:
        """Return the publications sent in messages, and the bytes sent by the busiest member."""
        return {
            "messages": sum(member.messages for member in self._members),
            "hottest_bytes": max(member.bytes_sent for member in self._members),
        }


async def _read(subscription: Subscription, receive: Receive) -> None:
    while publications := await subscription.read_many():
        for publication in publications:
            receive(publication.payload)


class RingNewcomer(Newcomer):
    """Node with an empty store that joins the ring."""

    async def fetch(self) -> None:
        """Join, read everything, and wait until it is on disk."""
        self._member = member = BenchMember(self.run, "newcomer", is_hurried=False)
        await member.join()
        while self.count < self.run.count:
            found = await member.subscription.read_many(timeout=self.run.deadline_s)
            if not found:
                return
            self.record_first()
            self.count += len(found)
        await until(lambda: member.is_durable, "a durable store", self.run.deadline_s)

    async def wait_idle(self) -> None:
        """Wait until both ring neighbours are in sync."""
        await self._member.subscription.synced(timeout=self.run.deadline_s)

    async def leave(self) -> None:
        """Leave the ring, so the next newcomer joins the same ring."""
        await self._member.leave()


async def be_apart(run: BenchRun, board: Board, *, role: str) -> Figures:
    """Run a member in a separate process; the first member forwards the most."""
    member, latencies_ns = BenchMember(run, role), list[int]()

    async def read() -> None:
        while publications := await member.subscription.read_many():
            payloads = [each.payload for each in publications]
            latencies_ns.extend([age_ns(each) for each in payloads if each[0] == MEASURED])

    roles = apart_roles(run)
    for earlier in roles[: roles.index(role)]:
        await until(flag_file(run.directory, earlier, JOINED).exists, earlier)
    await member.join()
    reader = asyncio.create_task(read())
    flag_file(run.directory, role, JOINED).touch()
    await until(lambda: board[Slot.IS_PROBED], "the last probe", RUN_S)
    await wait_calm([member])
    flag_file(run.directory, role, CALM).touch()
    await until(lambda: board[Slot.BEGIN], "the beginning", RUN_S, POLL_S)
    member.begin()
    collect_and_freeze()
    await until(lambda: board.is_past(Moment.ENDED), "deliveries", RUN_S, POLL_S)
    await until(lambda: member.is_durable, "a durable store", IDLE_S, POLL_S)
    await until(lambda: board[Slot.STOP] or reader.done(), "the end", RUN_S, POLL_S)
    figures = {
        "delivered": len(latencies_ns),
        "bytes_sent": member.bytes_sent,
        "hops": median(member.hops),
        **(percentiles_ms(latencies_ns) if run.rate else {}),
    }
    return {f"{role}_{name}": figure for name, figure in figures.items()}


ROLES: Final[Mapping[str, Role]] = {
    role: partial(be_apart, role=role) for role in apart_roles(BenchRun(n=1, apart=PROCESSES_MAX))
}
