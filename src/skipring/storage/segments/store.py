"""Store of a node: the logs of all its topics, in one directory each."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock as ThreadLock
from typing import Final, Self

from skipring.core.peers import TopicId
from skipring.errors import StorageError
from skipring.storage.data_dir import Lock, make_directory, translate_os_errors
from skipring.storage.segments.log import SEGMENT_BYTES_MAX, SegmentLog
from skipring.storage.segments.recovery import RecoveredLog, recover
from skipring.storage.segments.segment import FileCache
from skipring.storage.segments.topic_directory import (
    TopicDirectory,
    TopicRecord,
    directory_name,
    new_epoch,
    replace_by_directory,
)

TOPICS: Final = "topics"
LOCK_FILE: Final = "publications.lock"  # an older version uses the same one
OLDER_FILE: Final = "publications.sqlite3"
OLDER_VERSION: Final = "0.1.0"
ID_BYTES: Final = 16
FILES_MAX: Final = 32  # Guess: descriptors for reading, and as many for commits.
_TOGETHER: Final = FILES_MAX  # logs whose files are open between their write and their sync


class LogStore:
    """Logs of all topics of a node.

    ``commit`` may run in another thread, one call at a time, concurrently with reads and appends;
    ``close`` waits for it.
    """

    def __init__(self, directory: Path, segment_bytes_max: int) -> None:
        self._path = directory / TOPICS
        self._segment_bytes_max = segment_bytes_max
        self._committing = ThreadLock()
        with ExitStack() as resources:
            resources.callback(Lock(directory / LOCK_FILE).release)
            replace_by_directory(self._path)
            self._readers = FileCache(os.O_RDONLY, FILES_MAX)
            self._writers = FileCache(os.O_RDWR, FILES_MAX)
            resources.callback(self._readers.close)
            resources.callback(self._writers.close)
            found = [TopicDirectory(path) for path in sorted(self._path.iterdir()) if path.is_dir()]
            self.id = _store_id(found)  # constant since the first topic
            self._logs: dict[TopicId, SegmentLog] = {}
            self._changed: dict[TopicId, SegmentLog] = {}  # most topics of a node are idle
            for each in found:
                recovered = recover(each, self.id)
                if recovered is not None:
                    self._logs[recovered.record.topic] = self._log(each, recovered)
            self._resources = resources.pop_all()

    @classmethod
    def open(cls, directory: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> Self:
        """Open the store, creating the directory if missing; recover what is intact.

        Raise StorageError if the directory cannot be used, StoreBusyError if another process uses
        it, StoreFullError if the disk is full.
        """
        with translate_os_errors(directory):
            make_directory(directory)
            return cls(directory, segment_bytes_max)

    def close(self) -> None:
        """Close the files and drop uncommitted batches; a second call does nothing."""
        with self._committing, translate_os_errors(self._path):
            self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def topics(self) -> list[TopicId]:
        """Return the topics with a log, sorted; the log may be empty."""
        return sorted(self._logs)

    @property
    def unwritten(self) -> int:
        """Return the number of records that are in memory only."""
        return sum(log.unwritten for log in self._logs.values())

    def log(self, topic: TopicId) -> SegmentLog:
        """Return the log of a topic, created if it is missing.

        The topic may name a directory whose damaged files did not: it is recovered now.
        """
        if topic not in self._logs:
            directory = TopicDirectory(self._path / directory_name(topic))
            with translate_os_errors(directory.path):
                recovered = recover(directory, self.id, topic)
            record = TopicRecord(topic, self.id, new_epoch())
            found = recovered or RecoveredLog(record, [], is_recorded=False)
            self._logs[topic] = self._log(directory, found)
        return self._logs[topic]

    def _log(self, directory: TopicDirectory, recovered: RecoveredLog) -> SegmentLog:
        return SegmentLog(
            directory,
            recovered,
            readers=self._readers,
            writers=self._writers,
            changed=self._changed,
            segment_bytes_max=self._segment_bytes_max,
        )

    def commit(self, on_durable: Callable[[], object] = lambda: None) -> None:
        """Make all appended and discarded batches durable, with one sync for each touched segment.

        ``on_durable`` is called after the last sync. On StoreFullError or StorageError the batches
        of some topics are not durable; they remain readable, and the next commit retries.
        """
        with self._committing, translate_os_errors(self._path):
            for _ in range(0, len(self._changed), _TOGETHER):
                count = min(len(self._changed), _TOGETHER)
                _commit([self._changed.popitem()[1] for _ in range(count)])
            on_durable()


def refuse_older_store(directory: Path) -> None:
    """Raise StorageError if a data directory has the store of an older version."""
    path = directory / OLDER_FILE
    if path.exists():
        raise StorageError(
            f"{path}: written by skipring {OLDER_VERSION}, which stored publications in SQLite; "
            "read it with that version, or take another data directory"
        )


def _commit(logs: list[SegmentLog]) -> None:
    """Write all logs, then sync them: the first sync may write the metadata of all files."""
    waiting = list(logs)
    try:
        for log in logs:
            log.write()
        for log in logs:
            log.sync()
            log.confirm()
            waiting.remove(log)
    except BaseException:
        for log in waiting:
            log.abort()
        raise


def _store_id(directories: list[TopicDirectory]) -> str:
    """Return the id that most logs have; a new one if there is none."""
    records: Iterator[TopicRecord | None] = (each.read_record() for each in directories)
    ids = Counter(sorted(record.store for record in records if record is not None))
    return ids.most_common(1)[0][0] if ids else secrets.token_hex(ID_BYTES)
