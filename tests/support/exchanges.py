"""Connections on loopback for tests: hosts, callers with plain sockets, and leak checks."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Any

import uvloop

from skipring.core.messages import Digest, PublishNew
from skipring.core.peers import NodeId
from skipring.errors import MessageError
from skipring.net.addresses import AddressBook
from skipring.net.transport import Transport
from skipring.observability.logs import configure_logs
from skipring.security.credentials import Credentials
from skipring.wire.codec import Envelope, decode, encode
from skipring.wire.framing import Frame, FrameReader
from skipring.wire.handshake import NO_TOPIC, AskHolder, Hello, HolderReply, Role, encode_greeting
from skipring.wire.rpc import WireMessage
from tests.support.batches import batch
from tests.support.rings import LOOPBACK, TOPIC, until

DEADLINE_S = 20.0

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, LoopFactory] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,  # the loop of the processes
}


class TransportHost:
    """Transport of one process, and the messages that it has received."""

    def __init__(
        self,
        name: str,
        role: Role = Role.NODE,
        *,
        credentials: Credentials | None = None,
        dials: bool = True,
    ) -> None:
        self.name = name
        self.book = AddressBook()
        self.got: list[tuple[str, WireMessage]] = []
        self.on_message: Callable[[str], None] = lambda _: None
        greeting = Hello(node=name, address="", role=role)
        self.links = Transport(
            greeting,
            self.book,
            self._receive,
            Random(name),
            credentials=credentials,
            dials=dials,
        )
        self.address = ""

    def _receive(self, sender: str, envelope: Envelope[WireMessage], _: Frame) -> None:
        self.got.append((sender, envelope.message))
        self.on_message(sender)

    async def start(self, port: int = 0) -> None:
        self.address = await self.links.listen(LOOPBACK, port)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def knows(self, *others: TransportHost) -> None:
        self.book.learn({other.name: other.address for other in others})

    def numbers(self, sender: str) -> list[int]:
        """Return the notes of one sender in order of arrival."""
        return [it.digest for who, it in self.got if who == sender and isinstance(it, Digest)]

    async def reach(self, other: TransportHost, number: int) -> None:
        """Send a note to another host; wait until it has arrived."""
        self.knows(other)
        self.links.send(other.name, note(number))
        await until(lambda: number in other.numbers(self.name))

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.links.counts)


def note(number: int) -> bytes:
    return encode(TOPIC, Digest("a", number))


def parcel(number: int, size: int) -> bytes:
    return encode(TOPIC, PublishNew(batch(bytes(size), first=number, topic=TOPIC)))


def greeting_of(name: str, role: Role = Role.NODE) -> bytes:
    return encode_greeting(Hello(node=name, address="127.0.0.1:9", role=role))


HELLO = greeting_of("b")


@asynccontextmanager
async def running(*made: TransportHost) -> AsyncIterator[None]:
    """Let hosts listen; close them at the end, and check that nothing is open."""
    try:
        for host in made:
            await host.start()
        yield
    finally:
        for host in made:
            await host.links.close()
    await until(lambda: not any(host.links.connections for host in made))


@asynccontextmanager
async def hosts(*names: str) -> AsyncIterator[list[TransportHost]]:
    """Yield nodes that listen."""
    made = [TransportHost(name) for name in names]
    async with running(*made):
        yield made


class Caller:
    """Caller with a plain socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        host, port = writer.get_extra_info("sockname")
        self.address = f"{host}:{port}"  # its own address

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self) -> bytes:
        """Return data that the other side has sent."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read(1 << 16)

    async def confirm_other_connection(self) -> None:
        """Answer the question whether another connection belongs to the same process."""
        reader = FrameReader()
        while True:
            for frame in reader.feed(await self.read()):
                with suppress(MessageError):  # a greeting is not a message
                    question = decode(frame).message
                    if isinstance(question, AskHolder):
                        reply = HolderReply(question.connection, is_own=True)
                        self.write(encode(NO_TOPIC, reply))
                        return

    async def is_hung_up_on(self) -> bool:
        """Return True once the other side has closed."""
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError, ssl.SSLError):
                while await self._reader.read(1 << 16):
                    pass
        return True


@asynccontextmanager
async def call(host: TransportHost, context: ssl.SSLContext | None = None) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(LOOPBACK, host.port, ssl=context)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def answering(
    greets: bytes, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Yield the address of a server that sends the same to all callers and reads nothing."""
    came: list[asyncio.StreamWriter] = []

    def on_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        came.append(writer)
        writer.write(greets)

    server = await asyncio.start_server(on_call, LOOPBACK, 0, ssl=context)
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}", came
    finally:
        server.close()
        for writer in came:
            writer.transport.abort()
        await server.wait_closed()


def nowhere() -> str:
    """Return an address without a listener."""
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{bound.getsockname()[1]}"


def link_of(host: TransportHost, name: NodeId) -> Any:  # noqa: ANN401  (a link or none, and what is in it)
    return host.links.peer(name).link


def is_refused_as_wrong_peer_by(host: TransportHost) -> bool:
    """Return True once the dialled process is refused as the wrong peer and disconnected."""
    is_over = not host.links.connections and not is_dialling(host)
    return is_over and host.links.counts["wrong peer"] > 0


def is_dialling(host: TransportHost) -> bool:
    """Return True while the host dials a peer."""
    return any(peer.is_dialling for peer in host.links.peers.values())


async def turns(count: int = 10) -> None:
    """Let the loop run a few turns."""
    for _ in range(count):
        await asyncio.sleep(0)


def play(
    scene: Callable[[], Awaitable[None]], loop_factory: LoopFactory = asyncio.new_event_loop
) -> None:
    """Run a scene; check that nothing fails in the loop and that no task is left."""
    crashes: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: crashes.append(what))
        await scene()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(watched())
    assert crashes == [], crashes


Lines = Callable[[], list[dict[str, Any]]]


@contextmanager
def logged(level_name: str = "info") -> Iterator[Lines]:
    """Collect the lines that are logged meanwhile."""
    root, ours = logging.getLogger(), logging.getLogger("skipring")
    handlers, level = list(root.handlers), ours.level
    stream = io.StringIO()
    configure_logs(level_name, stream)
    try:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    finally:
        root.handlers[:] = handlers
        ours.setLevel(level)


def the_line(lines: Lines, event: str) -> dict[str, Any]:
    """Return the only line of the log: a warning."""
    (line,) = lines()
    assert (line["level"], line["event"]) == ("warning", event)
    return line
