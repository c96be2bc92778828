"""Logs of a node and their group commit: one disk commit for all publications that wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from skipring.core.effects import Drop, SaveTerms
from skipring.core.log import Log, MemoryLog
from skipring.core.peers import TopicId
from skipring.errors import StorageError
from skipring.observability.logs import logger
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import LogStore
from skipring.storage.supervisor_store import SupervisorStore
from skipring.storage.topic_log import SegmentLog

# Limit: uncommitted data. Anti-entropy repeats publications that were refused at the limit.
WAITING_BYTES_MAX: Final = 32 << 20

EAGER_BYTES: Final = 1 << 20  # Guess: enough for one sync of the disk.
# Guesses: a commit of this size, on a disk whose last sync was this fast, blocks the loop for less
# time than a thread switch costs. Measured: a commit of 128 logs takes 80 to 190 ms.
INLINE_BYTES_MAX: Final = 1 << 15
INLINE_LOGS_MAX: Final = 2
INLINE_WAIT_S_MAX: Final = 0.001

_LOG: Final = logger("durability")

Store = TypeVar("Store", LogStore, SupervisorStore)


async def opened(open_store: Callable[[Path], Store], directory: Path) -> Store:
    """Open a store in a thread: it may read a large file. Close it if the caller is cancelled."""
    opening = asyncio.ensure_future(asyncio.to_thread(open_store, directory))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Future[Store]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class GroupCommit:
    """Commits of one store, one at a time; a failed commit is tried again.

    A commit runs in a thread, unless it is small and the disk is fast.
    """

    def __init__(self, store: LogStore | None) -> None:
        self.error: StorageError | None = None  # reason of the last commit's failure
        self.commits = 0
        self.failures = 0
        # Functions to call once a commit, or a later one, is on disk.
        self._calls: deque[tuple[int, Callable[[], None]]] = deque()
        self._store = store
        self._begun = 0
        self._ended = 0
        self._succeeded = 0
        self._running: asyncio.Task[StorageError | None] | None = None
        self._is_requested = False  # a commit was requested while one was running
        self._is_commit_due = False  # at the end of this loop iteration
        self.waiting_bytes = 0
        self._covered_bytes = 0  # part that the running commit covers
        # True while the node refuses publications of others until the disk catches up.
        self.is_backpressured = False

    def on_written(self, size_bytes: int) -> None:
        """Record uncommitted data; commit early beyond the eager-commit threshold."""
        if self._store is None:
            return
        self.waiting_bytes += size_bytes
        self.is_backpressured = self.waiting_bytes > WAITING_BYTES_MAX
        if self.waiting_bytes - self._covered_bytes > EAGER_BYTES and self.error is None:
            self.request_commit()

    @property
    def unwritten(self) -> int:
        """Return the number of uncommitted publications; 0 without a disk."""
        return self._store.unwritten if self._store is not None else 0

    async def wait_durable(self) -> None:
        """Wait until all data written so far is on disk; raise StorageError if a commit fails."""
        store = self._store
        if store is None:
            return
        if self._running is None:
            await asyncio.sleep(0)  # first write the caller's frames to the sockets
            if self._commit_if_small(store):  # received frames may have added data
                return
        # A running commit may have begun before the caller's write.
        needed = self._begun + 1
        error: StorageError | None = None
        while self._ended < needed:
            # A cancelled caller must not end the commit: others wait for it too.
            error = await asyncio.shield(self._begin())
        if error is not None:
            raise type(error)(str(error)) from error

    def _is_small(self, store: LogStore) -> bool:
        """Return True if a commit now is cheaper in the event loop than in a thread."""
        return (
            self.error is None
            and store.waiting_logs <= INLINE_LOGS_MAX
            and store.waiting_bytes <= INLINE_BYTES_MAX
            and store.longest_wait_s <= INLINE_WAIT_S_MAX
        )

    def _commit_if_small(self, store: LogStore) -> bool:
        """Commit in the event loop if that is cheap; return False if a thread must commit."""
        if self._running is not None:
            return False
        if self._is_behind:  # else the commit of another caller covers the data
            if not self._is_small(store):
                return False
            self._commit_inline(store)
        return True

    def _commit_inline(self, store: LogStore) -> None:
        """Commit in the event loop; raise StorageError if that fails."""
        self._begun += 1
        self._covered_bytes = self.waiting_bytes
        try:
            store.commit()
        except StorageError as error:
            self._on_failure(error)
            raise
        else:
            self._on_success(self._begun)
        finally:
            self._covered_bytes = 0
            self._ended += 1
        self._on_durable(self._begun)

    def call_when_durable(self, call: Callable[[], None]) -> None:
        """Call a function once all data written so far is on disk, and commit early for it.

        Without a disk call it at once. The calls of one loop iteration share a commit.
        """
        self._calls.append((self._begun + 1, call))  # the commit that covers data written now
        if self._running is not None or self.error is not None:
            self.request_commit()
        elif not self._is_behind:
            self._call_if_durable()
        elif not self._is_commit_due:  # first write the frames of this iteration to the sockets
            self._is_commit_due = True
            asyncio.get_running_loop().call_soon(self._commit_soon)

    def _commit_soon(self) -> None:
        """Commit for waiting functions, in the event loop if that is cheap."""
        self._is_commit_due = False
        with suppress(StorageError):  # logged; tried again at the next tick
            if self._store is not None and not self._commit_if_small(self._store):
                self.request_commit()
        self._call_if_durable()

    def on_tick(self) -> None:
        """Commit publications of other nodes; they can wait, because their publishers have them."""
        self.request_commit()
        self._on_durable(self._succeeded)
        self._call_if_durable()  # a commit may include data written after it began

    def _call_if_durable(self) -> None:
        if self._running is None and self.error is None and not self.unwritten:
            self._on_durable(self._begun + 1)

    def _on_durable(self, commit: int) -> None:
        while self._calls and self._calls[0][0] <= commit:
            self._calls.popleft()[1]()

    def request_commit(self) -> None:
        """Start a commit, after the running one if there is one; do not wait for it."""
        if self._is_behind:
            self._is_requested = self._running is not None
            self._begin()

    @property
    def _is_behind(self) -> bool:
        """Return True if a commit has something to write or to reclaim, or the last one failed."""
        store = self._store
        if store is None:
            return False
        return store.unwritten > 0 or self.error is not None or store.waiting_bytes > 0

    def _begin(self) -> asyncio.Task[StorageError | None]:
        if self._running is None:
            self._begun += 1
            self._running = asyncio.get_running_loop().create_task(self._run())
        return self._running

    async def _run(self) -> StorageError | None:
        assert self._store is not None
        self._covered_bytes = self.waiting_bytes
        number = self._begun
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._store.commit)
        except StorageError as error:
            self._on_failure(error)
        else:
            self._on_success(number)
        finally:
            self._covered_bytes = 0
            self._ended += 1
            self._running = None
        if self.error is None:
            self._on_durable(number)
        if self._is_requested and self.error is None:  # a failing disk is tried once a tick
            self._is_requested = False
            self.request_commit()
            self._call_if_durable()  # the commit may have included data written after it began
        return self.error

    def _on_failure(self, error: StorageError) -> None:
        self.failures += 1
        if self.error is None:
            _LOG.error("commit_failed", reason=str(error))
        self.error = error

    def _on_success(self, number: int) -> None:
        assert self._store is not None
        self.commits += 1
        self._succeeded = number
        if self.error is not None:
            _LOG.info("commit_recovered")
        self.error = None
        # Data written after the commit began may be in it: it runs in a thread.
        self.waiting_bytes -= self._covered_bytes
        if not self._store.unwritten:
            self.waiting_bytes = 0
        self.is_backpressured = self.waiting_bytes > WAITING_BYTES_MAX


class DeliveryLogFlusher:
    """Writes of a delivery log, one at a time, in a thread; a failure is logged once.

    No caller waits for them: publications matter more.
    """

    def __init__(self, trace: DeliveryLog) -> None:
        self._trace = trace
        self._running: asyncio.Task[None] | None = None
        self._is_logged = False

    def request_write(self) -> None:
        """Start a write unless one is running; do not wait for it."""
        if self._running is None and self._trace.is_behind:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Write the rest and close the file."""
        try:
            if self._running is not None:
                await asyncio.shield(self._running)
            await asyncio.to_thread(self._trace.write)
        finally:
            self._trace.close()

    async def _run(self) -> None:
        try:
            await asyncio.to_thread(self._trace.write)
        finally:
            self._running = None
        if self._trace.error is not None and not self._is_logged:
            self._is_logged = True
            _LOG.warning("delivery_log_failed", reason=self._trace.error)


