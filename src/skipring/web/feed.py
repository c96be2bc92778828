"""What the dashboard's pages hear: one stream of events for each, all from the same watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Final

import msgspec

from skipring.core.peers import TopicId
from skipring.errors import SkipringError
from skipring.watch.overview import Observer, Overview
from skipring.watch.watcher import TopicWatcher

# Our guesses: often enough that one sees a ring heal and publications travel.
SCENE_S: Final = 0.5
PULSE_S: Final = 0.2
OVERVIEW_S: Final = 1.5
WATCHING_SHARE: Final = 3  # watching takes a quarter of the time at most
PAUSE_S_MAX: Final = 2.0  # also if somebody did not answer and we waited
KEEP_ALIVE_S: Final = 15.0
WAITING_MAX: Final = 256  # events for a page that reads slowly
WATCHED_MAX: Final = 8  # Limit of ours: topics that are watched at the same time.
PULSES_MAX: Final = 2000  # Our guess: more in one event are not told apart.

Event = bytes


def event(name: str, value: object) -> Event:
    """A server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


Pages = set[asyncio.Queue[Event | None]]


class _Channel:
    """A topic that is watched, and the pages that hear of it."""

    def __init__(self, watcher: TopicWatcher) -> None:
        self.watcher = watcher
        self.pages: Pages = set()
        self.task: asyncio.Task[None] | None = None

    @property
    def now(self) -> list[Event]:
        """What tells a page how the topic is."""
        return [event("scene", self.watcher.scene)] if self.watcher.scene is not None else []


class Feed:
    """Watches topics while there is somebody who wants to see them."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._channels: dict[TopicId, _Channel] = {}
        self._undecided: Pages = set()  # pages that have no topic yet
        self._overview: Event | None = None
        self._overviewing: asyncio.Task[None] | None = None
        self._trouble: str | None = None

    def start(self) -> None:
        """Begin to look at everything."""
        self._overviewing = asyncio.create_task(_again(self._look_over, OVERVIEW_S))

    async def close(self) -> None:
        """Stop watching; every stream ends."""
        tasks = [self._overviewing, *(each.task for each in self._channels.values())]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        self._tell_all(None)
        await asyncio.gather(*running, return_exceptions=True)

    def watcher(self, topic: TopicId) -> TopicWatcher:
        """Who watches a topic, from now on; SkipringError if there are too many."""
        return self._channel(topic).watcher

    def _channel(self, topic: TopicId) -> _Channel:
        if topic not in self._channels:
            self._forget_unwatched()
            if len(self._channels) >= WATCHED_MAX:
                raise SkipringError(f"{WATCHED_MAX} topics are watched; close another page first")
            channel = self._channels[topic] = _Channel(TopicWatcher(self._observer, topic))
            channel.task = asyncio.create_task(self._watch(channel))
        return self._channels[topic]

    def _forget_unwatched(self) -> None:
        """Make room: a topic that no page shows is given up when another one wants its place."""
        while len(self._channels) >= WATCHED_MAX:
            unseen = next((name for name, each in self._channels.items() if not each.pages), None)
            if unseen is None:
                return
            task = self._channels.pop(unseen).task
            if task is not None:
                task.cancel()

    # -- pages -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self, topic: TopicId | None) -> AsyncIterator[asyncio.Queue[Event | None]]:
        """The events of a topic, as long as a page wants them; None is the last one.

        Without a topic they are those about all topics.
        """
        channel = self._channel(topic) if topic is not None else None
        pages = channel.pages if channel is not None else self._undecided
        queue: asyncio.Queue[Event | None] = asyncio.Queue(WAITING_MAX)
        self._greet(queue, channel.now if channel is not None else [])
        pages.add(queue)
        try:
            yield queue
        finally:
            pages.discard(queue)

    def _greet(self, queue: asyncio.Queue[Event | None], now: list[Event]) -> None:
        """Tell a page how things are now."""
        queue.put_nowait(event("trouble", {"text": self._trouble}))
        if self._overview is not None:
            queue.put_nowait(self._overview)
        for told in now:
            queue.put_nowait(told)

    def _tell(self, channel: _Channel, told: Event | None) -> None:
        self._tell_pages(channel.pages, told, channel.now)

    def _tell_pages(self, pages: Pages, told: Event | None, now: list[Event]) -> None:
        for queue in pages:
            if queue.full():  # it reads too slowly: it gets how things are, not how they became so
                while not queue.empty():
                    queue.get_nowait()
                self._greet(queue, now)
            queue.put_nowait(told)

    def _tell_all(self, told: Event | None) -> None:
        self._tell_pages(self._undecided, told, [])
        for channel in self._channels.values():
            self._tell(channel, told)

    # -- watching --------------------------------------------------------------------------------

    async def _look_over(self) -> None:
        try:
            overview = await self._observer.overview()
        except SkipringError as error:
            self._say_trouble(str(error))
            return
        silent = [each.address for each in overview.supervisors if not each.answers]
        self._say_trouble(
            f"no supervisor answers at {', '.join(silent)}: nobody can join, and what is published "
            "still reaches everybody"
            if silent
            else None
        )
        self._overview = event("overview", _shown(overview))
        self._tell_all(self._overview)

    def _say_trouble(self, text: str | None) -> None:
        if text != self._trouble:
            self._trouble = text
            self._tell_all(event("trouble", {"text": text}))

    async def _watch(self, channel: _Channel) -> None:
        looking = _again(lambda: self._look(channel), SCENE_S)
        listening = _again(lambda: self._listen(channel), PULSE_S)
        await asyncio.gather(looking, listening)

    async def _look(self, channel: _Channel) -> None:
        scene = await channel.watcher.look()
        if scene is not None:
            self._tell(channel, event("scene", scene))
        messages = await channel.watcher.read()
        if messages:
            self._tell(channel, event("messages", {"messages": messages}))

    async def _listen(self, channel: _Channel) -> None:
        pulses = await channel.watcher.listen()
        if pulses:
            self._tell(channel, event("pulses", {"pulses": pulses[-PULSES_MAX:]}))


async def _again(act: Callable[[], Awaitable[None]], period_s: float) -> None:
    """Do something again and again; what goes wrong with a peer is over the next time."""
    while True:
        begun = monotonic()
        with suppress(SkipringError, OSError):  # the overview says that there is trouble
            await act()
        taken = monotonic() - begun
        await asyncio.sleep(max(period_s - taken, min(WATCHING_SHARE * taken, PAUSE_S_MAX)))


def _shown(overview: Overview) -> dict[str, object]:
    """An overview as pages read it."""
    rows = [msgspec.to_builtins(row) | {"legitimate": row.legitimate} for row in overview.topics]
    return {
        "topics": rows,
        "supervisors": overview.supervisors,
        "unlisted": overview.unlisted,
    }
