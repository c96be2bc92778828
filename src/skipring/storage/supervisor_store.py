"""Store of a supervisor: its databases, which may be lost at any time (section 3.1)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, Self

from msgspec import DecodeError, ValidationError
from msgspec.msgpack import Decoder, Encoder

from skipring.core.limits import check_node
from skipring.core.peers import TopicId
from skipring.core.state import SupervisorState
from skipring.errors import MessageError
from skipring.storage.data_dir import (
    SQLITE_ERRORS,
    Lock,
    is_damage,
    make_directory,
    translate_os_errors,
)
from skipring.wire.limits import check_entry, check_topic

FILE: Final = "supervisor.sqlite3"
LOCK_FILE: Final = "supervisor.lock"

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS "
    "rosters(topic TEXT PRIMARY KEY, body BLOB NOT NULL, seal BLOB NOT NULL)"
)
_SEAL_BYTES: Final = 16
_ENCODER: Final = Encoder()
_DECODER: Final = Decoder(SupervisorState)


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection that commits each statement and does not wait for locks."""
    path.touch(mode=0o600)  # SQLite would create a file that other users may read
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


class SupervisorStore:
    """States of a supervisor's topics; a damaged state counts as never saved.

    There is no durable mark: a supervisor that has lost its database rebuilds it from the ring.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._saved: dict[TopicId, bytes] = {}
        self.damage: str | None = None  # description of the last damage
        with ExitStack() as resources:
            resources.callback(Lock(directory / LOCK_FILE).release)
            resources.callback(self._close)
            self._db: sqlite3.Connection | None = None
            self._carry_out(self._read)
            self._resources = resources.pop_all()

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the store, creating the directory if missing; replace a damaged file.

        Raise StorageError if the directory cannot be used, StoreBusyError if another process uses
        it.
        """
        with translate_os_errors(directory):
            make_directory(directory)
            return cls(directory)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with translate_os_errors(self._path):
            self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def load(self) -> dict[TopicId, SupervisorState]:
        """Return the last saved state of each topic; damaged states are omitted."""
        return {topic: _DECODER.decode(body) for topic, body in sorted(self._saved.items())}

    def save(self, topic: TopicId, state: SupervisorState) -> None:
        """Save the state of a topic; an unchanged state is not written."""
        body = _ENCODER.encode(state)
        if self._saved.get(topic) != body:
            with translate_os_errors(self._path):
                self._carry_out(lambda db: _write(db, {topic: body}))
            self._saved[topic] = body

    def forget(self, topic: TopicId) -> None:
        """Delete the state of a topic."""
        if topic in self._saved:
            with translate_os_errors(self._path):
                delete = "DELETE FROM rosters WHERE topic = ?"
                self._carry_out(lambda db: db.execute(delete, (topic,)))
            del self._saved[topic]

    def _carry_out(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """Run an action on the file; if it is damaged, quarantine it and use a new one."""
        try:
            action(self._connected())
        except SQLITE_ERRORS as error:
            if not is_damage(error, self._path):
                raise
            self.damage = f"{self._path.name} was damaged ({error}) and is quarantined"
            self._close()
            self._quarantine()
            _write(self._connected(), self._saved)
            action(self._connected())

    def _quarantine(self) -> None:
        """Rename the file, which replaces an earlier damaged one; delete its write-ahead log."""
        with suppress(FileNotFoundError):
            self._path.replace(self._path.with_name(f"{FILE}.damaged-1"))
        for suffix in ("-wal", "-shm", "-journal"):
            self._path.with_name(FILE + suffix).unlink(missing_ok=True)

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = connect(self._path)
            self._db.execute("PRAGMA journal_mode=WAL").fetchall()
            self._db.execute("PRAGMA synchronous=NORMAL")  # the last changes may be lost
            self._db.execute(_SCHEMA)
        return self._db

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _read(self, db: sqlite3.Connection) -> None:
        for topic, body, seal in db.execute("SELECT topic, body, seal FROM rosters"):
            if _is_intact(topic, body, seal):
                self._saved[topic] = body
            else:
                self.damage = f"a topic in {self._path.name} was damaged and is omitted"


def _write(db: sqlite3.Connection, bodies: Mapping[TopicId, bytes]) -> None:
    rows = [(topic, body, _seal(topic, body)) for topic, body in bodies.items()]
    db.executemany("INSERT OR REPLACE INTO rosters VALUES (?, ?, ?)", rows)


def _is_intact(topic: object, body: object, seal: object) -> bool:
    if not isinstance(topic, str) or not isinstance(body, bytes) or seal != _seal(topic, body):
        return False
    try:
        state = _DECODER.decode(body)
        check_topic(topic)
        for entry in state.database:
            check_entry(*entry)
        for node in state.queue:
            check_node(node)
    except (DecodeError, ValidationError, ValueError, MessageError):
        return False  # another version, or a name that every member would refuse
    return True


def _seal(topic: TopicId, body: bytes) -> bytes:
    data = _ENCODER.encode((topic, body))
    return blake2b(data, digest_size=_SEAL_BYTES, person=b"skipring roster").digest()
