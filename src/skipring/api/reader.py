"""Reader of a topic: start position, progress, and the publications it returns."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from msgspec import Struct

from skipring.core.effects import Deliver, Origin
from skipring.core.limits import CHAIN_BYTES, shown
from skipring.core.log import Log
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication as StoredPublication
from skipring.errors import CursorError, InputError
from skipring.storage.store import PublicationStore
from skipring.storage.topic_log import TopicLog

READ_AT_ONCE: Final = 64  # Guess: afterwards a reader yields to other tasks of its loop.
# Guesses: unread publications up to this limit stay in memory; older ones are read from the log.
# Measured: with a quarter of it, part of a history was read and hashed a second time, which was a
# fourteenth of the work of a new member's event loop.
FRESH_MAX: Final = 16384
FRESH_BYTES_MAX: Final = 1 << 22
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

_CURSOR: Final = re.compile(
    r"c2\.(?P<store>[0-9a-f]{1,64})\.(?P<epoch>[0-9]{1,19})\.(?P<offset>[0-9]{1,19})"
    rf"\.(?P<chain>[0-9a-f]{{{2 * CHAIN_BYTES}}})\.(?P<topic>.+)"
)
_CURSOR_OF_ANY_VERSION: Final = re.compile(r"c[0-9]+\.")
_INSTEAD: Final = 'use start="all" and skip the ids that you already have'


class DeliveredPublication(Struct, frozen=True, gc=False):
    """Publication as a reader receives it; its public name is ``skipring.Publication``."""

    publisher: NodeId
    seq: int
    time: int  # microseconds since the epoch at the publisher
    key: bytes | None
    headers: dict[str, str]
    payload: bytes
    replayed: bool  # stored here before the subscription
    hops: int | None  # number of nodes on its path; None if it was stored or arrived by repair
    offset: int  # its place in the log of this node
    _topic: TopicId
    _id: bytes  # empty for a new publication whose id was not needed yet

    @property
    def id(self) -> bytes:
        """Return the 256 bits that identify this publication; they follow from its fields."""
        if self._id:
            return self._id
        return StoredPublication(
            publisher=self.publisher,
            seq=self.seq,
            payload=self.payload,
            time=self.time,
            key=self.key,
            headers=self.headers,
        ).id_in(self._topic)


Publication = DeliveredPublication  # core.publications.Publication is the stored form
Publication.__name__ = Publication.__qualname__ = "Publication"  # as in the documentation


# -- start positions -------------------------------------------------------------------------


class Cursor(Struct, frozen=True):
    """Position in a topic in one data directory; publications before it were handed out.

    The chain value depends on all publications before it and on their order (decision 0043).

    >>> cursor = Cursor("5eed", "orders", 0, 42, bytes(8))
    >>> Cursor.parse(str(cursor)) == cursor
    True
    """

    store: str
    topic: TopicId
    epoch: int
    offset: int
    chain: bytes

    def __str__(self) -> str:
        return f"c2.{self.store}.{self.epoch}.{self.offset}.{self.chain.hex()}.{self.topic}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor of a text; raise CursorError if the text is not a cursor."""
        match = _CURSOR.fullmatch(text)
        if match is None and text.startswith("c1."):
            raise CursorError(
                "the cursor was made by an earlier version, and does not show which publications "
                f"were before it; {_INSTEAD}"
            )
        if match is None:
            raise CursorError(
                f"not a cursor: {shown(text)}; use the unchanged text of subscription.cursor()"
            )
        numbers = int(match["epoch"]), int(match["offset"])
        return cls(match["store"], match["topic"], *numbers, bytes.fromhex(match["chain"]))

    def check(self, store: PublicationStore | None, topic: TopicId) -> None:
        """Raise CursorError if the cursor does not point into the store's log of a topic."""
        if store is None:
            raise CursorError(
                "a cursor points into a data directory, and this node keeps its publications in "
                f"memory; connect with the data_dir it came from, or {_INSTEAD}"
            )
        if self.topic != topic:
            raise CursorError(
                f"the cursor belongs to topic {shown(self.topic)}, not to {shown(topic)}; "
                f"use the cursor of this topic, or {_INSTEAD}"
            )
        if self.store != store.id:
            raise CursorError(
                "the cursor came from another data directory, where publications are in another "
                f"order; connect with that data_dir, or {_INSTEAD}"
            )
        if not self._fits(store.archive(topic)):
            raise CursorError(
                "the data directory was restored from a copy, or has lost publications, since the "
                f"cursor was made; they may come back in another order; {_INSTEAD}"
            )

    def _fits(self, archive: TopicLog) -> bool:
        """Return True if the publications before the cursor are the same as when it was made."""
        if self.offset == 0:  # no publication is before it, in any epoch
            return True
        is_there = self.epoch == archive.epoch and self.offset <= archive.durable_end
        return is_there and archive.chain_at(self.offset) == self.chain


