"""Server side of fault injection: apply a chaos request to a live process.

A request can put the process into any state, because it has to recover from any state. No request
brings a new publication into a topic.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from random import Random
from typing import Final, Protocol, cast

from skipring.core.messages import MESSAGE_TYPES, Message
from skipring.core.peers import SUPERVISOR, NodeId, TopicId
from skipring.core.prefix import ALL, Prefix
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import DIGEST_BYTES
from skipring.core.trie import PublicationTrie
from skipring.errors import WireError
from skipring.net.transport import Transport
from skipring.node.status_server import NOT_A_MEMBER
from skipring.observability.logs import logger
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
from skipring.wire.rpc import Address, Refused, WireMessage
from skipring.world.snapshot import CARRIERS

NO_CHAOS: Final = "not started with chaos enabled"
NOT_HERE: Final = "this process has nothing that could be damaged so"
NOT_FRAMES: Final = "these are no messages that could be forged"
REFUSALS: Final = "chaos refused"  # as what they are counted
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


class Victim(Protocol):
    """A process that may be damaged."""

    is_chaotic: bool
    links: Transport

    def forge(self, topic: TopicId, message: Message) -> None:
        """Take a message for one that has come."""

    def crash(self) -> None:
        """End at once."""


class NodeVictim(Victim, Protocol):
    """A node that may be damaged."""

    name: NodeId

    def settle(self, topic: TopicId) -> None:
        """Keep what has arrived in a topic."""

    def machine(self, topic: TopicId) -> Subscriber | None:
        """The machine of a topic that it is in."""

    def lose(self, topic: TopicId, offsets: Iterable[int]) -> None:
        """Forget what is stored at these offsets."""

    def isolate(self, nodes: Iterable[NodeId], ticks: int) -> None:
        """Drop all traffic with these nodes for so many ticks."""


class SupervisorVictim(Victim, Protocol):
    """A supervisor that may be damaged."""

    def load(self, topic: TopicId, state: SupervisorState) -> None:
        """Take over a database."""


def kill_process() -> None:
    """End at once: no goodbye, nothing is written any more."""
    os.kill(os.getpid(), signal.SIGKILL)


# -- suffering -------------------------------------------------------------------------------


def damage_node(node: NodeVictim, topic: TopicId, damage: Damage) -> ChaosAck | Refused:
    """Carry out what somebody wants to be done to a node, if it lets itself be damaged."""
    if not node.is_chaotic:
        return _refused(node, damage)
    _log(damage, topic, node.name)
    node.settle(topic)  # what was handed over is kept, whatever happens now
    machine = node.machine(topic)
    match damage:
        case Isolate(nodes=nodes, ticks=ticks):
            node.isolate(nodes, ticks)
        case Overwrite() | CorruptTrie() | Forge() if machine is None:
            return Refused(damage.request, NOT_A_MEMBER)
        case Overwrite():
            assert machine is not None
            machine.load(_state(damage, is_member=machine.member))
        case CorruptTrie():
            assert machine is not None
            _spoil(node, topic, machine.trie, damage)
        case _:
            return _damage_any(node, topic, damage)
    return ChaosAck(damage.request)


def damage_supervisor(
    supervisor: SupervisorVictim, topic: TopicId, damage: Damage
) -> ChaosAck | Refused:
    """Carry out what somebody wants to be done to a supervisor, if it lets itself be damaged."""
    if not supervisor.is_chaotic:
        return _refused(supervisor, damage)
    _log(damage, topic, SUPERVISOR)
    match damage:
        case OverwriteDatabase(database=database, next=cursor, queue=queue):
            supervisor.load(topic, SupervisorState(database=database, next=cursor, queue=queue))
        case _:
            return _damage_any(supervisor, topic, damage)
    return ChaosAck(damage.request)


def _damage_any(victim: Victim, topic: TopicId, damage: Damage) -> ChaosAck | Refused:
    """What can be done to every process."""
    match damage:
        case ChaosPing():
            pass
        case Crash():
            victim.crash()
        case Forge(frames=frames):
            try:
                forged = _forged(topic, frames)
            except WireError:
                return Refused(damage.request, NOT_FRAMES)
            for message in forged:
                victim.forge(topic, message)
        case _:
            return Refused(damage.request, NOT_HERE)
    return ChaosAck(damage.request)


def _refused(victim: Victim, damage: Damage) -> Refused:
    victim.links.counts[REFUSALS] += 1
    return Refused(damage.request, NO_CHAOS)


def _log(damage: Damage, topic: TopicId, name: NodeId) -> None:
    """Whoever looks for the cause of what comes now should find it."""
    if not isinstance(damage, ChaosPing):
        _LOG.warning("chaos_applied", what=type(damage).__name__, topic=topic, node=name)


def _state(damage: Overwrite, *, is_member: bool) -> SubscriberState:
    return SubscriberState(
        member=is_member,  # S2: what the application wants is no state that could be damaged
        label=damage.label,
        left=damage.left,
        right=damage.right,
        ring=damage.ring,
        shortcuts=dict(damage.shortcuts),
        silence=damage.silence,
        digests=damage.digests,
    )


def _spoil(node: NodeVictim, topic: TopicId, trie: PublicationTrie, damage: CorruptTrie) -> None:
    trie.corrupt(_wrong_digests(trie, damage.hashes, Random(damage.seed)))
    offsets = [offset for _, offset in trie.entries()]
    count = min(damage.publications, len(offsets))
    node.lose(topic, Random(f"{damage.seed}/{node.name}").sample(offsets, count))


def _wrong_digests(trie: PublicationTrie, count: int, rng: Random) -> Mapping[Prefix, bytes]:
    """So many wrong digests, the root's first: it is the one that others look at."""
    wrong = {ALL: rng.randbytes(DIGEST_BYTES)}
    end = 2 << trie.bucket_bits  # digests are numbered like the places of a heap, the root is 1
    for index in rng.sample(range(2, end), min(count, end - 1) - 1 if count else 0):
        length = index.bit_length() - 1
        wrong[Prefix(length, index - (1 << length))] = rng.randbytes(DIGEST_BYTES)
    return wrong if count else {}


