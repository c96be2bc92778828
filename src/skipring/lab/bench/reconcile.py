"""Set reconciliation of two tries (``skipring bench reconcile``).

Two subscribers compare their tries, which differ in a few publications on either side. The
publications are opaque batches, so all other bytes are the cost of the comparison.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import cycle, islice
from random import Random
from statistics import median
from time import process_time
from typing import Final

from msgspec.msgpack import Encoder

from skipring.core.antientropy import AntiEntropy
from skipring.core.batches import RecordBatch
from skipring.core.config import Mode, ProtocolConfig
from skipring.core.effects import Outbox, Send, Store
from skipring.core.log import LogEntry, MemoryLog
from skipring.core.messages import CheckAndPublish, CheckTrie, Message, Publications
from skipring.core.peers import NodeId
from skipring.core.publications import ID_BYTES
from skipring.core.replica import Replica
from skipring.core.transfers import TransferTracker
from skipring.core.trie import PublicationTrie
from skipring.lab.bench.report import Row

SIZES: Final = (100_000, 1_000_000)
DIFFERENCES: Final = (0, 1, 10, 100, 1000, 10_000)
REPEATS: Final = 3
TICKS_MAX: Final = 64  # Limit: after this the tries count as different.

_LEFT: Final[NodeId] = "a"
_RIGHT: Final[NodeId] = "b"
_PUBLISHER: Final[NodeId] = "p"
_TOPIC: Final = "bench"
_BUILT_AT_ONCE: Final = 10_000
_HASHED_AT_ONCE: Final = 1 << 20

_encoder = Encoder()


def measure(
    sizes: Sequence[int] = SIZES, differences: Sequence[int] = DIFFERENCES, *, seed: int = 0
) -> Iterator[Row]:
    """Yield one row per measurement."""
    for n in sizes:
        common = _fresh(_trie_of(range(n), seed))
        for d in (d for d in differences if d <= n):
            yield _measure(common, d, seed)


def _measure(common: PublicationTrie, d: int, seed: int) -> Row:
    """Reconcile REPEATS times with different differences; the figures are medians."""
    config, found = ProtocolConfig.of(Mode.FAST), []
    for repeat in range(REPEATS):
        first = len(common) + repeat * d
        pair = _Pair(common, range(first, first + d), config, seed)
        pair.reconcile(Random(f"{seed}/{repeat}"))
        found.append(pair.figures())
    figures = {name: [figure[name] for figure in found] for name in found[0]}
    return {
        "job": "reconcile",
        "system": "skipring",
        "n": len(common),
        "d": d,
        **{name: median(values) for name, values in figures.items() if name != "equal"},
        "wire_bytes_min": min(figures["wire_bytes"]),
        "wire_bytes_max": max(figures["wire_bytes"]),
        "equal": all(figures["equal"]),
        "repeats": REPEATS,
    }


# -- two subscribers ---------------------------------------------------------------------------


class _ComputedLog(MemoryLog):
    """Log of opaque batches of one record; those before ``end`` are computed from their offset."""

    __slots__ = ("_computed_end", "_seed")

    def __init__(self, seed: int, end: int) -> None:
        super().__init__()
        self._seed = seed
        self._computed_end = end

    @property
    def end(self) -> int:
        return self._computed_end + super().end

    @property
    def records(self) -> int:
        return self.end

    def read(self, offset: int) -> LogEntry | None:
        if offset < self._computed_end:
            return LogEntry(offset, b"", _batch(offset, self._seed))
        entry = super().read(offset - self._computed_end)
        return entry._replace(offset=offset) if entry is not None else None

    def entries(self) -> Iterator[tuple[bytes, int]]:
        return iter(())  # the trie is built separately, once

    def newest(self, publisher: NodeId) -> dict[int, int]:
        del publisher
        return {}  # no member publishes


def _batch(number: int, seed: int) -> RecordBatch:
    return RecordBatch(_PUBLISHER, number, 1, b"", id=_id_of(number, seed))


def _id_of(number: int, seed: int) -> bytes:
    return blake2b(b"%d/%d" % (seed, number), digest_size=ID_BYTES).digest()


def _trie_of(numbers: range, seed: int) -> PublicationTrie:
    trie = PublicationTrie()
    for start in range(0, len(numbers), _BUILT_AT_ONCE):
        some = numbers[start : start + _BUILT_AT_ONCE]
        trie.add_many((_id_of(number, seed), number) for number in some)
    return trie


def _fresh(trie: PublicationTrie) -> PublicationTrie:
    while not trie.hash_some(_HASHED_AT_ONCE):
        pass
    return trie


class _Party:
    """Subscriber with its CPU time, one of two."""

    def __init__(
        self, node: NodeId, trie: PublicationTrie, log: _ComputedLog, config: ProtocolConfig
    ) -> None:
        self.replica = Replica(_TOPIC, log)
        self.replica.recover({})
        self.replica.adopt(_fresh(trie))
        self.antientropy = AntiEntropy(node, self.replica, TransferTracker(config), config)
        self.seconds = 0.0
        self.stored = 0
        self._log = log

    def root(self) -> bytes:
        return self.replica.index().root()

    def tick(self, peer: NodeId, rng: Random) -> list[Message]:
        """Start a comparison with a peer; return the messages it sends."""
        return self._timed(lambda out: self._tick(peer, rng, out))

    def _tick(self, peer: NodeId, rng: Random, out: Outbox) -> None:
        if self.antientropy.on_tick(out):
            self.antientropy.start_session([peer], rng, out)

    def on_message(self, message: Message) -> list[Message]:
        """Handle a message; return the replies."""
        match message:
            case CheckTrie() | CheckAndPublish():
                return self._timed(lambda out: self.antientropy.on_check(message, out))
            case Publications():
                return self._timed(lambda out: self.antientropy.on_publications(message, None, out))
            case _:
                raise AssertionError(f"not part of a comparison: {message}")

    def _timed(self, action: Callable[[Outbox], object]) -> list[Message]:
        out = Outbox()
        begin = process_time()
        action(out)
        self.seconds += process_time() - begin
        for effect in out:
            if isinstance(effect, Store):
                for batch in effect.batches:
                    self._log.append(batch)
                self.stored += len(effect.batches)
        return [effect.message for effect in out if isinstance(effect, Send)]


class _Pair:
    """Two subscribers that exchange messages with each other only."""

    def __init__(
        self, common: PublicationTrie, differences: range, config: ProtocolConfig, seed: int
    ) -> None:
        middle = (len(differences) + 1) // 2
        self._parties = {}
        for node, own in ((_LEFT, differences[:middle]), (_RIGHT, differences[middle:])):
            trie = common.snapshot()
            trie.add_many((_id_of(number, seed), number) for number in own)
            self._parties[node] = _Party(node, trie, _ComputedLog(seed, differences.stop), config)
        self._ticks = self._sessions = self._messages = self._hops = 0
        self._wire_bytes = self._publication_bytes = self._publications = 0

    @property
    def _is_equal(self) -> bool:
        left, right = self._parties.values()
        return left.root() == right.root()

    def reconcile(self, rng: Random) -> None:
        """Tick both parties alternately and deliver all messages, until their tries are equal."""
        for asks, answers in islice(cycle([(_LEFT, _RIGHT), (_RIGHT, _LEFT)]), TICKS_MAX):
            self._ticks += 1
            question = self._parties[asks].tick(answers, rng)
            self._sessions += len(question)
            self._hops += self._deliver(answers, question)
            if self._is_equal:
                return

    def _deliver(self, to: NodeId, messages: list[Message]) -> int:
        """Deliver all messages in order; return the length of the longest chain of replies."""
        hops = 0
        waiting = deque((to, message, 1) for message in messages)
        while waiting:
            to, message, hops = waiting.popleft()
            self._count(message)
            back = _LEFT if to == _RIGHT else _RIGHT
            answers = self._parties[to].on_message(message)
            waiting += [(back, answer, hops + 1) for answer in answers]
        return hops

    def _count(self, message: Message) -> None:
        """Count a message, and its publications separately."""
        self._messages += 1
        size = len(_encoder.encode(message))
        if isinstance(message, Publications):
            self._publications += len(message.publications)
            inside = sum(len(_encoder.encode(sent)) for sent in message.publications)
            self._publication_bytes += inside
            size -= inside
        self._wire_bytes += size

    def figures(self) -> Row:
        """Return the counts, and whether the tries are equal."""
        left, right = self._parties.values()
        return {
            "ticks": self._ticks,
            "sessions": self._sessions,
            "messages": self._messages,
            "hops": self._hops,
            "wire_bytes": self._wire_bytes,
            "publication_bytes": self._publication_bytes,
            "publications": self._publications,
            "duplicates": self._publications - left.stored - right.stored,
            "cpu_ms_asking": round(1000 * left.seconds, 2),
            "cpu_ms_answering": round(1000 * right.seconds, 2),
            "equal": self._is_equal,
        }
