"""Reader of a topic: start position, progress, and the publications it returns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from skipring.api.cursor import EPOCH, MICROSECOND, Cursor, Start
from skipring.core.batches import BatchRecord, RecordBatch, batch_part, is_reserved
from skipring.core.effects import Deliver, Origin
from skipring.core.log import Log, PageLimits
from skipring.core.peers import NodeId
from skipring.order.gaps import Gap, GapLog
from skipring.order.saved_order import SavedOrder

READ_AT_ONCE: Final = 64  # Guess: after this many batches a reader yields to other tasks.
# Guesses: unread publications up to this limit stay in memory; older ones are read from the log.
# Measured: with a quarter of it, part of a history was read a second time, which was a fourteenth
# of the work of a new member's event loop.
FRESH_MAX: Final = 16384
FRESH_BYTES_MAX: Final = 1 << 22
_ONE: Final = PageLimits(1, 1, 1, 1)  # entry


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
    _batch_id: bytes
    _index: int  # its place in the batch

    @property
    def id(self) -> bytes:
        """Return the 256 bits that identify this publication: of its batch, and its index there."""
        return batch_part(self._batch_id) + self._index.to_bytes(2, "big")

    @property
    def late(self) -> bool:
        """Return True if the reader handed out a later publication of its order before."""
        return False  # without a field: it would cost the order of arrival time and memory


class LatePublication(DeliveredPublication, frozen=True, gc=False):
    """Publication that is not in the order of its reader."""

    @classmethod
    def of(cls, publication: DeliveredPublication) -> LatePublication:
        """Return a publication with the mark."""
        return cls(*[getattr(publication, name) for name in publication.__struct_fields__])

    @property
    def late(self) -> bool:
        """Return True."""
        return True


Publication = DeliveredPublication  # core.publications.Publication is what clients read
Publication.__name__ = Publication.__qualname__ = "Publication"  # as in the documentation


class _ReadableBatch(Struct, frozen=True, gc=False):
    """Batch with its decoded records."""

    start: int  # the offset of the first record
    end: int
    batch: RecordBatch
    records: tuple[BatchRecord, ...]
    hops: int | None
    replayed: bool


def _between(readable: _ReadableBatch, start: int, end: int) -> list[DeliveredPublication]:
    """Return the records between two offsets in the form that the application gets.

    Arguments are positional: this runs for every publication, and keywords would double its cost.
    """
    batch, offset = readable.batch, readable.start
    hops, replayed = readable.hops, readable.replayed
    publisher, seq, key = batch.publisher, batch.first, batch.id
    place = start - offset
    return [
        DeliveredPublication(
            publisher,
            seq + index,
            record.time,
            record.key,
            record.headers,
            record.payload,
            replayed,
            hops,
            offset + index,
            key,
            index,
        )
        for index, record in enumerate(readable.records[place : end - offset], place)
    ]


class Reader:
    """Position in a log that advances as publications are handed out.

    The reader buffers recent batches, because a read from the log costs more. All publications of a
    batch become available at once. The reader keeps only the offsets of skipped publications.
    """

    def __init__(self, log: Log, start: Start, now: int) -> None:
        self._log = log
        self._end = log.end  # after the last publication that arrived
        self._first = log.end  # offset of the first arrival during the subscription
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
        # None until there are some: an empty deque takes 0.7 KiB.
        self._skipped: deque[range] | None = None  # offsets ahead that are skipped
        self._skipped_count = 0
        self._steps = 0  # since the last yield to the loop
        self._fresh: deque[_ReadableBatch] | None = None  # unread ones, in the order of offsets
        self._fresh_count = 0
        self._fresh_bytes = 0
        self._stored: _ReadableBatch | None = None  # read from the log, and partly handed out
        self._waiting: list[asyncio.Future[bool]] = []  # callers that wait for an arrival
        self._is_open = True
        self.expired = 0  # publications that the policy of the topic removed before they were read

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
        log = self._log
        absent = log.count_absent(self._next, self._end) + log.count_trimmed(self._next, self._end)
        return max(self._end - self._next - self._skipped_count - absent, 0)

    @property
    def gaps(self) -> GapLog:
        """Return an empty log: this order has no gaps."""
        return GapLog()

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
        self.wake_up()

    def is_available(self, end: int) -> bool:
        """Return True if there are unread publications before an offset."""
        return self._is_open and self._next < end

    async def next(self, timeout_s: float | None = None) -> DeliveredPublication | None:
        """Wait for the next publication; return None after the timeout or when closed.

        A cancelled caller loses nothing: there is no await between fetching and returning.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while await self.arrival(deadline):
            if found := self._fetch_one():
                return found[0]
        return None

    async def arrival(self, deadline: float | None = None) -> bool:
        """Wait until a publication is ahead; return False after the deadline or when closed."""
        if self._steps >= READ_AT_ONCE:
            self._steps = 0
            await asyncio.sleep(0)
        while self._next >= self._end and self._is_open:
            if not await self.wait(deadline):
                return False
        return self._is_open

    async def wait(self, deadline: float | None = None) -> bool:
        """Wait until ``wake_up`` is called; return False after the deadline."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[bool] = loop.create_future()
        timer = None if deadline is None else loop.call_at(deadline, _resolve, arrived, False)
        self._waiting.append(arrived)
        try:
            return await arrived
        finally:
            if timer is not None:
                timer.cancel()
            if self._waiting and arrived in self._waiting:  # timed out or cancelled
                self._waiting.remove(arrived)

    def wake_up(self) -> None:
        """Wake up every waiting caller; the first that runs gets what arrived."""
        for arrived in self._waiting:
            _resolve(arrived, True)
        self._waiting.clear()

    def _fetch_one(self) -> list[DeliveredPublication]:
        """Return the next publication, as ``fetch`` does, in half the time if it is buffered."""
        if not self._fresh or self._skipped:
            return self.fetch(1)
        start, batch = self._next, self._fresh[0]
        if start < batch.start:
            return self.fetch(1)
        self._steps += 1
        self._next = end = start + 1
        if end == batch.end:
            self._drop_oldest()
        return [] if is_reserved(batch.records) else _between(batch, start, end)

    def fetch(self, limit: int, end: int | None = None) -> list[DeliveredPublication]:
        """Return up to ``limit`` available publications before an offset; skips may leave fewer.

        Read at most READ_AT_ONCE batches from the log.
        """
        found: list[DeliveredPublication] = []
        end = self._end if end is None else end
        reads = 0
        while (start := self._next) < end and limit > 0 and self._is_open:
            self._steps += 1
            if self._skipped and self._skipped[0].start == start:
                self._skipped_count -= len(self._skipped[0])
                self._advance(self._skipped.popleft().stop)
                continue
            fresh = self._fresh[0] if self._fresh else None
            batch = fresh if fresh is not None and fresh.start <= start else self._stored
            if batch is not None:
                some = self._read(batch, start, min(end, start + limit))
                if not is_reserved(batch.records):
                    limit -= len(some)
                    found += some
            elif reads < READ_AT_ONCE:
                reads += 1
                self._read_log()
            else:
                break
        return found

    async def next_item(self, timeout_s: float | None = None) -> DeliveredPublication | None:
        """Wait for the next publication, as ``next`` does: this order has no gaps."""
        return await self.next(timeout_s)

    fetch_items = fetch

    def fetch_batch(self) -> tuple[RecordBatch, list[DeliveredPublication]] | None:
        """Return a batch with its publications that are ahead, or None; the start skips none."""
        while (start := self._next) < self._end and self._is_open:
            fresh = self._fresh[0] if self._fresh else None
            batch = fresh if fresh is not None and fresh.start <= start else self._stored
            if batch is not None:
                return batch.batch, self._read(batch, start, batch.end)
            self._read_log()
        return None

    def position(
        self, limit: int, unread: Sequence[DeliveredPublication | Gap] = ()
    ) -> tuple[int, SavedOrder | None]:
        """Return the offset after the last publication handed out, at most ``limit``.

        The first of the ``unread`` publications, which the caller buffers, is after it.
        """
        found = (each.offset for each in unread if isinstance(each, DeliveredPublication))
        return min(limit, next(found, self._next)), None

    def _read(self, batch: _ReadableBatch, start: int, end: int) -> list[DeliveredPublication]:
        """Return the next publications of a batch, up to an offset or to a skipped one."""
        if self._skipped and self._skipped[0].start < end:
            end = self._skipped[0].start
        if end >= batch.end and self._stored is None:
            self._next = end = batch.end
            self._drop_oldest()
        else:
            end = min(end, batch.end)
            self._advance(end)
        found = _between(batch, start, end)
        if self._since:
            return [each for each in found if each.time >= self._since]
        return found

    def _read_log(self) -> None:
        """Read the batch at the current offset; skip offsets without one up to the next."""
        begin = self._next
        entries, following = self._log.read_page(begin, self._log.end, _ONE)
        for entry in entries:  # at most one
            start, records = entry.offset, entry.batch.readable_records()
            following = start if records else entry.end
            if records:
                is_old = start < self._first
                self._stored = _ReadableBatch(start, entry.end, entry.batch, records, None, is_old)
        # A corrupt batch is skipped: the node discards it, and it arrives again.
        ahead = [self._fresh[0].start] if self._fresh else []
        ahead += [self._skipped[0].start] if self._skipped else []
        self._advance(max(begin, min([following, *ahead])))
        if self._next > begin:
            self.expired += self._log.count_trimmed(begin, self._next)

    def _advance(self, offset: int) -> None:
        """Continue at an offset; drop the batches before it."""
        self._next = offset
        while self._fresh and self._fresh[0].end <= offset:
            self._drop_oldest()
        if self._stored is not None and self._stored.end <= offset:
            self._stored = None

    # -- arrivals ----------------------------------------------------------------------------

    def on_deliver(self, delivery: Deliver) -> None:
        """Buffer batches that arrived, and wake up waiting readers."""
        is_repaired = delivery.origin is Origin.REPAIR
        hops = None if is_repaired else delivery.hops
        self._end, end = delivery.end, delivery.offset
        if self._fresh is None:
            self._fresh = deque()
        for batch, records in zip(delivery.batches, delivery.records, strict=True):
            start, end = end, end + batch.count
            self._fresh.append(_ReadableBatch(start, end, batch, records, hops, False))
            self._fresh_bytes += len(batch.body)
        self._fresh_count += end - delivery.offset
        since = max(self._since, self._history_before) if is_repaired else self._since
        if since:
            self._skip_before(delivery, since)
        if self._fresh_count > FRESH_MAX or self._fresh_bytes > FRESH_BYTES_MAX:
            self._shrink()
        if self._waiting and self._next < end:
            self.wake_up()

    def _shrink(self) -> None:
        """Drop the oldest batches beyond the limits if they are in the log."""
        while (
            (self._fresh_count > FRESH_MAX or self._fresh_bytes > FRESH_BYTES_MAX)
            and self._fresh
            and self._fresh[0].end <= self._log.end
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        assert self._fresh is not None, "there is an unread batch"
        batch = self._fresh.popleft().batch
        self._fresh_count -= batch.count
        self._fresh_bytes -= len(batch.body)

    def end_history(self) -> None:
        """End the history: later arrivals by repair are new publications."""
        self._history_before = 0

    def _skip_before(self, delivery: Deliver, time: int) -> None:
        """Skip the publications of a delivery with an earlier time."""
        offset = delivery.offset
        for batch, records in zip(delivery.batches, delivery.records, strict=True):
            for place, record in enumerate(records, offset):
                if record.time < time:
                    self._skip(place)
            offset += batch.count

    def _skip(self, offset: int) -> None:
        if self._next == offset:
            self._advance(offset + 1)
            return
        self._skipped_count += 1
        if self._skipped is None:
            self._skipped = deque()
        if self._skipped and self._skipped[-1].stop == offset:
            self._skipped[-1] = range(self._skipped[-1].start, offset + 1)
        else:
            self._skipped.append(range(offset, offset + 1))


def stored_publications(
    log: Log, wanted: range
) -> Iterator[tuple[RecordBatch, list[DeliveredPublication]]]:
    """Yield the readable batches of a log with their publications at some offsets."""
    for entry in log.read_range(wanted.start, wanted.stop):
        if records := entry.batch.readable_records():
            batch = _ReadableBatch(entry.offset, entry.end, entry.batch, records, None, True)
            start, end = max(entry.offset, wanted.start), min(entry.end, wanted.stop)
            yield entry.batch, _between(batch, start, end)


def _resolve(arrived: asyncio.Future[bool], is_arrival: bool) -> None:
    """Wake up a caller: publications have arrived or the reader was closed, or it timed out."""
    if not arrived.done():
        arrived.set_result(is_arrival)
