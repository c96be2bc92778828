"""Backfill of a new member: large pages from several neighbours, each of other prefixes.

Anti-entropy finds every missing publication, but if nearly all are missing there is nothing to
compare. A node that has joined a topic asks its neighbours for the size of their logs. If a log is
much larger than its own, it reads the log in pages. It replaces a source that does not answer or
that is too slow (``core/backfill.py``). Anti-entropy supplies the publications that are new or that
the backfill has missed.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from itertools import compress, count
from typing import Final

from msgspec import Struct

from skipring.core.backfill import READ_TICKS_MAX, PageRead, SourceProgress
from skipring.core.events import HistoryRead
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import ID_BYTES, Encoded, Publication
from skipring.core.subscriber import Subscriber
from skipring.core.trie import OFFSET_MAX
from skipring.errors import MessageError
from skipring.storage.record import UNREADABLE, decoded_page, rows_of_page
from skipring.wire.codec import check_publications
from skipring.wire.limits import RECORD_BYTES_MAX
from skipring.wire.rpc import FetchLog, GetLogInfo, LogInfo, LogPage, Refused, RuntimeMessage

SOURCES_MAX: Final = 4  # Guess: more sources do not fill a link faster.
HISTORY_MIN: Final = 2048  # Guess: anti-entropy transfers fewer publications as quickly.
SHARE: Final = 2  # A node with less than 1/SHARE of a log needs a backfill.

PAGES_MAX: Final = 1 << 16  # Limit for one neighbour: some gigabytes.

SendRequest = Callable[[TopicId, NodeId, RuntimeMessage], None]
OnHistory = Callable[[TopicId, HistoryRead], None]


class _Source(Struct):
    """Neighbour that serves pages: the size of its log, and the open request to it."""

    request: int
    survey: LogInfo | None = None  # None until the first response
    prefix: int | None = None  # prefix that this source reads
    start: int = 0  # offset of the next page
    is_held: bool = False  # the next page is not requested yet
    progress: SourceProgress = SourceProgress()
    pages: int = 0

    @property
    def is_asked(self) -> bool:
        """Return True while a response is outstanding."""
        return self.survey is None or (self.prefix is not None and not self.is_held)


class _History(Struct):
    """Backfill of one topic."""

    sources: dict[NodeId, _Source]
    prefixes: deque[int]  # not assigned to a source
    bits: int = 0  # length of the prefixes
    is_reading: bool = False
    held: int = 0  # publications of an earlier run
    ticks: int = 0  # since the start


class BackfillClient:
    """Backfills of one node, at most one for each topic."""

    def __init__(
        self,
        send: SendRequest,
        on_history: OnHistory,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._send = send
        self._on_history = on_history
        self._has_room = has_room  # False while the disk cannot keep up
        self._requests = count(1)
        # Topics without a request yet, each with its number of publications of an earlier run.
        self._expected: dict[TopicId, int] = {}
        self._histories: dict[TopicId, _History] = {}

    def on_joined(self, topic: TopicId, held: int = 0) -> None:
        """Expect a backfill of a new topic; ``held`` counts the publications of earlier runs."""
        self._expected[topic] = held

    def is_reading(self, topic: TopicId) -> bool:
        """Return True during the backfill of a topic."""
        return topic in self._histories

    def is_awaited(self, topic: TopicId) -> bool:
        """Return True while anti-entropy should wait for the backfill (READ_TICKS_MAX ticks)."""
        history = self._histories.get(topic)
        return history is not None and history.ticks < READ_TICKS_MAX

    def is_first(self, topic: TopicId) -> bool:
        """Return True during a backfill of a node without publications of an earlier run."""
        return topic in self._histories and not self._histories[topic].held

    def forget(self, topic: TopicId) -> None:
        """Drop the backfill of a topic that the node has left."""
        self._expected.pop(topic, None)
        self._histories.pop(topic, None)

    def maybe_start(self, topic: TopicId, machine: Subscriber | None) -> None:
        """Start an expected backfill as soon as the node has neighbours."""
        if topic not in self._expected or machine is None or machine.label is None:
            return
        neighbours = machine.neighbours()[:SOURCES_MAX]
        if neighbours:
            held = self._expected.pop(topic)
            sources = {node: _Source(next(self._requests)) for node in neighbours}
            self._histories[topic] = _History(sources, deque(), held=held)
            # Otherwise anti-entropy would transfer the same publications.
            self._on_history(topic, HistoryRead((), is_awaited=True))
            for node, source in sources.items():
                self._send(topic, node, GetLogInfo(source.request, None, None))

    def on_tick(self, topic: TopicId, machine: Subscriber | None) -> None:
        """Replace sources that do not respond or are too slow."""
        self.maybe_start(topic, machine)
        history = self._histories.get(topic)
        if history is None or machine is None:
            return
        history.ticks += 1
        for node, source in list(history.sources.items()):
            if source.is_asked:
                source.progress = source.progress.after_tick()
            if source.progress.is_too_slow:
                self._give_up(history, node)
        self._advance(topic, history, machine)

    def on_answer(
        self,
        sender: NodeId,
        topic: TopicId,
        message: LogInfo | LogPage | Refused,
        machine: Subscriber | None,
    ) -> None:
        """Handle the response of a source; ignore responses to other requests."""
        history = self._histories.get(topic)
        source = history.sources.get(sender) if history is not None else None
        if history is None or source is None or source.request != message.request:
            return
        if isinstance(message, LogInfo) and source.survey is None:
            source.survey, source.progress = message, SourceProgress()
        elif isinstance(message, LogPage) and source.survey is not None and source.is_asked:
            self._on_page(sender, topic, history, message, machine)
        else:
            self._give_up(history, sender)
        if machine is not None:
            self._advance(topic, history, machine)

    def _give_up(self, history: _History, node: NodeId) -> None:
        """Remove a source; another source reads its prefix."""
        source = history.sources.pop(node)
        if source.prefix is not None:
            history.prefixes.append(source.prefix)

    def _on_page(
        self,
        node: NodeId,
        topic: TopicId,
        history: _History,
        page: LogPage,
        machine: Subscriber | None,
    ) -> None:
        source = history.sources[node]
        assert source.survey is not None
        part = part_of(page)
        source.pages += 1
        is_onward = page.next is None or source.start < page.next <= source.survey.end
        if part is None or not is_onward or source.pages > PAGES_MAX:
            self._give_up(history, node)
            return
        if page.next is None:
            source.prefix, source.progress = None, SourceProgress()
        else:  # requested at once: the source prepares it while this node reads the current page
            source.start, source.is_held = page.next, True
            self._ask(topic, history, node)
        if part.publications:
            before = machine.count if machine is not None else 0
            self._on_history(topic, part)
            held = machine.count if machine is not None else 0
            read = PageRead(len(page.publications), len(part.publications), held - before)
            source.progress = source.progress.after_page(read, held, source.survey.count)

    def _advance(self, topic: TopicId, history: _History, machine: Subscriber) -> None:
        """Assign prefixes to idle sources; end the backfill when no prefix remains."""
        if not history.is_reading:
            if any(source.survey is None for source in history.sources.values()):
                return  # the size of a log is not known yet
            _choose(history, machine.count)
        for node, source in history.sources.items():
            if source.prefix is None and history.prefixes:
                source.prefix, source.start = history.prefixes.popleft(), 0
                source.is_held = True
            self._ask(topic, history, node)
        if all(source.prefix is None for source in history.sources.values()):
            del self._histories[topic]
            self._on_history(topic, HistoryRead(()))

    def _ask(self, topic: TopicId, history: _History, node: NodeId) -> None:
        """Request the next page of a source, if none is outstanding and the disk keeps up."""
        source = history.sources[node]
        survey, prefix = source.survey, source.prefix
        if survey is None or prefix is None or not source.is_held or not self._has_room():
            return
        source.request, source.is_held = next(self._requests), False
        end = min(survey.end, OFFSET_MAX)
        self._send(
            topic,
            node,
            FetchLog(
                source.request,
                survey.store,
                survey.epoch,
                source.start,
                end,
                history.bits,
                prefix,
                contents=True,
            ),
        )


def _choose(history: _History, held: int) -> None:
    """Keep the sources with a much larger log, and split the prefixes among them."""
    counts = {
        node: source.survey.count
        for node, source in history.sources.items()
        if source.survey is not None
    }
    # The second largest count: a single source with a false count excludes no other source.
    usual = sorted(counts.values())[-2:][:1]
    for node, number in counts.items():
        is_less = any(SHARE * number < each for each in usual)
        if number - held < HISTORY_MIN or SHARE * held > number or is_less:
            del history.sources[node]
    # Few prefixes: a source scans its whole log for each prefix.
    history.bits = max(len(history.sources) - 1, 0).bit_length()
    if history.sources:
        history.prefixes.extend(range(1 << history.bits))
    history.is_reading = True


def _decoded(page: bytes) -> list[Publication]:
    """Decode the publications of a page, with the garbage collector disabled.

    Measured: decoding creates thousands of objects that all stay alive; collections during it took
    5 % of the time of a backfill.
    """
    is_collected = gc.isenabled()
    gc.disable()
    try:
        return decoded_page(page)
    finally:
        if is_collected:
            gc.enable()


def part_of(page: LogPage) -> HistoryRead | None:
    """Return the publications of a page with their stored ids, or None for an invalid page.

    Rows that no member accepts are omitted.
    """
    try:
        publications = _decoded(page.publications)
        # A second pass over the same bytes is the only reliable way to find the end of each row.
        sizes = list(map(len, rows_of_page(page.publications)))
        rows = memoryview(page.publications)[len(page.publications) - sum(sizes) :]
        part = HistoryRead(tuple(publications), page.ids, Encoded(rows, sizes))
        if len(page.ids) != ID_BYTES * len(publications):
            return None
        if not _is_acceptable(part.publications, sizes):
            part = _readable(part, sizes)
            check_publications(part.publications)
    except MessageError:
        return None
    return part


def _is_acceptable(publications: tuple[Publication, ...], sizes: list[int]) -> bool:
    """Return True if a member accepts all rows of a page, which is the usual case."""
    try:
        check_publications(publications)
    except MessageError:
        return False
    return max(sizes, default=0) <= RECORD_BYTES_MAX


def _readable(part: HistoryRead, sizes: list[int]) -> HistoryRead:
    """Return the part without rows that are unreadable or too long."""
    assert part.encoded is not None, "a page has rows"
    pairs = zip(part.publications, sizes, strict=True)
    chosen = [each is not UNREADABLE and size <= RECORD_BYTES_MAX for each, size in pairs]
    ids = (part.ids[at : at + ID_BYTES] for at in range(0, len(part.ids), ID_BYTES))
    return HistoryRead(
        tuple(compress(part.publications, chosen)),
        b"".join(compress(ids, chosen)),
        part.encoded.chosen(chosen),
    )
