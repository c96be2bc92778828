"""Links on loopback: what arrives, what is dropped and counted, and that nothing is left."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from msgspec.msgpack import encode as pack

from skipring.core.messages import Digest, PublishNew
from skipring.core.peers import SUPERVISOR
from skipring.core.publications import Publication
from skipring.runtime import link as link_module
from skipring.runtime import links as links_module
from skipring.runtime.addresses import AddressBook, supervisor_at
from skipring.runtime.links import Links
from skipring.wire.codec import Envelope, encode
from skipring.wire.framing import CONTROL, DATA, frame
from skipring.wire.greeting import Greeting, Role, encode_greeting
from skipring.wire.runtime_messages import WireMessage
from tests.runtime.rings import LOOPBACK, until

TOPIC = "news"
DEADLINE_S = 20.0


# -- the scene -------------------------------------------------------------------------------


class Host:
    """The links of one process, and what came over them."""

    def __init__(self, name: str, role: Role = Role.NODE) -> None:
        self.name = name
        self.book = AddressBook()
        self.got: list[tuple[str, WireMessage]] = []
        greeting = Greeting(node=name, address="", role=role)
        self.links = Links(greeting, self.book, self._receive, Random(name))
        self.address = ""

    def _receive(self, sender: str, envelope: Envelope[WireMessage]) -> None:
        self.got.append((sender, envelope.message))

    async def start(self, port: int = 0) -> None:
        self.address = await self.links.listen(LOOPBACK, port)

    def knows(self, *others: Host) -> None:
        self.book.hear({other.name: other.address for other in others})

    def numbers(self, sender: str) -> list[int]:
        """The notes of one sender, as they came."""
        return [it.digest for who, it in self.got if who == sender and isinstance(it, Digest)]

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.links.counts)


def note(number: int) -> bytes:
    return encode(TOPIC, Digest("a", number))


def parcel(number: int, size: int) -> bytes:
    publication = Publication(publisher="a", seq=number, payload=bytes(size))
    return encode(TOPIC, PublishNew(publication))


def greeting_of(name: str, role: Role = Role.NODE) -> bytes:
    return encode_greeting(Greeting(node=name, address="127.0.0.1:9", role=role))


@asynccontextmanager
async def hosts(*names: str) -> AsyncIterator[list[Host]]:
    """Hosts that listen; afterwards they are closed, and have nothing open."""
    made = [Host(name) for name in names]
    try:
        for host in made:
            await host.start()
        yield made
    finally:
        for host in made:
            await host.links.close()
    await until(lambda: not any(host.links.connections for host in made))


class Caller:
    """Somebody with a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def is_hung_up_on(self) -> bool:
        """True once the other side has closed."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self._reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        return True


@asynccontextmanager
async def call(host: Host) -> AsyncIterator[Caller]:
    name, _, port = host.address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def answering(greets: bytes) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Somebody who listens, says the same to everybody and does not read; with all who came."""
    came: list[asyncio.StreamWriter] = []

    def on_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        came.append(writer)
        writer.write(greets)

    server = await asyncio.start_server(on_call, LOOPBACK, 0)
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}", came
    finally:
        server.close()
        for writer in came:
            writer.transport.abort()
        await server.wait_closed()


def nowhere() -> str:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        return f"{LOOPBACK}:{bound.getsockname()[1]}"


def link_of(host: Host, name: str) -> Any:  # noqa: ANN401  (a link or none, and what is in it)
    return host.links.peer(name).link


def is_refused_as_a_stranger_by(host: Host) -> bool:
    """True once the one it has dialled is another, and the call is over."""
    is_over = not host.links.connections and len(asyncio.all_tasks()) == 1
    return is_over and host.links.counts["stranger"] > 0


async def turns(count: int = 10) -> None:
    """Let the loop come round a few times."""
    for _ in range(count):
        await asyncio.sleep(0)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    """Run a scene; nothing may crash in the loop, and no task may be left."""
    crashes: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: crashes.append(what))
        await scene()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(watched())
    assert crashes == []


# -- what arrives ----------------------------------------------------------------------------


def test_frames_arrive_in_order_and_once() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            for number in range(2000):
                a.links.send("b", note(number))
                if number % 7 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(b.got) >= 2000)
            assert b.numbers("a") == list(range(2000))
            assert a.counts == b.counts == {}

    play(scene)


