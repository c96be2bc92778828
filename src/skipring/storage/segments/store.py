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
from skipring.storage.data_dir import Lock, make_directory, translate_os_errors
from skipring.storage.segments.log import SEGMENT_BYTES_MAX, SegmentLog
from skipring.storage.segments.recovery import recover, stored_topic
from skipring.storage.segments.segment import FileCache
from skipring.storage.segments.topic_directory import (
    TopicDirectory,
    TopicRecord,
    directory_name,
    replace_by_directory,
)

TOPICS: Final = "topics"
LOCK_FILE: Final = "publications.lock"  # also the lock of PublicationStore
ID_BYTES: Final = 16
FILES_MAX: Final = 32  # Guess: open files of reads, and as many of commits.
_TOGETHER: Final = FILES_MAX  # logs that are written before the first of them is synced


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
            self.id = _store_id(found)  # stored with the first topic
            self._logs: dict[TopicId, SegmentLog] = {}
            self._changed: dict[TopicId, SegmentLog] = {}  # most topics of a node are idle
            for each in found:
                topic = stored_topic(each)
                if topic is not None:
                    self._logs[topic] = self._recovered(each, topic)
            self._resources = resources.pop_all()

    @classmethod
    def open(cls, directory: Path, *, segment_bytes_max: int = SEGMENT_BYTES_MAX) -> Self:
        """Open the store, creating the directory if missing; recover the intact batches.

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
        """Return the log of a topic; create it if it is missing.

        A directory in which no intact file names the topic is recovered here, not in ``open``.
        """
        if topic not in self._logs:
            directory = TopicDirectory(self._path / directory_name(topic))
            with translate_os_errors(directory.path):
                self._logs[topic] = self._recovered(directory, topic)
        return self._logs[topic]

    def _recovered(self, directory: TopicDirectory, topic: TopicId) -> SegmentLog:
        return SegmentLog(
            directory,
            recover(directory, topic, self.id),
            readers=self._readers,
            writers=self._writers,
            changed=self._changed,
            segment_bytes_max=self._segment_bytes_max,
        )

    def commit(self, on_durable: Callable[[], object] = lambda: None) -> None:
        """Make all appends and discards before this call durable; sync each changed segment once.

        Call ``on_durable`` after the last sync. On StoreFullError or StorageError the batches of
        some topics are not durable; they remain readable, and the next commit retries.
        """
        with self._committing, translate_os_errors(self._path):
            topics = list(self._changed)  # appends may add others meanwhile
            for begin in range(0, len(topics), _TOGETHER):
                _commit([self._changed.pop(topic) for topic in topics[begin : begin + _TOGETHER]])
            on_durable()


def _commit(logs: list[SegmentLog]) -> None:
    """Write all logs before the first sync, which may then write the metadata of all files."""
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
    """Return the store id that most topic records contain; a new one if there are none."""
    records: Iterator[TopicRecord | None] = (each.read_record() for each in directories)
    ids = Counter(sorted(record.store for record in records if record is not None))
    return ids.most_common(1)[0][0] if ids else secrets.token_hex(ID_BYTES)
