"""Sockets: dial and listen, with TLS 1.3 where credentials exist."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skipring.errors import process_text
from skipring.net.addresses import join_address
from skipring.net.connection import PeerConnection
from skipring.net.dial_failure import Cause, classify_tls_error, failure_in
from skipring.net.handshake_limits import PLAIN, SECURED, Handshakes, source_of
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # cycles: a peer dials, a transport listens
    from skipring.net.peer import RemotePeer
    from skipring.net.transport import Transport

DIAL_S: Final = 5.0  # Guess: a listening peer answers sooner.
HANDSHAKE_S: Final = 5.0  # Guess: the same as for a greeting.
IDENTIFY_S: Final = 0.5  # Guess: a TLS server on this machine answers sooner.
BACKLOG: Final = 1024  # Limit: connections to accept; all members of a ring may dial at once.
# Per turn of the loop. Measured: a refusal takes 20 microseconds, and a full accept queue delays
# other peers by seconds.
ACCEPTED_MAX: Final = 512
# Guess: after a shorter pause several connections may be pending, after a longer one only one is.
BUSY_S: Final = 0.01
TURNS_S: Final = 0.02  # Guess: the interval at which waiting handshakes can begin.
ACCEPT_AGAIN_S: Final = 1.0  # Guess: by then some files may have been closed.

# UnicodeError: an invalid host name.
TROUBLES: Final = (OSError, TimeoutError, UnicodeError)

# The system notices a vanished peer within half a minute.
_KEEP_ALIVE: Final = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 25_000,  # ms that sent data may stay unacknowledged
}

_LISTENS: Final = "0A"  # state of a socket in /proc/net/tcp
_REMEDIES: Final = {
    EACCES: "choose a port above 1023",
    EADDRINUSE: "stop it, or choose another port",
    EADDRNOTAVAIL: "this machine does not have that address; choose another",
}


def why_not_listening(address: Address, error: OSError) -> str:
    """Return why a process cannot listen on an address, with a remedy, as a sentence."""
    reason = (error.strerror or str(error)).lower()
    if error.errno == EADDRINUSE:
        pid = listening_process(int(address.rpartition(":")[2]))
        holder = process_text(pid) if pid is not None else None
        reason = f"{holder or 'another process'} listens there"
    remedy = _REMEDIES.get(error.errno or 0, "choose another address")
    return f"cannot listen on {address}: {reason}; {remedy}"


def listening_process(port: int) -> int | None:
    """Return the process that listens on a TCP port; None if /proc does not show it.

    /proc does not show processes of other users, and exists on Linux only.
    """
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{inode}]")
    processes = Path("/proc").glob("[0-9]*") if sockets else ()
    return next((int(each.name) for each in processes if sockets & set(_open_files(each))), None)


def _open_files(process: Path) -> Iterator[str]:
    with suppress(OSError):  # the process has ended, or belongs to another user
        for each in (process / "fd").iterdir():
            with suppress(OSError):  # closed in the meantime
                yield str(each.readlink())


async def dial(
    links: Transport, owner: RemotePeer, address: Address, on_connected: Callable[[], None]
) -> PeerConnection:
    """Connect to an address, and wait until the peer has greeted or the connection is lost.

    Call ``on_connected`` before the handshakes. Raise one of TROUBLES.
    """
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(DIAL_S):
        made = await connected(host.strip("[]"), int(port))
    on_connected()
    keep_alive(made)
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    link = PeerConnection(links, owner, over.set)
    if links.credentials is None:
        opening = loop.create_connection(lambda: link, sock=made)
    else:
        links.credentials.refresh()
        opening = loop.create_connection(
            lambda: link,
            sock=made,
            ssl=links.credentials.client_context(),
            server_hostname=host,  # required, but not checked: names in certificates are
            ssl_handshake_timeout=HANDSHAKE_S,
        )
    await _opened(opening, made)
    await over.wait()
    return link


async def connected(host: str, port: int) -> socket.socket:
    """Return a connected socket; try all addresses of the host."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError("it has no address")
    for family, kind, protocol, _, where in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, where)
        except OSError as error:
            failure = error
            made.close()
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure


