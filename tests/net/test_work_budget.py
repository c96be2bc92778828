"""Work budgets: connections share the event loop in turns, and no peer keeps it busy."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import fields

from skipring.core import log_pages
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import Origin
from skipring.core.events import IndexRequested
from skipring.core.log import MemoryLog
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.log_pages import log_page
from skipring.core.peers import NodeId
from skipring.net import work_budget
from skipring.net.work_budget import SLICE_S, TURN_S, WorkBudget
from skipring.node import arrival_tap
from skipring.node.arrival_tap import delivery_page
from skipring.node.status_server import INDEX_SLICE_IDS
from skipring.storage.delivery_log import DeliveryLog
from skipring.storage.store import LogStore
from skipring.wire.codec import Envelope, decode, encode
from skipring.wire.framing import FrameReader
from skipring.wire.handshake import Role
from skipring.wire.rpc import (
    BUSY,
    REQUEST_TYPES,
    WIRE_TYPES,
    Answer,
    FetchDeliveries,
    FindMembers,
    GetNodeStatus,
    NodeStatus,
    WireMessage,
)
from tests.support.batches import batch, batch_of, opaque_batch
from tests.support.exchanges import Caller, LoopFactory, call, greeting_of, hosts, note, play, turns
from tests.support.rings import DEADLINE_S, LOOPBACK, TOPIC, LiveRing, live_ring, until
from tests.wire.samples import SAMPLES, SCANS, the_frame

END = 2**40 - 1


class Clock:
    """A clock that only work advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def reset_when_closed(made: socket.socket) -> None:
    """Let a closed socket reset its connection instead of ending it."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Connection:
    """A connection with frames that take a while."""

    def __init__(self, name: str, frames: int, clock: Clock, log: list[str]) -> None:
        self._name, self._frames, self._clock, self._log = name, frames, clock, log

    def handle_some(self, end_s: float) -> bool:
        while self._frames:
            self._frames -= 1
            self._clock.now_s += SLICE_S * 0.51  # so that two are a slice
            self._log.append(self._name)
            if self._clock() >= end_s:
                break
        return self._frames > 0


# -- turns -----------------------------------------------------------------------------------


def test_waiting_connections_take_turns_and_the_loop_runs_in_between(loop: LoopFactory) -> None:
    clock, log = Clock(), list[str]()

    async def scene() -> None:
        budget = WorkBudget(clock)
        for name in "abc":
            budget.add(Connection(name, 8, clock, log))
        while "".join(log).replace(".", "").count("c") < 8:
            await asyncio.sleep(0)
            log.append(".")

    play(scene, loop)
    worked = "".join(log).strip(".")
    assert max(map(len, worked.split("."))) <= 2 * TURN_S / SLICE_S, "of one turn"
    assert worked.replace(".", "")[:12] == "aabbccaabbcc"
    assert [worked.count(name) for name in "abc"] == [8, 8, 8]


# -- connections -----------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_burst_on_one_connection_does_not_delay_the_frames_of_another() -> None:
    count = 10_000
    async with hosts("a") as (a,), call(a) as busy, call(a) as other:
        clock = a.links.budget.clock = Clock()
        order: list[str] = []

        def work(sender: str) -> None:
            order.append(sender)
            clock.now_s += TURN_S / 4

        a.on_message = work
        for caller, name in ((busy, "b"), (other, "c")):
            caller.write(greeting_of(name))
            assert await caller.read()
        busy.write(note(1) * count)
        while not order:  # noqa: ASYNC110  (the turns of the loop count)
            await asyncio.sleep(0)
        other.write(note(2))
        await until(lambda: len(order) == count + 1)
        assert order.index("c") < count / 2


@pytest.mark.usefixtures("loop")
async def test_connection_with_waiting_frames_is_not_read() -> None:
    frames = 40 * work_budget.WAITING_BYTES_MAX // len(note(1))
    async with hosts("a") as (a,), call(a) as busy:
        clock = a.links.budget.clock = Clock()
        handled = 0

        def work(_: str) -> None:
            nonlocal handled
            handled += 1
            clock.now_s += TURN_S / 64

        a.on_message = work
        busy.write(greeting_of("b") + note(1) * frames)
        most = 0
        while handled < frames:
            await asyncio.sleep(0)
            most = max(most, sum(link.waiting_bytes for link in a.links.connections))
        assert most < 10 * work_budget.WAITING_BYTES_MAX


@pytest.mark.usefixtures("loop")
async def test_frames_that_arrived_before_the_end_of_the_input_are_handled() -> None:
    async with hosts("a") as (a,), call(a) as busy:
        clock = a.links.budget.clock = Clock()

        def work(_: str) -> None:
            clock.now_s += TURN_S

        a.on_message = work
        busy.write(greeting_of("b") + b"".join(map(note, range(200))))
        busy.writer.write_eof()
        assert await busy.is_hung_up_on()
        assert a.numbers("b") == list(range(200))


@pytest.mark.usefixtures("loop")
async def test_frames_that_wait_when_a_connection_is_reset_are_counted() -> None:
    async with hosts("a") as (a,), call(a) as busy:
        clock = a.links.budget.clock = Clock()

        def work(_: str) -> None:
            clock.now_s += TURN_S
            busy.writer.transport.abort()

        a.on_message = work
        reset_when_closed(busy.writer.get_extra_info("socket"))
        busy.write(greeting_of("b"))
        assert await busy.read()
        busy.write(b"".join(map(note, range(500))))
        await until(lambda: not a.links.connections)
        assert 0 < len(a.numbers("b")) < 500
        assert len(a.numbers("b")) + a.counts["connection lost"] == 500


@pytest.mark.usefixtures("loop")
async def test_frames_are_handled_in_order_of_arrival() -> None:
    async with hosts("a") as (a,), call(a) as caller:
        clock = a.links.budget.clock = Clock()

        def work(_: str) -> None:
            clock.now_s += TURN_S / 3

        a.on_message = work
        caller.write(greeting_of("b"))
        for number in range(200):
            caller.write(note(number))
            await asyncio.sleep(0)
        await until(lambda: a.numbers("b") == list(range(200)))


async def test_request_that_waited_too_long_is_refused_with_a_reason() -> None:
    asked = b"".join(encode(TOPIC, FindMembers(number, 1)) for number in range(20))
    async with hosts("a") as (a,), call(a) as caller:
        clock = a.links.budget.clock = Clock()

        def work(_: str) -> None:
            clock.now_s += work_budget.REQUEST_WAIT_S / 4

        a.on_message = work
        caller.write(greeting_of("c", Role.CLIENT) + asked)
        await until(lambda: a.links.counts["busy"] > 0)
        answers = await read_until(caller, 20 - len(a.got))
        assert {each.reason for each in answers if isinstance(each, Refused)} == {BUSY}
        assert len(a.got) + a.links.counts["busy"] == 20


async def read_until(caller: Caller, count: int) -> list[WireMessage]:
    """Return this number of messages after the handshake."""
    reader, found = FrameReader(), []
    while len(found) <= count:
        data = await caller.read()
        assert data, "it was hung up"
        found += reader.feed(data)
    return [decode(frame).message for frame in found[1:]]


async def test_requests_of_a_client_that_does_not_read_answers_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = encode(TOPIC, LogPage(1, None, (0,), (batch(bytes(400_000), topic=TOPIC),)))
    count = 100
    async with hosts("a") as (a,), call(a) as caller:
        a.on_message = lambda sender: a.links.send(sender, answer)
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        caller.write(greeting_of("c", Role.CLIENT) + encode(TOPIC, GetNodeStatus(1)) * count)
        await until(lambda: len(a.got) > 0)
        await turns(100)
        assert len(a.got) < count
        assert a.links.counts["queue full"] == 0
        caller.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await read_until(caller, count)) == count


# -- requests --------------------------------------------------------------------------------


def test_every_message_with_a_request_number_is_a_request_or_an_answer() -> None:
    numbered = {kind for kind in WIRE_TYPES if any(f.name == "request" for f in fields(kind))}
    assert REQUEST_TYPES.isdisjoint(get_args(Answer))
    assert numbered == REQUEST_TYPES.union(get_args(Answer))
    assert {kind.__name__ for kind in REQUEST_TYPES} == {
        "ChaosPing",
        "Crash",
        "Forge",
        "FetchDatabase",
        "GetNodeStatus",
        "GetSupervisorStatus",
        "Isolate",
        "FindMembers",
        "Overwrite",
        "OverwriteDatabase",
        "Publish",
        "FetchArrivals",
        "FetchDeliveries",
        "FetchChanges",
        "FetchLog",
        "FetchRecords",
        "CorruptTrie",
        "GetLogInfo",
    }


QUESTIONS = [*SCANS, *(each for each in SAMPLES if type(each) in REQUEST_TYPES)]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: type(each).__name__)
async def test_burst_of_requests_delays_neither_ticks_nor_other_clients(
    question: WireMessage,
) -> None:
    burst = encode(TOPIC, question)
    burst *= 64 * 1024 // len(burst) + 1
    async with filled_ring(200) as ring:
        hosts_of_ring = (ring.nodes["n0"], ring.supervisor)
        for host in hosts_of_ring:
            port = int(host.address.rpartition(":")[2])
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            drained = asyncio.create_task(drain(reader))
            writer.write(greeting_of("busy", Role.CLIENT) + burst)
            ticks = host.ticker.calls
            await until(lambda: host.ticker.calls > ticks + 2)  # noqa: B023
            assert await status_of(ring) is not None
            writer.transport.abort()
            await drained
        await ring.wait_healthy()
        assert ring.supervisor.counts["evictions"] == 0


async def drain(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass


def filled_ring(count: int) -> FilledRing:
    return FilledRing(count)


class FilledRing:
    """A ring of two nodes with publications."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ring = live_ring("n0", "n1")

    async def __aenter__(self) -> LiveRing:
        ring = await self._ring.__aenter__()
        for number in range(self._count):
            await ring.nodes["n0"].publish(TOPIC, BatchRecord(b"%d" % number))
        await ring.wait_healthy()
        return ring

    async def __aexit__(self, *_: object) -> None:
        await self._ring.__aexit__(None, None, None)


