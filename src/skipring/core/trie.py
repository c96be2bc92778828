"""Merkle-hashed Patricia trie of publication ids (section 4.2), stored as buckets of ids.

The paper's trie follows from the set of its keys, and an inner hash contains no label. So the nodes
need not exist: ids are in 2^b buckets by their first b bits, the digest of a bucket is that of the
Patricia trie over its ids, and digests above the buckets are combined pairwise; a side without ids
passes the digest of the other side through. This is path compression: the digest of every prefix
equals that of the Patricia trie, at about fifty bytes per id.

Each operation does a bounded amount of work. Buckets split when they are next used; digests are
computed on demand or in slices (``hash_some``), and derived again in slices (``scrub``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import ID_BITS, ID_BYTES
from skipring.core.summaries import EMPTY, EMPTY_ROOT, digest_of, inner_digest

OFFSET_BYTES: Final = 5  # Limit: 2^40 publications of a topic.
OFFSET_MAX: Final = (1 << 8 * OFFSET_BYTES) - 1
Offset: TypeAlias = Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="0 to 2^40-1")]
_LAST_OFFSET: Final = b"\xff" * OFFSET_BYTES
RECORD_BYTES: Final = ID_BYTES + OFFSET_BYTES
# Measured: fewer ids per bucket cost memory, more cost time for the root after an insert.
BUCKET_IDS: Final = 16
_PLACE_BITS: Final = 64  # at most: the leading bits of an id that choose its bucket


class TrieNode(Struct, frozen=True, gc=False):
    """Node of the Patricia trie: its prefix and its digest."""

    prefix: Prefix
    digest: bytes

    @property
    def is_leaf(self) -> bool:
        """Return True if the node is a single publication."""
        return self.prefix.length == ID_BITS

    @property
    def key(self) -> bytes:
        """Return the id of a leaf."""
        return self.prefix.value.to_bytes(ID_BYTES, "big")


class PublicationTrie:
    """Ids of a topic's publications, each with its offset in the log."""

    __slots__ = ("_bits", "_buckets", "_count", "_digests", "_scrubbed")

    def __init__(self) -> None:
        self._bits = 0
        # A bucket that has not been split since the last doubling is at the first of its places;
        # the other places contain None.
        self._buckets: list[bytes | None] = [b""]
        # Digest of every prefix of up to ``_bits`` bits, in heap order; None: unknown.
        self._digests: list[bytes | None] = [None, EMPTY]
        self._count = 0
        self._scrubbed = 0  # the place where the scrub continues

    def __len__(self) -> int:
        return self._count

    @property
    def bucket_bits(self) -> int:
        """Return the number of leading id bits that choose a bucket."""
        return self._bits

    # -- single ids ------------------------------------------------------------------------

    def __contains__(self, key: bytes) -> bool:
        place = int.from_bytes(key[:8], "big") >> (_PLACE_BITS - self._bits)
        while (bucket := self._buckets[place]) is None:  # ``_bucket_of``, inlined: the hot path
            place &= place - 1
        at = bucket.find(key)
        return at == 0 or (at > 0 and _find(bucket, key) >= 0)

    def offset_of(self, key: bytes) -> int | None:
        """Return the offset of an id, or None."""
        entry = self.find(key)
        return entry[1] if entry is not None else None

    def find(self, start: bytes) -> tuple[bytes, int] | None:
        """Return an id that begins with these bytes, 8 or more, and its offset; or None."""
        bucket = self._bucket_of(start)
        at = _find(bucket, start)
        if at < 0:
            return None
        middle, end = at + ID_BYTES, at + RECORD_BYTES
        return bucket[at:middle], int.from_bytes(bucket[middle:end], "big")

    def _bucket_of(self, start: bytes) -> bytes:
        """Return the bucket of the ids that begin with these bytes, 8 or more."""
        place = int.from_bytes(start[:8], "big") >> (_PLACE_BITS - self._bits)
        while (bucket := self._buckets[place]) is None:  # ``_home``, inlined
            place &= place - 1
        return bucket

    def add(self, key: bytes, offset: int) -> bool:
        """Insert one id; return False if it is present already."""
        return self.add_many([(key, offset)]) == 1

    def add_many(self, entries: Iterable[tuple[bytes, int]]) -> int:
        """Insert ids with their offsets; return the number of new ids."""
        batch = dict(entries)
        self.reserve(len(batch))
        shift = _PLACE_BITS - self._bits
        groups: dict[int, list[bytes]] = {}
        for key, offset in batch.items():
            record = key + offset.to_bytes(OFFSET_BYTES, "big")
            groups.setdefault(int.from_bytes(key[:8], "big") >> shift, []).append(record)
        before = self._count
        for place, records in groups.items():
            self._put(place, records)
        return self._count - before

    def reserve(self, ids: int) -> None:
        """Make room for more ids; this moves none."""
        if self._count + ids > BUCKET_IDS << self._bits:
            self._recount()  # memory may be corrupted; doubling takes as long anyway
            while self._count + ids > BUCKET_IDS << self._bits:
                self._double()

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
        """Remove an id whose publication is missing (T12); return False if it is not present."""
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
        assert bucket is not None, "a bucket is at its home place"
        return bucket

    def _home(self, place: int) -> int:
        """Return the place of the bucket that contains the ids of a place."""
        while self._buckets[place] is None:
            place &= place - 1
        return place

    def _spans(self, home: int) -> bool:
        """Return True if a bucket also contains the ids of places after its own."""
        after = home + 1
        return not home & 1 and after < len(self._buckets) and self._buckets[after] is None

    def _span(self, home: int) -> int:
        """Return the number of places whose ids a bucket contains."""
        span, places = 1, len(self._buckets)
        while not home & span and home + span < places and self._buckets[home + span] is None:
            span *= 2
        return span

    def _double(self) -> None:
        """Double the number of places; this moves no id."""
        buckets: list[bytes | None] = [None] * (2 * len(self._buckets))
        buckets[::2] = self._buckets
        self._buckets = buckets
        self._bits += 1
        self._scrubbed *= 2
        self._digests.extend([None] * (1 << self._bits))

    def _split_down_to(self, place: int) -> bytes:
        """Split a bucket until it contains only the ids of one place; return that bucket."""
        home = self._home(place)
        span = self._span(home)
        while span > 1:
            span //= 2
            self._split(home, home + span)
            if place >= home + span:
                home += span
        return self._bucket(home)

    def _split(self, home: int, middle: int) -> None:
        """Move the ids of the places from ``middle`` on to a new bucket."""
        border = (middle << (_PLACE_BITS - self._bits)).to_bytes(8, "big")
        lower: list[bytes] = []
        upper: list[bytes] = []
        for record in _records(self._bucket(home)):
            (lower if record < border else upper).append(record)
        self._buckets[home] = b"".join(lower)
        self._buckets[middle] = b"".join(upper)

    # -- ids and nodes under a prefix ---------------------------------------------------------

    def keys(self, prefix: Prefix = ALL) -> Iterator[bytes]:
        """Yield the ids under a prefix, in order."""
        for record in self._records_under(prefix):
            yield record[:ID_BYTES]

    def entries(self, prefix: Prefix = ALL) -> Iterator[tuple[bytes, int]]:
        """Yield the ids under a prefix, in order, with their offsets."""
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
                    if lowest <= record <= highest:  # a bucket may contain others
                        yield record

    def has_at_most(self, count: int, prefix: Prefix = ALL) -> bool:
        """Return True if at most ``count`` ids are under a prefix."""
        return next(islice(self._records_under(prefix), count, None), None) is None

    def node(self, prefix: Prefix = ALL) -> TrieNode | None:
        """Return the highest node under a prefix, which covers all ids there; None without ids."""
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
        """Return the two children of an inner node; fewer if its digest is corrupted."""
        below = (self.node(node.prefix.child(bit)) for bit in (0, 1))
        return [child for child in below if child is not None]

    # -- digests ---------------------------------------------------------------------------

    def root(self) -> bytes:
        """Return the digest of all ids; that of the virtual root if there are none (T2)."""
        return self._digest(1, 0) or EMPTY_ROOT

    @property
    def is_fresh(self) -> bool:
        """Return True if the digest of the root is known."""
        return self._digests[1] is not None

    def digest(self, prefix: Prefix) -> bytes:
        """Return the digest of the ids under a prefix; empty if there are none."""
        if prefix.length <= self._bits:
            return self._digest((1 << prefix.length) | prefix.value, prefix.length)
        return digest_of(list(self.keys(prefix)))

    def hash_some(self, ids: int) -> bool:
        """Compute unknown digests over about ``ids`` ids; return True if the root is known then."""
        return self.hash_under(ALL, ids) >= 0

    def hash_under(self, prefix: Prefix, ids: int) -> int:
        """Compute the digests that the digest of a prefix needs, over about ``ids`` ids.

        Return the number of ids that are left; negative if the digest is still unknown.
        """
        if prefix.length > self._bits:
            # A part of a bucket: its digest is not stored.
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
        """Return True if all ids of a place in the heap are in one bucket, perhaps with others."""
        if length == self._bits:
            return True
        first = (index - (1 << length)) << (self._bits - length)
        home = self._home(first)
        return home + self._span(home) >= first + (1 << (self._bits - length))

    def _digest(self, index: int, length: int) -> bytes:
        """Return the digest at a place in the heap; compute it if it is unknown."""
        known = self._digests[index]
        if known is None:
            if self._is_whole(index, length):
                known = digest_of(self._keys_below(index - (1 << length), length))
            else:
                known = self._combined(index, length)
            self._digests[index] = known
        return known

    def _keys_below(self, value: int, length: int) -> list[bytes]:
        """Return the ids under a prefix, in order; usually they are those of one bucket."""
        if length == self._bits and not self._spans(value):
            bucket = self._buckets[value]
            if bucket is not None:
                return sorted([record[:ID_BYTES] for record in _records(bucket)])
        return list(self.keys(Prefix(length, value)))

    def _combined(self, index: int, length: int) -> bytes:
        """Return the digest of two halves; if one has no ids, that of the other."""
        zero, one = self._digests[2 * index : 2 * index + 2]
        if zero is None or one is None:
            zero, one = self._digest(2 * index, length + 1), self._digest(2 * index + 1, length + 1)
        return inner_digest(zero, one) if zero and one else zero or one

    # -- corrupted memory --------------------------------------------------------------------

    def scrub(self, keys_max: int) -> list[tuple[bytes, int]]:
        """Derive the digests of the next ids again, up to the root (T10); return these ids.

        Digests and the count of ids are caches, and memory may be corrupted. A pass over all
        buckets derives every digest from the ids again and counts the ids once.
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
            bucket = self._split_down_to(place)
            self._rederive(place)
            entries += [
                (record[:ID_BYTES], int.from_bytes(record[ID_BYTES:], "big"))
                for record in sorted(_records(bucket))
            ]
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
        """Count the ids again; this takes about 2 ms for a million."""
        self._count = self._counted()

    def _counted(self) -> int:
        return sum([len(bucket) for bucket in self._buckets if bucket]) // RECORD_BYTES

    @property
    def wrong_count(self) -> int | None:
        """Return the cached count of the ids if it is wrong, else None."""
        return self._count if self._count != self._counted() else None

    @property
    def scrubbed(self) -> int:
        """Return the place where the scrub continues."""
        return self._scrubbed

    def overwrite(
        self, entries: Mapping[bytes, int | None], count: int | None, scrubbed: int
    ) -> None:
        """Change offsets, or remove ids whose offset is None, as corrupted memory would."""
        for key, offset in entries.items():
            self.remove(key)
            if offset is not None:
                self.add(key, offset)
        self._count = count if count is not None else self._count
        self._scrubbed = scrubbed

    def wrong_digests(self) -> dict[Prefix, bytes]:
        """Return wrong digests by prefix; there are none unless memory is corrupted."""
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
        """Overwrite stored digests, as corrupted memory would; deeper prefixes have none."""
        for prefix, digest in digests.items():
            if prefix.length <= self._bits:
                self._digests[(1 << prefix.length) | prefix.value] = digest

    def snapshot(self) -> PublicationTrie:
        """Return a copy of the trie; buckets are immutable, so this copies only their lists."""
        copy = PublicationTrie()
        copy._bits, copy._count, copy._scrubbed = self._bits, self._count, self._scrubbed
        copy._buckets, copy._digests = list(self._buckets), list(self._digests)
        return copy


def _find(bucket: bytes, key: bytes) -> int:
    """Return the start of an id's record, or -1; ``key`` may be the beginning of an id."""
    at = bucket.find(key)
    while at > 0 and at % RECORD_BYTES:  # a match across two records
        at = bucket.find(key, at + 1)
    return at


def _records(bucket: bytes) -> list[bytes]:
    return [bucket[at : at + RECORD_BYTES] for at in range(0, len(bucket), RECORD_BYTES)]
