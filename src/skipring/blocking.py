"""Synchronous twin of the public API, for scripts, threads and notebooks.

Each connection runs one event loop in its own thread; the caller waits for it. A call can be
interrupted at any time (Ctrl-C) without loss.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial, wraps
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final, ParamSpec, Self, TypeVar

from skipring.api.connection import Connection as AsyncConnection
from skipring.api.reader import Cursor, Publication, Reader, Start
from skipring.api.session import Session, new_session
from skipring.api.subscription import READ_MANY, Record, check_limit
from skipring.api.subscription import Subscription as AsyncSubscription
from skipring.api.topic_session import LEAVE_S, Health, TopicSession
from skipring.core.peers import NodeId, TopicId
from skipring.errors import SkipringError, StorageError
from skipring.node.publisher import REPLICAS_TIMEOUT_S

CLOSE_S: Final = 2 * LEAVE_S  # Guess: after leaving, a last write to the disk is short.
READ_AHEAD: Final = 16  # Guess: saves most of the cost of waking another thread.

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Connection:
    """Node of this process in the rings of the subscribed topics; returned by ``connect``.

    Several threads can use it at once. Without a ``with`` block, as in a notebook, use ``open`` and
    ``close``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = _LoopThread(session)

    @property
    def name(self) -> NodeId:
        """Return the name of the node; empty until opened if it is stored in the directory."""
        return self._session.name

    def open(self) -> Self:
        """Connect; raise SkipringError if it was open before."""
        self._thread.start()
        return self

    def close(self) -> int:
        """Leave all topics and stop; return how many publications no other member has confirmed.

        This takes a bounded time. A second call does nothing.
        """
        self._thread.stop()
        return self._thread.unconfirmed

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def subscribe(self, topic: TopicId, start: Start = "all") -> Subscription:
        """Return a subscription to a topic; its ``with`` block joins and leaves the ring.

        Raise CursorError if a cursor does not point into the data directory of this connection.
        """
        ahead = _ReadAhead()
        make = partial(
            TopicSession, self._session, topic, start, unread=ahead.first_offset, prefix=""
        )
        found = self._thread.call(_in_loop, make) if self._thread.is_running else make()
        return Subscription(self._thread, found, ahead)


async def _in_loop(function: Callable[[], _T]) -> _T:
    """Call a function in the loop: only its thread may use the store."""
    return function()


def _left_s(deadline: float | None) -> float | None:
    """Return the time until a deadline; None if there is none."""
    return None if deadline is None else max(deadline - monotonic(), 0)


class _ReadAhead:
    """Publications that the loop has read and that are not handed out yet.

    The lock is held from reading to appending: no thread sees a publication that is in neither
    place.
    """

    def __init__(self) -> None:
        self._publications: deque[Publication] = deque()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._publications)

    def first_offset(self) -> int | None:
        """Return the offset of the first publication, or None."""
        with self._lock:
            return self._publications[0].offset if self._publications else None

    def fill(self, reader: Reader, limit: int, end: int | None = None) -> None:
        """Read available publications before an offset, until ``limit`` are buffered."""
        with self._lock:
            self._publications += reader.fetch(limit - len(self._publications), end)

    def hand_out(self, reader: Reader, limit: int | None) -> list[Publication]:
        """Remove and return up to ``limit`` publications; none after the topic was left."""
        with self._lock:
            if not reader.is_open:
                return []
            buffered = self._publications
            count = len(buffered) if limit is None else min(limit, len(buffered))
            return [buffered.popleft() for _ in range(count)]


