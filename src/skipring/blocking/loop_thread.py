"""Event loop of a blocking connection, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, Final, ParamSpec, TypeVar

from skipring.api.connection import Connection
from skipring.api.session import Session
from skipring.api.topic_session import LEAVE_S
from skipring.errors import SkipringError

CLOSE_S: Final = 2 * LEAVE_S  # Guess: after leaving, a last write to the disk is short.

_P = ParamSpec("_P")
_T = TypeVar("_T")


class LoopThread:
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

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function in the loop and wait for it: only its thread may use the store."""

        async def called() -> _T:
            return function()

        return self.call(called)

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
        async with Connection(self._session) as connection:
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