class TopicLogs:
    """Logs of the topics of one node, in memory or in a store, and its delivery log."""

    def __init__(self, store: LogStore | None, trace: DeliveryLog | None) -> None:
        self.by_topic: dict[TopicId, MemoryLog | SegmentLog] = {}
        self.dropped = Counter[TopicId]()  # records that policies have removed
        self.trace = trace if trace is not None else DeliveryLog()
        self._store = store

    def open(self, topic: TopicId) -> Log:
        """Return the log of a topic, to which the host appends from now on."""
        log = MemoryLog() if self._store is None else self._store.log(topic)
        self.by_topic[topic] = log
        return log

    def drop(self, topic: TopicId, effect: Drop | SaveTerms) -> None:
        """Apply an effect of retention, and count the dropped records."""
        self.dropped[topic] += effect.apply(self.by_topic[topic])

    def forget(self, topic: TopicId) -> None:
        """Drop the log of a topic that the node has left; a store keeps it on disk."""
        self.by_topic.pop(topic, None)
        self.dropped.pop(topic, None)
        self.trace.reset_counts(topic)
        if self._store is None:
            self.trace.forget(topic)

    @property
    def lost(self) -> int:
        """Return the number of records that the start of this process found lost."""
        return self._store.lost if self._store is not None else 0

    def discard(self, topic: TopicId, offset: int) -> int:
        """Quarantine the batch that contains an offset; return the number of its records."""
        return self.by_topic[topic].discard(offset)