def test_large_frames_and_small_ones_keep_their_order() -> None:
    sizes = [Random(1).choice([0, 10, 5_000, 300_000]) for _ in range(60)]

    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            for number, size in enumerate(sizes):
                a.links.send("b", parcel(number, size))
                await until(lambda: a.links.peer("b")._size < 1 << 21)
            await until(lambda: len(b.got) == len(sizes))
            publications = [it.publication for _, it in b.got if isinstance(it, PublishNew)]
            assert [p.seq for p in publications] == list(range(len(sizes)))
            assert [len(p.payload or b"") for p in publications] == sizes

    play(scene)


def test_nobody_is_dialled_before_there_is_something_to_say() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            await turns()
            assert not a.links.connections
            a.links.send("b", note(1))
            await until(lambda: b.numbers("a") == [1])
            assert len(a.links.connections) == len(b.links.connections) == 1

    play(scene)


def test_without_an_address_frames_are_dropped_and_counted() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,):
            for number in range(3):
                a.links.send("b", note(number))
            await until(lambda: a.counts == {"no address": 3})
            assert not a.links.connections

    play(scene)


def test_the_answer_goes_back_over_the_same_connection() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            a.links.send("b", note(1))
            await until(lambda: b.numbers("a") == [1])
            b.links.send("a", note(2))
            await until(lambda: a.numbers("b") == [2])
            assert len(a.links.connections) == len(b.links.connections) == 1

    play(scene)


def test_whoever_has_greeted_can_be_dialled() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            a.links.send("b", note(1))
            await until(lambda: b.book.find("a") == a.address)

    play(scene)


def test_a_supervisor_is_reached_by_its_address_and_speaks_as_the_supervisor() -> None:
    async def scene() -> None:
        supervisor = Host(SUPERVISOR, Role.SUPERVISOR)
        await supervisor.start()
        try:
            async with hosts("a") as (a,):
                a.links.send_to_supervisor(supervisor.address, note(1))
                await until(lambda: supervisor.numbers("a") == [1])
                supervisor.links.send("a", note(2))
                await until(lambda: a.numbers(supervisor_at(supervisor.address)) == [2])
        finally:
            await supervisor.links.close()

    play(scene)


def test_both_can_dial_at_once() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            b.knows(a)
            for number in range(200):
                a.links.send("b", note(number))
                b.links.send("a", note(number))
                if number % 10 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(a.got) >= 200 and len(b.got) >= 200)
            assert sorted(a.numbers("b")) == sorted(b.numbers("a")) == list(range(200))
            assert a.counts == b.counts == {}

    play(scene)


def test_one_write_carries_all_that_was_said_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    write = link_module.Link.write

    def counting(self: link_module.Link, data: bytes) -> None:
        writes.append(len(data))
        write(self, data)

    monkeypatch.setattr(link_module.Link, "write", counting)

    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            a.links.send("b", note(0))
            await until(lambda: len(b.got) == 1)
            writes.clear()
            for number in range(500):
                a.links.send("b", note(number))
            await until(lambda: len(b.got) == 501)
            assert writes == [sum(len(note(number)) for number in range(500))]

    play(scene)


# -- those who go and come -------------------------------------------------------------------


def test_when_the_other_side_has_come_back_frames_arrive_again() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            a.links.send("b", note(1))
            await until(lambda: b.numbers("a") == [1])
            await b.links.close()
            await until(lambda: not a.links.connections)
            a.links.send("b", note(2))
            await until(lambda: a.counts == {"cannot connect": 1})
            again = Host("b")
            await again.start(int(b.address.rpartition(":")[2]))
            try:
                a.links.send("b", note(3))
                await until(lambda: again.numbers("a") == [3])
            finally:
                await again.links.close()

    play(scene)


def test_one_that_has_moved_is_found_where_others_say_it_is() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.book.greet("b", nowhere())
            a.knows(b)
            a.links.send("b", note(1))
            await until(lambda: a.counts == {"cannot connect": 1})
            a.links.send("b", note(2))
            await until(lambda: b.numbers("a") == [2])

    play(scene)


