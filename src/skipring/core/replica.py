"""Replica of one topic at one node: the log of publications and the trie over their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, compress, count, islice
from operator import itemgetter
from typing import Final

from skipring.core.effects import Deliver, Discard, Origin, Outbox, Store
from skipring.core.log import HistoryPage, Log, MemoryLog
from skipring.core.peers import NodeId, TopicId
from skipring.core.prefix import Prefix
from skipring.core.publications import (
    COUNTER_BITS,
    ID_BYTES,
    OVERHEAD_BYTES,
    SEQ_BELIEVED_MAX,
    OwnSequence,
    Publication,
    SequenceId,
    assign_ids,
    ids_of,
    with_id,
)
from skipring.core.state import NumberState, ReplicaState
from skipring.core.trie import PublicationTrie

READ_AHEAD_MIN: Final = 16
READ_AHEAD_MAX: Final = 4096  # Guess: 1 MiB of small publications, from every segment.

FAR_BEHIND: Final = 1 << 14  # Guess: indexing this number takes about 40 ms.
UNINDEXED_MAX: Final = 1 << 18  # Limit: 30 MB, until they are indexed.

# Most tries of a large simulated ring are empty: they share this one, which never changes.
_NO_PUBLICATIONS: Final = PublicationTrie()
_EMPTY_BUFFER: Final = (0, ())


class Replica:
    """Log and trie of one subscriber; the set of publications only grows (section 4.2)."""

    __slots__ = (
        "_buffer",
        "_end",
        "_newest",
        "_spent",
        "_trie",
        "_unindexed",
        "log",
        "own",
        "topic",
    )

    def __init__(
        self, topic: TopicId, log: Log | None, *, node: NodeId = "", incarnation: int = 0
    ) -> None:
        self.topic = topic
        self.log: Log = log if log is not None else MemoryLog()
        self._trie = _NO_PUBLICATIONS
        # Ids that are not in the trie yet, with offsets: indexing many at once later costs less.
        self._unindexed: dict[bytes, int] | None = None
        self._end: int | None = None  # during the current event; None: the end of the log
        self._newest: dict[SequenceId, int] | None = None  # the last number of each sequence
        self.own = OwnSequence(node, incarnation)  # issues the numbers of this node
        # Read-your-writes buffer: indexed, but not in the log until the host applies the effects.
        self._buffer: tuple[int, tuple[Publication, ...]] = _EMPTY_BUFFER
        self._spent: dict[NodeId, int] | None = None  # chunks sent since the last tick (T14)

    def index(self) -> PublicationTrie:
        """Index all waiting ids; return the trie over all publications."""
        if self._unindexed is not None:
            self._index(len(self._unindexed))
        return self._trie

    def scrub_index(self, ids: int) -> list[tuple[bytes, int]]:
        """Derive the digests of the next ids in the trie again; return these ids."""
        return self._trie.scrub(ids) if self._trie is not _NO_PUBLICATIONS else []

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
        """Return the offset after the last publication."""
        if self._end is not None:
            return self._end
        return self.log.end

    @property
    def count(self) -> int:
        """Return the number of publications."""
        return len(self._trie) + len(self._unindexed or ())

    def recover(self, wrong_digests: Mapping[Prefix, bytes]) -> None:
        """Index the log and derive all digests again, except the given corrupted ones."""
        self._trie = _NO_PUBLICATIONS
        self._unindexed = None
        self._end = self._newest = None
        if self.log.end:
            self._trie, self._newest = self.log.index()
        self.corrupt(wrong_digests)

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
        return self._unindexed is not None and len(self._unindexed) > FAR_BEHIND

    @property
    def is_behind(self) -> bool:
        """Return True if ids wait to be indexed or digests are unknown."""
        return self._unindexed is not None or not self._trie.is_fresh

    def index_some(self, ids: int) -> None:
        """Index about ``ids`` ids, or compute digests over them, so that no event has to wait."""
        if self._unindexed is not None:
            self._index(ids)
        elif not self._trie.is_fresh:
            self._trie.hash_some(ids)

    def adopt(self, trie: PublicationTrie) -> None:
        """Replace the trie with another one over the same log."""
        self._trie, self._unindexed = trie, None

    def next_seq(self, time_us: int) -> int:
        """Issue the sequence number of this node's next publication (decision 46)."""
        return self.own.next(self._numbers(), time_us)

    def _numbers(self) -> dict[SequenceId, int]:
        """Return the last number of each sequence; read the log at the first call."""
        if self._newest is None:
            self._newest = self.log.newest()
        return self._newest

    def add(
        self, publications: Iterable[Publication], out: Outbox, *, origin: Origin, hops: int = 0
    ) -> tuple[Publication, ...]:
        """Store publications under the ids of their fields (T10); return the new ones."""
        # A publication with a number below 0 has no id.
        some = with_id((p for p in publications if p.seq >= 0 and p.time >= 0), self.topic)
        return self._add_unknown(some, out, origin, hops)

    def add_backfill(self, part: HistoryPage, out: Outbox) -> bool:
        """Store publications of a backfill, except those that the source stores under a wrong id.

        Return True if at least one is new.
        """
        new, ids, encoded = part.publications, ids_of(part.publications, self.topic), part.encoded
        if b"".join(ids) != part.ids or not self._add_new(ids):
            chosen = self._chosen(ids, part.ids)  # rare, so it may check each one
            new, ids = tuple(compress(new, chosen)), tuple(compress(ids, chosen))
            encoded = encoded.chosen(chosen) if encoded is not None else None
            self._add(ids)
        if new:
            assign_ids(new, ids)
            start = self.end - len(new)
            self.record_numbers(new)
            size = len(encoded.data) if encoded else sum([each.size_bytes for each in new])
            out.effects.append(Store(start, new, size, encoded))
            out.effects.append(Deliver(new, start, Origin.REPAIR, 0, size))
        return len(new) > 0

    def _add_new(self, ids: tuple[bytes, ...]) -> bool:
        """Assign the next offsets to ids; return False and assign none if one is not new.

        An id is not new if it is known, empty or present twice. Most ids are new, so lookup and
        insertion are one step.
        """
        if not ids:
            return True
        if len(self._trie) > 0 and any(key in self._trie for key in ids):
            return False
        unindexed = {} if self._unindexed is None else self._unindexed
        offsets = list(range(self.end, self.end + len(ids)))
        found = list(map(unindexed.setdefault, ids, offsets))
        if found != offsets or b"" in unindexed:
            for key, offset, other in zip(ids, offsets, found, strict=True):
                if other == offset:
                    del unindexed[key]
            return False
        self._unindexed = unindexed
        self._index_rows(len(ids))
        return True

    def _chosen(self, ids: tuple[bytes, ...], stated: bytes) -> list[bool]:
        """Return a flag for each id: True if it is new here and equal to the id of the source."""
        chosen: list[bool] = []
        seen = {b""}
        for key, at in zip(ids, count(0, ID_BYTES), strict=False):
            is_stated = key == stated[at : at + ID_BYTES]
            chosen.append(is_stated and key not in seen and not self._has(key))
            if chosen[-1]:
                seen.add(key)
        return chosen

    def _add_unknown(
        self, some: tuple[Publication, ...], out: Outbox, origin: Origin, hops: int
    ) -> tuple[Publication, ...]:
        unknown = {each.id: each for each in some}
        for known in [key for key in unknown if self._has(key)] if self.count else ():
            del unknown[known]
        new = tuple(unknown.values())
        if new:
            start = self._add(unknown)
            self.record_numbers(new)
            size = sum([each.size_bytes for each in new])
            out.effects.append(Store(start, new, size))
            out.effects.append(Deliver(new, start, origin, hops, size))
        return new

    @property
    def misplaced(self) -> int:
        """Return the number of ids in the trie whose offset does not hold their record."""
        start, buffer = self._buffer
        stored = {offset: key for key, offset in self.log.entries()}
        stored |= {start + at: each.id for at, each in enumerate(buffer)}
        return sum(stored.get(offset) != key for key, offset in self._trie.entries())

    def offset_of(self, key: bytes) -> int | None:
        """Return the offset of an id, whether indexed or waiting; None if it is unknown."""
        offset = self._trie.offset_of(key)
        if offset is None and self._unindexed is not None:
            return self._unindexed.get(key)
        return offset

    def _has(self, key: bytes) -> bool:
        if self._unindexed is not None and key in self._unindexed:
            return True
        return len(self._trie) > 0 and key in self._trie

    def _add(self, ids: Collection[bytes]) -> int:
        """Assign the next offsets to new ids; return the first offset."""
        start = self.end
        if ids:
            self._unindexed = self._unindexed or {}
            self._unindexed.update(zip(ids, count(start), strict=False))
            self._index_rows(len(ids))
        return start

    def _index_rows(self, rows: int) -> None:
        """Advance the end by ``rows``; index some ids if more than UNINDEXED_MAX wait."""
        self._end = self.end + rows
        if self._unindexed is not None and len(self._unindexed) > UNINDEXED_MAX:
            self._index(2 * rows)  # a bounded step, so that no event takes long

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

    def record_numbers(self, new: Iterable[Publication]) -> None:
        """Record the last numbers of sequences: this node reuses no number of its own."""
        newest, own = self._newest, self.own
        if newest is None:
            return
        sequence: SequenceId = ("", -1)
        last = -1
        for each in new:
            seq = each.seq
            if each.publisher != sequence[0] or seq >> COUNTER_BITS != sequence[1]:
                sequence = each.publisher, seq >> COUNTER_BITS
                last = newest.get(sequence, -1)
            if last < seq < SEQ_BELIEVED_MAX:
                last = newest[sequence] = seq
                if sequence[0] == own.node:
                    own.on_seen(seq)

    # -- deferred storage ---------------------------------------------------------------------

    def unseen_bytes(self, publications: tuple[Publication, ...]) -> int:
        """Return the size of publications if their numbers prove that they are new, else 0.

        Numbers of a sequence only rise, so no id is needed. If 0, ``add`` compares the ids.
        """
        publisher, first = publications[0].publisher, publications[0].seq
        last, size = self._numbers().get((publisher, first >> COUNTER_BITS), -1), 0
        end = min(((first >> COUNTER_BITS) + 1) << COUNTER_BITS, SEQ_BELIEVED_MAX)
        for each in publications:  # hot path: one pass
            payload = each.payload
            if payload is None or each.publisher != publisher or each.time < 0:
                return 0
            if not last < each.seq < end:
                return 0
            last = each.seq
            size += each.size_bytes if each.key or each.headers else OVERHEAD_BYTES + len(payload)
        return size

    def deliver_early(
        self,
        publications: tuple[Publication, ...],
        after: int,
        out: Outbox,
        *,
        hops: int,
        size_bytes: int,
    ) -> None:
        """Deliver unseen publications before storage; ``after`` earlier ones are not stored yet."""
        self.mark_seen(publications)
        offset = self.end + after
        out.effects.append(Deliver(publications, offset, Origin.SPREAD, hops, size_bytes))

    def mark_seen(self, publications: tuple[Publication, ...]) -> None:
        """Record delivered publications of one publisher as seen."""
        last = publications[-1]
        self._numbers()[last.publisher, last.seq >> COUNTER_BITS] = last.seq
        if last.publisher == self.own.node:
            self.own.on_seen(last.seq)

    def persist(
        self, publications: tuple[Publication, ...], out: Outbox, *, size_bytes: int
    ) -> None:
        """Store and index delivered publications, in the order of delivery."""
        ids = ids_of(publications, self.topic)
        if b"" in ids:  # corrupted memory: nothing without an id was delivered
            publications = tuple(compress(publications, ids))
            ids = tuple(filter(None, ids))
        assign_ids(publications, ids)
        start = self._add(ids)
        self._buffer = start, publications
        out.effects.append(Store(start, publications, size_bytes))

    def end_event(self) -> None:
        """Drop the read-your-writes buffer: the host has applied the last event's effects."""
        self._buffer = _EMPTY_BUFFER
        self._end = None

    def rows(self, start: int, end: int) -> Iterator[tuple[int, Publication]]:
        """Return the readable publications between two offsets, each with its offset."""
        first, buffer = self._buffer
        skipped = max(start - first, 0)
        buffered = enumerate(buffer[skipped : max(end - first, 0)], first + skipped)
        return chain(self.log.read_range(start, end), buffered)

    def row(self, offset: int) -> Publication | None:
        """Return the publication at an offset, from the buffer or the log, or None."""
        start, buffer = self._buffer
        if 0 <= offset - start < len(buffer):
            return buffer[offset - start]
        return self.log.read(offset)

    def read(self, key: bytes, offset: int, out: Outbox) -> Publication | None:
        """Return the publication of an id, or drop the id and quarantine a corrupt record (T12)."""
        publication = self.row(offset)
        is_genuine = publication is not None and publication.is_genuine(self.topic)
        if publication is not None and is_genuine and publication.id == key:
            return publication
        self.index().remove(key)
        if not is_genuine:  # keep a sound record if only the trie is wrong
            out.effects.append(Discard(offset))
        return None

    def read_many(self, entries: Iterator[tuple[bytes, int]], out: Outbox) -> Iterator[Publication]:
        """Yield the publications of some ids, in the order of the ids, except missing ones.

        The order of ids is unrelated to that of the log. So this method reads ahead in log order,
        and doubles the number each time: a caller that stops early wastes little.
        """
        count = READ_AHEAD_MIN
        while ahead := list(islice(entries, count)):
            count = min(2 * count, READ_AHEAD_MAX)
            in_order = sorted(ahead, key=itemgetter(1))
            found = {key: self.read(key, offset, out) for key, offset in in_order}
            yield from (each for key, _ in ahead if (each := found[key]) is not None)

    def find(self, start: bytes, out: Outbox) -> Publication | None:
        """Return the publication whose id begins with these bytes, 8 or more, or None."""
        entry = self.index().find(start)
        return self.read(*entry, out) if entry is not None else None

    # -- credits (T14) -----------------------------------------------------------------------

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
        missing = [key for key in stored if key not in indexed and key not in waiting]
        return ReplicaState(
            numbers=self._wrong_numbers(),
            spent=dict(self._spent or {}),
            unindexed=dict(waiting),
            index=wrong | dict.fromkeys(missing),
            count=self._trie.wrong_count,
            scrubbed=self._trie.scrubbed,
        )

    def _wrong_numbers(self) -> tuple[NumberState, ...]:
        """Return the last number of each sequence for which the log has another one."""
        if self._newest is None:
            return ()
        right = self.log.newest()
        return tuple(
            NumberState(*sequence, self._newest.get(sequence))
            for sequence in self._newest | right
            if self._newest.get(sequence) != right.get(sequence)
        )

    def load(self, state: ReplicaState) -> None:
        """Replace the variables except the log; the value may be corrupted."""
        self._spent = dict(state.spent) or None
        self._unindexed = dict(state.unindexed) or None
        if state.numbers:
            wrong = {(each.publisher, each.incarnation): each.seq for each in state.numbers}
            numbers = (self.log.newest() | wrong).items()
            self._newest = {sequence: seq for sequence, seq in numbers if seq is not None}
        changed = dict.fromkeys(state.unindexed) | state.index
        if changed or state.count is not None or state.scrubbed:
            self._own_trie().overwrite(changed, state.count, state.scrubbed)
