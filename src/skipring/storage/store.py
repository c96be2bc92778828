"""Store of a node: the logs of all its topics, in one directory each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from threading import Lock as ThreadLock
from time import monotonic
from typing import Final, Self

from skipring.core.limits import listed
from skipring.core.peers import NodeId, TopicId
from skipring.errors import StorageError
from skipring.storage.data_dir import Lock, make_directory, translate_os_errors
from skipring.storage.recovery import recover
from skipring.storage.segment import FILES_MAX, FileCache
from skipring.storage.topic_directory import TopicDirectory, directory_name, replace_by_directory
from skipring.storage.topic_log import SEGMENT_BYTES_MAX, SegmentLog

TOPICS: Final = "topics"
LOCK_FILE: Final = "publications.lock"  # the name in version 0.1, which then refuses the directory
OLD_FILE: Final = "publications.sqlite3"
ID_BYTES: Final = 16  # of a store id, which is stored with the first topic


class LogStore:
    """Logs of all topics of a node.

    ``commit`` and ``log`` may run in another thread, concurrently with reads and appends; ``close``
    waits for them.
    """

    def __init__(self, directory: Path, owner: NodeId, segment_bytes_max: int) -> None:
        # Longest wait for the disk in the last commit; unknown before the first one.
        self.longest_wait_s = inf
        self._path = directory / TOPICS
        self._owner = owner
        self._segment_bytes_max = segment_bytes_max
        self._committing = ThreadLock()
        self._opening = ThreadLock()
        self._logs: dict[TopicId, SegmentLog] = {}
        self._changed: dict[TopicId, SegmentLog] = {}  # most topics of a node are idle
        self._lost: dict[TopicId, int] = {}
        with ExitStack() as resources:
            resources.callback(Lock(directory / LOCK_FILE).release)
            replace_by_directory(self._path)
            self._readers = FileCache(os.O_RDONLY)
            self._writers = FileCache(os.O_RDWR)
            resources.callback(self._readers.close)
            resources.callback(self._writers.close)
            found = [TopicDirectory(path) for path in sorted(self._path.iterdir())]
            records = [record for each in found if (record := each.read_record()) is not None]
            self.id = records[0].store if records else secrets.token_hex(ID_BYTES)
            for record in records:
                self.log(record.topic)
            self._resources = resources.pop_all()

    @classmethod
    def open(
        cls, directory: Path, owner: NodeId = "", *, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> Self:
        """Open the store, creating the directory if missing; recover the intact batches.

        Its logs know the sequence numbers of the owner, a node, and of no other name.

        Raise StorageError if the directory cannot be used, StoreBusyError if another process uses
        it, StoreFullError if the disk is full.
        """
        with translate_os_errors(directory):
            make_directory(directory)
            if (directory / OLD_FILE).exists():
                raise StorageError(
                    f"{directory / OLD_FILE}: written by skipring 0.1, whose format this version "
                    "does not read; use another data directory, which the node fills from the "
                    "ring, or remove the file"
                )
            return cls(directory, owner, segment_bytes_max)

    def close(self) -> None:
        """Close the files and drop uncommitted batches; a second call does nothing."""
        with self._committing, self._opening, translate_os_errors(self._path):
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
    def lost(self) -> int:
        """Return the number of records that recoveries found lost at this start."""
        return sum(self._lost.values())

    @property
    def damage(self) -> str | None:
        """Return a description of the records that were lost before this start; None if none."""
        losses = [f"{count} of {topic}" for topic, count in self._lost.items()]
        return f"records lost: {listed(losses)}" if losses else None

    @property
    def unwritten(self) -> int:
        """Return the number of records that are in memory only."""
        return sum([log.end - log.durable_end for log in list(self._changed.values())])

    @property
    def waiting_bytes(self) -> int:
        """Return the size of what the next commit writes, and of the segments that it seals."""
        return sum([log.waiting_bytes for log in list(self._changed.values())])

    @property
    def waiting_logs(self) -> int:
        """Return the number of logs that the next commit writes."""
        return len(self._changed)

    def is_unread(self, topic: TopicId) -> bool:
        """Return True if ``log`` has to read the files of a topic, which may take long."""
        return topic not in self._logs and (self._path / directory_name(topic)).is_dir()

    def log(self, topic: TopicId) -> SegmentLog:
        """Return the log of a topic; create it if it is missing.

        A directory without an intact record of its topic is recovered here, not in ``open``.
        """
        if topic not in self._logs:
            with self._opening:
                self._open_log(topic)
        return self._logs[topic]

    def _open_log(self, topic: TopicId) -> None:
        if topic in self._logs:  # another thread has opened it
            return
        directory = TopicDirectory(self._path / directory_name(topic))
        with translate_os_errors(directory.path):
            recovered = recover(directory, topic, self.id, self._owner)
        if recovered.lost:
            self._lost[topic] = recovered.lost
        self._logs[topic] = SegmentLog(
            directory,
            recovered,
            readers=self._readers,
            writers=self._writers,
            changed=self._changed,
            segment_bytes_max=self._segment_bytes_max,
        )

    def commit(self) -> None:
        """Make all appends and discards before this call durable; sync each changed segment once.

        After StoreFullError or StorageError all batches remain readable; the next commit retries.
        """
        with self._committing, translate_os_errors(self._path):
            waiting = [(log, log.end) for log in list(self._changed.values())]
            if waiting:
                self.longest_wait_s = 0.0
            for begin in range(0, len(waiting), FILES_MAX):
                group = waiting[begin : begin + FILES_MAX]
                while group:  # a log may fill several segments
                    self._commit([log for log, _ in group])
                    group = [(log, end) for log, end in group if log.durable_end < end]
            for log, _ in waiting:
                self._measure(log.reclaim)

    def _commit(self, logs: list[SegmentLog]) -> None:
        """Write all logs before the first sync, which may then write the metadata of all files."""
        waiting = list(logs)
        try:
            for log in logs:
                self._measure(log.write)
            for log in logs:
                self._measure(log.sync)
                log.confirm()
                waiting.remove(log)
        except BaseException:
            for log in waiting:
                log.abort()
            raise

    def _measure(self, step: Callable[[], None]) -> None:
        begun_s = monotonic()
        try:
            step()
        finally:
            self.longest_wait_s = max(self.longest_wait_s, monotonic() - begun_s)