# A text is "all", "new", one of their synonyms, or the text of a cursor.
Start = str | datetime | Cursor
SYNONYMS: Final = {"earliest": "all", "latest": "new"}  # the words of other log systems


def checked_start(start: object) -> Start:
    """Return a valid start, with a cursor's text parsed; raise InputError for any other value.

    A synonym is replaced by its word.
    """
    if isinstance(start, str):
        start = SYNONYMS.get(start, start)
    if isinstance(start, str) and _CURSOR_OF_ANY_VERSION.match(start):
        return Cursor.parse(start)
    if isinstance(start, datetime) and start.utcoffset() is None:
        raise InputError(
            f"{start.isoformat()} has no time zone, so it is ambiguous; "
            "give it one, such as datetime.now(UTC)",
            parameter="start",
        )
    if start in ("all", "new") or isinstance(start, datetime | Cursor):
        return start
    raise InputError(
        'expected "all" or "new" (synonyms: "earliest", "latest"), a datetime with a time zone '
        f"or a cursor, got {shown(str(start))}",
        parameter="start",
    )


# -- reading ---------------------------------------------------------------------------------


class _Fresh(Struct, frozen=True, gc=False):
    """Publications that arrived together."""

    start: int  # the offset of the first
    end: int
    publications: tuple[StoredPublication, ...]
    hops: int | None
    size_bytes: int


