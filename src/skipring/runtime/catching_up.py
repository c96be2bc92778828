"""A newcomer's history: large pages from several neighbours at once, each of other prefixes.

Comparing tries finds what is missing one way or the other; but where nearly all is missing there is
nothing to compare. So a node that has just come to a topic asks its neighbours how much they have,
and if that is much more than it has itself, reads it from them as it lies in their stores. Who does
not answer is replaced by another. Whatever goes wrong, or is published meanwhile, is left to the
comparison of tries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder

from skipring.core.events import HistoryRead
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.core.subscriber import Subscriber
from skipring.errors import MessageError
from skipring.wire.runtime_messages import (
    ReadStored,
    Refused,
    RuntimeMessage,
    StoredPage,
    Survey,
    Surveyed,
)
from skipring.wire.values import OFFSET_MAX, check_publications

SOURCES_MAX: Final = 4  # Our guess: more do not fill a link faster.
HISTORY_MIN: Final = 2048  # Our guess: fewer publications come by comparing tries as quickly.
SHARE: Final = 2  # Who has less than one part in so many of it, lacks a history.
PATIENCE_TICKS: Final = 3  # Our guess: who has not answered for so long is not asked again.

Say = Callable[[TopicId, NodeId, RuntimeMessage], None]
Give = Callable[[TopicId, HistoryRead], None]

_PUBLICATIONS: Final = Decoder(tuple[Publication, ...])


class _Source(Struct):
    """A neighbour, what it has, and what it was asked for."""

    survey: Surveyed | None = None  # until it has answered
    request: int = 0
    prefix: int | None = None
    ticks: int = 0  # since it was asked


class _History(Struct):
    """What a node is getting of a topic."""

    sources: dict[NodeId, _Source]
    prefixes: deque[int]  # that nobody was asked for yet
    bits: int = 0  # how long these are
    is_reading: bool = False


class CatchingUp:
    """The histories that one node is getting."""

    def __init__(self, say: Say, give: Give) -> None:
        self._say = say
        self._give = give
        self._requests = count(1)
        self._expected: set[TopicId] = set()  # to which we have come and not asked anybody yet
        self._histories: dict[TopicId, _History] = {}

    def expect(self, topic: TopicId) -> None:
        """We have just come to a topic."""
        self._expected.add(topic)

    def forget(self, topic: TopicId) -> None:
        """We have left a topic."""
        self._expected.discard(topic)
        self._histories.pop(topic, None)

    def look(self, topic: TopicId, machine: Subscriber | None) -> None:
        """Begin once there is somebody to ask."""
        if topic in self._expected and machine is not None and machine.label is not None:
            neighbours = machine.neighbours()[:SOURCES_MAX]
            if neighbours:
                self._expected.discard(topic)
                sources = {node: _Source() for node in neighbours}
                self._histories[topic] = _History(sources, deque())
                for node, source in sources.items():
                    source.request = next(self._requests)
                    self._say(topic, node, Survey(source.request, None))

    def on_tick(self, topic: TopicId, machine: Subscriber | None) -> None:
        """Go on without those who do not answer."""
        self.look(topic, machine)
        history = self._histories.get(topic)
        if history is None or machine is None:
            return
        for node, source in list(history.sources.items()):
            source.ticks += 1
            if source.ticks > PATIENCE_TICKS:
                self._give_up(history, node)
        self._go_on(topic, history, machine)

    def on_answer(
        self,
        sender: NodeId,
        topic: TopicId,
        message: Surveyed | StoredPage | Refused,
        machine: Subscriber | None,
    ) -> None:
        """A neighbour has answered."""
        history = self._histories.get(topic)
        source = history.sources.get(sender) if history is not None else None
        if history is None or source is None or source.request != message.request:
            return
        if machine is None or isinstance(message, Refused):
            self._give_up(history, sender)
        elif isinstance(message, Surveyed):
            source.survey, source.ticks = message, 0
        else:
            self._on_page(sender, topic, history.bits, source, message)
        if machine is not None:
            self._go_on(topic, history, machine)

    def _give_up(self, history: _History, node: NodeId) -> None:
        """Ask somebody no more; another one is asked for what it was to bring."""
        source = history.sources.pop(node)
        if source.prefix is not None:
            history.prefixes.append(source.prefix)

    def _on_page(
        self, sender: NodeId, topic: TopicId, bits: int, source: _Source, page: StoredPage
    ) -> None:
        source.ticks = 0
        if page.next is not None:  # asked for at once: it is made ready while we read this one
            self._ask(topic, sender, bits, source, page.next)
        else:
            source.prefix = None
        try:
            publications = _PUBLICATIONS.decode(page.publications)
            check_publications(publications)
        except (MsgspecError, MessageError, ValueError):
            source.ticks = PATIENCE_TICKS  # who says such things is not waited for
            return
        self._give(topic, HistoryRead(publications))

    def _go_on(self, topic: TopicId, history: _History, machine: Subscriber) -> None:
        """Ask those who have nothing to do; end when there is nothing to be asked for."""
        if not history.is_reading:
            if any(source.survey is None for source in history.sources.values()):
                return  # who has most is not known yet
            self._choose(history, machine.count)
            # One each: to look for a prefix everybody reads all that it has stored.
            history.bits = max(len(history.sources) - 1, 0).bit_length()
            history.prefixes.extend(range(1 << history.bits))
            history.is_reading = True
        for node, source in history.sources.items():
            if source.prefix is None and history.prefixes:
                source.prefix = history.prefixes.popleft()
                self._ask(topic, node, history.bits, source, 0)
        is_open = any(source.prefix is not None for source in history.sources.values())
        if not is_open:
            del self._histories[topic]
            self._give(topic, HistoryRead(()))

    def _choose(self, history: _History, held: int) -> None:
        """Keep those who have about all that anybody has, if that is much more than we have."""
        counts = {
            node: source.survey.count
            for node, source in history.sources.items()
            if source.survey is not None
        }
        most = max(counts.values(), default=0)
        if most - held < HISTORY_MIN or SHARE * held > most:
            history.sources.clear()
        for node, number in counts.items():
            if SHARE * number < most:
                history.sources.pop(node, None)

    def _ask(self, topic: TopicId, node: NodeId, bits: int, source: _Source, start: int) -> None:
        survey, prefix = source.survey, source.prefix
        assert survey is not None
        assert prefix is not None
        source.request, source.ticks = next(self._requests), 0
        end = min(survey.end, OFFSET_MAX)
        question = ReadStored(
            source.request, survey.store, survey.epoch, start, end, bits, prefix, contents=True
        )
        self._say(topic, node, question)
