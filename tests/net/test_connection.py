"""One connection: permitted messages, and peers that are dropped and counted."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.msgpack import encode as pack

from skipring.core.peers import SUPERVISOR
from skipring.net import connection as connection_module
from skipring.net import transport as transport_module
from skipring.net.addresses import supervisor_at
from skipring.wire.codec import encode
from skipring.wire.framing import BUNDLE, CONTROL, DATA, frame
from skipring.wire.handshake import NO_TOPIC, VERSION, AskHolder, Role
from skipring.wire.rpc import FindMembers, MemberList
from tests.support.exchanges import (
    HELLO,
    TransportHost,
    answering,
    call,
    greeting_of,
    hosts,
    is_refused_as_wrong_peer_by,
    link_of,
    note,
    parcel,
    running,
    turns,
)
from tests.support.rings import TOPIC, until

# -- foreign protocols --------------------------------------------------------------------------


NOT_OURS: dict[str, tuple[bytes, str]] = {
    "wrong magic": (frame(pack(["other", 1, "b", "h:1", "node"]), CONTROL), "HandshakeError"),
    "another version": (
        frame(pack(["skipring", VERSION + 1, "b", "h:1", "node"]), CONTROL),
        "HandshakeError",
    ),
    "another role": (frame(pack(["skipring", 1, "b", "h:1", "king"]), CONTROL), "HandshakeError"),
    "a bad name": (frame(pack(["skipring", 1, "b b", "h:1", "node"]), CONTROL), "HandshakeError"),
    "no address": (frame(pack(["skipring", 1, "b", "", "node"]), CONTROL), "HandshakeError"),
    "no msgpack": (frame(b"\xc1\xc1\xc1", CONTROL), "HandshakeError"),
    "an empty frame": (frame(b"", CONTROL), "HandshakeError"),
    "a message first": (note(1), "HandshakeError"),
    "a data frame first": (frame(HELLO[5:], DATA), "HandshakeError"),
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "FramingError"),
    "a length of nothing": (bytes(5), "FramingError"),
    "a frame too long": ((1 << 21).to_bytes(4, "big") + b"\1", "FramingError"),
    "control too long": ((1 << 15).to_bytes(4, "big") + b"\0", "FramingError"),
    "an unknown kind": (b"\0\0\0\1\3", "FramingError"),
    "a greeting twice": (HELLO + HELLO, "MessageError"),
    "an unknown message": (HELLO + frame(b"\x93\x91\x3f\xa1t\x80", CONTROL), "MessageError"),
    "half a message": (HELLO + frame(note(1)[5:-1], CONTROL), "MessageError"),
    "a message in the wrong frame": (HELLO + frame(note(1)[5:], DATA), "MessageError"),
    "a bundle with a damaged message": (
        HELLO + frame(pack([[["t", [[9, "b", 1]]], ["t", [[9, "b b", 1]]]]]), BUNDLE),
        "MessageError",
    ),
    "too long after the greeting": (HELLO + (1 << 21).to_bytes(4, "big"), "FramingError"),
}


@pytest.mark.parametrize(("said", "reason"), NOT_OURS.values(), ids=NOT_OURS)
@pytest.mark.parametrize("is_in_pieces", [False, True], ids=["at once", "in pieces"])
async def test_foreign_protocol_is_dropped_and_counted(
    said: bytes, reason: str, is_in_pieces: bool
) -> None:
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


@pytest.mark.parametrize("said", [b"", HELLO[:-1]], ids=["silence", "half a greeting"])
@pytest.mark.usefixtures("loop")
async def test_late_handshake_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connection_module, "GREETING_S", 0.05)
    async with hosts("a") as (a,), call(a) as caller:
        caller.write(said)
        assert await caller.is_hung_up_on()
        assert a.counts == {"no greeting": 1}
        await until(lambda: not a.links.connections)


async def test_greeted_peer_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "GREETING_S", 0.05)
    async with hosts("a") as (a,), call(a) as first, call(a) as second:
        first.write(HELLO)
        assert await second.is_hung_up_on(), "it said nothing, and the time is over for both"
        first.write(note(1))
        await until(lambda: a.numbers("b") == [1])
        assert a.counts == {"no greeting": 1}


async def test_dialled_peer_without_handshake_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "GREETING_S", 0.05)
    async with hosts("a") as (a,), answering(b"") as (address, _):
        a.book.learn({"b": address})
        a.links.send("b", note(1))
        await until(lambda: a.links.counts["no greeting"] == 1)
        await until(lambda: not a.links.connections)


async def test_refused_peer_that_does_not_read_is_closed_immediately() -> None:
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


# -- unexpected identities ----------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_supervisor_is_reached_by_its_address_and_named_supervisor() -> None:
    supervisor = TransportHost(SUPERVISOR, Role.SUPERVISOR)
    await supervisor.start()
    try:
        async with hosts("a") as (a,):
            a.links.send_to_supervisor(supervisor.address, note(1))
            await until(lambda: supervisor.numbers("a") == [1])
            supervisor.links.send("a", note(2))
            await until(lambda: a.numbers(supervisor_at(supervisor.address)) == [2])
    finally:
        await supervisor.links.close()


async def test_another_node_behind_an_address_receives_nothing() -> None:
    async with hosts("a", "b", "c") as (a, b, c):
        a.book.learn({"b": c.address})
        a.links.send("b", note(1))
        await until(lambda: is_refused_as_wrong_peer_by(a))
        assert not c.got
        a.knows(b)
        a.links.send("b", note(2))
        await until(lambda: b.numbers("a") == [2])
        assert not c.got


async def test_node_at_the_address_of_a_supervisor_receives_nothing() -> None:
    async with hosts("a", "b") as (a, b):
        a.links.send_to_supervisor(b.address, note(1))
        await until(lambda: is_refused_as_wrong_peer_by(a))
        assert not b.got


async def test_node_cannot_act_as_the_supervisor() -> None:
    async with hosts("a") as (a,), call(a) as caller:
        caller.write(greeting_of(SUPERVISOR, Role.NODE) + note(1))
        caller.writer.write_eof()
        assert await caller.is_hung_up_on()
        assert a.numbers(SUPERVISOR) == []


async def test_supervisor_with_the_name_of_a_node_does_not_receive_its_frames() -> None:
    async with hosts("a", "b") as (a, b), call(a) as caller:
        a.knows(b)
        caller.write(greeting_of("b", Role.SUPERVISOR) + note(1))
        await until(lambda: a.numbers(SUPERVISOR) == [1] or not a.links.connections)
        peer = a.links.peer("b")
        assert peer.link is None


async def test_nothing_is_accepted_from_another_node_behind_an_address() -> None:
    async with hosts("a") as (a,), answering(greeting_of("c") + note(1)) as (address, _):
        a.book.learn({"b": address})
        a.links.send("b", note(1))
        await until(lambda: is_refused_as_wrong_peer_by(a))
        assert a.got == []


# -- supervisors and clients -----------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_caller_that_claims_to_be_a_supervisor_is_refused() -> None:
    async with hosts("a") as (a,), call(a) as caller:
        caller.write(greeting_of(SUPERVISOR, Role.SUPERVISOR) + note(1))
        assert await caller.is_hung_up_on()
        assert a.counts == {"supervisors do not dial": 1}
        assert a.got == []


@pytest.mark.parametrize(
    ("name", "role"), [(SUPERVISOR, Role.NODE), ("b", Role.SUPERVISOR), (SUPERVISOR, Role.CLIENT)]
)
async def test_supervisor_name_is_reserved_for_supervisors(name: str, role: Role) -> None:
    async with hosts("a") as (a,), call(a) as caller:
        caller.write(greeting_of(name, role) + note(1))
        assert await caller.is_hung_up_on()
        assert a.counts == {"name not in certificate": 1}
        assert a.got == []


async def test_supervisor_never_dials() -> None:
    supervisor, a = TransportHost(SUPERVISOR, Role.SUPERVISOR, dials=False), TransportHost("a")
    async with running(supervisor, a):
        supervisor.knows(a)
        supervisor.links.send("a", note(1))
        await until(lambda: supervisor.counts == {"not connected": 1})
        assert not a.links.connections
        a.links.send_to_supervisor(supervisor.address, note(1))
        await until(lambda: supervisor.numbers("a") == [1])
        supervisor.links.send("a", note(2))
        await until(lambda: a.numbers(supervisor_at(supervisor.address)) == [2])


async def test_supervisors_are_distinguished_by_their_addresses() -> None:
    made = [TransportHost(SUPERVISOR, Role.SUPERVISOR, dials=False) for _ in range(2)]
    a = TransportHost("a")
    async with running(a, *made):
        for number, supervisor in enumerate(made):
            a.links.send_to_supervisor(supervisor.address, note(number))
            await until(lambda: supervisor.numbers("a") == [number])  # noqa: B023
            supervisor.links.send("a", note(10 + number))
        for number, supervisor in enumerate(made):
            name = supervisor_at(supervisor.address)
            await until(lambda: a.numbers(name) == [10 + number])  # noqa: B023


async def test_client_is_not_mistaken_for_the_node_of_its_name() -> None:
    async with hosts("a", "b") as (a, b), call(a) as client:
        a.knows(b)
        client.write(greeting_of("b", Role.CLIENT) + encode(TOPIC, FindMembers(1, 1)))
        await until(lambda: a.got == [("client/b#1", FindMembers(1, 1))])
        a.links.send("b", note(1))
        await until(lambda: b.numbers("a") == [1])
        assert a.book.find("b") == b.address, "and not what the client has said"


async def test_two_clients_of_one_name_get_their_own_answers() -> None:
    async with hosts("a") as (a,), call(a) as first, call(a) as second:
        for number, client in enumerate((first, second), start=1):
            client.write(greeting_of("c", Role.CLIENT) + encode(TOPIC, FindMembers(number, 1)))
            await until(lambda: len(a.got) == number)  # noqa: B023
            assert await client.read()  # the handshake
        for sender, question in a.got:
            assert isinstance(question, FindMembers)
            a.links.send(sender, encode(TOPIC, MemberList(question.request, {})))
        assert await first.read() == encode(TOPIC, MemberList(1, {}))
        assert await second.read() == encode(TOPIC, MemberList(2, {}))


async def test_answer_uses_the_connection_of_the_request() -> None:
    answer = encode(TOPIC, MemberList(1, {}))
    async with hosts("a") as (a,), call(a) as older, call(a) as newer:
        a.on_message = lambda sender: a.links.send(sender, answer)
        for caller in (older, newer):
            caller.write(HELLO)
            assert await caller.read()  # the handshake
        await older.confirm_other_connection()
        await until(lambda: link_of(a, "b").address == newer.address)
        older.write(encode(TOPIC, FindMembers(1, 1)))
        assert await older.read() == answer


@pytest.mark.usefixtures("loop")
async def test_client_may_not_send_ring_messages() -> None:
    async with hosts("a") as (a,), call(a) as client:
        client.write(greeting_of("c", Role.CLIENT) + encode(TOPIC, FindMembers(1, 1)) + note(1))
        assert await client.is_hung_up_on()
        assert a.counts == {"not for clients": 1}
        assert a.got == [("client/c#1", FindMembers(1, 1))]


@pytest.mark.usefixtures("loop")
async def test_frames_after_a_refused_one_are_ignored() -> None:
    async with hosts("a") as (a,), call(a) as client:
        asked = encode(TOPIC, FindMembers(1, 1))
        client.write(greeting_of("c", Role.CLIENT) + note(1) + asked + asked)
        assert await client.is_hung_up_on()
        assert a.counts == {"not for clients": 1}
        assert a.got == []


class Unclosed(asyncio.Transport):
    """A transport that still delivers data after it was closed, as TLS may do."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = bytearray()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 9) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unread += data

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("role", [Role.CLIENT, Role.NODE])
async def test_frames_that_arrive_after_a_refusal_are_ignored_on_a_busy_loop(role: Role) -> None:
    async with hosts("a") as (a,):
        link = connection_module.PeerConnection(a.links, None, lambda: None)
        link.connection_made(Unclosed())
        link.data_received(greeting_of("c", role))
        link.make_room()
        a.links.budget.left_s = 0.0  # frames wait for the next turn
        link.data_received(encode(TOPIC, FindMembers(1, 1)))
        await turns()
        assert a.got == []
        link.connection_lost(None)


@pytest.mark.parametrize("role", [Role.CLIENT, Role.NODE])
async def test_answers_about_names_to_a_peer_that_does_not_read_are_bounded(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "QUEUE_BYTES_MAX", 10_000)
    question = encode(NO_TOPIC, AskHolder(1, 1, None))
    async with hosts("a") as (a,):
        link, transport = connection_module.PeerConnection(a.links, None, lambda: None), Unclosed()
        link.connection_made(transport)
        link.data_received(greeting_of("c", role))
        for _ in range(200):
            link.data_received(question * 10)
            await turns()
        assert 5_000 < len(transport.unread) < 11_000
        assert a.counts["unread responses"] > 0
        link.connection_lost(None)
