"""Opening connections, to us and by us, with certificates where there are some (TLS 1.3)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, cast

from skipring.runtime.addresses import join_address
from skipring.runtime.link import Link, Owner, Switchboard, trouble
from skipring.wire.runtime_messages import Address

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.runtime.credentials import Credentials

DIAL_S: Final = 5.0  # Our guess: whoever is there answers sooner.
HANDSHAKE_S: Final = 5.0  # Our guess: as long as we wait for a greeting.
ENTERING_MAX: Final = 256  # Limit of ours: strangers that may be showing certificates at once.
BACKLOG: Final = 1024  # Limit of ours: who may be waiting for us to accept; all of a ring may come.
ACCEPT_AGAIN_S: Final = 1.0  # Our guess: by then some files may have been closed.

# UnicodeError: a name that is none.
TROUBLES: Final = (OSError, TimeoutError, UnicodeError)

# A peer that has vanished without a word is noticed by the system within half a minute.
_KEEP_ALIVE: Final = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,  # ms that what was sent may stay unacknowledged
}


class Exchange(Switchboard, Protocol):
    """All links of a process, as far as opening one is concerned."""

    @property
    def credentials(self) -> Credentials | None:
        """What we show, if we show anything."""

    def complain(self, what: str, reason: str, address: str, detail: str = "") -> None:
        """Count what went wrong with somebody, and say so now and then."""


async def dial(exchange: Exchange, owner: Owner, address: Address) -> Link:
    """Connect to somebody; one of TROUBLES if that does not work."""
    host, _, port = address.rpartition(":")
    context = exchange.credentials.client_context() if exchange.credentials is not None else None
    async with asyncio.timeout(DIAL_S):
        transport, link = await asyncio.get_running_loop().create_connection(
            lambda: Link(exchange, owner), host.strip("[]"), int(port), ssl=context
        )
    keep_alive(cast("socket.socket", transport.get_extra_info("socket")))
    return link


def keep_alive(made: socket.socket) -> None:
    """Let the system find out when the other side has vanished."""
    with suppress(OSError):  # it is gone already
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # not every system has every one
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Doors:
    """Where others connect to us."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._entering: set[asyncio.Task[None]] = set()  # those who show certificates, or should

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Accept connections; return where."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
        self._listening = socket.create_server(where[:2], family=family, backlog=BACKLOG)
        self._listening.setblocking(False)
        self._accepting = loop.create_task(self._accept(self._listening))
        bound = self._listening.getsockname()
        return bound[0], bound[1]

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                came, where = await loop.sock_accept(listening)
            except OSError as error:  # too many open files, for example
                self._exchange.complain("cannot accept", "cannot accept", "", str(error))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            address = join_address(where[0], where[1])
            if len(self._entering) >= ENTERING_MAX:
                self._exchange.complain("connection refused", "too many handshakes", address)
                came.close()
                continue
            task = loop.create_task(self._let_in(came, address))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _let_in(self, came: socket.socket, address: Address) -> None:
        credentials = self._exchange.credentials
        keep_alive(came)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await loop.connect_accepted_socket(
                    lambda: Link(self._exchange, None),
                    came,
                    ssl=credentials.server_context() if credentials is not None else None,
                )
        except TROUBLES as error:
            reason, detail = trouble(error)
            detail = detail or "not done in time" if isinstance(error, TimeoutError) else detail
            self._exchange.complain(
                "connection refused", reason or "handshake failed", address, detail
            )
            came.close()

    def close(self) -> None:
        """Accept no more."""
        for task in (self._accepting, *self._entering):
            if task is not None:
                task.cancel()
        if self._listening is not None:
            self._listening.close()

    async def closed(self) -> None:
        """Wait until nothing is left."""
        await asyncio.sleep(0)  # let transports say that they are closed
        left = {task for task in (self._accepting, *self._entering) if task is not None}
        if left:
            await asyncio.wait(left)
