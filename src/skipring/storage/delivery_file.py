"""File of the delivery log: self-verifying chunks in rows of SQLite.

The content is telemetry: damaged chunks are dropped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from struct import unpack
from threading import Lock
from typing import Final

from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

from skipring.core.peers import TopicId
from skipring.storage.data_dir import COMPLAINTS, is_damage, sibling
from skipring.storage.sqlite import connect, transaction

FILE: Final = "deliveries.sqlite3"
FAILURES: Final = (*COMPLAINTS, OSError)

_SCHEMA: Final = {
    "chunks": "CREATE TABLE chunks(chunk INTEGER PRIMARY KEY, body BLOB NOT NULL)",
}
_SEAL: Final = blake2b(digest_size=16, person=b"skipring trace")
_TIME_BYTES: Final = 8


class Body(Struct, frozen=True, array_like=True, kw_only=True):
    """Chunk in the form of the file."""

    store: str
    topic: TopicId
    epoch: int
    start: int
    times: bytes  # eight bytes each, little-endian
    hops: bytes
    origins: bytes

    @property
    def end(self) -> int:
        """Return the offset after the last delivery."""
        return self.start + len(self.hops)

    def unpacked(self) -> Sequence[int]:
        """Return the times as integers."""
        return unpack(f"<{len(self.hops)}q", self.times)

    def sealed(self) -> bytes:
        """Return the encoded chunk with its checksum."""
        content = _ENCODER.encode(self)
        return content + _seal(content)


_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(Body)


def parsed(data: object) -> Body | None:
    """Return the chunk stored in a row; None if it is damaged or of another version."""
    if not isinstance(data, bytes):
        return None
    content, seal = data[: -_SEAL.digest_size], data[-_SEAL.digest_size :]
    if seal != _seal(content):
        return None
    try:
        body = _DECODER.decode(content)
    except (DecodeError, ValidationError, ValueError):
        return None  # another version
    count = len(body.hops)
    is_even = len(body.times) == _TIME_BYTES * count and len(body.origins) == count > 0
    return body if is_even and body.start >= 0 else None


def _seal(content: bytes) -> bytes:
    state = _SEAL.copy()
    state.update(content)
    return state.digest()


class DeliveryFile:
    """SQLite file of a delivery log, created on first use; its content may be damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None  # separate, so reads do not wait for writes
        self._lock = Lock()  # held during a read: another thread may close the file
        self._writing = Lock()  # held during a write, for the same reason

    def rows(self) -> Iterator[tuple[int, object]]:
        """Yield all chunks, the oldest first; raise at the end if the file is damaged."""
        db = self._connected()
        yield from db.execute("SELECT chunk, body FROM chunks ORDER BY chunk")
        if db.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise sqlite3.DatabaseError("its pages are inconsistent")

    def read(self, row: int) -> object:
        """Return the content of a row; None if there is no such row."""
        with self._lock:
            if self._reading is None:
                self._reading = connect(self._path)
            found = self._reading.execute("SELECT body FROM chunks WHERE chunk = ?", (row,))
            return next((body for (body,) in found.fetchall()), None)

    def write(
        self, bodies: Iterable[tuple[int | None, bytes]], obsolete: Iterable[int]
    ) -> list[int]:
        """Write and delete chunks in one transaction; return the rows of the written chunks."""
        with self._writing, transaction(db := self._connected()):
            db.executemany("DELETE FROM chunks WHERE chunk = ?", ((row,) for row in obsolete))
            return [_replaced(db, row, body) for row, body in bodies]

    def is_damaged(self, error: Exception) -> bool:
        """Return True if damage of the file itself caused an error."""
        if not isinstance(error, COMPLAINTS) or isinstance(error, sqlite3.ProgrammingError):
            return False  # ProgrammingError: the file is closed
        return is_damage(error, self._path)

    def discard(self) -> None:
        """Remove the file; the next use creates a new one."""
        self.close()
        for suffix in ("", "-wal", "-shm", "-journal"):
            sibling(self._path, suffix).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file until it is used again."""
        with self._writing, self._lock:
            for db in (self._reading, self._db):
                if db is not None:
                    db.close()
            self._reading = self._db = None

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            db = connect(self._path)
            try:
                db.execute("PRAGMA journal_mode=WAL").fetchall()
                db.execute("PRAGMA synchronous=NORMAL")  # the last chunks may be lost
                _check_tables(db)
            except FAILURES:
                db.close()
                raise
            self._db = db
        return self._db


def _check_tables(db: sqlite3.Connection) -> None:
    """Create the tables if there are none; raise DatabaseError if there are others."""
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    tables = dict(db.execute(query))
    if not tables:
        for statement in _SCHEMA.values():
            db.execute(statement)
    elif tables != _SCHEMA:
        raise sqlite3.DatabaseError("its tables are not those of a delivery log")


def _replaced(db: sqlite3.Connection, row: int | None, body: bytes) -> int:
    done = db.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?)", (row, body)).lastrowid
    assert done is not None
    return done
