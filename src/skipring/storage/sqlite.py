"""SQLite file of a node: its tables, and their content if nothing is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.msgpack import Encoder

from skipring.core.peers import TopicId
from skipring.core.publications import ID_BYTES
from skipring.storage.chain import LOST_ID, LogChain
from skipring.storage.durable_mark import DurableMark
from skipring.storage.page_scan import PAGE_BYTES, PAGE_SIZES
from skipring.storage.segment import Segment, SegmentIndex

FILE: Final = "publications.sqlite3"
LOG_BYTES: Final = 1 << 22  # SQLite's default for pages of 4 KiB: a longer log is checkpointed

# If SQLite cannot read the file, page_scan.py recognises rows of `packs` by their columns.
SCHEMA: Final = {
    "packs": "CREATE TABLE packs(pack INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "quarantine": (
        "CREATE TABLE quarantine(entry INTEGER PRIMARY KEY, topic TEXT NOT NULL, "
        "start INTEGER NOT NULL, count INTEGER NOT NULL, reason TEXT NOT NULL, "
        "body BLOB NOT NULL, seal BLOB NOT NULL)"
    ),
    "store": "CREATE TABLE store(id TEXT NOT NULL, seal BLOB NOT NULL)",
    "topics": (
        "CREATE TABLE topics(topic TEXT PRIMARY KEY, epoch INTEGER NOT NULL, "
        "promised INTEGER NOT NULL, seal BLOB NOT NULL) WITHOUT ROWID"
    ),
}

LOST: Final = "could not be read any more"  # reason of an entry; its body has the ids or is empty
_SEAL_BYTES: Final = 8
_ENCODER: Final = Encoder()


class DamageError(Exception):
    """Damage in a file; recovery rebuilds the store from the intact records."""


class QuarantineEntry(NamedTuple):
    """Range of offsets that are not served: quarantined or lost records."""

    topic: TopicId
    start: int
    length: int
    reason: str
    body: bytes = b""


class StoreContents(NamedTuple):
    """Content of a file by topic."""

    store: str
    promises: dict[TopicId, DurableMark]
    places: dict[TopicId, SegmentIndex]
    epochs: dict[TopicId, int]  # largest epoch of the segments
    marks: list[QuarantineEntry]
    chains: dict[TopicId, LogChain]

    def epoch_of(self, topic: TopicId) -> int:
        """Return the latest known epoch of a topic."""
        return max(self.promises.get(topic, DurableMark()).epoch, self.epochs.get(topic, 0))


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection with explicit transactions only and without waiting for locks."""
    path.touch(mode=0o600)  # SQLite would create a file that other users may read
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def connect_durably(path: Path) -> sqlite3.Connection:
    """Open a connection for writing, whose commits are on the disk when they return."""
    db = connect(path)
    try:
        db.execute("PRAGMA journal_mode=WAL").fetchall()
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA wal_autocheckpoint={LOG_BYTES // _page_bytes(db)}")
    except BaseException:  # a damaged schema raises UnicodeDecodeError
        db.close()
        raise
    return db


def create(path: Path, store: str) -> sqlite3.Connection:
    """Create a file without publications, in a transaction that the caller commits."""
    db = connect(path)
    try:
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA secure_delete=ON")  # carving must not find deleted rows
        db.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA.values():
            db.execute(statement)
        db.execute("INSERT INTO store VALUES (?, ?)", (store, checksum(store)))
    except BaseException:  # a damaged schema raises UnicodeDecodeError
        db.close()
        raise
    return db


def _page_bytes(db: sqlite3.Connection) -> int:
    ((size,),) = db.execute("PRAGMA page_size").fetchall()
    return int(size)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction; roll back if it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:  # SQLite may have rolled back by itself
            db.execute("ROLLBACK")


# -- rows ----------------------------------------------------------------------------------


def checksum(*fields: str | int) -> bytes:
    """Return the checksum of the fields of a row."""
    data = _ENCODER.encode(fields)
    return blake2b(data, digest_size=_SEAL_BYTES, person=b"skipring seal").digest()


def insert_pack(db: sqlite3.Connection, body: bytes | bytearray) -> int:
    """Insert a segment; return its row."""
    row = db.execute("INSERT INTO packs(body) VALUES (?)", (body,)).lastrowid
    assert row is not None
    return row


def insert_mark(db: sqlite3.Connection, mark: QuarantineEntry) -> None:
    """Insert a quarantine entry."""
    seal = checksum(mark.topic, mark.start, mark.length)
    columns = "topic, start, count, reason, body, seal"
    db.execute(f"INSERT INTO quarantine({columns}) VALUES (?, ?, ?, ?, ?, ?)", (*mark, seal))  # noqa: S608


def replace_promise(db: sqlite3.Connection, topic: TopicId, promise: DurableMark) -> None:
    """Set the durable mark of a topic in the transaction."""
    seal = checksum(topic, promise.epoch, promise.end)
    values = (topic, promise.epoch, promise.end, seal)
    db.execute("INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?)", values)


def read_pack(db: sqlite3.Connection, row: int) -> Segment | None:
    """Return the segment stored in a row; None if it is unreadable."""
    try:
        rows = db.execute("SELECT body FROM packs WHERE pack = ?", (row,)).fetchall()
    except sqlite3.Error:
        return None
    return Segment.parse(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else None


# -- whole file ----------------------------------------------------------------------------


def contents_of(db: sqlite3.Connection) -> StoreContents:
    """Return the content of an intact file; otherwise raise DamageError or an SQLite error."""
    tables = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if tables != SCHEMA or _page_bytes(db) not in PAGE_SIZES:
        raise DamageError("its tables are not those of a store")
    (store,) = stores_of(db)
    places, epochs, chains = _packs(db)
    contents = StoreContents(
        store, dict(promises_of(db)), places, epochs, list(marks_of(db)), chains
    )
    _check_offsets(contents)
    for topic, its_places in places.items():
        if chains[topic].end != its_places.end:
            chains[topic] = _chain_of(db, its_places, lost_ids(topic, contents.marks))
    if (said := db.execute("PRAGMA quick_check(1)").fetchall()) != [("ok",)]:
        raise DamageError(str(said[0][0]).splitlines()[-1])
    return contents


def stores_of(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the id of the store; raise DamageError if there is none."""
    rows = db.execute("SELECT id, seal FROM store LIMIT 1").fetchall()
    if not rows:
        raise DamageError("it has no id")
    for store, seal in rows:
        _check_seal(seal, store)
        yield store


def promises_of(db: sqlite3.Connection) -> Iterator[tuple[TopicId, DurableMark]]:
    """Yield the durable marks that the file itself contains."""
    for topic, epoch, promised, seal in db.execute("SELECT * FROM topics ORDER BY topic"):
        _check_seal(seal, topic, epoch, promised)
        yield topic, DurableMark(epoch, promised)


def marks_of(db: sqlite3.Connection) -> Iterator[QuarantineEntry]:
    """Yield the quarantine entries, oldest first."""
    query = "SELECT topic, start, count, reason, body, seal FROM quarantine ORDER BY entry"
    for topic, start, count, reason, body, seal in db.execute(query):
        _check_seal(seal, topic, start, count)
        yield QuarantineEntry(
            topic, start, count, str(reason), body if isinstance(body, bytes) else b""
        )


def _check_seal(seal: object, *fields: Any) -> None:  # noqa: ANN401  (damaged fields may have any type)
    if not all(isinstance(field, str | int) for field in fields) or seal != checksum(*fields):
        raise DamageError("the checksum of a row does not match")


def _packs(
    db: sqlite3.Connection,
) -> tuple[dict[TopicId, SegmentIndex], dict[TopicId, int], dict[TopicId, LogChain]]:
    """Return places, epochs and chains; a chain ends early if the offsets are out of order."""
    places: dict[TopicId, SegmentIndex] = {}
    epochs: dict[TopicId, int] = {}
    chains: dict[TopicId, LogChain] = {}
    for row, body in db.execute("SELECT pack, body FROM packs ORDER BY pack"):
        pack = Segment.parse(body) if isinstance(body, bytes) else None
        if pack is None or not pack.is_whole:
            raise DamageError("a segment is damaged")
        head = pack.head
        if head.topic not in places:
            places[head.topic], chains[head.topic] = SegmentIndex(), LogChain()
        places[head.topic].add(head.start, head.end, row)
        epochs[head.topic] = max(epochs.get(head.topic, 0), head.epoch)
        if chains[head.topic].end == head.start:
            chains[head.topic].extend(pack.ids)
    return places, epochs, chains


def _chain_of(db: sqlite3.Connection, places: SegmentIndex, lost: dict[int, bytes]) -> LogChain:
    """Return the chain of a topic whose segments were rebuilt: out of order, or with gaps."""
    chain = LogChain()
    for start, row in places.rows():
        pack = read_pack(db, row)
        if pack is None:
            raise DamageError("a segment is damaged")
        for offset in range(chain.end, start):
            chain.extend(lost.get(offset, LOST_ID))
        chain.extend(pack.ids)
    return chain


def _check_offsets(contents: StoreContents) -> None:
    """Check that every offset is in exactly one segment or known to be lost."""
    known = lost_offsets(contents.marks)
    for topic, places in contents.places.items():
        if not places.sort_and_check():
            raise DamageError("two segments have the same offsets")
        if any(gap not in known.get(topic, ()) for gap in places.gaps()):
            raise DamageError("a segment is missing")


def lost_ids(topic: TopicId, marks: Iterable[QuarantineEntry]) -> dict[int, bytes]:
    """Return the known ids of lost publications of a topic, by offset.

    Only the chain uses them: a wrong id, like an unknown one, leads to another chain.
    """
    return {
        mark.start + place: mark.body[ID_BYTES * place : ID_BYTES * (place + 1)]
        for mark in marks
        if (mark.topic, mark.reason, len(mark.body)) == (topic, LOST, ID_BYTES * mark.length)
        for place in range(mark.length)
    }


def lost_offsets(marks: Iterable[QuarantineEntry]) -> dict[TopicId, set[tuple[int, int]]]:
    """Return start and end of each quarantine entry, by topic."""
    lost: dict[TopicId, set[tuple[int, int]]] = {}
    for mark in marks:
        lost.setdefault(mark.topic, set()).add((mark.start, mark.start + mark.length))
    return lost