class Subscription:
    """One topic: an iterator over its publications, and the methods to publish in it."""

    def __init__(self, thread: _LoopThread, topic_session: TopicSession, ahead: _ReadAhead) -> None:
        self._thread = thread
        self._session = topic_session
        self._subscription = AsyncSubscription(topic_session)
        self._ahead = ahead

    @property
    def topic(self) -> TopicId:
        """Return the topic."""
        return self._session.topic

    def open(self) -> Self:
        """Join the ring of the topic."""
        self._thread.call(self._subscription.__aenter__)
        return self

    def close(self) -> None:
        """Leave the topic in a bounded time; a second call does nothing."""
        if self._thread.is_running:  # otherwise closing the connection has left it
            self._thread.call(self._subscription.leave)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(
        self,
        payload: bytes,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        replicas: int = 0,
        timeout: float = REPLICAS_TIMEOUT_S,
    ) -> bytes:
        """Publish; return the id once it is stored here. No other node needs to be reachable.

        With ``replicas`` return once that number of other members has stored it durably. Raise
        ReplicationError, which states how many have, if that takes longer than ``timeout``.
        """
        self._session.check_opened()
        publish = self._subscription.publish
        return self._thread.call(publish, payload, key, headers, replicas=replicas, timeout=timeout)

    def publish_many(self, records: Iterable[bytes | Record]) -> list[bytes]:
        """Publish payloads or records in order; return their ids once they are stored here.

        Raise InputError with the index of the first invalid one, and publish nothing.
        """
        self._session.check_opened()
        return self._thread.call(self._subscription.publish_many, records)

    def retry(self, error: StorageError) -> list[bytes]:
        """Send the publications of a failed call again; return their ids once they are durable.

        They keep their ids, so no member gets one twice. Raise InputError if ``may_be_published``
        is False: the call sent nothing, so publish again. Raise StorageError if the disk still
        fails.
        """
        self._session.check_opened()
        return self._thread.call(self._subscription.retry, error)

    # -- reading -----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Publication]:
        """Yield publications in the order of the local log, until the topic is left."""
        while (publication := self.read()) is not None:
            yield publication

    def read(self, timeout: float | None = None) -> Publication | None:
        """Return the next publication; None after the timeout or when the topic was left."""
        self._session.check_opened()
        deadline = None if timeout is None else monotonic() + timeout
        while not (found := self._hand_out(1)):
            if not self._thread.call(self._fill, READ_AHEAD, _left_s(deadline)):
                return None
            # Otherwise a publication arrived, unless it is skipped or another thread took it.
        return found[0]

    def read_many(self, limit: int = READ_MANY, timeout: float | None = None) -> list[Publication]:
        """Wait for a publication, then return all available ones, up to a limit.

        Return an empty list after the timeout or when the topic was left.
        """
        check_limit(limit)
        self._session.check_opened()
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if not self._thread.call(self._fill, limit, _left_s(deadline)):
                return []
            if found := self._hand_out(limit):
                return found

    def read_available(self, limit: int | None = None) -> list[Publication]:
        """Return the available unread publications, at most ``limit`` of them."""
        self._session.check_opened()
        self._thread.call(self._fill_available, limit)
        return self._hand_out(limit)

    async def _fill(self, limit: int, timeout_s: float | None) -> bool:
        """Buffer up to ``limit`` publications; return False on timeout or after leaving."""
        now = asyncio.get_running_loop().time()
        reader = self._session.reader
        deadline = None if timeout_s is None else now + timeout_s
        if not self._ahead and not await reader.arrival(deadline):
            return False
        self._ahead.fill(reader, limit)
        return reader.is_open

    async def _fill_available(self, limit: int | None) -> None:
        reader, end = self._session.reader, self._session.reader.end
        while reader.is_open and reader.offset < end:
            buffered = len(self._ahead)
            if limit is not None and buffered >= limit:
                return
            self._ahead.fill(reader, buffered + READ_AHEAD, end)
            await asyncio.sleep(0)

    def _hand_out(self, limit: int | None) -> list[Publication]:
        return self._ahead.hand_out(self._session.reader, limit)

    @property
    def lag(self) -> int:
        """Return the number of publications that are stored here and unread."""
        return self.health().lag

    def cursor(self) -> Cursor:
        """Return the position after the last publication handed out, to start there again."""
        if self._thread.is_running:
            return self._thread.call(_in_loop, self._session.cursor)
        return self._session.cursor()

    # -- health ------------------------------------------------------------------------------

    def synced(self, timeout: float = 30.0) -> None:
        """Wait until every ring neighbour has confirmed that it is in sync.

        Raise TimeoutError, which names the missing neighbours, if that takes longer.
        """
        self._session.check_opened()
        self._thread.call(self._subscription.synced, timeout)

    def health(self) -> Health:
        """Return the current state of the subscription and its reasons."""
        return self._thread.call(_in_loop, self._current_health)

    def _current_health(self) -> Health:
        health = self._session.health()
        return Health(health.state, health.reasons, health.lag + len(self._ahead))


