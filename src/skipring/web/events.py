"""Event streams of the dashboard: one per page, all from the same monitors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import contextmanager
from time import monotonic
from typing import Final

import msgspec

from skipring.core.peers import TopicId
from skipring.errors import SkipringError
from skipring.observability.logs import logger
from skipring.view.monitor import TopicMonitor
from skipring.view.overview import Observer, Overview

# Guesses: often enough to show repair and the path of publications.
SCENE_S: Final = 0.5
PULSE_S: Final = 0.2
OVERVIEW_S: Final = 1.5
WATCHING_SHARE: Final = 3  # polling takes a quarter of the time at most
PAUSE_S_MAX: Final = 2.0  # even if a peer did not answer and the poll waited
KEEP_ALIVE_S: Final = 15.0
WAITING_MAX: Final = 256  # events for a page that reads slowly
WAITING_BYTES_MAX: Final = 16 << 20  # Guess: about thirty scenes of 1,000 nodes.
PAGES_MAX: Final = 64  # Limit: pages that are open at the same time.
WATCHED_MAX: Final = 8  # Limit: topics that are monitored at the same time.
UNSEEN_S: Final = 600.0  # Guess: the length of a timeline; a later page starts a new one.
PULSES_MAX: Final = 2000  # Guess: a reader cannot distinguish more in one event.

Event = bytes
Watching = Callable[[], Awaitable[None]]

_LOG: Final = logger("dashboard")


def event(name: str, value: object) -> Event:
    """Return a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


class SseClient:
    """Open page, and its queue of unread events."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Event | None] = asyncio.Queue()
        self._bytes = 0

    @property
    def is_behind(self) -> bool:
        """Return True if the page reads too slowly."""
        return self._waiting.qsize() >= WAITING_MAX or self._bytes >= WAITING_BYTES_MAX

    def put(self, data: Event | None) -> None:
        """Queue an event; None ends the stream."""
        self._bytes += len(data or b"")
        self._waiting.put_nowait(data)

    async def get(self) -> Event | None:
        """Wait for the next event; return None at the end of the stream."""
        data = await self._waiting.get()
        self._bytes -= len(data or b"")
        return data

    def clear(self) -> None:
        """Drop the unread events."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._bytes = 0


class _Audience:
    """Pages that receive the same events."""

    def __init__(self) -> None:
        self.pages: set[SseClient] = set()
        self.troubles: dict[str, str] = {}  # error texts by source
        self.seen_at = monotonic()  # time of the last page

    def remove(self, page: SseClient) -> None:
        """Remove a page that was closed."""
        self.pages.discard(page)
        self.seen_at = monotonic()

    def now(self) -> Iterator[Event]:
        """Yield the events, other than the overview, that describe the current state."""
        yield from ()


class _Channel(_Audience):
    """Monitored topic, and the pages that show it."""

    def __init__(self, watcher: TopicMonitor) -> None:
        super().__init__()
        self.watcher = watcher

    def now(self) -> Iterator[Event]:
        """Yield the last scene, if there is one."""
        if self.watcher.scene is not None:
            yield event("scene", self.watcher.scene)