class Reader:
    """Position in a log that advances as publications are handed out.

    The reader buffers recent publications, because they may not be in the log yet and a read from
    there costs more. It keeps only the offsets of skipped publications.
    """

    def __init__(self, topic: TopicId, archive: Log, start: Start, now: int) -> None:
        self._topic = topic
        self._archive = archive
        self._end = archive.end  # after the last publication that arrived
        self._first = archive.end  # offset of the first arrival during the subscription
        self._since = 0  # skip publications with an earlier time
        self._history_before = 0  # skip repaired publications with an earlier time
        match start:
            case Cursor(offset=offset):
                self._next = offset  # the offset to read next
            case datetime():
                self._next, self._since = 0, (start - EPOCH) // MICROSECOND
            case "new":
                self._next, self._history_before = self._first, now
            case _:
                self._next = 0
        self._skipped: deque[range] = deque()  # offsets ahead that are skipped
        self._skipped_count = 0
        self._steps = 0  # since the last yield to the loop
        self._fresh: deque[_Fresh] = deque()  # in the order of their offsets, without a gap
        self._fresh_count = 0
        self._fresh_bytes = 0
        self._arrived = asyncio.Event()
        self._is_open = True

    @property
    def offset(self) -> int:
        """Return the offset after the last publication that was handed out or skipped."""
        return self._next

    @property
    def end(self) -> int:
        """Return the offset after the last publication that arrived."""
        return self._end

    @property
    def lag(self) -> int:
        """Return the number of unread publications."""
        return self._end - self._next - self._skipped_count

    @property
    def buffered(self) -> int:
        """Return the number of publications in memory, at most FRESH_MAX once they are stored."""
        return self._fresh_count

    @property
    def is_open(self) -> bool:
        """Return True until the reader is closed."""
        return self._is_open

    def close(self) -> None:
        """Stop handing out publications and wake up waiting readers."""
        self._is_open = False
        self._arrived.set()

    async def next(self, timeout_s: float | None = None) -> DeliveredPublication | None:
        """Wait for the next publication; return None after the timeout or when closed.

        A cancelled caller loses nothing: there is no await between fetching and returning.
        """
        now = asyncio.get_running_loop().time()
        deadline = None if timeout_s is None else now + timeout_s
        while await self.arrival(deadline):
            for publication in self.fetch(1):
                return publication
        return None

    async def arrival(self, deadline: float | None = None) -> bool:
        """Wait until a publication is ahead; return False after the deadline or when closed."""
        if self._steps >= READ_AT_ONCE:
            self._steps = 0
            await asyncio.sleep(0)
        if self._next < self._end or not self._is_open:
            return self._is_open
        if deadline is None:  # the usual case
            await self._more()
            return self._is_open
        try:
            async with asyncio.timeout_at(deadline):
                await self._more()
        except TimeoutError:
            return False
        return self._is_open

    async def _more(self) -> None:
        while self._next >= self._end and self._is_open:
            self._arrived.clear()
            await self._arrived.wait()

    def fetch(self, limit: int, end: int | None = None) -> list[DeliveredPublication]:
        """Return up to ``limit`` available publications before an offset; skips may leave fewer."""
        found: list[DeliveredPublication] = []
        end = self._end if end is None else end
        for _ in range(READ_AT_ONCE):
            if len(found) >= limit or self._next >= end or not self._is_open:
                break
            found += self._step(min(end, self._next + limit - len(found)))
        return found

    def _step(self, end: int) -> list[DeliveredPublication]:
        """Advance at most to an offset; return publications that are wanted and readable."""
        offset = self._next
        self._steps += 1
        if self._skipped and self._skipped[0].start == offset:
            self._next = self._skipped[0].stop
            self._skipped_count -= len(self._skipped.popleft())
            return []
        fresh = self._fresh_at(offset)
        if fresh is not None:
            return self._read_fresh(fresh, end)
        self._next += 1
        stored = self._archive.read(offset)
        if stored is None or stored.time < self._since:  # None: corrupt, and will arrive again
            return []
        return self._as_read((stored,), offset, None, replayed=offset < self._first)

    def _fresh_at(self, offset: int) -> _Fresh | None:
        """Return the buffered batch that contains an offset, or None."""
        fresh = self._fresh
        while fresh and fresh[0].end <= offset:
            self._drop_oldest()
        return fresh[0] if fresh and fresh[0].start <= offset else None

    def _read_fresh(self, fresh: _Fresh, end: int) -> list[DeliveredPublication]:
        """Return buffered publications from the current offset up to the next skipped one."""
        if self._skipped:
            end = min(end, self._skipped[0].start)
        offset, hops = self._next, fresh.hops
        some = fresh.publications[offset - fresh.start : end - fresh.start]
        self._next += len(some)
        return self._as_read(some, offset, hops, replayed=False)

    def _as_read(
        self,
        some: tuple[StoredPublication, ...],
        start: int,
        hops: int | None,
        *,
        replayed: bool,
    ) -> list[DeliveredPublication]:
        """Convert publications, starting at an offset, to the type that the application gets.

        Arguments are positional: this runs for every publication, and keywords would double its
        cost.
        """
        topic = self._topic
        return [
            DeliveredPublication(
                p.publisher,
                p.seq,
                p.time,
                p.key,
                p.headers,
                p.payload or b"",
                replayed,
                hops,
                offset,
                topic,
                p.id,
            )
            for offset, p in enumerate(some, start)
        ]

    # -- arrivals ----------------------------------------------------------------------------

    def on_deliver(self, delivery: Deliver) -> None:
        """Buffer publications that arrived, and wake up a waiting reader."""
        is_repaired = delivery.origin is Origin.REPAIR
        publications, start = delivery.publications, delivery.offset
        self._end = end = start + len(publications)
        hops = None if is_repaired else delivery.hops
        size_bytes = delivery.size_bytes or sum(each.size_bytes for each in publications)
        self._keep(_Fresh(start, end, publications, hops, size_bytes))
        wanted_since = max(self._since, self._history_before if is_repaired else 0)
        if wanted_since:
            for offset, publication in enumerate(publications, start):
                if publication.time < wanted_since:
                    self._skip(offset)
        if self._next < end:
            self._arrived.set()

    def _keep(self, fresh: _Fresh) -> None:
        """Buffer a batch; drop the oldest batches beyond the limits if they are in the log."""
        self._fresh.append(fresh)
        self._fresh_count += len(fresh.publications)
        self._fresh_bytes += fresh.size_bytes
        while (
            self._fresh_count > FRESH_MAX or self._fresh_bytes > FRESH_BYTES_MAX
        ) and self._fresh[0].end <= self._archive.end:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        gone = self._fresh.popleft()
        self._fresh_count -= len(gone.publications)
        self._fresh_bytes -= gone.size_bytes

    def end_history(self) -> None:
        """End the history: later arrivals by repair are new publications."""
        self._history_before = 0

    def _skip(self, offset: int) -> None:
        if self._next == offset:
            self._next += 1
            return
        self._skipped_count += 1
        if self._skipped and self._skipped[-1].stop == offset:
            self._skipped[-1] = range(self._skipped[-1].start, offset + 1)
        else:
            self._skipped.append(range(offset, offset + 1))