def test_one_that_cannot_be_reached_is_tried_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "BACK_OFF_S", 1e-6)
    monkeypatch.setattr(links_module, "BACK_OFF_MAX_S", 4e-6)

    async def scene() -> None:
        async with hosts("a") as (a,):
            limits: list[float] = []

            def uniform(low: float, high: float) -> float:
                limits.append(high)
                return low

            a.links.rng.uniform = uniform  # type: ignore[method-assign]
            a.book.hear({"b": nowhere()})
            for failures in range(1, 6):
                a.links.send("b", note(failures))
                await until(lambda: a.counts == {"cannot connect": failures})  # noqa: B023
            assert limits == pytest.approx([2e-6, 4e-6, 4e-6, 4e-6])

    play(scene)


def test_somebody_else_behind_an_address_gets_nothing() -> None:
    async def scene() -> None:
        async with hosts("a", "b", "c") as (a, b, c):
            a.book.hear({"b": c.address})
            a.links.send("b", note(1))
            await until(lambda: is_refused_as_a_stranger_by(a))
            assert not c.got
            a.knows(b)
            a.links.send("b", note(2))
            await until(lambda: b.numbers("a") == [2])
            assert not c.got

    play(scene)


def test_a_node_at_the_address_of_a_supervisor_gets_nothing() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.links.send_to_supervisor(b.address, note(1))
            await until(lambda: is_refused_as_a_stranger_by(a))
            assert not b.got

    play(scene)


# -- those who do not read -------------------------------------------------------------------


def test_the_queue_of_one_that_does_not_read_is_bounded_and_others_are_not_slowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue_max, size, frames = 1 << 20, 1 << 15, 1000
    monkeypatch.setattr(links_module, "QUEUE_BYTES_MAX", queue_max)

    async def scene() -> None:
        async with hosts("a", "slow", "quick") as (a, slow, quick):
            a.knows(slow, quick)
            a.links.send("slow", note(0))
            await until(lambda: len(slow.got) == 1)
            link_of(slow, "a")._transport.pause_reading()
            tracemalloc.start()
            try:
                for number in range(frames):
                    a.links.send("slow", parcel(number, size))
                    a.links.send("quick", note(number))
                    await asyncio.sleep(0)
                grown, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert grown < 4 * queue_max < frames * size / 4
            await until(lambda: len(quick.got) == frames)
            assert quick.numbers("a") == list(range(frames))
            assert len(slow.got) == 1
            dropped = a.links.counts["queue full"]
            assert dropped > frames / 2
            link_of(slow, "a")._transport.resume_reading()
            await until(lambda: len(slow.got) == 1 + frames - dropped)
            seqs = [it.publication.seq for _, it in slow.got if isinstance(it, PublishNew)]
            assert seqs == sorted(set(seqs)), "what was not dropped comes in order and once"

    play(scene)


# -- those who do not speak our language -----------------------------------------------------

HELLO = greeting_of("b")
NOT_OURS: dict[str, tuple[bytes, str]] = {
    "wrong magic": (frame(pack(["other", 1, "b", "h:1", "node"]), CONTROL), "GreetingError"),
    "another version": (frame(pack(["skipring", 2, "b", "h:1", "node"]), CONTROL), "GreetingError"),
    "another role": (frame(pack(["skipring", 1, "b", "h:1", "king"]), CONTROL), "GreetingError"),
    "a bad name": (frame(pack(["skipring", 1, "b b", "h:1", "node"]), CONTROL), "GreetingError"),
    "no address": (frame(pack(["skipring", 1, "b", "", "node"]), CONTROL), "GreetingError"),
    "no msgpack": (frame(b"\xc1\xc1\xc1", CONTROL), "GreetingError"),
    "an empty frame": (frame(b"", CONTROL), "GreetingError"),
    "a message first": (note(1), "GreetingError"),
    "a data frame first": (frame(HELLO[5:], DATA), "GreetingError"),
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "FramingError"),
    "a length of nothing": (bytes(5), "FramingError"),
    "a frame too long": ((1 << 21).to_bytes(4, "big") + b"\1", "FramingError"),
    "control too long": ((1 << 15).to_bytes(4, "big") + b"\0", "FramingError"),
    "a third kind": (b"\0\0\0\1\2", "FramingError"),
    "a greeting twice": (HELLO + HELLO, "MessageError"),
    "an unknown message": (HELLO + frame(b"\x93\x91\x3f\xa1t\x80", CONTROL), "MessageError"),
    "half a message": (HELLO + frame(note(1)[5:-1], CONTROL), "MessageError"),
    "a message in the wrong frame": (HELLO + frame(note(1)[5:], DATA), "MessageError"),
    "too long after the greeting": (HELLO + (1 << 21).to_bytes(4, "big"), "FramingError"),
}


