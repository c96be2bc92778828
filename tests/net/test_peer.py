"""Dial-back: unproven addresses are dialled within a budget and counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skipring.core.labels import Label
from skipring.core.messages import CheckLabel, GetConfiguration, IntroduceShortcut
from skipring.core.peers import EdgeKind, Peer
from skipring.net import peer as peer_module
from skipring.net.peer import ALL_BURST, MEMBER_BURST, MEMBERS_MAX, DialBackResult, DialBacks
from skipring.wire.codec import encode
from skipring.wire.handshake import Hello, Role, encode_greeting
from tests.support.attacks import send_stream
from tests.support.exchanges import answering, call, greeting_of, hosts, is_dialling, note
from tests.support.rings import LOOPBACK, TOPIC, live_ring, until


@asynccontextmanager
async def victim() -> AsyncIterator[tuple[str, list[int]]]:
    """Run an unrelated service; yield its address and its accepted connections."""
    accepted: list[int] = []

    def on_call(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(1)
        writer.transport.abort()

    server = await asyncio.start_server(on_call, LOOPBACK, 0)
    try:
        yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}", accepted
    finally:
        server.close()
        await server.wait_closed()


def introductions(address: str, count: int) -> bytes:
    """Return messages that make the receiver send to invented nodes."""
    said = [
        encode(
            TOPIC, CheckLabel(Peer(Label.nth(number), name), None, EdgeKind.LINE), {name: address}
        )
        for number, name in enumerate(f"ghost{number}" for number in range(count))
    ]
    said += [
        encode(TOPIC, IntroduceShortcut(Peer(Label.nth(number), name)), {name: address})
        for number, name in enumerate(f"spook{number}" for number in range(count))
    ]
    return b"".join(said)


async def test_many_nodes_at_one_address_cause_few_dials() -> None:
    async with victim() as (address, accepted), hosts("a") as (a,):
        async with call(a) as member:
            member.write(greeting_of("m") + note(1))
            await until(lambda: a.numbers("m") == [1])
            a.book.learn({f"ghost{number}": address for number in range(500)}, "m")
            for number in range(500):
                a.links.send(f"ghost{number}", note(number))
            await until(lambda: not is_dialling(a) and bool(a.links.dial_backs.counts))
        counts = a.links.dial_backs.counts
        assert len(accepted) <= MEMBER_BURST + 5
        assert counts[DialBackResult.LIMITED] >= 500 - MEMBER_BURST - 5
        assert counts[DialBackResult.FAILED] == len(accepted)
        assert counts[DialBackResult.PROVEN] == 0
        assert a.counts["dial-back limit"] == counts[DialBackResult.LIMITED]


async def test_member_cannot_cause_repeated_dials_of_an_address() -> None:
    async with victim() as (address, accepted), live_ring("n0", "n1") as ring:
        await ring.wait_healthy()
        node = ring.nodes["n0"]
        lies = introductions(address, 300)
        await send_stream(int(node.address.rpartition(":")[2]), greeting_of("m") + lies)
        ticks = node.ticker.calls
        await until(lambda: node.ticker.calls > ticks + 10)
        await ring.wait_healthy()
        assert len(accepted) <= MEMBER_BURST + 10


async def test_supervisor_forwards_no_address_that_one_member_claims_for_another() -> None:
    async with victim() as (address, _), live_ring("n0", "n1") as ring:
        await ring.wait_healthy()
        supervisor = ring.supervisor
        lies = encode(TOPIC, GetConfiguration("ghost"), {"ghost": address})
        before = supervisor.counts["GetConfiguration"]
        await send_stream(int(supervisor.address.rpartition(":")[2]), greeting_of("m") + lies)
        await until(lambda: supervisor.counts["GetConfiguration"] > before)
        assert supervisor.links.book.find("ghost") is None


async def test_dial_that_finds_the_node_proves_its_address() -> None:
    async with hosts("a", "b") as (a, b):
        a.book.learn({"b": b.address}, "m")
        assert not a.book.is_proven("b", b.address)
        a.links.send("b", note(1))
        await until(lambda: b.numbers("a") == [1])
        assert a.book.is_proven("b", b.address)
        assert a.links.dial_backs.counts == {DialBackResult.PROVEN: 1}


async def test_dial_that_finds_another_process_proves_nothing() -> None:
    async with hosts("a", "b") as (a, b), answering(b"") as (elsewhere, came):
        a.book.learn({"b": elsewhere}, "m")
        a.links.send("b", note(1))
        await until(lambda: bool(came))  # the dial waits for a handshake
        b.knows(a)
        b.links.send("a", note(2))
        await until(lambda: a.numbers("b") == [2])
        came[0].write(greeting_of("b") + note(3))
        await until(lambda: not is_dialling(a))
        assert a.counts["name in use"] == 1
        assert a.links.dial_backs.counts == {DialBackResult.FAILED: 1}
        assert not a.book.is_proven("b", elsewhere)
        assert a.numbers("b") == [2]
        await until(lambda: b.numbers("a") == [1])


async def test_dial_that_finds_another_incarnation_than_claimed_proves_nothing() -> None:
    async with hosts("a", "b") as (a, b), call(a) as earlier:
        claim = Hello(node="b", address=b.address, role=Role.NODE, incarnation=5)
        earlier.write(encode_greeting(claim) + note(1))
        await until(lambda: a.numbers("b") == [1])
        earlier.writer.transport.abort()
        await until(lambda: not a.links.connections)
        a.links.send("b", note(2))
        await until(lambda: a.links.dial_backs.counts[DialBackResult.FAILED] == 1)
        assert (a.counts["wrong peer"], b.numbers("a")) == (1, [])
        assert a.book.find("b") is None
        # The expectation ends with the claim: a restarted process is found by another one.
        await a.reach(b, 3)
        assert a.book.is_proven("b", b.address)


# -- budgets ---------------------------------------------------------------------------------


def test_one_member_does_not_use_up_the_budget_of_another() -> None:
    dials = DialBacks()
    assert sum(dials.allows("m", 0.0) for _ in range(1000)) == MEMBER_BURST
    assert dials.allows("other", 0.0)


def test_members_share_a_budget_that_grows_with_time() -> None:
    dials = DialBacks()
    assert sum(dials.allows(f"m{number}", 0.0) for number in range(1000)) == ALL_BURST
    assert not dials.allows("m", 0.0)
    assert dials.allows("m", 1.0 / peer_module.ALL_PER_S)


def test_member_budgets_are_bounded_and_a_stopped_clock_adds_nothing() -> None:
    dials = DialBacks()
    for number in range(2 * MEMBERS_MAX):
        dials.allows(f"m{number}", 5.0)
    assert len(dials) == MEMBERS_MAX
    assert not dials.allows("m", 4.0)
