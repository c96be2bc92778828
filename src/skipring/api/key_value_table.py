"""Newest value of each key of a topic, and the changes that a watcher has not received yet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

from skipring.api.reader import DeliveredPublication
from skipring.core.limits import KEY_BYTES_MAX, shown
from skipring.core.peers import NodeId
from skipring.core.publications import DELETED, Publication, Revision
from skipring.errors import InputError

# Headers of a write. Each has a decimal number as its value.
AFTER: Final = "skipring.after"  # the time of the value that the writer replaced
UNTIL: Final = "skipring.until"  # the end of a lease
DIGITS_MAX: Final = 19
LEASES_SPARE: Final = 64  # Guess: ends of replaced leases that cost no work.

_V = TypeVar("_V")


class Entry(Struct, Generic[_V], frozen=True):
    """Value of a key, and the write that set it."""

    key: str
    value: _V
    revision: Revision
    id: bytes  # of the publication
    until: int | None = None  # the end of its lease, in microseconds since the epoch

    @property
    def publisher(self) -> NodeId:
        """Return the publisher of the write."""
        return self.revision.publisher

    @property
    def time(self) -> int:
        """Return the time of the write, in microseconds since the epoch."""
        return self.revision.time


class Change(Struct, Generic[_V], frozen=True):
    """Change of a key, or a value that was there when the watch began.

    ``concurrent`` is True if the writer had not seen the value that its write replaced: ``before``,
    which the watcher may not have received. This is a fact about this node: another node may never
    have held the losing value.
    """

    key: str
    entry: Entry[_V] | None  # None: the key was deleted, or its lease ended
    before: Entry[_V] | None
    is_snapshot: bool = False
    concurrent: bool = False

    @property
    def deleted(self) -> bool:
        """Return True if the key has no value any more."""
        return self.entry is None


def text_of_key(key: str | bytes) -> str:
    """Return a key as text; bytes that are not UTF-8 become surrogate characters."""
    return key.decode(errors="surrogateescape") if isinstance(key, bytes) else key


def bytes_of_key(key: str | bytes) -> bytes:
    """Return a key as bytes; raise InputError if no value can be stored under it."""
    if not isinstance(key, str | bytes):
        raise InputError(f"expected str or bytes, got {type(key).__name__}", parameter="key")
    try:
        encoded = key if isinstance(key, bytes) else key.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise InputError("expected text that UTF-8 can represent", parameter="key") from None
    if not 0 < len(encoded) <= KEY_BYTES_MAX:
        raise InputError(
            f"expected 1 to {KEY_BYTES_MAX} bytes, got {len(encoded)}", parameter="key"
        )
    if encoded[0] == 0:
        raise InputError(f"{shown(text_of_key(key))} starts with a zero byte", parameter="key")
    return encoded


def has_value(headers: Mapping[str, str], now: int) -> bool:
    """Return True if a write with these headers is neither a tombstone nor an ended lease."""
    until = _number(headers.get(UNTIL))
    return DELETED not in headers and (until is None or until > now)


class KeyValueTable:
    """Newest write of each key, whatever the order in which the writes arrive.

    Deletions and ended leases stay until ``forget``: an older write that arrives later does not
    restore the key.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry[bytes]] = {}
        self._deleted: dict[str, Revision] = {}
        self._leases: list[tuple[int, str, Revision]] = []  # a heap
        self._sorted: list[str] | None = None  # the keys; None after a key came or went

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def deleted_count(self) -> int:
        """Return the number of keys that were deleted or whose lease has ended."""
        return len(self._deleted)

    @property
    def known_count(self) -> int:
        """Return the number of remembered keys, with and without a value."""
        return len(self._entries) + len(self._deleted)

    def known_keys(self) -> list[str]:
        """Return the remembered keys, with and without a value."""
        return [*self._entries, *self._deleted]

    def get(self, key: str) -> Entry[bytes] | None:
        """Return the entry of a key, or None."""
        return self._entries.get(key)

    def entries(self, prefix: str = "") -> list[Entry[bytes]]:
        """Return the entries of the keys with a prefix, sorted by key."""
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        start = bisect_left(self._sorted, prefix)
        keys = takewhile(lambda key: key.startswith(prefix), islice(self._sorted, start, None))
        return [self._entries[key] for key in keys]

    def last_time(self, key: str) -> int | None:
        """Return the time of the newest write of a key, including its deletion."""
        known = self.revision(key)
        return None if known is None else known.time

    def revision(self, key: str) -> Revision | None:
        """Return the revision of the newest write of a key, including its deletion, or None."""
        entry = self._entries.get(key)
        return self._deleted.get(key) if entry is None else entry.revision

    def apply(
        self, publication: DeliveredPublication | Publication, now: int
    ) -> Change[bytes] | None:
        """Apply a write; return the change, or None if there is none to report.

        A publication without a key, or with a reserved one, is not a write.
        """
        if not publication.key or publication.key[0] == 0:
            return None
        key, headers = text_of_key(publication.key), publication.headers
        revision = Revision(
            publication.time, publication.publisher, publication.seq, publication.id
        )
        known = self.revision(key)
        if known is not None and revision <= known:
            return None
        until = _number(headers.get(UNTIL))
        concurrent = known is not None and _is_concurrent(revision, headers.get(AFTER), known)
        before = self._entries.get(key)
        if not has_value(headers, now):
            self._delete(key, revision)
            return None if before is None else Change(key, None, before, concurrent=concurrent)
        entry = Entry(key, publication.payload, revision, publication.id, until)
        if before is None:
            self._deleted.pop(key, None)
            self._sorted = None
        self._entries[key] = entry
        if until is not None:
            self._add_lease(until, key, revision)
        return Change(key, entry, before, concurrent=concurrent)

    def _add_lease(self, until: int, key: str, revision: Revision) -> None:
        if len(self._leases) > LEASES_SPARE + 2 * len(self._entries):  # most were renewed
            entries = self._entries.values()
            self._leases = [(e.until, e.key, e.revision) for e in entries if e.until is not None]
            heapify(self._leases)
        heappush(self._leases, (until, key, revision))

    def _delete(self, key: str, revision: Revision) -> None:
        self._deleted[key] = revision
        if self._entries.pop(key, None) is not None:
            self._sorted = None

    @property
    def lease_count(self) -> int:
        """Return the number of ends of leases in memory, with those that were renewed since."""
        return len(self._leases)

    @property
    def next_expiry(self) -> int | None:
        """Return the earliest end of a lease, or None."""
        return self._leases[0][0] if self._leases else None

    def expire(self, now: int) -> Iterator[Change[bytes]]:
        """Delete the entries whose lease has ended; yield the changes."""
        while self._leases and self._leases[0][0] <= now:
            _, key, revision = heappop(self._leases)
            entry = self._entries.get(key)
            if entry is not None and entry.revision == revision:
                self._delete(key, revision)
                yield Change(key, None, entry)

    def forget(self, key: str) -> Change[bytes] | None:
        """Forget all writes of a key, which the topic does not retain; return the change."""
        self._deleted.pop(key, None)
        before = self._entries.pop(key, None)
        if before is None:
            return None
        self._sorted = None
        return Change(key, None, before)


