"""Sessions of anti-entropy between two parties, with loss, repetition and reordering.

Publications here are opaque (they have an id and no payload), so that a test can choose their
place in the trie: ``P("101")`` has an id that begins with these bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from random import Random
from typing import TypeAlias

from skipring.core.antientropy import AntiEntropy
from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig, Rules
from skipring.core.effects import Origin, Outbox, PeerInSync
from skipring.core.log import MemoryLog
from skipring.core.messages import (
    CheckAndPublish,
    CheckTrie,
    Message,
    Publications,
    TrieEqual,
)
from skipring.core.peers import NodeId
from skipring.core.publications import ID_BITS, ID_BYTES
from skipring.core.replica import Replica
from skipring.core.summaries import RangeSummary
from skipring.core.transfers import TransferTracker
from skipring.core.trie import PublicationTrie
from tests.support.batches import batch, opaque_batch
from tests.support.fake_host import FakeHost, Sent, sent
from tests.support.machines import FAST, TOPIC

Check: TypeAlias = CheckTrie | CheckAndPublish
MESSAGES_MAX = 10_000  # of one session; one with more does not end


# -- publications ------------------------------------------------------------------------------


@cache
def id_at(bits: str) -> bytes:
    """Return an id that begins with these bits; the others are a hash of them."""
    tail = int.from_bytes(blake2b(bits.encode(), digest_size=ID_BYTES).digest(), "big")
    rest = ID_BITS - len(bits)
    return (int(bits or "0", 2) << rest | tail >> len(bits)).to_bytes(ID_BYTES, "big")


@cache
def P(bits: str) -> RecordBatch:
    """Return an opaque publication whose id begins with these bits."""
    return opaque_batch(id_at(bits), publisher="p")


def written(seq: int, payload: bytes = b"", publisher: NodeId = "p") -> RecordBatch:
    """Return a publication with a payload, under the id of its fields."""
    return batch(payload, publisher=publisher, first=seq, topic=TOPIC)


def opaque(ids: Iterable[bytes]) -> list[RecordBatch]:
    """Return publications of which only the ids are known."""
    return [opaque_batch(key, publisher="p") for key in ids]


def random_ids(count: int, rng: Random) -> list[bytes]:
    """Return ``count`` ids, uniform like hashes."""
    return [rng.randbytes(ID_BYTES) for _ in range(count)]


def limited(rules: Rules = FAST, **limits: int) -> ProtocolConfig:
    """Return a configuration with other rules or limits."""
    return ProtocolConfig(rules=rules, **limits)


# -- one side ----------------------------------------------------------------------------------


class Party(FakeHost[AntiEntropy]):
    """Anti-entropy of one subscriber with its host."""

    def __init__(
        self,
        node: NodeId,
        publications: Iterable[RecordBatch] = (),
        config: ProtocolConfig | None = None,
        index: PublicationTrie | None = None,
    ) -> None:
        self.node = node
        self.config = config if config is not None else ProtocolConfig()
        log = MemoryLog(publications)
        self.replica = Replica(TOPIC, log)
        self.replica.recover({})
        if index is not None:
            self.replica.adopt(index)
        super().__init__(
            AntiEntropy(node, self.replica, TransferTracker(self.config), self.config), log
        )

    def copy(self) -> Party:
        """Return another party that holds the same, with a copy of the trie."""
        trie = self.replica.index().snapshot()
        return Party(self.node, self.stored, self.config, index=trie)

    @property
    def ids(self) -> set[bytes]:
        """Return the ids in the trie."""
        return set(self.replica.index().keys())

    @property
    def root(self) -> bytes:
        """Return the digest of the whole trie."""
        return self.replica.index().root()

    @property
    def session(self) -> int:
        """Return the number of the session that this party has started last."""
        return self.machine.state().session

    def add(self, publication: RecordBatch) -> None:
        """Add a publication that arrived by other means, such as a flood."""
        self.run(lambda out: self.replica.add([publication], out, origin=Origin.SPREAD))

    def ask(self, *partners: NodeId, rng: Random | None = None) -> Sent:
        """Run PublishTimeout with these neighbours; return the messages sent."""
        return sent(self.run(lambda out: self._tick(partners, rng or Random(0), out)))

    def _tick(self, partners: Sequence[NodeId], rng: Random, out: Outbox) -> None:
        if self.machine.on_tick(out):
            self.machine.start_session(partners, rng, out)

    def confirm(self, *partners: NodeId) -> Sent:
        """Ask the partners whether their tries are equal; return the messages sent."""
        return sent(self.run(lambda out: self.machine.ask_to_confirm(partners, out)))

    def receive(self, message: Message, sender: NodeId | None = None) -> Sent:
        """Handle a message; return the messages sent."""
        match message:
            case CheckTrie() | CheckAndPublish():
                effects = self.run(lambda out: self.machine.on_check(message, out))
            case Publications():
                effects = self.run(lambda out: self.machine.on_publications(message, sender, out))
            case TrieEqual():
                effects = self.apply(
                    [PeerInSync(message.sender, message.root)]
                    if self.machine.is_equal(message)
                    else []
                )
            case _:
                raise AssertionError(f"not about publications: {message}")
        return sent(effects)


# -- two sides ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weather:
    """Faults of a channel: loss, duplication and reordering."""

    rng: Random = field(default_factory=lambda: Random(0))
    loss: float = 0.0
    duplication: float = 0.0
    is_shuffled: bool = False

    def copies(self) -> int:
        """Return how often a message arrives."""
        if self.rng.random() < self.loss:
            return 0
        return 2 if self.rng.random() < self.duplication else 1

    def pick(self, count: int) -> int:
        """Return the index of the waiting message that arrives next."""
        return self.rng.randrange(count) if self.is_shuffled else 0


class Talk:
    """Parties u and v, the messages in flight between them, and all messages sent."""

    def __init__(
        self,
        u: Iterable[RecordBatch] | Party,
        v: Iterable[RecordBatch] | Party,
        config: ProtocolConfig | None = None,
        *,
        weather: Weather | None = None,
    ) -> None:
        self.u = u if isinstance(u, Party) else Party("u", u, config)
        self.v = v if isinstance(v, Party) else Party("v", v, config)
        self.waiting: Sent = []
        self.said: list[tuple[NodeId, NodeId, Message]] = []
        self._weather = weather if weather is not None else Weather()

    @property
    def is_equal(self) -> bool:
        """Return True if both hold the same."""
        return self.u.root == self.v.root

    def messages(self, kind: type[Message] | None = None) -> list[Message]:
        """Return the messages sent, or those of a type."""
        return [message for _, _, message in self.said if kind is None or type(message) is kind]

    def party(self, node: NodeId) -> Party:
        """Return the party with a name."""
        return self.u if node == self.u.node else self.v

    def other(self, node: NodeId) -> Party:
        """Return the other party."""
        return self.v if node == self.u.node else self.u

    def ask(self, node: NodeId, rng: Random | None = None) -> None:
        """Let a party run PublishTimeout."""
        self.post(node, self.party(node).ask(self.other(node).node, rng=rng))

    def post(self, sender: NodeId, messages: Sent) -> None:
        """Put messages in flight."""
        for to, message in messages:
            self.said.append((sender, to, message))
            self.waiting += [(to, message)] * self._weather.copies()

    def step(self) -> None:
        """Deliver one of the messages in flight."""
        to, message = self.waiting.pop(self._weather.pick(len(self.waiting)))
        sender = self.v.node if to == self.u.node else self.u.node
        self.post(to, self.party(to).receive(message, sender))

    def deliver_all(self, messages_max: int = MESSAGES_MAX) -> Talk:
        """Deliver all messages, and all that are sent in answer."""
        for _ in range(messages_max):
            if not self.waiting:
                return self
            self.step()
        raise AssertionError(f"no end after {messages_max} messages, {len(self.waiting)} waiting")

    def session(self, start: NodeId, rng: Random | None = None) -> Talk:
        """Let a party ask, and run the session to its end."""
        self.ask(start, rng)
        return self.deliver_all()


def sessions_until_equal(talk: Talk, sessions_max: int, rng: Random) -> int:
    """Return how many sessions, each started by a random party, make both equal."""
    for number in range(sessions_max):
        if talk.is_equal:
            return number
        # A party with an open session does not ask; every session ends (T8).
        talk.session(rng.choice("uv"), rng)
    assert talk.is_equal, f"not equal after {sessions_max} sessions"
    return sessions_max


# -- messages as text --------------------------------------------------------------------------


@dataclass(frozen=True)
class Glossary:
    """Names of the publications and hashes in an example of the paper."""

    publications: Mapping[bytes, str]  # by id
    bits: Mapping[bytes, str]  # the digits of a leaf's label that the example writes
    digests: Mapping[bytes, str]

    def transcript(self, talk: Talk) -> list[str]:
        """Return the messages sent, one per line."""
        return [f"{sender} -> {to}  {self.sentence(m)}" for sender, to, m in talk.said]

    def sentence(self, message: Message) -> str:
        """Return a message as the paper writes it."""
        match message:
            case CheckTrie(claims=claims):
                words = self._tuples(claims)
            case CheckAndPublish(claims=claims, wanted=wanted):
                asked = [f"p={claim.prefix.bits}" for claim in wanted]
                words = [*self._tuples(claims), *asked]
            case Publications(publications=publications):
                words = [self.publications[p.id] for p in publications] or ["nothing"]
            case _:
                raise AssertionError(f"not in the paper: {message}")
        return " ".join([type(message).__name__, *words])

    def _tuples(self, claims: Collection[RangeSummary]) -> list[str]:
        return [
            f"({self._label(summary.prefix.bits)}, {self.digests[summary.digest]})"
            for claim in claims
            for summary in claim.summaries()
        ]

    def _label(self, bits: str) -> str:
        if len(bits) < ID_BITS:
            return bits or "-"
        return self.bits[int(bits, 2).to_bytes(ID_BYTES, "big")]
