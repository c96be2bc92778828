"""Server side of fault injection: apply a chaos request to a live process.

A request can put the process into any state, because the protocol recovers from any state. No
request adds a publication to a topic.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Final, cast

from skipring.core.events import Corrupted, IndexRequested, Overwritten, Received
from skipring.core.log_messages import NOT_A_MEMBER, Refused
from skipring.core.messages import CARRIERS, MESSAGE_TYPES, Message
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.prefix import ALL, Prefix
from skipring.core.state import SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import DIGEST_BYTES
from skipring.core.topics import Dispatch, SubscriberTopics
from skipring.core.trie import PublicationTrie
from skipring.errors import WireError
from skipring.net.addresses import AddressBook
from skipring.net.transport import GroupReceiver, Receiver, Transport
from skipring.node.group_commit import TopicLogs
from skipring.observability.logs import logger
from skipring.wire.bundle import SmallMessage, TopicMessages
from skipring.wire.chaos import (
    ChaosAck,
    ChaosPing,
    CorruptTrie,
    Crash,
    Damage,
    Forge,
    Isolate,
    Overwrite,
    OverwriteDatabase,
)
from skipring.wire.codec import Envelope, decode
from skipring.wire.framing import Frame, FrameReader
from skipring.wire.handshake import Hello
from skipring.wire.rpc import Address, WireMessage

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.security.credentials import Credentials

NO_CHAOS: Final = "not started with chaos enabled"
NOT_HERE: Final = "this process does not support this damage"
NOT_FRAMES: Final = "these messages cannot be forged"
REFUSALS: Final = "chaos refused"  # the reason under which they are counted
SEVERED: Final = "severed"

DAMAGES: Final[tuple[type[Damage], ...]] = (
    ChaosPing,
    Overwrite,
    OverwriteDatabase,
    CorruptTrie,
    Forge,
    Isolate,
    Crash,
)


_LOG: Final = logger("chaos")
_FORGED: Final = frozenset(MESSAGE_TYPES) - CARRIERS


def kill_process() -> None:
    """Kill this process: it sends and writes nothing more."""
    os.kill(os.getpid(), signal.SIGKILL)


class ChaosServer:
    """Fault injection into one process, if it was started with chaos enabled."""

    def __init__(
        self,
        name: NodeId,
        transport: Transport,
        dispatch: Dispatch,
        crash: Callable[[], None],
        *,
        is_enabled: bool,
    ) -> None:
        self._name = name
        self._transport = transport
        self._dispatch = dispatch
        self._crash = crash
        self._is_enabled = is_enabled

    def handle(self, topic: TopicId, damage: Damage) -> ChaosAck | Refused:
        """Apply a request; refuse it unless chaos is enabled."""
        if not self._is_enabled:
            self._transport.counts[REFUSALS] += 1
            return Refused(damage.request, NO_CHAOS)
        if not isinstance(damage, ChaosPing):
            what = type(damage).__name__
            _LOG.warning("chaos_applied", what=what, topic=topic, node=self._name)
        why = self._why_refused(topic, damage)
        return ChaosAck(damage.request) if why is None else Refused(damage.request, why)

    def _why_refused(self, topic: TopicId, damage: Damage) -> str | None:
        """Apply a request that every process knows; return the reason if it cannot be applied."""
        match damage:
            case ChaosPing():
                pass
            case Crash():
                self._crash()
            case Forge(frames=frames):
                try:
                    forged = _forged(topic, frames)
                except WireError:
                    return NOT_FRAMES
                for message in forged:
                    self._dispatch(topic, Received(message))
            case _:
                return NOT_HERE
        return None


class NodeChaos(ChaosServer):
    """Fault injection into a node."""

    def __init__(  # noqa: PLR0913  (collaborators)
        self,
        name: NodeId,
        transport: Transport,
        dispatch: Dispatch,
        crash: Callable[[], None],
        *,
        topics: SubscriberTopics,
        logs: TopicLogs,
        is_enabled: bool,
    ) -> None:
        super().__init__(name, transport, dispatch, crash, is_enabled=is_enabled)
        self._topics = topics
        self._logs = logs

    def _why_refused(self, topic: TopicId, damage: Damage) -> str | None:
        machine = self._topics.machine(topic)
        match damage:
            case Isolate(nodes=nodes, ticks=ticks):
                assert isinstance(self._transport, PartitionableTransport), "chaos is enabled"
                self._transport.sever(nodes, ticks)
            case Overwrite() | CorruptTrie() | Forge() if machine is None:
                return NOT_A_MEMBER
            case Overwrite():
                assert machine is not None
                # S2: whether the application wants the topic is not protocol state.
                self._dispatch(topic, Overwritten(damage.state(member=machine.member)))
            case CorruptTrie():
                assert machine is not None
                self._corrupt(topic, machine, damage)
            case _:
                return super()._why_refused(topic, damage)
        return None

    def _corrupt(self, topic: TopicId, machine: Subscriber, damage: CorruptTrie) -> None:
        """Set wrong digests, and delete records silently."""
        for _ in range(3):  # index the log, then the newest ids, then hash everything
            self._dispatch(topic, IndexRequested(machine.replica.log.end))
        trie = machine.replica.indexed_trie
        wrong = _wrong_digests(trie, damage.hashes, Random(damage.seed))
        self._dispatch(topic, Corrupted(wrong))
        offsets = [offset for _, offset in trie.entries()]
        Random(f"{damage.seed}/{self._name}").shuffle(offsets)
        left = damage.publications
        for offset in offsets:
            if left <= 0:
                break
            entry = machine.replica.log.read(offset)
            left -= entry.batch.count if entry is not None else 0
            self._logs.discard(topic, offset)


class SupervisorChaos(ChaosServer):
    """Fault injection into a supervisor."""

    def _why_refused(self, topic: TopicId, damage: Damage) -> str | None:
        match damage:
            case OverwriteDatabase(database=database, next=cursor, queue=queue):
                state = SupervisorState(database=database, next=cursor, queue=queue)
                self._dispatch(topic, Overwritten(state))
                return None
            case _:
                return super()._why_refused(topic, damage)


def _wrong_digests(trie: PublicationTrie, count: int, rng: Random) -> dict[Prefix, bytes]:
    """Return ``count`` wrong digests, the root first, because other members compare it."""
    wrong = {ALL: rng.randbytes(DIGEST_BYTES)}
    end = 2 << trie.bucket_bits  # digests are numbered as in a binary heap, the root is 1
    for index in rng.sample(range(2, end), min(count, end - 1) - 1 if count else 0):
        length = index.bit_length() - 1
        wrong[Prefix(length, index - (1 << length))] = rng.randbytes(DIGEST_BYTES)
    return wrong if count else {}


def _forged(topic: TopicId, frames: bytes) -> list[Message]:
    """Return the messages in these bytes that may be forged."""
    envelopes = map(decode, FrameReader().feed(frames))
    return [
        cast("Message", envelope.message)
        for envelope in envelopes
        if envelope.topic == topic and type(envelope.message) in _FORGED
    ]


# -- partitions ------------------------------------------------------------------------------


class PartitionableTransport(Transport):
    """Transport that can drop all traffic with given nodes; one name denotes all supervisors."""

    def __init__(  # noqa: PLR0913  (those of a transport)
        self,
        greeting: Hello,
        book: AddressBook,
        receive: Receiver,
        rng: Random,
        *,
        credentials: Credentials | None,
        on_unreachable: Callable[[NodeId], None],
        receive_group: GroupReceiver,
    ) -> None:
        self._severed: frozenset[NodeId] = frozenset()
        self._severed_ticks = 0

        def receive_unless_severed(
            sender: NodeId, envelope: Envelope[WireMessage], frame: Frame
        ) -> None:
            if not self._is_severed(sender):
                receive(sender, envelope, frame)

        def group_unless_severed(sender: NodeId, group: TopicMessages) -> None:
            if not self._is_severed(sender):
                receive_group(sender, group)

        super().__init__(
            greeting,
            book,
            receive_unless_severed,
            rng,
            credentials=credentials,
            on_unreachable=on_unreachable,
            receive_group=group_unless_severed,
        )

    def sever(self, nodes: Iterable[NodeId], ticks: int) -> None:
        """Drop all traffic with these nodes, and with no others, for a number of ticks."""
        self._severed = frozenset(nodes) if ticks else frozenset()
        self._severed_ticks = ticks

    def send(self, to: NodeId, frame: bytes) -> None:
        """Queue a frame unless its receiver is cut off."""
        if not self._is_severed(to):
            super().send(to, frame)

    def send_to_supervisor(self, address: Address, frame: bytes) -> None:
        """Queue a frame for a supervisor unless supervisors are cut off."""
        if not self._is_severed(SUPERVISOR):
            super().send_to_supervisor(address, frame)

    def bundle(self, to: NodeId, topic: TopicId, message: SmallMessage) -> None:
        """Queue a small message unless its receiver is cut off."""
        if not self._is_severed(to):
            super().bundle(to, topic, message)

    def bundle_to_supervisor(self, address: Address, topic: TopicId, message: SmallMessage) -> None:
        """Queue a small message for a supervisor unless supervisors are cut off."""
        if not self._is_severed(SUPERVISOR):
            super().bundle_to_supervisor(address, topic, message)

    def learn(self, sender: NodeId, hints: Mapping[NodeId, Address]) -> None:
        """Learn addresses unless their sender is cut off; a client may name any address."""
        if sender.partition("@")[0] not in self._severed:
            self.book.learn(hints)

    def sweep(self) -> None:
        """Count one tick of the partition."""
        self._severed_ticks -= 1
        if self._severed_ticks <= 0:
            self._severed = frozenset()
        super().sweep()

    def _is_severed(self, name: NodeId) -> bool:
        # The transport's name of a supervisor contains its address; no node name has an @.
        if not self._severed or name.partition("@")[0] not in self._severed:
            return False
        self.counts[SEVERED] += 1
        return True
