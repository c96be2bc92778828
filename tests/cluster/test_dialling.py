"""Dialling: conditions and targets of dials, peers that restart, and simultaneous dials."""

from __future__ import annotations

import asyncio
import socket

import pytest

from skipring.core.messages import Digest
from skipring.core.peers import SUPERVISOR
from skipring.net import connection as connection_module
from skipring.net import peer as peer_module
from skipring.net import sockets as sockets_module
from skipring.net.peer import IDLE_S, SPARE_S
from skipring.wire.handshake import Role
from tests.support.exchanges import (
    DEADLINE_S,
    HELLO,
    TransportHost,
    answering,
    call,
    hosts,
    is_dialling,
    is_refused_as_wrong_peer_by,
    link_of,
    note,
    nowhere,
    running,
    turns,
)
from tests.support.rings import LOOPBACK, until

# -- peers that leave and return ----------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_frames_arrive_again_after_the_peer_has_returned() -> None:
    async with hosts("a", "b") as (a, b):
        await a.reach(b, 1)
        await b.links.close()
        await until(lambda: not a.links.connections)
        a.links.send("b", note(2))
        await until(lambda: a.counts == {"cannot connect": 1})
        again = TransportHost("b")
        await again.start(int(b.address.rpartition(":")[2]))
        try:
            a.links.send("b", note(3))
            await until(lambda: again.numbers("a") == [3])
        finally:
            await again.links.close()


async def test_moved_peer_is_found_at_the_address_from_others() -> None:
    async with hosts("a", "b") as (a, b):
        a.book.greet("b", nowhere())
        a.knows(b)
        a.links.send("b", note(1))
        await until(lambda: a.counts == {"cannot connect": 1})
        a.links.send("b", note(2))
        await until(lambda: b.numbers("a") == [2])


async def test_unreachable_peer_is_dialled_with_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BACK_OFF_S", 1e-6)
    async with hosts("a") as (a,):
        a.links.back_off_max_s = 4e-6
        limits: list[float] = []

        def uniform(low: float, high: float) -> float:
            limits.append(high)
            return low

        a.links.rng.uniform = uniform  # type: ignore[method-assign]
        a.book.learn({"b": nowhere()})
        for failures in range(1, 6):
            a.links.send("b", note(failures))
            await until(lambda: a.counts == {"cannot connect": failures})  # noqa: B023
        assert limits == pytest.approx([2e-6, 4e-6, 4e-6, 4e-6])


async def test_address_of_another_node_is_dialled_with_backoff() -> None:
    async with hosts("a", "c") as (a, c):
        a.book.learn({"b": c.address})
        a.links.send("b", note(1))
        await until(lambda: is_refused_as_wrong_peer_by(a))
        assert a.links.peer("b").failures == 1


async def test_frames_for_a_peer_without_handshake_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "GREETING_S", 0.05)
    async with hosts("a") as (a,), answering(b"") as (address, _):
        a.book.learn({"b": address})
        a.links.send("b", note(1))
        await until(lambda: a.links.counts["no greeting"] > 0)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert not a.links.connections
        assert a.links.peer("b").waiting_bytes == 0


async def test_one_connection_suffices_for_a_peer_with_a_slow_handshake() -> None:
    async with hosts("a") as (a,), answering(b"") as (address, came):
        a.book.learn({"b": address})
        a.links.send("b", note(0))
        await until(lambda: len(came) == 1)
        await turns()
        for number in range(20):
            a.links.send("b", note(number))
            await turns(5)
        await turns(50)
        assert len(a.links.connections) == 1


# -- addresses ----------------------------------------------------------------------------------


async def test_ipv6_address_is_dialled_without_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[str] = []

    async def connected(host: str, port: int) -> socket.socket:
        dialled.append(f"{host} {port}")
        raise ConnectionRefusedError

    monkeypatch.setattr(sockets_module, "connected", connected)
    async with hosts("a") as (a,):
        a.book.learn({"b": "[::1]:80"})
        a.links.send("b", note(1))
        await until(lambda: bool(dialled))
        assert dialled == ["::1 80"]


async def test_greeting_received_while_an_old_address_is_dialled_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, gives_up = sockets_module.connected, asyncio.Event()

    async def connected(host: str, port: int) -> socket.socket:
        if port == 1:
            await gives_up.wait()
            raise ConnectionRefusedError
        return await connect(host, port)

    monkeypatch.setattr(sockets_module, "connected", connected)
    async with hosts("a", "b") as (a, b):
        a.book.learn({"b": f"{LOOPBACK}:1"})
        b.knows(a)
        a.links.send("b", note(1))
        await turns()
        b.links.send("a", note(2))
        await until(lambda: a.numbers("b") == [2])
        gives_up.set()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert a.book.find("b") == b.address