def _forged(topic: TopicId, frames: bytes) -> list[Message]:
    """The messages in some bytes that may be forged."""
    envelopes = map(decode, FrameReader().feed(frames))
    return [
        cast("Message", envelope.message)
        for envelope in envelopes
        if envelope.topic == topic and type(envelope.message) in _FORGED
    ]


# -- being cut off ---------------------------------------------------------------------------


class PartitionableTransport(Transport):
    """Links of a process that may be damaged: what goes to some nodes, or comes, can be dropped.

    The supervisors are all named by the one name that they share.
    """

    _severed: frozenset[NodeId] = frozenset()
    _severed_ticks = 0

    def sever(self, nodes: Iterable[NodeId], ticks: int) -> None:
        """Drop all traffic with these nodes, and with no others, for so many ticks."""
        self._severed = frozenset(nodes) if ticks else frozenset()
        self._severed_ticks = ticks

    def send(self, to: NodeId, frame: bytes) -> None:
        """Queue a frame, unless we are cut off from whom it is for."""
        if not self._is_severed(to):
            super().send(to, frame)

    def send_to_supervisor(self, address: Address, frame: bytes) -> None:
        """Queue a frame for a supervisor, unless we are cut off from it."""
        if not self._is_severed(SUPERVISOR):
            super().send_to_supervisor(address, frame)

    def receive(self, sender: NodeId, envelope: Envelope[WireMessage], frame: Frame) -> None:
        """Hand a message on, unless we are cut off from whom it is."""
        if not self._is_severed(sender):
            self.book.learn(envelope.hints)  # also a client's: it may make us refer to anybody
            super().receive(sender, envelope, frame)

    def sweep(self) -> None:
        """One more tick has passed: it may be over."""
        self._severed_ticks -= 1
        if self._severed_ticks <= 0:
            self._severed = frozenset()
        super().sweep()

    def _is_severed(self, name: NodeId) -> bool:
        # Among links a supervisor is called after its address too; no node's name has an @.
        if not self._severed or name.partition("@")[0] not in self._severed:
            return False
        self.counts[SEVERED] += 1
        return True
