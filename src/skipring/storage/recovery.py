"""Recovery of a store that may be damaged in any way: intact records are kept.

A damaged file is never repaired in place. The intact records go into a new file beside it; when it
is complete, the old file is quarantined and the new one takes its name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from msgspec import Struct, structs

from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES
from skipring.errors import StorageError
from skipring.storage.chain import LOST_ID
from skipring.storage.data_dir import (
    COMPLAINTS,
    is_damage,
    quarantine_file,
    sibling,
    sync_directory,
)
from skipring.storage.durable_mark import DurableMark, DurableMarks, new_epoch
from skipring.storage.page_scan import carved, page_sizes
from skipring.storage.segment import Head, Segment, SegmentBuilder, SegmentIndex
from skipring.storage.sqlite import (
    FILE,
    LOST,
    DamageError,
    QuarantineEntry,
    StoreContents,
    connect,
    connect_durably,
    contents_of,
    create,
    insert_mark,
    insert_pack,
    lost_ids,
    lost_offsets,
    marks_of,
    promises_of,
    replace_promise,
    stores_of,
    transaction,
)

T = TypeVar("T")

COMPLETE = ".new"
INCOMPLETE = ".rebuilding"


class Rebuilt(NamedTuple):
    """Losses of a rebuilt file."""

    lost: int  # offsets that are empty now and were not before
    raised: tuple[TopicId, ...]  # topics with a new epoch


def rebuild(
    path: Path, wal: bytes, promises: DurableMarks | None, new_id: Callable[[], str]
) -> Rebuilt:
    """Write the intact records into a new file beside the damaged one."""
    old = _Remembered.read(path)
    if promises is not None and old.store not in (None, promises.store):
        promises = None  # marks of another store
    said_store = promises.store if promises is not None else None
    fresh = sibling(path, INCOMPLETE)
    discard_incomplete(path)
    with closing(create(fresh, old.store or said_store or new_id())) as db:
        gathered = _GatheredRecords(db)
        with _opened(path) as file:
            for page_bytes in _sizes(file, wal):
                for body in carved(file, wal, page_bytes):
                    gathered.take(body)
                if gathered.has_something:
                    break
        places = gathered.settled()
        rebuilt = _account(db, places, gathered, old, promises)
        db.execute("COMMIT")
    fresh.replace(sibling(path, COMPLETE))
    sync_directory(path.parent)
    return rebuilt


def _sizes(file: BinaryIO, wal: bytes) -> list[int]:
    """Return the possible page sizes, most likely first; on a tie, the one with more records."""
    votes = page_sizes(file, wal)
    if len(set(votes.values())) == len(votes):
        return [size for size, _ in votes.most_common()]

    def found(page_bytes: int) -> int:
        packs = map(Segment.parse, carved(file, wal, page_bytes))
        return sum(pack.head.count for pack in packs if pack is not None and pack.is_whole)

    return sorted(votes, key=found, reverse=True)


def discard_incomplete(path: Path) -> None:
    """Remove the files of an interrupted attempt."""
    for suffix in ("", "-journal"):
        sibling(path, INCOMPLETE + suffix).unlink(missing_ok=True)


def is_short(end: int, own: DurableMark | None, said: DurableMark | None) -> bool:
    """Return True if a topic ends below a durable mark, in the file itself or beside it.

    A mark of a later epoch than that of the file shows that the file is an old copy.
    """
    own, said = own or DurableMark(), said or DurableMark()
    return said.epoch > own.epoch or end < max(own, said).end


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError:
        return BytesIO()


class _Remembered(NamedTuple):
    """Content of the small tables, as far as SQLite can read it."""

    store: str | None
    promises: dict[TopicId, DurableMark]
    marks: list[QuarantineEntry]

    @classmethod
    def read(cls, path: Path) -> _Remembered:
        """Read the tables of a file; unreadable or missing tables are empty."""
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
    """Return the rows before the first unreadable one."""
    found: list[T] = []
    with suppress(*COMPLAINTS, DamageError):
        for row in rows:
            found.append(row)  # noqa: PERF402  (keeps the rows before an error)
    return found


class _GatheredRecords:
    """Segments found by carving, in any order, some of them several times."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._digests: set[bytes] = set()
        self._whole: dict[TopicId, list[tuple[Head, int]]] = {}
        self._damaged: list[Segment] = []
        self.epochs: dict[TopicId, int] = {}
        self.claimed: dict[TopicId, dict[int, bytes]] = {}  # ids in damaged segments, unverified

    @property
    def has_something(self) -> bool:
        """Return True if a segment was found, intact or damaged."""
        return bool(self._whole or self._damaged)

    def take(self, body: bytes) -> None:
        """Store an intact segment; keep a damaged one for ``settled``."""
        pack = Segment.parse(body)
        if pack is None or pack.digest in self._digests:
            return
        if pack.is_whole:
            self._digests.add(pack.digest)
            self._keep(pack.head, body)
        else:
            self._damaged.append(pack)

    def settled(self) -> dict[TopicId, SegmentIndex]:
        """Return the index of each topic, after salvage and without overlaps."""
        places = {topic: self._without_overlaps(packs) for topic, packs in self._whole.items()}
        for draft, epoch in self._salvaged(places):
            head = Head(draft.topic, epoch, draft.start, draft.end - draft.start)
            row = self._keep(head, draft.packed(epoch))
            places.setdefault(draft.topic, SegmentIndex()).add(draft.start, draft.end, row)
        for place in places.values():
            is_orderly = place.sort_and_check()
            assert is_orderly, "a salvaged segment overlaps an intact one"
        return places

    def _keep(self, head: Head, body: bytes | bytearray) -> int:
        row = insert_pack(self._db, body)
        self._whole.setdefault(head.topic, []).append((head, row))
        self.epochs[head.topic] = max(self.epochs.get(head.topic, 0), head.epoch)
        return row

    def _without_overlaps(self, packs: list[tuple[Head, int]]) -> SegmentIndex:
        """Return one segment for each offset: that of the latest epoch; on a tie, the largest."""
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
        places = SegmentIndex()
        for head, row in kept:
            places.add(head.start, head.end, row)
        return places

    def _salvaged(
        self, places: dict[TopicId, SegmentIndex]
    ) -> Iterator[tuple[SegmentBuilder, int]]:
        """Yield new segments of the intact records that only damaged segments contain."""
        found: dict[tuple[TopicId, int], tuple[bytes, Segment]] = {}
        for pack in self._damaged:
            topic, ids = pack.head.topic, bytes(pack.ids)
            self.claimed.setdefault(topic, {}).update(
                (pack.start + at // ID_BYTES, ids[at : at + ID_BYTES])
                for at in range(0, len(ids) - len(ids) % ID_BYTES, ID_BYTES)
            )
            for key, offset in pack.entries():
                if topic not in places or not places[topic].covers(offset):
                    found.setdefault((topic, offset), (key, pack))
        draft, epoch = SegmentBuilder("", 0), 0
        for (topic, offset), (key, pack) in sorted(found.items(), key=lambda item: item[0]):
            here = (draft.topic, draft.end, epoch)
            if draft.is_full or here != (topic, offset, pack.head.epoch):
                if draft.end > draft.start:
                    yield draft, epoch
                draft, epoch = SegmentBuilder(topic, offset), pack.head.epoch
            draft.append(key, pack.data(offset))
        if draft.end > draft.start:
            yield draft, epoch


def _ids_between(start: int, end: int, ids: Mapping[int, bytes]) -> bytes:
    """Return the ids at lost offsets, zeros for unknown ones; empty if none is known."""
    if not any(start <= offset < end for offset in ids):
        return b""
    return b"".join(ids.get(offset, LOST_ID) for offset in range(start, end))


def _account(
    db: sqlite3.Connection,
    places: dict[TopicId, SegmentIndex],
    gathered: _GatheredRecords,
    old: _Remembered,
    promises: DurableMarks | None,
) -> Rebuilt:
    """Record the losses, and raise the epochs of topics that end below their durable mark."""
    lost, raised = 0, []
    known = lost_offsets(old.marks)
    said = promises.topics if promises is not None else {}
    for topic in sorted({*places, *old.promises, *said}):
        place = places.get(topic, SegmentIndex())
        own_promise, said_promise = old.promises.get(topic), said.get(topic)
        promise = max(own_promise or DurableMark(), said_promise or DurableMark())
        epoch = max(promise.epoch, gathered.epochs.get(topic, 0))
        gaps = [gap for gap in place.gaps() if gap not in known.get(topic, ())]
        ids = gathered.claimed.get(topic, {}) | lost_ids(topic, old.marks)
        for start, end in place.gaps():
            insert_mark(
                db, QuarantineEntry(topic, start, end - start, LOST, _ids_between(start, end, ids))
            )
        lost += sum(end - start for start, end in gaps) + max(0, promise.end - place.end)
        is_unknown = promises is None or epoch > promise.epoch
        if is_unknown or is_short(place.end, own_promise or said_promise, said_promise):
            epoch = new_epoch(epoch)
            raised.append(topic)
        replace_promise(db, topic, DurableMark(epoch, place.end))
    for mark in old.marks:
        is_before_end = mark.topic in places and mark.start < places[mark.topic].end
        if is_before_end and mark.reason != LOST:
            insert_mark(db, mark)
    return Rebuilt(lost, tuple(raised))


class Recovery(Struct, frozen=True, kw_only=True):
    """Result of opening a store."""

    publications: int = 0  # present
    lost: int = 0  # known to be missing
    raised: tuple[TopicId, ...] = ()  # topics with a new epoch
    damage: str | None = None
    aside: str | None = None  # new name of the quarantined file

    def __str__(self) -> str:
        words = [f"{self.publications} publications"]
        if self.damage is not None:
            words.append(f"the file was damaged: {self.damage}")
            words.append(f"{self.lost} lost here, to be fetched from other nodes")
        if self.aside is not None:
            words.append(f"the damaged file is kept as {self.aside}")
        if self.raised:
            words.append(f"the offsets start again for {', '.join(self.raised)}")
        return "; ".join(words)


class Opened(NamedTuple):
    """Open database without damage, its content, and the recovery."""

    db: sqlite3.Connection
    contents: StoreContents
    recovery: Recovery


def open_database(
    directory: Path, promises: DurableMarks | None, new_id: Callable[[], str]
) -> Opened:
    """Open the database of a directory; rebuild a damaged one and create a missing one."""
    path = directory / FILE
    discard_incomplete(path)
    if sibling(path, COMPLETE).exists():
        _take_over(path, None)
    log = sibling(path, "-wal")
    wal = log.read_bytes() if log.exists() else b""  # SQLite removes it even if it is damaged
    damage = None
    if path.exists():
        try:
            return _open_sound(path, promises, Recovery())
        except DamageError as error:
            damage = str(error)
    elif promises is not None or wal:
        damage = "it is missing"
    lost, raised = rebuild(path, wal, promises, new_id)
    aside = _take_over(path, wal)
    recovery = Recovery(
        damage=damage, lost=lost, raised=raised, aside=aside.name if aside is not None else None
    )
    try:
        return _open_sound(path, None, recovery)
    except DamageError as error:
        raise StorageError(
            f"{path}: the rebuilt file cannot be read back ({error}); replace the disk"
        ) from error


def _take_over(path: Path, wal: bytes | None) -> Path | None:
    """Rename the rebuilt file to its final name; quarantine the old file."""
    aside = quarantine_file(path, wal)
    sibling(path, COMPLETE).replace(path)
    sync_directory(path.parent)
    return aside


def _open_sound(path: Path, promises: DurableMarks | None, recovery: Recovery) -> Opened:
    """Open a database; raise DamageError if any content is wrong or missing."""
    db = None
    try:
        db = connect_durably(path)
        contents = contents_of(db)
        _check_promises(contents, promises)
        with transaction(db):
            db.execute("DELETE FROM quarantine WHERE 0")  # tests write access, which BEGIN does not
    except (*COMPLAINTS, DamageError) as error:
        if db is not None:
            db.close()
        if not isinstance(error, DamageError) and not is_damage(error, path):
            raise
        raise DamageError(str(error)) from error
    count = sum(places.count for places in contents.places.values())
    return Opened(db, contents, structs.replace(recovery, publications=count))


def _check_promises(contents: StoreContents, promises: DurableMarks | None) -> None:
    said = {}
    if promises is not None and promises.store == contents.store:
        said = promises.topics
    for topic in sorted({*contents.promises, *said}):
        end = contents.places[topic].end if topic in contents.places else 0
        if is_short(end, contents.promises.get(topic), said.get(topic)):
            raise DamageError(f"topic {topic!r} ends at {end}, below its durable mark")
