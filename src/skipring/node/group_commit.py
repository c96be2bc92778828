"""Group commit: one disk commit for all publications that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from skipring.errors import StorageError
from skipring.observability.logs import logger
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import PublicationStore
from skipring.storage.supervisor_store import SupervisorStore

# Limit of ours: what may be only in memory. Repair brings again what was not taken.
WAITING_BYTES_MAX: Final = 32 << 20

WORTH_IT_BYTES: Final = 1 << 20  # Our guess: a few packs, for one turn of the disk.

_LOG: Final = logger("durability")

Store = TypeVar("Store", PublicationStore, SupervisorStore)


async def opened(open_store: Callable[[Path], Store], directory: Path) -> Store:
    """Open a store in a thread: it may have much to read. Who gives up waiting leaves none open."""
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
    """Commits of one store, one at a time, in a thread; a full disk is tried again and again."""

    def __init__(self, store: PublicationStore | None) -> None:
        self.error: StorageError | None = None  # why the last commit failed
        self.on_durable: Callable[[int], None] = lambda _: None  # who sends what a commit covers
        self.commits = 0
        self.failures = 0
        self._store = store
        self._begun = 0
        self._ended = 0
        self._succeeded = 0
        self._needed = 0  # the last commit that somebody waits for
        self._running: asyncio.Task[StorageError | None] | None = None
        self._is_nudged = False  # while a commit was running
        self._waiting_bytes = 0
        self._covered_bytes = 0  # of them, by the commit that runs

    def note(self, size_bytes: int) -> None:
        """Something was written that is only in memory."""
        if self._store is not None:
            self._waiting_bytes += size_bytes

    @property
    def unwritten(self) -> int:
        """How many publications are only in memory, though there is a disk."""
        return self._store.unwritten if self._store is not None else 0

    @property
    def exceeds_eager_threshold(self) -> bool:
        """True if so much is only in memory that it should not wait for the next tick."""
        return self._waiting_bytes - self._covered_bytes > WORTH_IT_BYTES

    @property
    def is_backpressured(self) -> bool:
        """True if so much is only in memory that nothing more should be taken from others."""
        return self._waiting_bytes > WAITING_BYTES_MAX

    @property
    def next_commit(self) -> int:
        """The number of the commit that will cover what is written now; 0 without a disk."""
        return self._begun + 1 if self._store is not None else 0

    @property
    def durable(self) -> int:
        """The number up to which what waits for a commit is durable."""
        if self._running is None and not self.unwritten:
            return self.next_commit  # also what got into a commit that had begun before it
        return self._succeeded

    async def wait_durable(self) -> None:
        """Wait until all that was written up to now is durable; StorageError if it cannot be."""
        if self._store is None or (self._running is None and not self._is_behind):
            return
        # One that runs now may have begun before our write.
        needed = self._needed = self._begun + 1
        error: StorageError | None = None
        while self._ended < needed:
            # Whoever gives up waiting must not end the commit: others wait for it too.
            error = await asyncio.shield(self._begin())
        if error is not None:
            raise type(error)(str(error)) from error

    async def raise_if_failing(self) -> None:
        """Raise what the last commit failed of, if the next one fails too."""
        if self.error is not None:
            await self.wait_durable()

    def hurry(self) -> None:
        """Commit what is written now, before the next tick; ``on_durable`` is told of it."""
        self._needed = self._begun + 1
        self.request_commit()
        self._tell_if_durable()

    def _tell_if_durable(self) -> None:
        if self._running is None and self.error is None and not self.unwritten:
            self.on_durable(self.next_commit)

    def request_commit(self) -> None:
        """Commit what has come meanwhile, without waiting for it; after a commit that runs."""
        if self._is_behind:
            self._is_nudged = self._running is not None
            self._begin()

    @property
    def _is_behind(self) -> bool:
        """True if something is to be written, or was and could not be promised."""
        return self._store is not None and (self._store.unwritten > 0 or self.error is not None)

    def _begin(self) -> asyncio.Task[StorageError | None]:
        if self._running is None:
            self._begun += 1
            self._running = asyncio.get_running_loop().create_task(self._run())
        return self._running

    async def _run(self) -> StorageError | None:
        assert self._store is not None
        self._covered_bytes = self._waiting_bytes
        loop, number = asyncio.get_running_loop(), self._begun

        def tell() -> None:
            """What was published may go: that it is promised, too, only its publisher waits for."""
            if self._needed >= number:
                with suppress(RuntimeError):  # the loop is closed, nobody sends any more
                    loop.call_soon_threadsafe(self.on_durable, number)

        try:
            await loop.run_in_executor(None, self._store.commit, tell)
        except StorageError as error:
            self.failures += 1
            if self.error is None:
                _LOG.error("commit_failed", reason=str(error))
            self.error = error
        else:
            self.commits += 1
            self._succeeded = number
            if self.error is not None:
                _LOG.info("commit_recovered")
            self.error = None
            # What came after it had begun may be in it: it runs in a thread.
            self._waiting_bytes -= self._covered_bytes
            if not self._store.unwritten:
                self._waiting_bytes = 0
        finally:
            self._covered_bytes = 0
            self._ended += 1
            self._running = None
        if self._is_nudged and self.error is None:  # a disk that takes nothing is let be
            self._is_nudged = False
            self.request_commit()
            self._tell_if_durable()  # the commit may have included what came after it began
        return self.error


class DeliveryLogFlusher:
    """Writes of a trace, one at a time, in a thread; that the disk does not take it is told once.

    Nobody waits for them: publications matter more.
    """

    def __init__(self, trace: DeliveryLog) -> None:
        self._trace = trace
        self._running: asyncio.Task[None] | None = None
        self._is_told = False

    def request_write(self) -> None:
        """Write what has come meanwhile, without waiting for it."""
        if self._running is None and self._trace.is_behind:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Write what is left, and close the file."""
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
        if self._trace.error is not None and not self._is_told:
            self._is_told = True
            _LOG.warning("delivery_log_failed", reason=self._trace.error)