@pytest.mark.parametrize(("said", "reason"), NOT_OURS.values(), ids=NOT_OURS)
@pytest.mark.parametrize("is_in_pieces", [False, True], ids=["at once", "in pieces"])
def test_who_does_not_speak_our_language_is_dropped_and_counted(
    said: bytes, reason: str, is_in_pieces: bool
) -> None:
    async def scene() -> None:
        async with hosts("a") as (a,), call(a) as caller:
            for at in range(len(said)) if is_in_pieces else ():
                caller.write(said[at : at + 1])
                await asyncio.sleep(0)
            if not is_in_pieces:
                caller.write(said)
            assert await caller.is_hung_up_on()
            assert a.counts == {reason: 1}
            assert a.got == []
            await until(lambda: not a.links.connections)

    play(scene)


@pytest.mark.parametrize("said", [b"", HELLO[:-1]], ids=["silence", "half a greeting"])
def test_who_does_not_greet_in_time_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(links_module, "GREETING_S", 0.05)

    async def scene() -> None:
        async with hosts("a") as (a,), call(a) as caller:
            caller.write(said)
            assert await caller.is_hung_up_on()
            assert a.counts == {"no greeting": 1}
            await until(lambda: not a.links.connections)

    play(scene)


def test_who_has_greeted_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "GREETING_S", 0.05)

    async def scene() -> None:
        async with hosts("a") as (a,), call(a) as first, call(a) as second:
            first.write(HELLO)
            assert await second.is_hung_up_on(), "it said nothing, and the time is over for both"
            first.write(note(1))
            await until(lambda: a.numbers("b") == [1])
            assert a.counts == {"no greeting": 1}

    play(scene)


def test_one_that_is_dialled_and_does_not_greet_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "GREETING_S", 0.05)

    async def scene() -> None:
        async with hosts("a") as (a,), answering(b"") as (address, _):
            a.book.hear({"b": address})
            a.links.send("b", note(1))
            await until(lambda: a.links.counts["no greeting"] == 1)
            await until(lambda: not a.links.connections)

    play(scene)


def garbage(rng: Random) -> bytes:
    """Something that may begin well, and then goes wrong."""
    good = HELLO + note(rng.getrandbits(60)) + parcel(1, rng.randrange(300))
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            return HELLO + rng.randbytes(rng.randrange(200))
        case 2:
            return good[: rng.randrange(len(good))]
        case _:
            broken = bytearray(good)
            for _ in range(rng.randrange(1, 5)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            return bytes(broken)


def test_random_bytes_on_hundreds_of_connections_leave_nothing_behind() -> None:
    rng = Random(7)

    async def babble(host: Host) -> None:
        async with call(host) as caller:
            caller.write(garbage(rng))
            caller.writer.write_eof()
            assert await caller.is_hung_up_on()

    async def scene() -> None:
        async with hosts("a", "c") as (a, c):
            for _ in range(20):
                async with asyncio.TaskGroup() as group:
                    for _ in range(20):
                        group.create_task(babble(a))
            await until(lambda: not a.links.connections)
            assert set(a.counts) == {"FramingError", "GreetingError", "MessageError"}
            c.knows(a)
            c.links.send("a", note(1))
            await until(lambda: a.numbers("c") == [1])

    play(scene)


# -- too many --------------------------------------------------------------------------------


def test_too_many_connections_are_refused_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "LINKS_MAX", 2)

    async def scene() -> None:
        async with hosts("a") as (a,), call(a) as first:
            first.write(greeting_of("n1"))
            async with call(a) as second:
                second.write(greeting_of("n2"))
                await until(lambda: len(a.links.connections) == 2)
                async with call(a) as third:
                    assert await third.is_hung_up_on()
                assert a.counts == {"too many connections": 1}
            await until(lambda: len(a.links.connections) == 1)
            async with call(a) as fourth:
                fourth.write(greeting_of("n4") + note(4))
                await until(lambda: a.numbers("n4") == [4])
            first.write(note(1))
            await until(lambda: a.numbers("n1") == [1])

    play(scene)


# -- the end ---------------------------------------------------------------------------------


