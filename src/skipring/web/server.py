"""Server of the dashboard, in an event loop with other tasks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from skipring.core.peers import TopicId
from skipring.errors import InputError
from skipring.net.addresses import LOOPBACK, is_loopback, join_address
from skipring.net.sockets import why_not_listening
from skipring.rpc.client import require
from skipring.view.overview import Observer
from skipring.web.app import App, DashboardSettings
from skipring.web.auth import TokenAuth
from skipring.web.events import EventStream
from skipring.wire.limits import check_topic
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # Importing it loads cryptography, which few processes need.
    from skipring.security.credentials import Credentials

ENDING_S: Final = 2  # Guess: time for open responses to finish.
REQUEST_S: Final = 10.0  # Guess: a browser on this machine sends a request within milliseconds.


class Dashboard:
    """Dashboard on this machine, running inside its ``async with`` block.

    ``url`` is a one-time address: the first browser that opens it gets a cookie. Then ``url``
    changes and ``on_entered`` is called.
    """

    def __init__(  # noqa: PLR0913  (each is named, and all but the first can be left out)
        self,
        supervisors: Sequence[Address],
        credentials: Credentials | None = None,
        *,
        topic: TopicId | None = None,
        chaos: bool = False,
        pipelines: Sequence[Address] = (),
        host: str = LOOPBACK,
        port: int = 0,
        on_entered: Callable[[], None] = lambda: None,
    ) -> None:
        if not is_loopback(host):
            raise InputError(
                f"the dashboard serves this machine only and listens on {LOOPBACK}, not on "
                f"{host}; to see it from elsewhere, forward its port over SSH"
            )
        if topic is not None:
            require(check_topic, topic)
        self._observer = Observer(supervisors, credentials)
        self._settings = DashboardSettings(
            supervisors=tuple(supervisors), topic=topic, chaos=chaos, pipelines=tuple(pipelines)
        )
        self._place = (host, port)
        self._gate = TokenAuth(on_entered)
        self._feed = EventStream(self._observer, topic)

    @property
    def url(self) -> str:
        """Return the one-time address to open."""
        return f"http://{join_address(*self._place)}/?token={self._gate.token}"

    async def __aenter__(self) -> Self:
        listener = _listening(*self._place)
        host, port = self._place = (self._place[0], listener.getsockname()[1])
        self._gate.open_at(join_address(host, port), port)
        app = App(self._settings, self._observer, self._feed).behind(self._gate)
        config = uvicorn.Config(
            app,
            http=_Http,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=ENDING_S,
        )
        self._server = _DashboardServer(config)
        self._feed.start()
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all event streams and connections."""
        try:
            await self._feed.close()
            self._server.should_exit = True
            await self._serving
        finally:
            await self._observer.__aexit__()

    async def ended(self) -> None:
        """Wait until the server ends by itself, which happens only after a fatal error."""
        await asyncio.shield(self._serving)


class _Http(H11Protocol):
    """HTTP connection that closes if a request is incomplete for REQUEST_S."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the deadline of an incomplete request; more bytes do not extend it."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        is_complete = cycle is not None and not (cycle.more_body or cycle.response_complete)
        if is_complete or self.transport.is_closing():
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _DashboardServer(uvicorn.Server):
    """Server that leaves signal handling to its caller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # from here on, connections to the address are accepted
    except OSError as error:
        listener.close()
        why = why_not_listening(join_address(host, port), error)
        raise InputError(why, parameter="listen") from None
    return listener
