"""Pages of a log: its extent, and stored batches under a prefix.

The work for one page is bounded: by the batches and bytes that it contains, and by those that the
member scans for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from skipring.core.batches import RecordBatch, matching
from skipring.core.limits import STORED_MAX
from skipring.core.log import EVERY, EntryFilter, Log, PageLimits
from skipring.core.log_messages import (
    ANOTHER_STORE,
    BEHIND,
    DEPARTED,
    FetchLog,
    FetchRecords,
    GetLogInfo,
    LogInfo,
    LogPage,
    RecordFilter,
    Refused,
)
from skipring.core.prefix import Prefix
from skipring.core.replica import Replica
from skipring.core.retention.departed import Departed
from skipring.core.retention.retained import NOTHING_HIDDEN

# Guesses: large pages are read fastest; one more batch of maximal size still fits into the frame.
# A scan of either size takes less than 20 ms.
CONTENT_PAGE: Final = PageLimits(352 * 1024, 2048, 4 << 20, 1 << 14)
LISTING_PAGE: Final = PageLimits(4 << 20, min(4096, STORED_MAX), 4 << 20, 1 << 14)
DEPARTED_MAX: Final = 2048  # dropped batches that one page passes. Guess: less than 5 ms.
# Guess: one read of a search for records. Measured: it takes at most 8 ms with a filter on keys.
READ_PAGE: Final = PageLimits(CONTENT_PAGE.bytes_max, 512, 512 * 1024, 1 << 11)
BYTE_BITS: Final = 8
ANY_RECORD: Final = RecordFilter()
Selection: TypeAlias = Callable[[RecordBatch], RecordBatch | None]


def departed_of(replica: Replica) -> Departed | None:
    """Return the batches that were dropped while clients read; None without a policy."""
    return replica.retention.departed if replica.retention is not None else None


def hidden_of(replica: Replica, question: FetchLog | FetchRecords) -> Mapping[bytes, int]:
    """Return the offsets of the batches that a page omits because no digest contains them."""
    if not question.indexed or replica.retention is None:
        return NOTHING_HIDDEN
    return replica.retention.quarantine.hidden


def answer(replica: Replica, question: GetLogInfo | FetchLog) -> LogInfo | LogPage | Refused:
    """Return the response of a member to a request for its log."""
    log = replica.log
    if isinstance(question, GetLogInfo):
        if question.bits is not None and replica.has_index_backlog:
            return Refused(question.request, BEHIND)
        return _log_info(replica, log, question)
    if question.store and (question.store, question.epoch) != (log.store, log.epoch):
        return Refused(question.request, ANOTHER_STORE)
    return log_page(log, question, departed_of(replica), hidden_of(replica, question))


def _log_info(replica: Replica, log: Log, question: GetLogInfo) -> LogInfo:
    """Return the extent of a log and, if requested, the digests of its prefixes."""
    durable_end = log.durable_end  # read once: a commit may end in between
    offset = durable_end if question.offset is None else question.offset
    digests: tuple[bytes, ...] = ()
    departed = departed_of(replica)
    if question.bits is not None:
        if departed is not None:
            departed.expect_reads()
        trie = replica.index()
        prefixes = (Prefix(question.bits, value) for value in range(1 << question.bits))
        digests = tuple(trie.digest(prefix) for prefix in prefixes)
    return LogInfo(
        request=question.request,
        store=log.store,
        epoch=log.epoch,
        durable_end=durable_end,
        end=log.end,
        count=replica.count,
        digests=digests,
        chain=log.chain_at(offset) if offset <= durable_end else b"",
        terms=replica.terms,
        low=log.low,
        policy=replica.retention.policy if replica.retention is not None else None,
        departed=departed.count if departed is not None else 0,
    )


def log_page(
    log: Log,
    question: FetchLog,
    departed: Departed | None = None,
    hidden: Mapping[bytes, int] = NOTHING_HIDDEN,
) -> LogPage | Refused:
    """Return the batches between two offsets under a prefix, up to the size of a page.

    It omits batches that no reader accepts; the scrub quarantines them (T12).
    """
    end = min(question.end, log.end)
    limits = CONTENT_PAGE if question.contents else LISTING_PAGE
    if question.departed is not None:
        return _departed_page(departed, question, _entry_filter(question), _listing(question))
    page = log.read_page(question.start, end, limits, _entry_filter(question))
    found = [
        entry
        for entry in page.entries
        if entry.batch.is_acceptable and hidden.get(entry.batch.id) != entry.offset
    ]
    return LogPage(
        request=question.request,
        next=page.next if page.next < end else None,
        offsets=tuple([entry.offset for entry in found]),
        batches=tuple(
            [e.batch if question.contents else replace(e.batch, body=b"") for e in found]
        ),
    )


def _listing(question: FetchLog) -> Selection:
    """Return a function from a batch to its requested form; to None if no reader accepts it."""

    def selected(batch: RecordBatch) -> RecordBatch | None:
        if not batch.is_acceptable:
            return None
        return batch if question.contents else replace(batch, body=b"")

    return selected


def _departed_page(
    departed: Departed | None,
    question: FetchLog | FetchRecords,
    wanted: EntryFilter,
    selected: Selection,
    is_spent: Callable[[], bool] = lambda: False,
) -> LogPage | Refused:
    """Return the wanted batches that were dropped after a number of others, in this order.

    ``next`` is the number to continue after: no index knows which of them are wanted.
    """
    kept = departed.since(question.departed or 0) if departed is not None else None
    if departed is None or kept is None:
        return Refused(question.request, DEPARTED)
    found: list[tuple[int, RecordBatch]] = []
    size, following = 0, None
    for passed, (number, entry) in enumerate(kept, start=1):
        is_inside = entry.end > question.start and entry.offset < question.end
        if is_inside and wanted.includes(entry.batch):
            batch = selected(entry.batch)
            if batch is not None:
                found.append((entry.offset, batch))
                size += batch.size_bytes
        if size >= CONTENT_PAGE.bytes_max or passed >= DEPARTED_MAX or is_spent():
            following = number if number < departed.count else None
            break
    return _page_of(question, found, following)


def record_page(
    log: Log,
    question: FetchRecords,
    is_spent: Callable[[], bool],
    departed: Departed | None = None,
    hidden: Mapping[bytes, int] = NOTHING_HIDDEN,
) -> LogPage | Refused:
    """Return the batches with wanted records between two offsets, up to the size of a page.

    A page scans at most as much as one of FetchLog, and ends at the first read after ``is_spent``
    returns True: no index knows how many batches a filter excludes.
    """
    if question.store and (question.store, question.epoch) != (log.store, log.epoch):
        return Refused(question.request, ANOTHER_STORE)
    start, end = question.start, min(question.end, log.end)
    wanted, selected = _entry_filter(question, question.where), _selection(question)
    if question.departed is not None:
        return _departed_page(departed, question, wanted, selected, is_spent)
    found: list[tuple[int, RecordBatch]] = []
    size = scanned = scanned_bytes = 0
    while start < end:
        limits = READ_PAGE._replace(
            bytes_max=min(READ_PAGE.bytes_max, CONTENT_PAGE.bytes_max - size),
            entries_max=min(READ_PAGE.entries_max, CONTENT_PAGE.entries_max - len(found)),
        )
        entries, start = log.read_page(start, end, limits, wanted)
        scanned += len(entries)
        for entry in entries:
            scanned_bytes += entry.batch.size_bytes
            is_hidden = hidden.get(entry.batch.id) == entry.offset
            if not is_hidden and (batch := selected(entry.batch)) is not None:
                found.append((entry.offset, batch))
                size += batch.size_bytes
        if _is_full(size, len(found), scanned, scanned_bytes) or is_spent():
            break
    return _page_of(question, found, start if start < end else None)


def _is_full(size: int, count: int, scanned: int, scanned_bytes: int) -> bool:
    """Return True if a page has reached a limit of its content or of its work."""
    is_large = size >= CONTENT_PAGE.bytes_max or count >= CONTENT_PAGE.entries_max
    is_long = scanned >= LISTING_PAGE.entries_max or scanned_bytes >= LISTING_PAGE.scanned_bytes_max
    return is_large or is_long


def _page_of(
    question: FetchLog | FetchRecords, found: list[tuple[int, RecordBatch]], following: int | None
) -> LogPage:
    return LogPage(
        request=question.request,
        next=following,
        offsets=tuple([offset for offset, _ in found]),
        batches=tuple([batch for _, batch in found]),
    )


def _selection(question: FetchRecords) -> Selection:
    """Return a function from a batch to its requested form; to None without a wanted record."""
    where, payloads = question.where, question.payloads
    includes = where.record_test()

    def selected(batch: RecordBatch) -> RecordBatch | None:
        if not batch.is_acceptable or not where.includes(batch):
            return None
        if payloads and includes is None:
            return batch
        return matching(batch, includes, payloads=payloads)

    return selected


def _entry_filter(
    question: FetchLog | FetchRecords, where: RecordFilter = ANY_RECORD
) -> EntryFilter:
    """Return what the index of a log may know about the requested batches.

    Under an invalid prefix all first bytes are above 255.
    """
    if not question.bits and not question.prefix and where == ANY_RECORD:
        return EVERY
    width = 1 << (BYTE_BITS - question.bits)
    first, stop = question.prefix * width, (question.prefix + 1) * width
    if isinstance(question, FetchLog) and question.by_publisher:
        return EntryFilter(tags=range(first, stop))
    if where.id_start:
        first, stop = max(first, where.id_start[0]), min(stop, where.id_start[0] + 1)
    return EntryFilter(
        range(first, max(first, stop)),
        publishers=None if where.publishers is None else frozenset(where.publishers),
        times=None if where.times is None else range(where.times[0], where.times[1] + 1),
    )