def test_close_leaves_no_task_and_no_connection() -> None:
    async def scene() -> None:
        async with hosts("a", "b", "c") as (a, b, c):
            a.knows(b)
            c.knows(a)
            a.links.send("b", note(1))
            c.links.send("a", note(1))
            await until(lambda: bool(b.got and a.got))
            transports = [link._transport for link in a.links.connections]
            assert len(transports) == 2
            await a.links.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert not a.links.connections
            assert all(transport.is_closing() for transport in transports if transport)
            await until(lambda: not b.links.connections and not c.links.connections)
            await a.links.close()  # twice does no harm

    play(scene)


def test_close_while_dialling_leaves_no_task() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,):
            a.book.hear({"b": nowhere()})
            a.links.send("b", note(1))
            await until(lambda: a.counts == {"cannot connect": 1})
            a.links.rng.uniform = lambda _, __: 5.0  # type: ignore[method-assign]
            a.links.send("b", note(2))
            await turns()
            assert len(asyncio.all_tasks()) == 2, "it waits before it dials again"
            await a.links.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    play(scene)


def test_what_was_queued_before_close_still_arrives() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b):
            a.knows(b)
            a.links.send("b", note(0))
            await until(lambda: len(b.got) == 1)
            for number in range(1, 100):
                a.links.send("b", note(number))
            await a.links.close()
            await until(lambda: len(b.got) == 100)

    play(scene)


def test_after_close_nobody_can_connect() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,):
            await a.links.close()
            with pytest.raises(OSError, match=r"refused|failed"):
                async with call(a):
                    pass

    play(scene)


# -- what is not so yet ----------------------------------------------------------------------


def test_close_does_not_wait_for_one_that_does_not_read() -> None:
    async def scene() -> None:
        async with answering(HELLO) as (address, came), hosts("a") as (a,):
            a.book.hear({"b": address})
            a.links.send("b", note(0))
            await until(lambda: link_of(a, "b") is not None)
            while link_of(a, "b").can_write:
                a.links.send("b", parcel(1, 1 << 18))
                await asyncio.sleep(0)
            try:
                async with asyncio.timeout(3):
                    await a.links.close()
                assert not a.links.connections
            finally:
                for writer in came:
                    writer.transport.abort()

    play(scene)


def test_one_that_is_refused_and_does_not_read_is_gone_at_once() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,), call(a) as caller:
            caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
            caller.write(HELLO)
            await until(lambda: link_of(a, "b") is not None)
            while link_of(a, "b").can_write:
                a.links.send("b", parcel(1, 1 << 18))
                await asyncio.sleep(0)
            caller.write(bytes(5))
            await until(lambda: a.counts == {"FramingError": 1})
            await turns()
            is_gone = not a.links.connections
            caller.writer.transport.abort()
            assert is_gone

    play(scene)


def test_what_was_meant_for_one_that_does_not_greet_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links_module, "GREETING_S", 0.05)

    async def scene() -> None:
        async with hosts("a") as (a,), answering(b"") as (address, _):
            a.book.hear({"b": address})
            a.links.send("b", note(1))
            await until(lambda: a.links.counts["no greeting"] > 0)
            await until(lambda: len(asyncio.all_tasks()) == 1)
            assert not a.links.connections
            assert a.links.peer("b")._waiting == []

    play(scene)


def test_close_right_after_send_dials_no_more() -> None:
    async def scene() -> None:
        async with answering(HELLO) as (address, came):
            async with hosts("a") as (a,):
                a.book.hear({"b": address})
                a.links.send("b", note(0))
                await a.links.close()
                await turns()
                is_dialling = len(asyncio.all_tasks()) > 1
                await until(lambda: len(asyncio.all_tasks()) == 1)
                await a.links.close()  # of what was opened meanwhile
            assert not is_dialling
            assert not came

    play(scene)


def test_one_connection_is_enough_for_one_that_is_slow_to_greet() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,), answering(b"") as (address, came):
            a.book.hear({"b": address})
            a.links.send("b", note(0))
            await until(lambda: len(came) == 1)
            await turns()
            for number in range(20):
                a.links.send("b", note(number))
                await turns(5)
            await turns(50)
            assert len(a.links.connections) == 1

    play(scene)


def test_those_who_came_and_went_are_forgotten() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,):
            for number in range(20):
                async with call(a) as caller:
                    caller.write(greeting_of(f"n{number}"))
                    await until(lambda: len(a.links.connections) == 1)
                await until(lambda: not a.links.connections)
            a.links.send("unknown", note(1))
            await until(lambda: a.counts == {"no address": 1})
            assert not a.links._peers

    play(scene)