async def test_only_loopback_is_dialled_without_certificates() -> None:
    async with hosts("a") as (a,):
        for number, host in enumerate(("192.0.2.1", "example.invalid", "[2001:db8::1]")):
            a.book.learn({f"n{number}": f"{host}:80"})
            a.links.send(f"n{number}", note(1))
        a.links.send_to_supervisor("192.0.2.1:80", note(1))
        await until(lambda: a.counts == {"not loopback": 4})
        assert not is_dialling(a)


# -- simultaneous dials ----------------------------------------------------------------------


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.usefixtures("loop")
async def test_simultaneous_dials_deliver_all_frames_and_leave_one_link(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "SPARE_S", 0.02)

    async def meet(delay: int) -> None:
        async with hosts(*names) as (one, other):
            one.knows(other)
            other.knows(one)
            for number in range(30):
                one.links.send(other.name, note(number))
                if number >= delay:
                    other.links.send(one.name, note(number))
                if number % 3 == 0:
                    await asyncio.sleep(0)
            for number in range(delay):
                other.links.send(one.name, note(number))
            await until(lambda: len(one.got) >= 30 and len(other.got) >= 30)
            assert sorted(one.numbers(other.name)) == list(range(30))
            assert sorted(other.numbers(one.name)) == list(range(30))
            await until(lambda: has_one_link(one) and has_one_link(other))
            assert one.counts == other.counts == {}
            one.links.send(other.name, note(100))
            other.links.send(one.name, note(100))
            await until(lambda: one.got[-1][1] == other.got[-1][1] == Digest("a", 100))

    for delay in range(30):
        await meet(delay)


def has_one_link(host: TransportHost) -> bool:
    host.links.sweep()
    return len(host.links.connections) == 1


@pytest.mark.usefixtures("loop")
async def test_simultaneous_dials_use_the_link_of_the_smaller_name() -> None:
    async with hosts("a", "b") as (a, b):
        a.knows(b)
        b.knows(a)
        a.links.send("b", note(1))
        b.links.send("a", note(1))
        await until(lambda: len(a.links.connections) == len(b.links.connections) == 2)
        links = a.links.connections | b.links.connections
        await until(lambda: all(link.is_greeted for link in links))
        assert link_of(a, "b").is_dialled
        assert not link_of(b, "a").is_dialled


async def test_used_spare_link_stays_and_unused_spare_link_is_closed() -> None:
    async with hosts("a") as (a,), call(a) as first, call(a) as second:
        first.write(HELLO)
        await until(lambda: a.links.is_linked("b"))
        second.write(HELLO + note(1))
        await first.confirm_other_connection()
        await until(lambda: a.numbers("b") == [1])
        (spare,) = a.links.connections - {link_of(a, "b")}
        for number in (2, 3):  # it is used repeatedly, each time nearly too late
            a.links.sweep()
            spare.used_s -= SPARE_S * 0.7
            a.links.sweep()
            first.write(note(number))
            await until(lambda: a.numbers("b")[-1] == number)  # noqa: B023
        await turns()
        assert len(a.links.connections) == 2
        a.links.sweep()
        spare.used_s -= SPARE_S * 1.1
        a.links.sweep()
        await until(lambda: len(a.links.connections) == 1)
        second.write(note(4))
        await until(lambda: a.numbers("b") == [1, 2, 3, 4])


async def test_unused_link_is_closed_by_its_dialler() -> None:
    supervisor = TransportHost(SUPERVISOR, Role.SUPERVISOR, dials=False)
    async with hosts("a", "b") as (a, b), running(supervisor):
        a.knows(b)
        a.links.send("b", note(1))
        a.links.send_to_supervisor(supervisor.address, note(1))
        await until(lambda: bool(b.got and supervisor.got))
        for host in (a, b, supervisor):
            host.links.sweep()
            for link in host.links.connections:
                link.used_s -= IDLE_S * 1.1
        b.links.sweep()
        supervisor.links.sweep()
        await turns()
        assert len(a.links.connections) == 2, "who did not dial leaves it to the other"
        a.links.sweep()
        await until(lambda: not b.links.connections)
        assert len(supervisor.links.connections) == 1, "it reaches us only over our link"
        a.links.send("b", note(2))
        await until(lambda: b.numbers("a") == [1, 2])


@pytest.mark.usefixtures("loop")
async def test_spare_link_replaces_a_lost_link() -> None:
    async with hosts("a") as (a,), call(a) as first:
        first.write(HELLO)
        await until(lambda: a.links.is_linked("b"))
        async with call(a) as second:
            second.write(HELLO + note(1))
            await first.confirm_other_connection()
            await until(lambda: a.numbers("b") == [1])
        await until(lambda: len(a.links.connections) == 1)
        a.links.send("b", note(2))
        async with asyncio.timeout(DEADLINE_S):
            said = b""
            while not said.endswith(note(2)):
                said += await first.read()
        assert a.counts == {}