class EventStream:
    """Monitors of the configured topic, and of other topics while pages show them."""

    def __init__(self, observer: Observer, topic: TopicId | None = None) -> None:
        self._observer = observer
        self._topic = topic
        self._channels: dict[TopicId, _Channel] = {}
        self._watching: dict[TopicId | None, asyncio.Task[None]] = {}  # None: the overview
        self._undecided = _Audience()  # pages that have no topic yet
        self._overview: Event | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start to poll the overview, and the configured topic."""
        looking = self._again(self._undecided, "topics", self._poll_overview, OVERVIEW_S)
        self._watching[None] = asyncio.create_task(looking)
        if self._topic is not None:
            self._channel(self._topic)

    async def close(self) -> None:
        """Stop all monitors; end every stream and refuse new ones."""
        self._is_closed = True
        for task in self._watching.values():
            task.cancel()
        self.send_all(None)
        await asyncio.gather(*self._watching.values(), return_exceptions=True)

    @property
    def watched(self) -> Set[TopicId]:
        """Return the monitored topics."""
        return self._channels.keys()

    def watcher(self, topic: TopicId) -> TopicMonitor:
        """Return the monitor of a topic, started if needed; raise SkipringError at WATCHED_MAX."""
        return self._channel(topic).watcher

    def _channel(self, topic: TopicId) -> _Channel:
        self._check_open()
        if topic not in self._channels:
            self._make_room()
            if len(self._channels) >= WATCHED_MAX:
                raise SkipringError(f"{WATCHED_MAX} topics are watched; close another page first")
            channel = self._channels[topic] = _Channel(TopicMonitor(self._observer, topic))
            self._watching[topic] = asyncio.create_task(self._watch(channel))
        return self._channels[topic]

    def _check_open(self) -> None:
        if self._is_closed:
            raise SkipringError("the dashboard is closing; start it again")

    def _make_room(self) -> None:
        """Drop topics that no page shows, the longest unseen first, until there is room."""
        while len(self._channels) >= WATCHED_MAX:
            unseen = self._unseen()
            if not unseen:
                return
            self._forget(min(unseen, key=lambda topic: self._channels[topic].seen_at))

    def _unseen(self) -> list[TopicId]:
        """Return the topics that no page shows, except the configured topic."""
        return [
            topic
            for topic, each in self._channels.items()
            if not each.pages and topic != self._topic
        ]

    def _forget(self, topic: TopicId) -> None:
        del self._channels[topic]
        self._watching.pop(topic).cancel()

    def _forget_old(self) -> None:
        now = monotonic()
        for topic in self._unseen():
            if now - self._channels[topic].seen_at > UNSEEN_S:
                self._forget(topic)

    # -- pages -----------------------------------------------------------------------------------

    def check_room(self, topic: TopicId | None) -> None:
        """Refuse a page if the stream is closed, or pages or topics exceed their limit."""
        self._check_open()
        every = [self._undecided, *self._channels.values()]
        if sum(len(each.pages) for each in every) >= PAGES_MAX:
            raise SkipringError(f"{PAGES_MAX} pages are open; close another one first")
        self._audience(topic)

    def _audience(self, topic: TopicId | None) -> _Audience:
        return self._channel(topic) if topic is not None else self._undecided

    @contextmanager
    def listening(self, topic: TopicId | None) -> Iterator[SseClient]:
        """Add a page that receives the events of a topic, or the overview, until the block ends."""
        audience, page = self._audience(topic), SseClient()
        self._greet(page, audience)
        audience.pages.add(page)
        try:
            yield page
        finally:
            audience.remove(page)

    def _greet(self, page: SseClient, audience: _Audience) -> None:
        """Queue the events that describe the current state."""
        page.put(self._trouble(audience))
        if self._overview is not None:
            page.put(self._overview)
        for data in audience.now():
            page.put(data)

    def _send(self, audience: _Audience, data: Event | None) -> None:
        for page in audience.pages:
            if page.is_behind:  # it gets the current state instead of all changes
                page.clear()
                self._greet(page, audience)
            page.put(data)

    def send_all(self, data: Event | None) -> None:
        """Send an event to every page; None ends all streams."""
        for audience in (self._undecided, *self._channels.values()):
            self._send(audience, data)

    # -- errors ----------------------------------------------------------------------------------

    def _trouble(self, audience: _Audience) -> Event:
        """Return the event with the first error; cluster-wide errors precede those of one topic."""
        found = (*self._undecided.troubles.values(), *audience.troubles.values())
        return event("trouble", {"text": next(iter(found), None)})

    def _record_error(self, audience: _Audience, what: str, text: str | None) -> None:
        if audience.troubles.get(what) == text:
            return
        if text is None:
            del audience.troubles[what]
        else:
            audience.troubles[what] = text
        concerned = (audience, *(self._channels.values() if audience is self._undecided else ()))
        for each in concerned:
            self._send(each, self._trouble(each))

    # -- polling ---------------------------------------------------------------------------------

    async def _poll_overview(self) -> None:
        self._forget_old()
        overview = await self._observer.overview()
        silent = [each.address for each in overview.supervisors if not each.answers]
        trouble = (
            f"no supervisor answers at {', '.join(silent)}: no node can join its topics; "
            "publications still reach all members"
        )
        self._record_error(self._undecided, "supervisors", trouble if silent else None)
        self._overview = event("overview", _shown(overview))
        self.send_all(self._overview)

    async def _watch(self, channel: _Channel) -> None:
        looking = self._again(channel, "scene", lambda: self._poll_topic(channel), SCENE_S)
        listening = self._again(channel, "pulses", lambda: self._listen(channel), PULSE_S)
        await asyncio.gather(looking, listening)

    async def _poll_topic(self, channel: _Channel) -> None:
        scene = await channel.watcher.poll()
        if scene is not None:
            self._send(channel, event("scene", scene))
        messages = await channel.watcher.read()
        if messages:
            self._send(channel, event("messages", {"messages": messages}))

    async def _listen(self, channel: _Channel) -> None:
        pulses = await channel.watcher.listen()
        if pulses:
            self._send(channel, event("pulses", {"pulses": pulses[-PULSES_MAX:]}))

    async def _again(self, audience: _Audience, what: str, act: Watching, period_s: float) -> None:
        """Poll repeatedly; report an error to the pages until a poll succeeds."""
        while True:
            begun = monotonic()
            try:
                await act()
                trouble = None
            except (SkipringError, OSError) as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001  (the monitor continues after any error)
                trouble = f"{what} cannot be shown, internal error: {error!r}"
                _LOG.error("monitor_failed", what=what, error=repr(error))
            self._record_error(audience, what, trouble)
            elapsed_s = monotonic() - begun
            await asyncio.sleep(
                max(period_s - elapsed_s, min(WATCHING_SHARE * elapsed_s, PAUSE_S_MAX))
            )


def _shown(overview: Overview) -> dict[str, object]:
    """Return an overview in the form that pages read."""
    rows = [msgspec.to_builtins(row) | {"healthy": row.is_healthy} for row in overview.topics]
    return {"topics": rows, "supervisors": overview.supervisors, "unlisted": overview.unlisted}