def test_a_node_cannot_speak_as_the_supervisor() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,), call(a) as caller:
            caller.write(greeting_of(SUPERVISOR, Role.NODE) + note(1))
            caller.writer.write_eof()
            assert await caller.is_hung_up_on()
            assert a.numbers(SUPERVISOR) == []

    play(scene)


def test_a_supervisor_named_as_a_node_does_not_get_what_is_meant_for_the_node() -> None:
    async def scene() -> None:
        async with hosts("a", "b") as (a, b), call(a) as caller:
            a.knows(b)
            caller.write(greeting_of("b", Role.SUPERVISOR) + note(1))
            await until(lambda: a.numbers(SUPERVISOR) == [1] or not a.links.connections)
            peer = a.links.peer("b")
            assert peer.link is None

    play(scene)


def test_of_somebody_else_behind_an_address_nothing_is_taken() -> None:
    async def scene() -> None:
        async with hosts("a") as (a,), answering(greeting_of("c") + note(1)) as (address, _):
            a.book.hear({"b": address})
            a.links.send("b", note(1))
            await until(lambda: is_refused_as_a_stranger_by(a))
            assert a.got == []

    play(scene)


def test_a_frame_for_somebody_else_is_counted_once() -> None:
    async def scene() -> None:
        async with hosts("a", "c") as (a, c):
            a.book.hear({"b": c.address})
            a.links.send("b", note(1))
            await until(lambda: is_refused_as_a_stranger_by(a))
            assert a.links.counts["stranger"] == 1

    play(scene)


def test_an_address_where_somebody_else_lives_is_tried_ever_more_rarely() -> None:
    async def scene() -> None:
        async with hosts("a", "c") as (a, c):
            a.book.hear({"b": c.address})
            a.links.send("b", note(1))
            await until(lambda: is_refused_as_a_stranger_by(a))
            assert a.links.peer("b")._failures == 1

    play(scene)


@pytest.mark.parametrize("address", ["a..b:80", "x" * 64 + ":80"])
def test_an_address_that_cannot_be_looked_up_is_one_that_cannot_be_reached(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "is_loopback", lambda _: True)

    async def scene() -> None:
        async with hosts("a") as (a,):
            a.links.send_to_supervisor(address, note(1))
            await turns()
            await until(lambda: len(asyncio.all_tasks()) == 1)
            assert a.counts == {"cannot connect": 1}

    play(scene)


def test_an_address_of_ip_version_6_is_dialled_without_its_brackets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        dialled: list[str] = []

        async def create_connection(_: object, host: str, port: int, ssl: object) -> None:
            dialled.append(f"{host} {port}")
            raise ConnectionRefusedError

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)
        async with hosts("a") as (a,):
            a.book.hear({"b": "[::1]:80"})
            a.links.send("b", note(1))
            await until(lambda: bool(dialled))
            assert dialled == ["::1 80"]

    play(scene)


def test_a_greeting_that_comes_while_an_old_address_is_dialled_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        connect, gives_up = loop.create_connection, asyncio.Event()

        async def create_connection(
            make: Callable[[], asyncio.Protocol], host: str, port: int, ssl: None
        ) -> tuple[asyncio.BaseTransport, asyncio.Protocol]:
            if port == 1:
                await gives_up.wait()
                raise ConnectionRefusedError
            return await connect(make, host, port)

        monkeypatch.setattr(loop, "create_connection", create_connection)
        async with hosts("a", "b") as (a, b):
            a.book.hear({"b": f"{LOOPBACK}:1"})
            b.knows(a)
            a.links.send("b", note(1))
            await turns()
            b.links.send("a", note(2))
            await until(lambda: a.numbers("b") == [2])
            gives_up.set()
            await until(lambda: len(asyncio.all_tasks()) == 1)
            assert a.book.find("b") == b.address

    play(scene)


def test_connections_of_our_own_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "LINKS_MAX", 1)

    async def scene() -> None:
        async with hosts("a", "b") as (a, b), call(a) as caller:
            await until(lambda: len(a.links.connections) == 1)
            caller.writer.transport.abort()
            await until(lambda: not a.links.connections)
            a.knows(b)
            a.links.send("b", note(1))
            await until(lambda: b.numbers("a") == [1])
            async with call(a) as other:
                other.write(greeting_of("c") + note(1))
                await until(lambda: bool(a.counts or a.got))
                assert a.counts == {}

    play(scene)
