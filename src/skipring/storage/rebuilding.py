"""A new file out of what is intact in a damaged one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES
from skipring.storage.carving import carved, page_sizes
from skipring.storage.chain import LOST_ID
from skipring.storage.database import (
    LOST,
    DamageError,
    Mark,
    connect,
    create,
    insert_mark,
    insert_pack,
    lost_ids,
    lost_offsets,
    marks_of,
    promises_of,
    replace_promise,
    stores_of,
)
from skipring.storage.files import COMPLAINTS, beside, sync_directory
from skipring.storage.packs import Draft, Head, Pack
from skipring.storage.places import Places
from skipring.storage.promises import Promise, Promises, new_epoch

T = TypeVar("T")

COMPLETE = ".new"
INCOMPLETE = ".rebuilding"


class Rebuilt(NamedTuple):
    """What a new file lacks."""

    lost: int  # offsets that hold nothing now, and did before
    raised: tuple[TopicId, ...]  # topics with a new epoch


def rebuild(
    path: Path, wal: bytes, promises: Promises | None, new_id: Callable[[], str]
) -> Rebuilt:
    """Write what is intact into a new file beside the damaged one."""
    old = _Remembered.read(path)
    if promises is not None and old.store not in (None, promises.store):
        promises = None  # another store's
    said_store = promises.store if promises is not None else None
    fresh = beside(path, INCOMPLETE)
    discard_incomplete(path)
    with closing(create(fresh, old.store or said_store or new_id())) as db:
        gathered = _Gathered(db)
        with _opened(path) as file:
            for page_bytes in _sizes(file, wal):
                for body in carved(file, wal, page_bytes):
                    gathered.take(body)
                if gathered.has_something:
                    break
        places = gathered.settled()
        rebuilt = _account(db, places, gathered, old, promises)
        db.execute("COMMIT")
    fresh.replace(beside(path, COMPLETE))
    sync_directory(path.parent)
    return rebuilt


def _sizes(file: BinaryIO, wal: bytes) -> list[int]:
    """How large the pages may be, the likeliest first; if it cannot be told, as more is found."""
    votes = page_sizes(file, wal)
    if len(set(votes.values())) == len(votes):
        return [size for size, _ in votes.most_common()]

    def found(page_bytes: int) -> int:
        packs = map(Pack.parse, carved(file, wal, page_bytes))
        return sum(pack.head.count for pack in packs if pack is not None and pack.is_whole)

    return sorted(votes, key=found, reverse=True)


def discard_incomplete(path: Path) -> None:
    """Remove what an attempt that was cut short has left."""
    for suffix in ("", "-journal"):
        beside(path, INCOMPLETE + suffix).unlink(missing_ok=True)


def is_short(end: int, own: Promise | None, said: Promise | None) -> bool:
    """True if a topic ends below what was promised, by the file itself or beside it.

    A promise of a later epoch than the file's own: the file is an old copy of itself.
    """
    own, said = own or Promise(), said or Promise()
    return said.epoch > own.epoch or end < max(own, said).end


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError:
        return BytesIO()


class _Remembered(NamedTuple):
    """What SQLite can still read of the small tables."""

    store: str | None
    promises: dict[TopicId, Promise]
    marks: list[Mark]

    @classmethod
    def read(cls, path: Path) -> _Remembered:
        """As much as there is."""
        if not path.is_file():
            return cls(None, {}, [])
        try:
            with closing(connect(path)) as db:
                stores = _readable(stores_of(db))
                promises = dict(_readable(promises_of(db)))
                return cls(stores[0] if stores else None, promises, _readable(marks_of(db)))
        except COMPLAINTS:
            return cls(None, {}, [])


def _readable(rows: Iterator[T]) -> list[T]:
    """The rows before the first that cannot be read."""
    found: list[T] = []
    with suppress(*COMPLAINTS, DamageError):
        for row in rows:
            found.append(row)  # noqa: PERF402  (what came before an error is kept)
    return found


class _Gathered:
    """Packs that were found, in any order, some of them several times."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._digests: set[bytes] = set()
        self._whole: dict[TopicId, list[tuple[Head, int]]] = {}
        self._damaged: list[Pack] = []
        self.epochs: dict[TopicId, int] = {}
        self.claimed: dict[TopicId, dict[int, bytes]] = {}  # ids in damaged packs, right or wrong

    @property
    def has_something(self) -> bool:
        """True if there was a pack, whole or not."""
        return bool(self._whole or self._damaged)

    def take(self, body: bytes) -> None:
        """Keep a pack if it is whole; look at it later if it is not."""
        pack = Pack.parse(body)
        if pack is None or pack.digest in self._digests:
            return
        if pack.is_whole:
            self._digests.add(pack.digest)
            self._keep(pack.head, body)
        else:
            self._damaged.append(pack)

    def settled(self) -> dict[TopicId, Places]:
        """Where everything is in the end."""
        places = {topic: self._without_overlaps(packs) for topic, packs in self._whole.items()}
        for draft, epoch in self._salvaged(places):
            head = Head(draft.topic, epoch, draft.start, draft.end - draft.start)
            row = self._keep(head, draft.packed(epoch))
            places.setdefault(draft.topic, Places()).add(draft.start, draft.end, row)
        for place in places.values():
            is_orderly = place.settle()
            assert is_orderly, "what was salvaged was there already"
        return places

    def _keep(self, head: Head, body: bytes | bytearray) -> int:
        row = insert_pack(self._db, body)
        self._whole.setdefault(head.topic, []).append((head, row))
        self.epochs[head.topic] = max(self.epochs.get(head.topic, 0), head.epoch)
        return row

    def _without_overlaps(self, packs: list[tuple[Head, int]]) -> Places:
        """One pack for each offset: of the later epoch, or the larger one."""
        kept: list[tuple[Head, int]] = []
        dropped: list[int] = []
        for head, row in sorted(packs, key=lambda item: (item[0].start, item[1])):
            while kept and kept[-1][0].end > head.start:
                other, other_row = kept[-1]
                if (other.epoch, other.count) >= (head.epoch, head.count):
                    dropped.append(row)
                    break
                dropped.append(other_row)
                kept.pop()
            else:
                kept.append((head, row))
        self._db.executemany("DELETE FROM packs WHERE pack = ?", ((row,) for row in dropped))
        places = Places()
        for head, row in kept:
            places.add(head.start, head.end, row)
        return places

    def _salvaged(self, places: dict[TopicId, Places]) -> Iterator[tuple[Draft, int]]:
        """What is intact in damaged packs and nowhere else, as new packs."""
        found: dict[tuple[TopicId, int], tuple[bytes, Pack]] = {}
        for pack in self._damaged:
            topic, ids = pack.head.topic, bytes(pack.ids)
            self.claimed.setdefault(topic, {}).update(
                (pack.start + at // ID_BYTES, ids[at : at + ID_BYTES])
                for at in range(0, len(ids) - len(ids) % ID_BYTES, ID_BYTES)
            )
            for key, offset in pack.entries():
                if topic not in places or not places[topic].covers(offset):
                    found.setdefault((topic, offset), (key, pack))
        draft, epoch = Draft("", 0), 0
        for (topic, offset), (key, pack) in sorted(found.items(), key=lambda item: item[0]):
            here = (draft.topic, draft.end, epoch)
            if draft.is_full or here != (topic, offset, pack.head.epoch):
                if draft.end > draft.start:
                    yield draft, epoch
                draft, epoch = Draft(topic, offset), pack.head.epoch
            draft.append(key, pack.data(offset))
        if draft.end > draft.start:
            yield draft, epoch


def _ids_between(start: int, end: int, ids: Mapping[int, bytes]) -> bytes:
    """The ids at lost offsets, zeros for those that are not known; nothing if none is."""
    if not any(start <= offset < end for offset in ids):
        return b""
    return b"".join(ids.get(offset, LOST_ID) for offset in range(start, end))


def _account(
    db: sqlite3.Connection,
    places: dict[TopicId, Places],
    gathered: _Gathered,
    old: _Remembered,
    promises: Promises | None,
) -> Rebuilt:
    """Note what is lost, and raise the epochs of topics that end below what was promised."""
    lost, raised = 0, []
    known = lost_offsets(old.marks)
    said = promises.topics if promises is not None else {}
    for topic in sorted({*places, *old.promises, *said}):
        place = places.get(topic, Places())
        own_promise, said_promise = old.promises.get(topic), said.get(topic)
        promise = max(own_promise or Promise(), said_promise or Promise())
        epoch = max(promise.epoch, gathered.epochs.get(topic, 0))
        gaps = [gap for gap in place.gaps() if gap not in known.get(topic, ())]
        ids = gathered.claimed.get(topic, {}) | lost_ids(topic, old.marks)
        for start, end in place.gaps():
            insert_mark(db, Mark(topic, start, end - start, LOST, _ids_between(start, end, ids)))
        lost += sum(end - start for start, end in gaps) + max(0, promise.end - place.end)
        is_unknown = promises is None or epoch > promise.epoch
        if is_unknown or is_short(place.end, own_promise or said_promise, said_promise):
            epoch = new_epoch(epoch)
            raised.append(topic)
        replace_promise(db, topic, Promise(epoch, place.end))
    for mark in old.marks:
        is_before_end = mark.topic in places and mark.start < places[mark.topic].end
        if is_before_end and mark.reason != LOST:
            insert_mark(db, mark)
    return Rebuilt(lost, tuple(raised))
