"""Partial frames: their total memory and their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from skipring.net import partial_frames as partial_frames_module
from skipring.net.partial_frames import FRAME_S, LATE_S, PARTIAL_BYTES_MAX, PartialFrames
from skipring.wire.framing import DATA_BYTES_MAX
from skipring.wire.handshake import Role
from tests.support.exchanges import (
    LoopFactory,
    call,
    greeting_of,
    hosts,
    logged,
    note,
    parcel,
    play,
    the_line,
)
from tests.support.rings import until


class UnfinishedConnection:
    """A connection with a frame that does not end."""

    def __init__(self, account: str = "a") -> None:
        self.account = account
        self.is_read = True
        self.refusals: list[str] = []

    def refuse(self, reason: str, detail: str) -> None:
        assert detail
        self.refusals.append(reason)


class FakeLoop:
    """A clock with timers that run on request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Callable[[], None]) -> None:
        self._timers.append((when_s, call))

    def advance(self, to_s: float, late_s: float = 0.0) -> None:
        """Run the timers up to a time, each late by the given seconds."""
        while due := [each for each in self._timers if each[0] <= to_s]:
            first = min(due, key=lambda each: each[0])
            self._timers.remove(first)
            self.now_s = max(self.now_s, first[0] + late_s)
            first[1]()
        self.now_s = to_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    return FakeLoop(monkeypatch)


# -- bytes -----------------------------------------------------------------------------------------


def test_unfinished_frames_never_hold_more_than_their_limit(clock: FakeLoop) -> None:
    partial, links = PartialFrames(), [UnfinishedConnection(f"n{number}") for number in range(400)]
    for link in links:
        partial.update(link, DATA_BYTES_MAX, is_new=True)
        assert partial.size_bytes <= PARTIAL_BYTES_MAX
    refused = [link for link in links if link.refusals]
    assert len(refused) == 400 - PARTIAL_BYTES_MAX // DATA_BYTES_MAX
    assert refused == links[: len(refused)], "the oldest of equal names"


def test_name_with_the_most_bytes_is_refused(clock: FakeLoop) -> None:
    partial, honest = PartialFrames(), UnfinishedConnection("honest")
    partial.update(honest, DATA_BYTES_MAX - 1, is_new=True)
    for _ in range(100):
        partial.update(UnfinishedConnection("hostile"), DATA_BYTES_MAX, is_new=True)
    assert honest.refusals == []


def test_complete_frames_hold_no_memory(clock: FakeLoop) -> None:
    partial, link = PartialFrames(), UnfinishedConnection()
    partial.update(link, 1000, is_new=False)
    partial.update(link, 500, is_new=True)
    assert partial.size_bytes == 500
    partial.update(link, 0, is_new=True)
    assert partial.size_bytes == 0
    partial.update(link, 1000, is_new=False)
    partial.forget(link)
    partial.forget(link)
    assert partial.size_bytes == 0


# -- deadlines -------------------------------------------------------------------------------------


def test_overdue_frame_is_refused(clock: FakeLoop) -> None:
    partial, slow, quick = PartialFrames(), UnfinishedConnection(), UnfinishedConnection()
    partial.update(slow, 10, is_new=True)
    clock.advance(FRAME_S / 2)
    partial.update(slow, 20, is_new=False)
    partial.update(quick, 10, is_new=True)
    clock.advance(FRAME_S)
    assert (slow.refusals, quick.refusals) == (["unfinished frame"], [])
    partial.update(quick, 10, is_new=True)
    clock.advance(1.6 * FRAME_S)
    assert quick.refusals == [], "it is another frame now"
    clock.advance(2.1 * FRAME_S)
    assert quick.refusals == ["unfinished frame"]


def test_unread_connection_may_take_longer(clock: FakeLoop) -> None:
    partial, link = PartialFrames(), UnfinishedConnection()
    link.is_read = False
    partial.update(link, 10, is_new=True)
    clock.advance(3.5 * FRAME_S)
    assert link.refusals == []
    link.is_read = True
    clock.advance(4.5 * FRAME_S)
    assert link.refusals == ["unfinished frame"]


def test_stalled_loop_reads_before_it_refuses(clock: FakeLoop) -> None:
    partial, link = PartialFrames(), UnfinishedConnection()
    partial.update(link, 10, is_new=True)
    clock.advance(FRAME_S, late_s=2 * LATE_S)
    assert link.refusals == []
    partial.update(link, 0, is_new=True)
    clock.advance(3 * FRAME_S)
    assert link.refusals == []


# -- connections -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_hostile_name_loses_its_frames_and_another_name_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 1 << 20
    monkeypatch.setattr(partial_frames_module, "PARTIAL_BYTES_MAX", limit)
    half = parcel(1, 200_000)[:150_000]
    whole = parcel(7, 100_000)
    async with hosts("a") as (a,), AsyncExitStack() as stack:
        honest = await stack.enter_async_context(call(a))
        honest.write(greeting_of("honest") + whole[:-1])
        await until(lambda: a.links.partial_frames.size_bytes == len(whole) - 1)
        for _ in range(20):
            hostile = await stack.enter_async_context(call(a))
            hostile.write(greeting_of("hostile", Role.CLIENT) + half)
        await until(lambda: a.counts.get("too many unfinished frames", 0) >= 14)
        assert a.links.partial_frames.size_bytes <= limit
        honest.write(whole[-1:])
        await until(lambda: [sender for sender, _ in a.got] == ["honest"])
    await until(lambda: a.links.partial_frames.size_bytes == 0)


def test_connection_with_an_overdue_frame_is_closed(
    monkeypatch: pytest.MonkeyPatch, loop: LoopFactory
) -> None:
    monkeypatch.setattr(partial_frames_module, "FRAME_S", 0.05)
    monkeypatch.setattr(partial_frames_module, "LATE_S", 10.0)

    async def scene() -> None:
        async with hosts("a") as (a,), call(a) as caller:
            caller.write(greeting_of("b") + note(1) + note(2)[:-1])
            assert await caller.is_hung_up_on()
            assert a.numbers("b") == [1]
            assert a.counts == {"unfinished frame": 1}
            line = the_line(lines, "connection_refused")
            assert line["address"] == caller.address
            assert "no more within" in line["detail"]

    with logged() as lines:
        play(scene, loop)


@pytest.mark.usefixtures("loop")
async def test_long_frame_before_the_handshake_is_refused_early() -> None:
    async with hosts("a") as (a,), call(a) as caller:
        caller.write(parcel(1, 200_000)[:40_000])
        assert await caller.is_hung_up_on()
        assert a.counts == {"HandshakeError": 1}