async def status_of(ring: LiveRing) -> NodeStatus | None:
    """Return the answer to another client."""
    port = int(ring.nodes["n0"].address.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(greeting_of("other", Role.CLIENT) + encode(TOPIC, GetNodeStatus(1)))
        frames = FrameReader()
        async with asyncio.timeout(DEADLINE_S):
            found = list(frames.feed(await reader.read(1 << 16)))
            while len(found) < 2:
                found += frames.feed(await reader.read(1 << 16))
        message = decode(found[1]).message
        return message if isinstance(message, NodeStatus) else None
    finally:
        writer.transport.abort()


# -- scans -----------------------------------------------------------------------------------


def many(count: int) -> list[RecordBatch]:
    return [batch(b"x", publisher="p", first=n, topic=TOPIC) for n in range(count)]


def spent_after(calls: int) -> Callable[[], bool]:
    left = iter([False] * calls)
    return lambda: next(left, True)


@pytest.mark.parametrize("contents", [False, True])
def test_scan_without_matches_stops_at_its_limit_and_continues(
    contents: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "CONTENT_PAGE" if contents else "LISTING_PAGE"
    limits = getattr(log_pages, name)._replace(scanned_entries_max=5000)
    monkeypatch.setattr(log_pages, name, limits)
    stored = many(20_000)
    with LogStore.open(tmp_path) as store:
        log = store.log(TOPIC)
        for each in stored:
            log.append(each)
        store.commit()
        # The index of the stored log excludes the entries; the log in memory is scanned.
        for each, possible in ((log, (1,)), (MemoryLog(stored), (4, 5))):
            pages, start = 0, 0
            while True:
                question = FetchLog(1, "", 0, start, END, 0, 1, contents=contents)
                page = log_page(each, question)
                pages += 1
                assert page.offsets == ()
                if page.next is None:
                    break
                assert page.next > start
                start = page.next
            assert pages in possible


def test_page_of_deliveries_stops_at_its_budget_and_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrival_tap, "SCAN", arrival_tap.SCAN._replace(entries_max=1))
    stored = [batch_of(b"x", b"y", publisher="p", first=n, topic=TOPIC) for n in range(50)]
    trace, log, found = DeliveryLog(), MemoryLog(stored), list[int]()
    trace.record((TOPIC, 0, 1, 0, Origin.SPREAD, 100))
    start: int | None = 0
    while start is not None:
        page = delivery_page(trace, TOPIC, log, FetchDeliveries(1, start, END), spent_after(4))
        assert len(page.offsets) <= 10
        found += page.offsets
        start = page.next
    assert found == list(range(100))


# -- the index -------------------------------------------------------------------------------


@pytest.mark.parametrize("question", [GetNodeStatus(7), GetLogInfo(7, 4, None)])
async def test_status_after_a_backfill_follows_slices_of_the_index(
    question: GetNodeStatus | GetLogInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 30_000
    async with live_ring("n0") as ring:
        await ring.wait_healthy()
        node = ring.nodes["n0"]
        node.ticker.stop()
        ids = (number.to_bytes(32, "little") for number in range(count))
        await node.submit(TOPIC, *(opaque_batch(key, first=n) for n, key in enumerate(ids)))
        machine = node.machine(TOPIC)
        assert machine is not None
        node.dispatch(TOPIC, IndexRequested(INDEX_SLICE_IDS))
        assert machine.replica.is_behind, "there is more than one slice to be indexed"
        said: list[WireMessage] = []

        def record(to: NodeId, frame: bytes) -> None:
            if to == "c":
                said.append(decode(the_frame(frame)).message)

        monkeypatch.setattr(node.links, "send", record)
        for _ in range(300):
            node.links.receive("c", Envelope(question, TOPIC), the_frame(note(0)))
        assert {type(each) for each in said} == {Refused}, "of too many"
        refused = len(said)
        await until(lambda: len(said) == 300)
        answers = said[refused:]
        assert {type(each) for each in answers} <= {NodeStatus, LogInfo}
        first = answers[0]
        assert isinstance(first, NodeStatus | LogInfo)
        assert first.count == count
