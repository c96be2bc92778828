"""Reader of a topic in an order other than that of arrival (docs/ordering.md).

The order decides when the application gets a publication, and the log decides which: each one is
read from the log once and handed out once, in order or marked as late.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import inf
from typing import Final

from msgspec import Struct

from skipring.api.cursor import EPOCH, MICROSECOND, Cursor, Start
from skipring.api.reader import (
    READ_AT_ONCE,
    DeliveredPublication,
    LatePublication,
    Reader,
    stored_publications,
)
from skipring.core.batches import RESERVED, RecordBatch
from skipring.core.effects import Deliver
from skipring.core.limits import shown
from skipring.core.log import Log
from skipring.errors import InputError
from skipring.order.gaps import HELD, Gap, GapLog, Order, Place, Release, place_of
from skipring.order.publisher_order import PublisherOrder
from skipring.order.saved_order import SavedOrder, runs_of
from skipring.order.time_order import NO_PLACE, TimeOrder

STEPS_PER_WAIT: Final = 4  # Guess: publications are held back a quarter longer than needed.
PUBLISHER_WAIT_TICKS: Final = 8  # Guess: neighbours compare several times within it.
TIME_WAIT_S: Final = 2.0  # Guess; it has to cover the delays of the network and of clocks.

Item = DeliveredPublication | Gap


class OrderPlan(Struct, frozen=True):
    """Order of a reader, and its waits in seconds."""

    order: Order
    wait_s: float  # for missing publications, or for the clock to pass a publication's time
    step_s: float  # between two calls of ``on_tick``
    drops_late: bool = False


def order_plan(order: object, *, wait_s: object, late: object, tick_s: float) -> OrderPlan | None:
    """Return the plan for the arguments of ``subscribe``; None for the order of arrival.

    Raise InputError for an invalid argument.
    """
    try:
        wanted = Order(str(order))
    except ValueError:
        raise InputError(
            f'expected "arrival", "publisher" or "time", got {shown(str(order))}',
            parameter="order",
        ) from None
    if late not in ("mark", "drop"):
        raise InputError(f'expected "mark" or "drop", got {shown(str(late))}', parameter="late")
    if wanted is Order.ARRIVAL:
        if wait_s is not None:
            raise InputError('the order "arrival" does not wait', parameter="wait")
        return None
    default_s = TIME_WAIT_S if wanted is Order.TIME else PUBLISHER_WAIT_TICKS * tick_s
    seconds = default_s if wait_s is None else wait_s
    if not (isinstance(seconds, int | float) and 0 < seconds < inf):
        raise InputError(f"expected a number of seconds above 0, got {wait_s!r}", parameter="wait")
    step_s = min(tick_s, seconds / STEPS_PER_WAIT)
    return OrderPlan(wanted, float(seconds), step_s, drops_late=late == "drop")


class OrderedReader:
    """Reader that hands out the publications of a log in an order."""

    def __init__(self, log: Log, start: Start, plan: OrderPlan, clock_us: int) -> None:
        is_new = start == "new"
        cursor = start if isinstance(start, Cursor) else None
        # Publications that the start skips have a place in the order too.
        begin: Start = cursor or ("new" if is_new else "all")
        self._source = Reader(log, begin, now=0)
        self._log = log
        self._drops_late = plan.drops_late
        saved = cursor.saved if cursor is not None else None
        from_start = not is_new and (cursor is None or cursor.offset == 0)
        if saved is not None:
            from_start = saved.from_start
        is_whole = log.low == 0  # otherwise retention has trimmed the starts of sequences
        self._order = _order(plan, saved, clock_us, from_start=from_start and is_whole)
        self._since = (start - EPOCH) // MICROSECOND if isinstance(start, datetime) else 0
        self._history_before = clock_us if is_new else 0  # skip repaired ones with an earlier time
        self._history_end = inf if is_new else 0  # offset
        self._ready: deque[Item] = deque()
        self._handed_out: deque[tuple[int, Place]] = deque(maxlen=HELD.records_max)
        self._mark_end = self._source.end  # everything before it arrived before the mark
        self._mark: tuple[float, float] = (-inf, -inf)  # its time, and that of confirmations
        self._steps = 0  # since the last yield to the loop
        self.gaps = GapLog()
        for run in saved.pending if saved is not None else ():
            for batch, publications in stored_publications(log, run):
                self._add(batch, publications)

    @property
    def offset(self) -> int:
        """Return the offset after the last publication that was read."""
        return self._source.offset

    @property
    def end(self) -> int:
        """Return the offset after the last publication that arrived."""
        return self._source.end

    @property
    def lag(self) -> int:
        """Return the number of publications that were not handed out."""
        return self._source.lag + self._order.held_records + len(self._ready)

    @property
    def held(self) -> int:
        """Return the number of publications that are held back."""
        return self._order.held_records

    @property
    def expired(self) -> int:
        """Return the number of publications that were removed before they were read."""
        return self._source.expired

    @property
    def is_open(self) -> bool:
        """Return True until the reader is closed."""
        return self._source.is_open

    @property
    def is_waiting(self) -> bool:
        """Return True while missing publications hold others back."""
        return self._order.is_waiting

    def close(self) -> None:
        """Stop handing out publications and wake up waiting readers."""
        self._source.close()

    def is_available(self, end: int) -> bool:
        """Return True if there are publications that are ready, or unread before an offset."""
        return self.is_open and (bool(self._ready) or self._source.offset < end)

    # -- reading -----------------------------------------------------------------------------

    async def next(self, timeout_s: float | None = None) -> DeliveredPublication | None:
        """Wait for the next publication; return None after the timeout or when closed."""
        item = await self.next_item(timeout_s)
        while isinstance(item, Gap):
            item = await self.next_item(timeout_s)
        return item

    async def next_item(self, timeout_s: float | None = None) -> Item | None:
        """Wait for the next publication or gap; return None after the timeout or when closed.

        A cancelled caller loses nothing: there is no await between fetching and returning.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while await self.arrival(deadline):
            if found := self.fetch_items(1):
                return found[0]
        return None

    async def arrival(self, deadline: float | None = None) -> bool:
        """Wait until a publication or a gap is ready; return False at the deadline or if closed."""
        while self.is_open:
            if self._steps >= READ_AT_ONCE:
                self._steps = 0
                await asyncio.sleep(0)
            if self._ready:
                return True
            if not self._read_batch() and not await self._source.wait(deadline):
                return False
        return False

    def fetch(self, limit: int, end: int | None = None) -> list[DeliveredPublication]:
        """Return up to ``limit`` publications that are ready or before an offset."""
        items = self.fetch_items(limit, end)
        return [each for each in items if isinstance(each, DeliveredPublication)]

    def fetch_items(self, limit: int, end: int | None = None) -> list[Item]:
        """Return up to ``limit`` publications and gaps; read at most READ_AT_ONCE batches."""
        found: list[Item] = []
        ready, reads = self._ready, 0
        while len(found) < limit and self.is_open:
            if ready:
                found.append(ready.popleft())
                continue
            is_read = reads < READ_AT_ONCE and (end is None or self._source.offset < end)
            if not (is_read and self._read_batch()):
                break
            reads += 1
        if self._log.is_durable:
            self._record(found)
        return found

    def _read_batch(self) -> bool:
        """Read the next batch; return False if there is none."""
        part = self._source.fetch_batch()
        if part is None:
            return False
        self._steps += 1
        self._add(*part)
        return True

    def _add(self, batch: RecordBatch, publications: list[DeliveredPublication]) -> None:
        first, end = publications[0].seq, publications[-1].seq + 1
        if batch.count == 1 and (publications[0].key or b"").startswith(RESERVED):
            publications = []  # its number has a place in the order
        if self._since or self._history_before:
            publications = [each for each in publications if self._is_wanted(each)]
        if batch.unordered:
            self._ready += publications
        else:
            self._release(self._order.add(batch.publisher, first, end, publications))

    def _is_wanted(self, publication: DeliveredPublication) -> bool:
        is_history = publication.hops is None and publication.offset < self._history_end
        since = max(self._since, self._history_before) if is_history else self._since
        return publication.time >= since

    def _release(self, released: Iterable[Release[DeliveredPublication] | Gap]) -> None:
        """Make publications and gaps ready for the application."""
        for each in released:
            if isinstance(each, Gap):
                self.gaps.record(each)
                self._ready.append(each)
            elif not (each.is_late or each.is_ahead):
                self._ready += each.publications
            else:  # one ahead of the clock is never dropped: the clock may be wrong
                is_dropped = self._drops_late and each.is_late
                self.gaps.record_late(len(each.publications), is_dropped=is_dropped)
                if not is_dropped:
                    self._ready += map(LatePublication.of, each.publications)

    def _record(self, items: Iterable[Item]) -> None:
        """Record places that a crash may undo: their publications are not on the disk yet."""
        durable_end, handed_out = self._log.durable_end, self._handed_out
        while handed_out and handed_out[0][0] < durable_end:
            handed_out.popleft()
        for each in items:
            if isinstance(each, Gap) or each.late:
                continue
            if each.offset >= durable_end:
                handed_out.append((each.offset, place_of(each)))

    # -- arrivals and time -------------------------------------------------------------------

    def on_deliver(self, delivery: Deliver) -> None:
        """Buffer batches that arrived, and wake up waiting readers."""
        self._source.on_deliver(delivery)

    def end_history(self) -> None:
        """End the history: later arrivals by repair are new publications."""
        self._history_end = min(self._history_end, self._source.end)

    def on_tick(
        self,
        now_s: float,
        clock_us: int,
        confirmed_s: float,
        *,
        is_history: bool,
        floor: int = 0,
    ) -> None:
        """Release what is overdue, once everything that arrived before an earlier tick was read.

        The ring neighbours have confirmed at ``confirmed_s`` that they have the same publications.
        Nothing is overdue while the history arrives. The topic retains no publications with a time
        below ``floor``.
        """
        order, source = self._order, self._source
        order.on_time(now_s, clock_us, floor)
        if is_history:
            self._mark_end, self._mark = source.end, (-inf, -inf)
            return
        if source.offset >= source.end:
            self._mark_end, self._mark = source.end, (order.now, confirmed_s)
        if source.offset >= self._mark_end:
            self._release(order.expire(*self._mark))
            self._mark_end, self._mark = source.end, (order.now, confirmed_s)
            if self._ready:
                source.wake_up()

    # -- state -------------------------------------------------------------------------------

    def position(self, limit: int, unread: Sequence[Item] = ()) -> tuple[int, SavedOrder]:
        """Return the offset up to which publications were read, at most ``limit``, and the order.

        The order has those before the offset that the application does not have: they are held
        back, ready, or ``unread`` in a buffer of the caller.
        """
        offset = min(limit, self._source.offset)
        ahead = [*unread, *self._ready]
        found = [each for each in ahead if isinstance(each, DeliveredPublication)]
        places = [place_of(each) for each in found if not each.late]
        places += [place for at, place in self._handed_out if at >= limit]
        pending = [each.offset for each in (*found, *self._order.held()) if each.offset < offset]
        order = self._order
        if isinstance(order, TimeOrder):
            return offset, SavedOrder(runs_of(pending), passed=order.passed(places))
        places += [(0, each.publisher, each.first) for each in ahead if isinstance(each, Gap)]
        following = order.following(places)
        return offset, SavedOrder(
            runs_of(pending), following=following, from_start=order.from_start
        )


def _order(
    plan: OrderPlan, saved: SavedOrder | None, clock_us: int, *, from_start: bool
) -> PublisherOrder[DeliveredPublication] | TimeOrder[DeliveredPublication]:
    """Return the order of a plan, with the state of an earlier run if there is one."""
    if plan.order is Order.TIME:
        passed = saved.passed if saved is not None and saved.passed is not None else NO_PLACE
        return TimeOrder(wait_s=plan.wait_s, clock_us=clock_us, passed=passed)
    return PublisherOrder(
        wait_s=plan.wait_s,
        step_s=plan.step_s,
        from_start=from_start,
        following=saved.following if saved is not None else None,
    )
