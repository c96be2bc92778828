"""Event streams of the dashboard: bounded queues, pages and monitored topics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skipring.errors import SkipringError
from skipring.view.overview import Observer
from skipring.web import events
from skipring.web.events import EventStream, SseClient, event
from tests.support.rings import until
from tests.support.scenes import in_loop

UNUSED = ("127.0.0.1:9",)  # no supervisor listens here


@asynccontextmanager
async def streaming(topic: str | None = None) -> AsyncIterator[EventStream]:
    async with Observer(UNUSED) as observer:
        stream = EventStream(observer, topic)
        stream.start()
        yield stream
        await stream.close()


async def received(page: SseClient, last: bytes) -> list[bytes | None]:
    """Read a page up to an event."""
    found: list[bytes | None] = []
    while not found or found[-1] != last:
        found.append(await page.get())
    return found


@in_loop
async def test_slow_page_receives_the_current_state() -> None:
    sent = [event("pulses", {"number": number}) for number in range(3 * events.WAITING_MAX)]
    async with streaming("news") as stream:
        with stream.listening("news") as page:
            for each in sent:
                stream.send_all(each)
            found = await received(page, sent[-1])
    assert len(found) <= events.WAITING_MAX
    assert found[0] == event("trouble", {"text": None})


@in_loop
async def test_queue_of_a_page_is_bounded_in_bytes() -> None:
    large = events.WAITING_BYTES_MAX // 2
    sent = [bytes([number]) * large for number in range(5)]
    async with streaming() as stream:
        with stream.listening(None) as page:
            for each in sent:
                stream.send_all(each)
            found = await received(page, sent[-1])
            assert sum(len(each or b"") for each in found) <= events.WAITING_BYTES_MAX + large
            assert not page.is_behind


@in_loop
async def test_topic_without_a_page_is_dropped_after_a_while_except_the_chosen_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "OVERVIEW_S", 0.01)
    monkeypatch.setattr(events, "PAUSE_S_MAX", 0.01)
    async with streaming("chosen") as stream:
        stream.watcher("other")
        with stream.listening("shown"):
            assert stream.watched == {"chosen", "other", "shown"}
            monkeypatch.setattr(events, "UNSEEN_S", -1.0)
            await until(lambda: stream.watched == {"chosen", "shown"})
        await until(lambda: stream.watched == {"chosen"})


@in_loop
async def test_number_of_watched_topics_is_limited_and_unseen_ones_are_dropped() -> None:
    async with streaming() as stream:
        for number in range(2 * events.WATCHED_MAX):
            stream.watcher(f"t{number}")
        assert len(stream.watched) == events.WATCHED_MAX
        assert f"t{2 * events.WATCHED_MAX - 1}" in stream.watched


@in_loop
async def test_closed_stream_accepts_no_page_and_leaves_no_task() -> None:
    async with streaming("news") as stream:
        await stream.close()
        for topic in ("news", "late", None):
            with pytest.raises(SkipringError, match="is closing"):
                stream.check_room(topic)
        with pytest.raises(SkipringError, match="is closing"):
            stream.watcher("late")
    assert asyncio.all_tasks() == {asyncio.current_task()}
