"""All links of a process: delivery, drops with their counts, and a clean close."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from skipring.core.messages import PublishNew
from skipring.net import connection as connection_module
from skipring.net import connection_limits as connection_limits_module
from skipring.net import peer as peer_module
from tests.support.exchanges import (
    HELLO,
    answering,
    call,
    greeting_of,
    hosts,
    link_of,
    note,
    nowhere,
    parcel,
    turns,
)
from tests.support.rings import until

# -- delivery -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_frames_arrive_in_order_and_once() -> None:
    async with hosts("a", "b") as (a, b):
        a.knows(b)
        for number in range(2000):
            a.links.send("b", note(number))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(b.got) >= 2000)
        assert b.numbers("a") == list(range(2000))
        assert a.counts == b.counts == {}


async def test_peer_is_not_dialled_before_the_first_frame() -> None:
    async with hosts("a", "b") as (a, b):
        a.knows(b)
        await turns()
        assert not a.links.connections
        a.links.send("b", note(1))
        await until(lambda: b.numbers("a") == [1])
        assert len(a.links.connections) == len(b.links.connections) == 1


async def test_frames_without_an_address_are_dropped_and_counted() -> None:
    async with hosts("a") as (a,):
        for number in range(3):
            a.links.send("b", note(number))
        await until(lambda: a.counts == {"no address": 3})
        assert not a.links.connections


async def test_one_write_carries_all_frames_of_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    write = connection_module.PeerConnection.write

    def counting(self: connection_module.PeerConnection, data: bytes, frames: int = 1) -> None:
        writes.append(len(data))
        write(self, data, frames)

    monkeypatch.setattr(connection_module.PeerConnection, "write", counting)
    async with hosts("a", "b") as (a, b):
        a.knows(b)
        a.links.send("b", note(0))
        await until(lambda: len(b.got) == 1)
        writes.clear()
        for number in range(500):
            a.links.send("b", note(number))
        await until(lambda: len(b.got) == 501)
        assert writes == [sum(len(note(number)) for number in range(500))]


async def test_replies_to_one_chunk_are_written_immediately_and_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes: list[int] = []
    async with hosts("a", "b") as (a, b):
        a.knows(b)
        a.links.send("b", note(0))
        await until(lambda: len(b.got) == 1)

        b.on_message = lambda sender: b.links.send(sender, note(len(writes)))
        link = link_of(b, "a")
        monkeypatch.setattr(link, "write", lambda data, _: writes.append(len(data)))
        link.data_received(note(1) + note(2) + note(3))
        assert writes == [3 * len(note(0))]


# -- peers that do not read ---------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_queue_of_a_blocked_peer_is_bounded_and_others_are_not_slowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue_max, size, frames = 1 << 20, 1 << 15, 1000
    monkeypatch.setattr(peer_module, "QUEUE_BYTES_MAX", queue_max)
    async with hosts("a", "slow", "quick") as (a, slow, quick):
        a.knows(slow, quick)
        a.links.send("slow", note(0))
        await until(lambda: len(slow.got) == 1)
        link_of(slow, "a").transport.pause_reading()
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
        link_of(slow, "a").transport.resume_reading()
        await until(lambda: len(slow.got) == 1 + frames - dropped)
        seqs = [it.publication.first for _, it in slow.got if isinstance(it, PublishNew)]
        assert seqs == sorted(set(seqs)), "what was not dropped comes in order and once"


@pytest.mark.usefixtures("loop")
async def test_close_does_not_wait_for_a_blocked_peer() -> None:
    async with answering(HELLO) as (address, came), hosts("a") as (a,):
        a.book.learn({"b": address})
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


# -- connection limits --------------------------------------------------------------------------


async def test_excess_connections_are_refused_until_others_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits_module, "LINKS_MAX", 2)
    async with hosts("a") as (a,), call(a) as first:
        first.write(greeting_of("n1"))
        async with call(a) as second:
            second.write(greeting_of("n2"))
            await until(lambda: len(a.links.places) == 2)
            async with call(a) as third:
                third.write(greeting_of("n3"))
                assert await third.is_hung_up_on()
            assert a.counts == {"too many connections": 1}
        await until(lambda: len(a.links.connections) == 1)
        async with call(a) as fourth:
            fourth.write(greeting_of("n4") + note(4))
            await until(lambda: a.numbers("n4") == [4])
        first.write(note(1))
        await until(lambda: a.numbers("n1") == [1])


async def test_outbound_connections_do_not_use_inbound_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits_module, "LINKS_MAX", 1)
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


async def test_disconnected_peers_are_forgotten() -> None:
    async with hosts("a") as (a,):
        for number in range(20):
            async with call(a) as caller:
                caller.write(greeting_of(f"n{number}"))
                await until(lambda: len(a.links.connections) == 1)
            await until(lambda: not a.links.connections)
        a.links.send("unknown", note(1))
        await until(lambda: a.counts == {"no address": 1})
        assert not a.links.peers


# -- closing ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_close_leaves_no_task_and_no_connection() -> None:
    async with hosts("a", "b", "c") as (a, b, c):
        a.knows(b)
        c.knows(a)
        a.links.send("b", note(1))
        c.links.send("a", note(1))
        await until(lambda: bool(b.got and a.got))
        transports = [link.transport for link in a.links.connections]
        assert len(transports) == 2
        await a.links.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not a.links.connections
        assert all(transport.is_closing() for transport in transports if transport)
        await until(lambda: not b.links.connections and not c.links.connections)
        await a.links.close()  # a second close does no harm


async def test_close_while_dialling_leaves_no_task() -> None:
    async with hosts("a") as (a,):
        a.book.learn({"b": nowhere()})
        a.links.send("b", note(1))
        await until(lambda: a.counts == {"cannot connect": 1})
        a.links.rng.uniform = lambda _, __: 5.0  # type: ignore[method-assign]
        a.links.send("b", note(2))
        await turns()
        assert len(asyncio.all_tasks()) == 2, "it waits before it dials again"
        await a.links.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.usefixtures("loop")
async def test_frames_queued_before_close_still_arrive() -> None:
    async with hosts("a", "b") as (a, b):
        a.knows(b)
        a.links.send("b", note(0))
        await until(lambda: len(b.got) == 1)
        for number in range(1, 100):
            a.links.send("b", note(number))
        await a.links.close()
        await until(lambda: len(b.got) == 100)


async def test_close_after_send_stops_dialling() -> None:
    async with answering(HELLO) as (address, came):
        async with hosts("a") as (a,):
            a.book.learn({"b": address})
            a.links.send("b", note(0))
            await a.links.close()
            await turns()
            is_dialling = len(asyncio.all_tasks()) > 1
            await until(lambda: len(asyncio.all_tasks()) == 1)
            await a.links.close()  # for links that were opened meanwhile
        assert not is_dialling
        assert not came