class _LoopThread:
    """Event loop of a connection, in a thread that ends with it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = Thread(target=self._run, name="skipring", daemon=True)
        self._lock = Lock()  # guards the following fields
        self._loop: asyncio.AbstractEventLoop | None = None  # set while calls are accepted
        self._serving: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.unconfirmed = 0  # publications that no other member had confirmed at the end
        self._calls: set[Future[Any]] = set()
        self._opened: Future[None] = Future()
        self._error: BaseException | None = None  # the reason why the thread has ended

    @property
    def is_running(self) -> bool:
        """Return True if calls are accepted; after a fork the child has no thread."""
        return self._loop is not None and self._thread.is_alive()

    def start(self) -> None:
        """Open the connection in a new thread; re-raise its errors."""
        if self._thread.ident is not None:
            raise SkipringError("this connection has been used; call skipring.blocking.connect")
        self._thread.start()
        try:
            self._opened.result()
        except BaseException:  # including an interrupt of the caller
            with suppress(SkipringError):
                self.stop()
            raise

    def call(
        self, function: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a coroutine in the loop and wait for it; re-raise its errors."""

        async def run() -> _T:
            return await function(*args, **kwargs)

        with self._lock:
            if self._loop is None or not self.is_running:
                raise SkipringError(self._why_not())
            call = asyncio.run_coroutine_threadsafe(run(), self._loop)
            self._calls.add(call)
        try:
            return call.result()
        except CancelledError:
            raise SkipringError("the connection was closed during the call") from None
        finally:
            call.cancel()  # if the caller was interrupted; a finished call does not change
            with self._lock:
                self._calls.discard(call)

    def stop(self) -> None:
        """Close the connection and wait, for a bounded time, until the thread ends."""
        with self._lock:
            self._is_stopped = True
            loop, self._loop = self._loop, None
            if loop is not None and self._serving is not None:
                loop.call_soon_threadsafe(self._serving.cancel)
        if self._thread.ident is None:
            return
        close_s = CLOSE_S + self._session.settings.drain_s
        self._thread.join(close_s)
        if self._thread.is_alive():
            raise SkipringError(f"the connection could not be closed within {close_s:g} s")
        if isinstance(self._error, SkipringError):
            raise self._error
        if self._error is not None:
            raise SkipringError(self._why_not()) from self._error

    def _why_not(self) -> str:
        if self._error is not None:
            return f"the connection ended unexpectedly: {self._error!r}"
        return "not connected; use it inside `with skipring.blocking.connect(...)`"

    # -- in the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._serve())
        except asyncio.CancelledError:
            pass  # the expected end
        except BaseException as cause:  # noqa: BLE001  (reported to the callers)
            error = cause
        self._end(error)

    async def _serve(self) -> None:
        """Keep the connection open until the task is cancelled."""
        with self._lock:
            if self._is_stopped:
                return
            self._serving = asyncio.current_task()
            self._loop = asyncio.get_running_loop()
        async with AsyncConnection(self._session) as connection:
            self._opened.set_result(None)
            try:
                await asyncio.Event().wait()
            finally:
                self.unconfirmed = await connection.close()

    def _end(self, error: BaseException | None) -> None:
        """Refuse further calls; waiting calls get an error."""
        with self._lock:
            self._loop = None
            if not self._opened.done():
                self._opened.set_exception(error or SkipringError(self._why_not()))
                return
            self._error = error
            for call in self._calls:
                with suppress(InvalidStateError):  # it was done or cancelled
                    call.set_exception(SkipringError(self._why_not()))


# -- function of the application ---------------------------------------------------------------


def _blocking(make: Callable[_P, Session]) -> Callable[_P, Connection]:
    @wraps(make, assigned=(), updated=())  # for its parameters only
    def connect(*args: _P.args, **kwargs: _P.kwargs) -> Connection:
        """Return a connection to a cluster, for use in ``with``.

        The arguments are those of ``skipring.connect``. Raise InputError for an invalid argument.
        """
        return Connection(make(*args, **kwargs))

    return connect


connect = _blocking(new_session)
