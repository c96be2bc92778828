"""Store of a node: the logs of all its topics."""

from __future__ import annotations

import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Lock as ThreadLock
from typing import Final, Self

from skipring.core.peers import TopicId
from skipring.storage.chain import LogChain
from skipring.storage.data_dir import Lock, make_directory, translate_os_errors
from skipring.storage.durable_mark import DurableMark, DurableMarkFile, new_epoch
from skipring.storage.recovery import open_database
from skipring.storage.segment import Segment, SegmentIndex
from skipring.storage.sqlite import (
    FILE,
    QuarantineEntry,
    StoreContents,
    connect,
    insert_mark,
    insert_pack,
    read_pack,
    replace_promise,
    transaction,
)
from skipring.storage.topic_log import Batch, TopicLog

LOCK_FILE: Final = "publications.lock"
ID_BYTES: Final = 16
CACHE_BYTES: Final = 1 << 23  # Guess: a scrub or repair reads many records of few segments.


class PublicationStore:
    """Publications of all topics of a node, in one file.

    ``commit`` may run in another thread, one call at a time, concurrently with reads and writes;
    ``close`` waits for it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        # SQLite crashes if a connection is closed while another thread uses it.
        self._committing = ThreadLock()
        with ExitStack() as resources:
            resources.callback(Lock(directory / LOCK_FILE).release)
            self._promise_file = DurableMarkFile(directory)
            resources.callback(self._promise_file.close)
            opened = open_database(directory, self._promise_file.read(), _new_id)
            self._db = opened.db
            resources.callback(self._db.close)
            self._cache = _Cache(connect(self._path))  # separate, so reads do not wait for commits
            resources.callback(self._cache.close)
            self.id = opened.contents.store  # constant since the creation of the store
            self.recovery = opened.recovery
            self._archives = self._archives_of(opened.contents)
            self._promised: dict[TopicId, DurableMark] | None = None
            self._promise()
            for archive in self._archives.values():
                archive.prepare_index()  # here: a node opens its store in a thread
            self._cache.clear()
            self._resources = resources.pop_all()

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the store, creating the directory if missing; rebuild a damaged file.

        Raise StorageError if the directory cannot be used, StoreBusyError if another process uses
        it, StoreFullError if the disk is full.
        """
        with translate_os_errors(directory):
            make_directory(directory)
            return cls(directory)

    def close(self) -> None:
        """Close the files and drop uncommitted publications; a second call does nothing."""
        with self._committing, translate_os_errors(self._path):
            self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def topics(self) -> list[TopicId]:
        """Return the topics with a log, sorted; the log may be empty."""
        return sorted(self._archives)

    @property
    def unwritten(self) -> int:
        """Return the number of publications that are in memory only."""
        return sum(archive.unwritten for archive in self._archives.values())

    def archive(self, topic: TopicId) -> TopicLog:
        """Return the log of a topic, created if it is missing."""
        if topic not in self._archives:
            self._archives[topic] = TopicLog(
                topic,
                self._cache.pack,
                places=SegmentIndex(),
                epoch=new_epoch(),
                marks=(),
                chain=LogChain(),
                store=self.id,
            )
        return self._archives[topic]

    def commit(self, on_durable: Callable[[], object] = lambda: None) -> None:
        """Make all written and quarantined publications durable in one transaction.

        ``on_durable`` is called after the transaction; then the durable marks are written, which
        needs a second sync. On StoreFullError or StorageError all publications remain readable in
        memory, and the next commit retries.
        """
        with self._committing, translate_os_errors(self._path):
            prepared = [
                (archive, batch)
                for archive in list(self._archives.values())
                if (batch := archive.prepare()) is not None
            ]
            if prepared:
                try:
                    rows = self._write(prepared)
                except BaseException:
                    for archive, _ in prepared:
                        archive.abort()
                    raise
                for archive, _ in prepared:
                    archive.committed(rows[archive.topic])
            on_durable()
            self._promise()

    def _write(self, prepared: list[tuple[TopicLog, Batch]]) -> dict[TopicId, list[int]]:
        rows: dict[TopicId, list[int]] = {}
        with transaction(self._db):
            for archive, (drafts, marks) in prepared:
                packs = (draft.packed(archive.epoch) for draft in drafts)
                rows[archive.topic] = [insert_pack(self._db, pack) for pack in packs]
                for mark in marks:
                    insert_mark(self._db, mark)
                end = drafts[-1].end if drafts else archive.written_end
                replace_promise(self._db, archive.topic, DurableMark(archive.epoch, end))
        return rows

    def _promise(self) -> None:
        """Write the durable mark of each topic outside of the database, if one has changed."""
        archives = [archive for archive in list(self._archives.values()) if archive.is_known]
        promised = {a.topic: DurableMark(a.epoch, a.written_end) for a in archives}
        if promised != self._promised:
            self._promise_file.write(self.id, promised)
            self._promised = promised
        for archive in archives:
            archive.durable_end = promised[archive.topic].end

    def _archives_of(self, contents: StoreContents) -> dict[TopicId, TopicLog]:
        marks: dict[TopicId, list[QuarantineEntry]] = {}
        for mark in contents.marks:
            marks.setdefault(mark.topic, []).append(mark)
        return {
            topic: TopicLog(
                topic,
                self._cache.pack,
                places=contents.places.get(topic, SegmentIndex()),
                epoch=contents.epoch_of(topic),
                marks=marks.get(topic, ()),
                chain=contents.chains.get(topic) or LogChain(),
                store=contents.store,
            )
            for topic in sorted({*contents.places, *contents.promises})
        }


class _Cache:
    """Cache of the segments that were read last."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._packs: OrderedDict[int, Segment] = OrderedDict()
        self._bytes = 0

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def clear(self) -> None:
        """Forget all segments."""
        self._packs.clear()
        self._bytes = 0

    def pack(self, row: int) -> Segment | None:
        """Return the segment stored in a row; None if it is unreadable."""
        pack = self._packs.get(row)
        if pack is not None:
            self._packs.move_to_end(row)
            return pack
        pack = read_pack(self._db, row)
        if pack is not None:
            self._packs[row] = pack
            self._bytes += pack.size_bytes
            while self._bytes > CACHE_BYTES and len(self._packs) > 1:
                self._bytes -= self._packs.popitem(last=False)[1].size_bytes
        return pack


def _new_id() -> str:
    return secrets.token_hex(ID_BYTES)