def _is_concurrent(revision: Revision, after: str | None, known: Revision) -> bool:
    """Return True if a writer had not seen the revision that its write replaces."""
    if revision.publisher == known.publisher:
        return False
    seen = _number(after)
    return seen is None or seen < known.time


def _number(text: str | None) -> int | None:
    """Return the number of a header; None if it is absent or not a number."""
    if text is None or len(text) > DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


class _Pending(NamedTuple):
    """Change that a watcher has not received; ``is_new``: neither any value of the key."""

    change: Change[bytes]
    is_new: bool


class PendingChanges:
    """Changes that a watcher has not received: at most one for each key, the newest.

    A key keeps its place when it changes again, so the snapshot stays first and no key waits
    longer than all others take.
    """

    def __init__(self, snapshot: Iterable[Entry[bytes]] = ()) -> None:
        self._pending: dict[str, _Pending] = {
            each.key: _Pending(Change(each.key, each, None, is_snapshot=True), is_new=True)
            for each in snapshot
        }

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, change: Change[bytes]) -> None:
        """Add a change, merged with the pending one of its key."""
        key, pending = change.key, self._pending.get(change.key)
        if pending is None:
            self._pending[key] = _Pending(change, is_new=change.before is None)
        elif change.entry is None and pending.is_new:
            del self._pending[key]
        else:
            self._pending[key] = _Pending(_merged(pending.change, change), pending.is_new)

    def pop_oldest(self) -> Change[bytes] | None:
        """Remove and return the oldest change, or None."""
        if not self._pending:
            return None
        return self._pending.pop(next(iter(self._pending))).change


def _merged(first: Change[bytes], second: Change[bytes]) -> Change[bytes]:
    """Return two changes of a key as one; ``before`` is the last value that lost, if one did."""
    return Change(
        second.key,
        second.entry,
        second.before if second.concurrent else first.before,
        first.is_snapshot,
        first.concurrent or second.concurrent,
    )
