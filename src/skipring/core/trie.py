"""Merkle-hashed Patricia trie of publication ids (section 4.2), stored as buckets of ids.

The paper's trie follows from the set of its keys, and an inner hash contains no label. So the nodes
need not exist: ids are in 2^b buckets by their first b bits, the digest of a bucket is that of the
Patricia trie over its ids, and digests above the buckets are combined pairwise; a side without ids
passes the digest of the other side through. This is path compression: the digest of every prefix
equals that of the Patricia trie, at about fifty bytes per id.

No operation takes long. Buckets split when they are next used; digests are computed on demand or in
slices (``freshen``), and derived again in slices (``scrub``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct

from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import ID_BITS, ID_BYTES
from skipring.core.summaries import EMPTY, EMPTY_ROOT, digest_of, inner_digest

OFFSET_BYTES: Final = 5  # Limit of ours: 2^40 publications of a topic.
_LAST_OFFSET: Final = b"\xff" * OFFSET_BYTES
RECORD_BYTES: Final = ID_BYTES + OFFSET_BYTES
# Measured: with fewer ids a bucket memory grows, with more a fresh root after one insert does.
BUCKET_IDS: Final = 16
_PLACE_BITS: Final = 64  # of an id are looked at to find its bucket


class TrieNode(Struct, frozen=True, gc=False):
    """A node of the Patricia trie: its label, and its digest."""

    prefix: Prefix
    digest: bytes

    @property
    def is_leaf(self) -> bool:
        """True if the node is a single publication."""
        return self.prefix.length == ID_BITS

    @property
    def key(self) -> bytes:
        """The id that a leaf stands for."""
        return self.prefix.value.to_bytes(ID_BYTES, "big")


class PublicationTrie:
    """The ids of a topic's publications, each with the offset at which it is stored."""

    __slots__ = ("_bits", "_buckets", "_count", "_digests", "_scrubbed")

    def __init__(self) -> None:
        self._bits = 0
        # A bucket that has not been split since the last doubling stands at the first of its
        # places; the others hold None.
        self._buckets: list[bytes | None] = [b""]
        # Of every prefix of up to ``_bits`` bits, in the order of a heap; None: not known.
        self._digests: list[bytes | None] = [None, EMPTY]
        self._count = 0
        self._scrubbed = 0  # the place where the scrub goes on

    def __len__(self) -> int:
        return self._count

    @property
    def bucket_bits(self) -> int:
        """How many bits of an id decide in which bucket it lies."""
        return self._bits

    # -- single ids ------------------------------------------------------------------------

    def __contains__(self, key: bytes) -> bool:
        return self.offset_of(key) is not None

    def offset_of(self, key: bytes) -> int | None:
        """Where a publication is stored, or None."""
        entry = self.find(key)
        return entry[1] if entry is not None else None

    def find(self, start: bytes) -> tuple[bytes, int] | None:
        """An id that begins with these bytes, 8 or more, and its offset."""
        bucket = self._bucket(self._home(self._place(start)))
        at = _find(bucket, start)
        if at < 0:
            return None
        middle, end = at + ID_BYTES, at + RECORD_BYTES
        return bucket[at:middle], int.from_bytes(bucket[middle:end], "big")

    def add(self, key: bytes, offset: int) -> bool:
        """Insert one id; False if it is there already."""
        return self.add_many([(key, offset)]) == 1

    def add_many(self, entries: Iterable[tuple[bytes, int]]) -> int:
        """Insert ids with their offsets; return how many are new."""
        batch = dict(entries)
        if self._count + len(batch) > BUCKET_IDS << self._bits:
            self._recount()  # memory may be corrupted, and to double takes as long
            while self._count + len(batch) > BUCKET_IDS << self._bits:
                self._double()
        shift = _PLACE_BITS - self._bits
        groups: dict[int, list[bytes]] = {}
        for key, offset in batch.items():
            record = key + offset.to_bytes(OFFSET_BYTES, "big")
            groups.setdefault(int.from_bytes(key[:8], "big") >> shift, []).append(record)
        before = self._count
        for place, records in groups.items():
            self._put(place, records)
        return self._count - before

    def _put(self, place: int, records: list[bytes]) -> None:
        bucket = self._buckets[place]
        if bucket is None or self._spans(place):
            bucket = self._split_down_to(place)
        if bucket:
            records = [record for record in records if _find(bucket, record[:ID_BYTES]) < 0]
        if records:
            self._buckets[place] = bucket + b"".join(records)
            self._count += len(records)
            self._forget_digests(place)

    def remove(self, key: bytes) -> bool:
        """Take out an id whose publication turned out not to be there (T12)."""
        place = self._place(key)
        bucket = self._split_down_to(place)
        at = _find(bucket, key)
        if at < 0:
            return False
        self._buckets[place] = bucket[:at] + bucket[at + RECORD_BYTES :]
        self._count = max(self._count - 1, 0)  # memory may be corrupted
        self._forget_digests(place)
        return True

    def _forget_digests(self, place: int) -> None:
        digests, index = self._digests, (1 << self._bits) + place
        while index:
            digests[index] = None
            index >>= 1

    # -- buckets ---------------------------------------------------------------------------

    def _place(self, key: bytes) -> int:
        return int.from_bytes(key[:8], "big") >> (_PLACE_BITS - self._bits)

    def _bucket(self, home: int) -> bytes:
        bucket = self._buckets[home]
        assert bucket is not None, "a bucket stands at its home"
        return bucket

    def _home(self, place: int) -> int:
        """Where the bucket with the ids of a place stands."""
        while self._buckets[place] is None:
            place &= place - 1
        return place

    def _spans(self, home: int) -> bool:
        """True if a bucket also holds the ids of places after its own."""
        after = home + 1
        return not home & 1 and after < len(self._buckets) and self._buckets[after] is None

    def _span(self, home: int) -> int:
        """How many places a bucket stands for."""
        span, places = 1, len(self._buckets)
        while not home & span and home + span < places and self._buckets[home + span] is None:
            span *= 2
        return span

    def _double(self) -> None:
        """Make room for twice as many buckets, and move no id."""
        buckets: list[bytes | None] = [None] * (2 * len(self._buckets))
        buckets[::2] = self._buckets
        self._buckets = buckets
        self._bits += 1
        self._scrubbed *= 2
        self._digests.extend([None] * (1 << self._bits))

    def _split_down_to(self, place: int) -> bytes:
        """Split the bucket that holds a place's ids until it holds no others; return it."""
        home = self._home(place)
        span = self._span(home)
        while span > 1:
            span //= 2
            self._split(home, home + span)
            if place >= home + span:
                home += span
        return self._bucket(home)

    def _split(self, home: int, middle: int) -> None:
        """Move the ids of the places from ``middle`` on to a bucket of their own."""
        border = (middle << (_PLACE_BITS - self._bits)).to_bytes(8, "big")
        lower: list[bytes] = []
        upper: list[bytes] = []
        for record in _records(self._bucket(home)):
            (lower if record < border else upper).append(record)
        self._buckets[home] = b"".join(lower)
        self._buckets[middle] = b"".join(upper)

    # -- what lies under a prefix ------------------------------------------------------------

    def keys(self, prefix: Prefix = ALL) -> Iterator[bytes]:
        """The ids under a prefix, in order."""
        for record in self._records_under(prefix):
            yield record[:ID_BYTES]

    def entries(self, prefix: Prefix = ALL) -> Iterator[tuple[bytes, int]]:
        """The ids under a prefix, in order, with their offsets."""
        for record in self._records_under(prefix):
            yield record[:ID_BYTES], int.from_bytes(record[ID_BYTES:], "big")

    def _records_under(self, prefix: Prefix) -> Iterator[bytes]:
        shift = ID_BITS - prefix.length
        lowest = (prefix.value << shift).to_bytes(ID_BYTES, "big")
        highest = (((prefix.value + 1) << shift) - 1).to_bytes(ID_BYTES, "big") + _LAST_OFFSET
        for place in range(self._home(self._place(lowest)), self._place(highest) + 1):
            bucket = self._buckets[place]
            if bucket:
                for record in sorted(_records(bucket)):
                    if lowest <= record <= highest:  # a bucket may hold more
                        yield record

    def has_at_most(self, count: int, prefix: Prefix = ALL) -> bool:
        """True if no more ids than so many lie under a prefix."""
        return next(islice(self._records_under(prefix), count, None), None) is None

    def node(self, prefix: Prefix = ALL) -> TrieNode | None:
        """The node that holds all ids under a prefix: the one of minimal label there."""
        length, index = prefix.length, (1 << prefix.length) | prefix.value
        while length < self._bits:
            if self._is_whole(index, length):
                break
            zero, one = self._digest(2 * index, length + 1), self._digest(2 * index + 1, length + 1)
            if zero and one:
                place = Prefix(length, index - (1 << length))
                return TrieNode(place, self._digest(index, length))
            if not zero and not one:
                return None
            index, length = 2 * index + bool(one), length + 1
        keys = list(self.keys(Prefix(length, index - (1 << length))))
        if not keys:
            return None
        digest = self._digest(index, length) if length <= self._bits else digest_of(keys)
        first, last = int.from_bytes(keys[0], "big"), int.from_bytes(keys[-1], "big")
        length = ID_BITS - (first ^ last).bit_length()
        return TrieNode(Prefix(length, first >> (ID_BITS - length)), digest)

    def children(self, node: TrieNode) -> list[TrieNode]:
        """The two child nodes of an inner node; fewer where a corrupted digest made it one."""
        below = (self.node(node.prefix.child(bit)) for bit in (0, 1))
        return [child for child in below if child is not None]

    # -- digests ---------------------------------------------------------------------------

    @property
    def root(self) -> bytes:
        """The digest of all ids; that of the virtual root if there are none (T2)."""
        return self._digest(1, 0) or EMPTY_ROOT

    @property
    def is_fresh(self) -> bool:
        """True if the root is known."""
        return self._digests[1] is not None

    def digest(self, prefix: Prefix) -> bytes:
        """The digest of the ids under a prefix; no bytes if there are none."""
        if prefix.length <= self._bits:
            return self._digest((1 << prefix.length) | prefix.value, prefix.length)
        return digest_of(list(self.keys(prefix)))

    def freshen(self, ids: int) -> bool:
        """Work out unknown digests over about so many ids; True once the root is known."""
        return self.work_out(ALL, ids) >= 0

    def work_out(self, prefix: Prefix, ids: int) -> int:
        """Work out what the digest of a prefix takes, over about so many ids.

        Return for how many ids there is time left; negative if the digest is not known yet.
        """
        if prefix.length > self._bits:
            # A part of a bucket, of which no digest is kept.
            return ids - sum(1 for _ in self._records_under(prefix))
        waiting = [((1 << prefix.length) | prefix.value, prefix.length)]
        while waiting and ids >= 0:
            index, length = waiting[-1]
            if self._digests[index] is None:
                unknown = self._unknown_below(index, length)
                if unknown:
                    waiting += unknown
                    continue
                ids -= BUCKET_IDS if self._is_whole(index, length) else 1
                self._digest(index, length)
            waiting.pop()
        return ids if not waiting else -1

    def _unknown_below(self, index: int, length: int) -> list[tuple[int, int]]:
        if self._is_whole(index, length):
            return []
        below = ((2 * index, length + 1), (2 * index + 1, length + 1))
        return [child for child in below if self._digests[child[0]] is None]

    def _is_whole(self, index: int, length: int) -> bool:
        """True if all ids of a place in the heap lie in one bucket, perhaps with others."""
        if length == self._bits:
            return True
        first = (index - (1 << length)) << (self._bits - length)
        home = self._home(first)
        return home + self._span(home) >= first + (1 << (self._bits - length))

    def _digest(self, index: int, length: int) -> bytes:
        """The digest at a place in the heap, worked out if it is not known."""
        known = self._digests[index]
        if known is None:
            if self._is_whole(index, length):
                known = digest_of(self._keys_below(index - (1 << length), length))
            else:
                known = self._combined(index, length)
            self._digests[index] = known
        return known

    def _keys_below(self, value: int, length: int) -> list[bytes]:
        """The ids under a prefix, in order; mostly they are those of one bucket."""
        if length == self._bits and not self._spans(value):
            bucket = self._buckets[value]
            if bucket is not None:
                starts = range(0, len(bucket), RECORD_BYTES)
                return sorted([bucket[at : at + ID_BYTES] for at in starts])
        return list(self.keys(Prefix(length, value)))

    def _combined(self, index: int, length: int) -> bytes:
        """The digest of two halves; one without ids passes the other's through."""
        zero, one = self._digest(2 * index, length + 1), self._digest(2 * index + 1, length + 1)
        return inner_digest(zero, one) if zero and one else zero or one

    # -- corrupted memory --------------------------------------------------------------------

    def scrub(self, keys_max: int) -> list[tuple[bytes, int]]:
        """Derive the digests of the next ids anew, up to the root (T10); return these ids.

        Digests and their count are caches, and memory may be corrupted: after a walk through all
        buckets every digest has been worked out from the ids again, and the ids are counted once.
        """
        entries: list[tuple[bytes, int]] = []
        self._bits = len(self._buckets).bit_length() - 1
        for _ in range(min(keys_max, len(self._buckets))):  # buckets may be empty
            place = self._scrubbed % len(self._buckets)
            if place == 0:
                self._recount()
            self._scrubbed = place + 1
            if self._buckets[place] is None:
                continue
            self._split_down_to(place)
            self._rederive(place)
            entries += self.entries(Prefix(self._bits, place))
            if len(entries) >= keys_max:
                break
        return entries

    def _rederive(self, place: int) -> None:
        index, length = (1 << self._bits) | place, self._bits
        self._digests[index] = digest_of(self._keys_below(place, length))
        while length:
            index, length = index >> 1, length - 1
            if self._digests[index] is not None:
                self._digests[index] = self._combined(index, length)

    def _recount(self) -> None:
        """Count the ids: about 2 ms for a million."""
        self._count = self._counted()

    def _counted(self) -> int:
        return sum([len(bucket) for bucket in self._buckets if bucket]) // RECORD_BYTES

    @property
    def wrong_count(self) -> int | None:
        """The count of the ids as remembered, if it is wrong."""
        return self._count if self._count != self._counted() else None

    @property
    def scrubbed(self) -> int:
        """The place where the scrub goes on."""
        return self._scrubbed

    def overwrite(
        self, entries: Mapping[bytes, int | None], count: int | None, scrubbed: int
    ) -> None:
        """Change offsets, or take out ids that have none, as corrupted memory would."""
        for key, offset in entries.items():
            self.remove(key)
            if offset is not None:
                self.add(key, offset)
        self._count = count if count is not None else self._count
        self._scrubbed = scrubbed

    def wrong_digests(self) -> dict[Prefix, bytes]:
        """Known digests that the ids do not give, by prefix: none, unless memory is corrupted."""
        fresh = PublicationTrie()
        fresh.add_many(self.entries())
        wrong = {}
        for index, digest in enumerate(self._digests[1:], start=1):
            length = index.bit_length() - 1
            prefix = Prefix(length, index - (1 << length))
            if digest is not None and digest != fresh.digest(prefix):
                wrong[prefix] = digest
        return wrong

    def corrupt(self, digests: Mapping[Prefix, bytes]) -> None:
        """Overwrite known digests, as corrupted memory would; those of deeper prefixes are none."""
        for prefix, digest in digests.items():
            if prefix.length <= self._bits:
                self._digests[(1 << prefix.length) | prefix.value] = digest

    def snapshot(self) -> PublicationTrie:
        """The trie as it is now; buckets never change, so only their lists are copied."""
        copy = PublicationTrie()
        copy._bits, copy._count, copy._scrubbed = self._bits, self._count, self._scrubbed
        copy._buckets, copy._digests = list(self._buckets), list(self._digests)
        return copy


def _find(bucket: bytes, key: bytes) -> int:
    """Where the record of an id begins; -1 if there is none. The id may be cut short."""
    at = bucket.find(key)
    while at > 0 and at % RECORD_BYTES:  # by chance across records
        at = bucket.find(key, at + 1)
    return at


def _records(bucket: bytes) -> Iterator[bytes]:
    for at in range(0, len(bucket), RECORD_BYTES):
        yield bucket[at : at + RECORD_BYTES]