async def speaks_tls(address: Address) -> bool:
    """Return True if a server answers the first message of a TLS handshake with a TLS record."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only this message is sent
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    with suppress(*TROUBLES):
        async with asyncio.timeout(IDENTIFY_S):
            with await connected(host.strip("[]"), int(port)) as made:
                await loop.sock_sendall(made, sent.read())
                return failure_in(await loop.sock_recv(made, 2)).cause is Cause.SECURED
    return False


Opened = tuple[asyncio.BaseTransport, PeerConnection]
Opening = Coroutine[Any, Any, Opened]


async def _opened(opening: Opening, made: socket.socket) -> None:
    """Wait until a connection is open; if cancelled, leave nothing half open."""
    task = asyncio.ensure_future(opening)
    try:
        transport, _ = await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(OSError):
            made.shutdown(socket.SHUT_RD)  # ends the handshake; if cancelled, the loop may leak it
        await asyncio.wait([task])
        is_open = not task.cancelled() and task.exception() is None
        if is_open and not task.result()[0].is_closing():
            task.result()[1].abort()
        else:
            _detach(made)
        raise
    except TROUBLES:
        _detach(made)
        raise
    if transport.is_closing():
        _detach(made)


def _detach(made: socket.socket) -> None:
    """Detach a socket whose file descriptor the event loop owns and closes.

    If uvloop closes the descriptor early, the socket object does not notice and would close it
    again later, when it may belong to another file.
    """
    if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        made.close()
    else:
        made.detach()


def keep_alive(made: socket.socket) -> None:
    """Enable TCP keep-alive, so that the system detects a vanished peer."""
    with suppress(OSError):  # already closed
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # not every system has all of them
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Visitor:
    """Accepted connection that has not greeted."""

    __slots__ = ("address", "came", "is_refused", "link")

    def __init__(self, came: socket.socket, address: Address) -> None:
        self.came = came
        self.address = address
        self.link: PeerConnection | None = None  # set while the handshake is in progress
        self.is_refused = False

    def begin_handshake(self, link: PeerConnection) -> None:
        """Record the connection of a handshake that begins."""
        self.link = link

    def leave(self, handshakes: Handshakes[_Visitor]) -> None:
        """Free the place after the greeting or the end; a second call does nothing."""
        handshakes.remove(self)
        self.link = None

    def refuse_handshake(self, link: PeerConnection) -> None:
        """Close the connection during its handshake."""
        self.is_refused = True
        link.abort() if link.transport is not None else self.end_handshake()

    def end_handshake(self) -> None:
        """End a handshake: a cancelled task could leak the socket."""
        with suppress(OSError):
            self.came.shutdown(socket.SHUT_RD)


class Listener:
    """Listening socket: accepts connections and runs their handshakes."""

    def __init__(self, links: Transport) -> None:
        self._links = links
        self._listening: socket.socket | None = None
        self._again: asyncio.TimerHandle | None = None
        self._handshakes: Handshakes[_Visitor] | None = None
        self._next_turn: asyncio.TimerHandle | None = None  # timer for waiting handshakes
        self._accepted_s = 0.0  # time of the last callback
        self._opening: dict[asyncio.Task[Opened], _Visitor] = {}
        self._waiting: set[_Visitor] = set()  # connections whose handshake has not begun

    def __len__(self) -> int:
        """Return the number of connections that have not greeted."""
        return len(self._handshakes) if self._handshakes is not None else 0

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Accept connections; return the bound host and port."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
        self._listening = socket.create_server(where[:2], family=family, backlog=BACKLOG)
        self._listening.setblocking(False)
        keep_alive(self._listening)  # accepted connections inherit its options
        limits = PLAIN if self._links.credentials is None else SECURED
        self._handshakes = Handshakes(limits, loop.time())
        self._begin(self._listening, self._handshakes)
        bound = self._listening.getsockname()
        return bound[0], bound[1]

    def _begin(self, listening: socket.socket, handshakes: Handshakes[_Visitor]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(listening, self._accept, listening, handshakes)

    def _accept(self, listening: socket.socket, handshakes: Handshakes[_Visitor]) -> None:
        """Accept pending connections; a callback, because a cancelled task could leak a socket."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        is_busy, self._accepted_s = now_s - self._accepted_s < BUSY_S, now_s
        for _ in range(ACCEPTED_MAX if is_busy else 1):
            try:
                came, where = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:  # for example, too many open files
                self._links.log_drop("accept_failed", "cannot accept", "", str(error))
                loop.remove_reader(listening)
                self._again = loop.call_later(ACCEPT_AGAIN_S, self._begin, listening, handshakes)
                break
            came.setblocking(False)
            visitor = _Visitor(came, join_address(where[0], where[1]))
            self._waiting.add(visitor)
            refused = handshakes.add(visitor, source_of(where[0]), now_s)
            if refused is not None:
                self._refuse(refused)
        self._begin_due_handshakes(handshakes)

    def _refuse(self, visitor: _Visitor) -> None:
        """Close a connection: its source address has too many without a greeting."""
        detail = "its address opens connections faster than they are served"
        if visitor.link is not None:
            visitor.refuse_handshake(visitor.link)
            detail = "it has not greeted, and another address needs its place"
        else:
            self._waiting.discard(visitor)
            visitor.came.close()
        self._links.log_drop("connection_refused", "too many handshakes", visitor.address, detail)

    def _begin_due_handshakes(self, handshakes: Handshakes[_Visitor]) -> None:
        """Begin the handshakes that are due; schedule the rest."""
        loop = asyncio.get_running_loop()
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        for visitor in handshakes.begin(loop.time()):
            self._waiting.discard(visitor)
            self._shake_hands(handshakes, visitor)
        if handshakes.has_waiting:
            self._next_turn = loop.call_later(TURNS_S, self._begin_due_handshakes, handshakes)

    def _shake_hands(self, handshakes: Handshakes[_Visitor], visitor: _Visitor) -> None:
        """Begin a handshake; the visitor keeps its place until it has greeted or is gone.

        Measured: a task that waits for the greeting costs 13 microseconds per connection.
        """
        links, loop = self._links, asyncio.get_running_loop()
        link = PeerConnection(links, None, partial(visitor.leave, handshakes))
        context = None
        if links.credentials is not None:
            links.credentials.refresh()
            context = links.credentials.server_context()
        opening = loop.create_task(
            loop.connect_accepted_socket(
                lambda: link,
                visitor.came,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context is not None else None,
            )
        )
        visitor.begin_handshake(link)
        self._opening[opening] = visitor
        opening.add_done_callback(partial(self._on_opened, handshakes))

    def _on_opened(self, handshakes: Handshakes[_Visitor], opening: asyncio.Task[Opened]) -> None:
        """Log a handshake that has failed; abort a connection that was refused meanwhile."""
        visitor = self._opening.pop(opening)
        error = asyncio.CancelledError() if opening.cancelled() else opening.exception()
        if error is None:
            transport, link = opening.result()
            if visitor.is_refused:
                link.abort()
            if transport.is_closing():
                _detach(visitor.came)
            return
        visitor.leave(handshakes)
        _detach(visitor.came)
        if isinstance(error, TROUBLES) and not visitor.is_refused:
            reason, detail = classify_tls_error(error)
            detail = detail or "the peer closed the connection during the handshake"
            self._links.log_drop(
                "connection_refused", reason or "handshake failed", visitor.address, detail
            )

    def close(self) -> None:
        """Stop accepting; close connections that have not greeted."""
        for visitor in self._opening.values():
            visitor.end_handshake()
        for visitor in self._waiting:
            visitor.came.close()
        self._waiting.clear()
        for timer in (self._again, self._next_turn):
            if timer is not None:
                timer.cancel()
        listening, self._listening = self._listening, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()

    async def closed(self) -> None:
        """Wait until all handshakes have ended."""
        if self._opening:
            await asyncio.wait(list(self._opening))
        await asyncio.sleep(0)  # transports report their close in the next turn
