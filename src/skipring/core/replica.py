"""Replica of one topic at one node: the log of batches and the trie over their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice, takewhile
from typing import Final

from skipring.core.batches import OVERHEAD_BYTES, BatchRecord, RecordBatch, is_reserved
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Deliver, Discard, Origin, Outbox, Rejected, SaveTerms, Store
from skipring.core.log import Log, MemoryLog, UnreadEntries, dense_offsets
from skipring.core.peers import NodeId, TopicId
from skipring.core.prefix import Prefix
from skipring.core.publications import OwnSequence, raise_newest
from skipring.core.retention.member import NO_TERMS, Retention
from skipring.core.state import NumberState, ReplicaState
from skipring.core.trie import PublicationTrie

_Records = tuple[BatchRecord, ...]

COUNTED_MAX: Final = 1024  # Guess: reading these batches takes about 10 ms.
FAR_BEHIND: Final = 1 << 14  # Guess: indexing this number takes about 40 ms.
UNREAD_FACTOR: Final = 2  # Measured: reading an id, or indexing it in order, takes a third.
UNINDEXED_MAX: Final = 1 << 18  # Limit: 30 MB, until they are indexed.

# Most tries of a large simulated ring are empty: they share this one, which never changes.
_NO_PUBLICATIONS: Final = PublicationTrie()


class Replica:
    """Log and trie of one subscriber; without a policy its batches only grow (section 4.2)."""

    __slots__ = (
        "_accepts_opaque",
        "_config",
        "_end",
        "_newest",
        "_spent",
        "_trie",
        "_unindexed",
        "_unread",
        "log",
        "own",
        "retention",
        "topic",
    )

    def __init__(
        self,
        topic: TopicId,
        log: Log | None,
        *,
        node: NodeId = "",
        incarnation: int = 0,
        accepts_opaque: bool = True,
        config: ProtocolConfig | None = None,
    ) -> None:
        self.topic = topic
        self._config = config or ProtocolConfig.live()
        self.retention: Retention | None = None  # None until a charter or terms arrive
        self._accepts_opaque = accepts_opaque
        self.log: Log = log if log is not None else MemoryLog()
        self._trie = _NO_PUBLICATIONS
        # Ids that are not in the trie yet, with offsets: indexing many at once later costs less.
        self._unindexed: dict[bytes, int] | None = None
        # Entries of a large log after a start, which are indexed in slices; None: all are read.
        self._unread: UnreadEntries | None = None
        self._end: int | None = None  # during the current event; None: the end of the log
        self._newest: dict[int, int] | None = None  # numbers of this name, by incarnation
        self.own = OwnSequence(node, incarnation)  # issues the numbers of this node
        self._spent: dict[NodeId, int] | None = None  # chunks sent since the last tick (T14)

    def index(self) -> PublicationTrie:
        """Index all waiting ids; return the trie over all batches."""
        if self._unread is not None:
            self._read_entries(None)
        if self._unindexed is not None:
            self._index(len(self._unindexed))
        return self._trie

    def scrub_index(self, ids: int) -> list[tuple[bytes, int]]:
        """Derive the digests of the next ids in the trie again; return these ids."""
        return self._trie.scrub(ids) if self._trie is not _NO_PUBLICATIONS else []

    def trie(self) -> PublicationTrie:
        """Return the trie over all batches, for queries; a copy while the index is behind."""
        if not self.is_behind:
            return self._trie
        copy = self._trie.snapshot()
        copy.add_many(self.log.entries() if self._unread is not None else ())
        copy.add_many((self._unindexed or {}).items())
        return copy

    def id_of(self, start: bytes) -> bytes | None:
        """Return the id, indexed or waiting, that begins with these bytes, 8 or more; or None."""
        entry = self._trie.find(start)
        if entry is not None:
            return entry[0]
        return next((key for key in self._unindexed or () if key.startswith(start)), None)

    @property
    def indexed_trie(self) -> PublicationTrie:
        """Return the trie without the ids that wait to be indexed."""
        return self._trie

    @property
    def is_untouched(self) -> bool:
        """Return True if this replica has never indexed anything."""
        return self._trie is _NO_PUBLICATIONS and self._unindexed is None

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.log.end if self._end is None else self._end

    @property
    def count(self) -> int:
        """Return the number of batches; after a start, of those that are indexed."""
        return len(self._trie) + len(self._unindexed or ())

    def recover(self, wrong_digests: Mapping[Prefix, bytes]) -> None:
        """Index the log and derive all digests again, except the given corrupted ones.

        The ids of a large log are indexed in slices (``index_some``). Until then this node drops
        batches of other nodes: it cannot tell which of them it has.
        """
        self._trie = _NO_PUBLICATIONS
        self._unindexed = self._unread = None
        self._end = self._newest = None
        end = self.log.end
        if (self.log.terms or self.retention) and not self.ensure_retention().recover():
            self.retention = None
        if end:
            self._newest = self.log.newest(self.own.node)
            entries = takewhile(lambda entry: entry[1] < end, self.log.entries())
            first = list(islice(entries, FAR_BEHIND))
            self._own_trie().add_many(first)
            if len(first) == FAR_BEHIND:
                self._unread = UnreadEntries(entries)
        self.corrupt(wrong_digests)

    def _read_entries(self, count: int | None) -> None:
        """Index the next entries of the log after a start; None: all of them."""
        assert self._unread is not None
        if self._unread.index_some(self._own_trie(), count):
            self._unread = None

    def corrupt(self, digests: Mapping[Prefix, bytes]) -> None:
        """Overwrite digests of the trie, as corrupted memory would."""
        if digests:
            self._own_trie().corrupt(digests)

    def _own_trie(self) -> PublicationTrie:
        """Return the trie of this replica; replace the shared empty one."""
        if self._trie is _NO_PUBLICATIONS:
            self._trie = PublicationTrie()
        return self._trie

    @property
    def has_index_backlog(self) -> bool:
        """Return True if more than FAR_BEHIND ids wait to be indexed, too many for one event."""
        is_far_behind = self._unindexed is not None and len(self._unindexed) > FAR_BEHIND
        return is_far_behind or self._unread is not None

    @property
    def is_starting(self) -> bool:
        """Return True while entries of a large log are unread: unknown ids may be stored."""
        return self._unread is not None

    @property
    def is_behind(self) -> bool:
        """Return True if ids wait to be indexed or digests are unknown."""
        is_waiting = self._unindexed is not None or self._unread is not None
        return is_waiting or not self._trie.is_fresh

    def index_some(self, ids: int) -> None:
        """Index about ``ids`` ids, or compute digests over them, so that no event has to wait."""
        if self._unread is not None:
            self._read_entries(UNREAD_FACTOR * ids)
        elif self._unindexed is not None:
            self._index(ids)
        elif not self._trie.is_fresh:
            self._trie.hash_some(ids)

    def adopt(self, trie: PublicationTrie) -> None:
        """Replace the trie with another one over the same log."""
        self._trie, self._unindexed, self._unread = trie, None, None

    def records_of(self, ids: Iterable[bytes], ranges: Iterable[Prefix] = ()) -> int:
        """Return an upper bound on the number of records of listed batches and of those in ranges.

        Count those of at most COUNTED_MAX batches, and all records of the log if there are more.
        """
        if self.is_starting:
            return self.log.records
        listed = chain(ids, *(chain(self._unindexed or (), self._trie.keys(r)) for r in ranges))
        keys = dict.fromkeys(islice(listed, COUNTED_MAX + 1))
        if len(keys) > COUNTED_MAX:
            return self.log.records
        offsets = map(self.offset_of, keys)
        found = [self.log.read(offset) if offset is not None else None for offset in offsets]
        return sum([entry.batch.count if entry is not None else 1 for entry in found])

    def issue_numbers(self, count: int, time_us: int) -> int:
        """Issue numbers for the records of this node's next batches; return the first."""
        return self.own.issue(count, self._numbers(), time_us)

    def _numbers(self) -> dict[int, int]:
        """Return the newest numbers of this node's name; read the log at the first call."""
        if self._newest is None:
            self._newest = self.log.newest(self.own.node)
        return self._newest

    def add(
        self, batches: Iterable[RecordBatch], out: Outbox, *, origin: Origin, hops: int = 0
    ) -> tuple[RecordBatch, ...]:
        """Store and deliver the batches that are new and valid; return them (T10).

        A batch is valid if its id is the hash of its fields and all its records can be read.
        """
        if self._unread is not None:  # only batches with new numbers of this node are surely new
            batches = self._surely_new(batches, origin)
        trie, topic = self._trie, self.topic
        accepts_opaque = self._accepts_opaque or origin is Origin.OWN
        waiting = self._unindexed if self._unindexed is not None else {}
        new: list[RecordBatch] = []
        records: list[_Records] = []
        start = end = self.log.end if self._end is None else self._end
        rejected = size = 0
        for batch in batches:
            key, body = batch.id, batch.body
            if key in waiting or key in trie or not (body or accepts_opaque):
                continue
            decoded = batch.verified_records(topic)
            if decoded is None:
                rejected += 1
                continue
            is_checked = self.retention is not None or is_reserved(decoded)
            if is_checked and not self._admits(batch, decoded, origin):
                continue
            new.append(batch)
            records.append(decoded)
            waiting[key] = end
            end += batch.count
            size += OVERHEAD_BYTES + len(body)
        out += [Rejected(rejected)] if rejected else ()
        if not new:
            return ()
        self._unindexed, self._end, added = waiting, end, tuple(new)
        out.append(Store(start, added, size))
        self._record(made := Deliver(added, tuple(records), start, end, origin, hops), out)
        out.append(made)
        return added

    def _record(self, made: Deliver, out: Outbox) -> None:
        """Index waiting ids if they are too many; record numbers, and what retention needs."""
        added, kept, are_new = made.batches, self.retention, made.origin is not Origin.REPAIR
        if len(self._unindexed or ()) > UNINDEXED_MAX:
            self._index(2 * len(added))  # a bounded step, so that no event takes long
        self.record_numbers(added)
        if kept is not None and kept.on_stored(made.offset, added, made.records, are_new=are_new):
            out.append(SaveTerms(kept.saved(), kept.policy.max_bytes))  # in the same commit

    def _surely_new(self, batches: Iterable[RecordBatch], origin: Origin) -> list[RecordBatch]:
        is_own, node = origin is Origin.OWN, self.own.node
        return [batch for batch in batches if is_own and batch.publisher == node]

    def offset_of(self, key: bytes) -> int | None:
        """Return the offset of an id, whether indexed or waiting; None if it is unknown."""
        offset = self._trie.offset_of(key)
        if offset is None and self._unindexed is not None:
            return self._unindexed.get(key)
        return offset

    def _index(self, count: int) -> None:
        """Move ``count`` waiting ids into the trie."""
        assert self._unindexed is not None
        some = list(islice(self._unindexed.items(), count))
        self._own_trie().add_many(some)
        if len(some) == len(self._unindexed):
            self._unindexed = None
            return
        for key, _ in some:
            del self._unindexed[key]

    def record_numbers(self, new: Iterable[RecordBatch]) -> None:
        """Record the numbers of batches of this node's name: it does not issue them again."""
        newest, own = self._newest, self.own
        if newest is None:
            return
        for batch in new:
            is_own = batch.publisher == own.node and not batch.unordered
            if is_own and raise_newest(newest, batch.end - 1):
                own.on_seen(batch.end - 1)

    def overlaps(self, batch: RecordBatch) -> bool:
        """Return True if a batch of another process has numbers that this one issues."""
        return not batch.unordered and self.own.covers(batch.publisher, batch.first)

    def end_event(self) -> None:
        """Derive the end from the log again: the host has applied the last event's effects."""
        self._end = None

    def read(self, key: bytes, offset: int, out: Outbox) -> RecordBatch | None:
        """Return the batch of an id, or drop the id and quarantine a corrupt batch (T12)."""
        entry = self.log.read(offset)
        is_genuine = entry is not None and entry.batch.is_genuine(self.topic)
        if entry is not None and is_genuine and (entry.batch.id, entry.offset) == (key, offset):
            return entry.batch
        self._trie.remove(key)
        if self._unindexed is not None:
            self._unindexed.pop(key, None)
        if not is_genuine:  # keep a sound batch if only the trie is wrong
            out.append(Discard(offset))
        return None

    def find(self, start: bytes, out: Outbox) -> RecordBatch | None:
        """Return the batch whose id begins with these bytes, 8 or more, or None.

        Ids of a backlog are not found: indexing them takes several events.
        """
        if self._unindexed is not None and len(self._unindexed) <= FAR_BEHIND:
            self._index(len(self._unindexed))
        entry = self._trie.find(start)
        return self.read(*entry, out) if entry is not None else None

    def ensure_retention(self) -> Retention:
        """Return the retention of this topic; create it at the first charter or terms."""
        if self.retention is None:
            self.retention = Retention(self.log, self._config)
        return self.retention

    def trusted(
        self, batches: Sequence[RecordBatch], *, is_from_fresh: bool = False
    ) -> Sequence[RecordBatch]:
        """Return the batches that a sender may teach, if it was fresh or not (decision 0057).

        A fresh member refuses old rows of other senders: they may be deleted keys.
        """
        kept = self.retention
        if kept is None or is_from_fresh or not kept.can_refuse:
            return batches
        return [batch for batch in batches if not kept.is_old(batch)]

    def _admits(self, batch: RecordBatch, records: _Records, origin: Origin) -> bool:
        """Return True if the terms of the topic admit a batch that is not in the trie."""
        retention, is_here = self.ensure_retention(), origin is Origin.OWN
        if retention.keeps_early(batch) or self.reveal(batch.id):
            return False
        is_own = is_here and batch.publisher == self.own.node
        return is_own or retention.admits(batch, records, is_new=is_here)

    def reveal(self, key: bytes) -> bool:
        """Move a stored batch from the quarantine to the trie; return False if it is not there."""
        offset = self.retention.reveal(key) if self.retention is not None else None
        if offset is not None:
            self._own_trie().add(key, offset)
        return offset is not None

    def remove(self, key: bytes, offset: int) -> None:
        """Remove an id from the index if it has this offset."""
        if self._trie.offset_of(key) == offset:
            self._trie.remove(key)
        if self._unindexed is not None and self._unindexed.get(key) == offset:
            del self._unindexed[key]
            self._unindexed = self._unindexed or None

    @property
    def is_fresh(self) -> bool:
        """Return True if this member has terms and is not stale."""
        kept = self.retention
        return kept is not None and not (kept.is_stale or kept.is_unsure)

    @property
    def terms(self) -> bytes:
        """Return the digest of charter and floors; empty without both."""
        return self.retention.digest() if self.retention is not None else NO_TERMS

    @property
    def has_slices(self) -> bool:
        """Return True if work waits that is done in slices: indexing a start, or dropping rows."""
        return self.is_starting or (self.retention is not None and self.retention.is_behind)

    @property
    def is_idle(self) -> bool:
        """Return True if the log has all batches of the event, and its index is read."""
        return self._unread is None and self._end is None

    def renew_credits(self) -> None:
        """Renew the credit of every peer for the next interval."""
        self._spent = None

    def chunks_spent(self, node: NodeId) -> int:
        """Return the number of chunks sent to a node in this interval."""
        return self._spent.get(node, 0) if self._spent is not None else 0

    def charge(self, node: NodeId, chunks: int) -> None:
        """Charge chunks that were sent to a node."""
        if self._spent is None:
            self._spent = {}
        self._spent[node] = self._spent.get(node, 0) + chunks

    # -- state as a value --------------------------------------------------------------------

    def state(self) -> ReplicaState:
        """Return the variables except the log as a value; include derived values only if wrong."""
        stored = dict(self.log.entries())
        right, indexed = stored | (self._unindexed or {}), dict(self._trie.entries())
        wrong = {key: offset for key, offset in indexed.items() if right.get(key) != offset}
        waiting = self._unindexed or {}
        indexed |= dict.fromkeys(self.retention.quarantine.hidden, 0) if self.retention else {}
        missing = [key for key in stored if key not in indexed and key not in waiting]
        return ReplicaState(
            numbers=self._wrong_numbers(),
            spent=dict(self._spent or {}),
            unindexed=self._dense(waiting),
            index=wrong | dict.fromkeys(missing),
            count=self._trie.wrong_count,
            scrubbed=self._trie.scrubbed,
        )

    def _dense(self, waiting: Mapping[bytes, int]) -> dict[bytes, int]:
        """Return the waiting ids with the offsets of a log without gaps, as a loaded one has."""
        dense = dense_offsets(self.log) if waiting and self.retention is not None else {}
        return {key: dense.get(offset, offset) for key, offset in waiting.items()}

    def _wrong_numbers(self) -> tuple[NumberState, ...]:
        """Return the newest number of each incarnation for which the log has another one."""
        if self._newest is None:
            return ()
        right = self.log.newest(self.own.node)
        return tuple(
            NumberState(incarnation, self._newest.get(incarnation))
            for incarnation in self._newest | right
            if self._newest.get(incarnation) != right.get(incarnation)
        )

    def load(self, state: ReplicaState) -> None:
        """Replace the variables except the log; the value may be corrupted."""
        self._spent = dict(state.spent) or None
        self._unindexed = dict(state.unindexed) or None
        if state.numbers:
            wrong = {each.incarnation: each.seq for each in state.numbers}
            numbers = (self.log.newest(self.own.node) | wrong).items()
            self._newest = {incarnation: seq for incarnation, seq in numbers if seq is not None}
        changed = dict.fromkeys(state.unindexed) | state.index
        if changed or state.count is not None or state.scrubbed:
            self._own_trie().overwrite(changed, state.count, state.scrubbed)
