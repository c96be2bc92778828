"""Server for clients that read a log without joining: log info and pages of stored records.

Records leave as they are stored, so a page costs little. Each response costs a bounded amount of
work and fits into its frame.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from skipring.core.log import Log
from skipring.core.peers import TopicId
from skipring.core.prefix import Prefix
from skipring.core.publications import Publication
from skipring.core.subscriber import Subscriber
from skipring.core.trie import PublicationTrie
from skipring.net.work_budget import Spent, never_spent
from skipring.node.status_server import NOT_A_MEMBER
from skipring.storage.delivery_log import DeliveryLog, DeliveryRows
from skipring.storage.record import EncodedRecords, encoded
from skipring.storage.topic_log import Stored, TopicLog
from skipring.wire.limits import RECORD_BYTES_MAX, STORED_BYTES_MAX, STORED_MAX
from skipring.wire.rpc import (
    ANOTHER_STORE,
    DeliveryPage,
    FetchDeliveries,
    FetchLog,
    GetLogInfo,
    LogInfo,
    LogPage,
    Refused,
)

# Guess: large pages are read fastest; one more record of maximal size still fits into the frame.
PAGE_BYTES: Final = 384 * 1024
PAGE_ROWS_MAX: Final = 2048  # with contents; this many offsets and ids leave room in the frame
SCANNED_BYTES_MAX: Final = 4 << 20  # Guess: a scan of this size takes some milliseconds.
DELIVERIES_MAX: Final = 4096  # Measured: four times as many took 35 ms of the loop.
MEMORY_SEGMENT: Final = 1024  # publications of a log in memory, which has no segments of its own
BYTE_BITS: Final = 8
ANY_BYTE: Final = range(1 << BYTE_BITS)
ARRAY_HEAD: Final = b"\xdd"  # of MessagePack: an array with a length of four bytes

Question = GetLogInfo | FetchLog
Piece = bytes | memoryview  # of one publication or many


def handle_log_request(
    store: str, machine: Subscriber | None, question: Question, is_spent: Spent = never_spent
) -> LogInfo | LogPage | Refused:
    """Return the response to a log request; a node outside the topic refuses."""
    if machine is None:
        return Refused(question.request, NOT_A_MEMBER)
    match question:
        case GetLogInfo():
            return log_info(store, machine, question)
        case FetchLog():
            if (question.store, question.epoch) != _place(store, machine.archive):
                return Refused(question.request, ANOTHER_STORE)
            return stored_page(machine.archive, question, is_spent)


def log_info(store: str, machine: Subscriber, question: GetLogInfo) -> LogInfo:
    """Return the ends of a log and, if requested, the digests of its prefixes."""
    archive = machine.archive
    name, epoch = _place(store, archive)
    durable_end, chain = 0, b""
    if isinstance(archive, TopicLog):
        durable_end = archive.durable_end  # read once: a commit may end in between
        offset = durable_end if question.offset is None else question.offset
        chain = archive.chain_at(offset) if offset <= durable_end else b""
    return LogInfo(
        request=question.request,
        store=name,
        epoch=epoch,
        durable_end=durable_end,
        end=archive.end,
        count=machine.count,
        digests=() if question.bits is None else tuple(_digests(machine.index(), question.bits)),
        chain=chain,
    )


def _place(store: str, archive: Log) -> tuple[str, int]:
    """Return the store and epoch that the offsets of a log belong to; none for a log in memory."""
    return (store, archive.epoch) if isinstance(archive, TopicLog) else ("", 0)


def _digests(trie: PublicationTrie, bits: int) -> Iterator[bytes]:
    return (trie.digest(Prefix(bits, value)) for value in range(1 << bits))


def stored_page(archive: Log, question: FetchLog, is_spent: Spent = never_spent) -> LogPage:
    """Return the records between two offsets under a prefix, up to the size of a page.

    A scan ends early once its time is spent; ``next`` of the page is the offset to continue from.
    """
    end = min(question.end, archive.end)
    return _whole_page(archive, question, end) or _chosen_page(archive, question, end, is_spent)


def _whole_page(archive: Log, question: FetchLog, end: int) -> LogPage | None:
    """Return all records of a store from an offset on; None if some are damaged or not wanted.

    The page consists of few ranges of bytes; single records are not located.
    """
    is_all = question.contents and _firsts(question) == ANY_BYTE
    if not is_all or not isinstance(archive, TopicLog):
        return None
    start = question.start
    parts = archive.contiguous_ranges(start, end, PAGE_ROWS_MAX, PAGE_BYTES)
    if sum(len(part.data) for part in parts) + len(ARRAY_HEAD) + 4 > STORED_BYTES_MAX:
        return None  # a row exceeds the largest size that readers accept
    reached = start + sum(part.length for part in parts)
    ids, data = [part.ids for part in parts], [part.data for part in parts]
    return _page(question, range(start, reached), ids, data, (reached, end)) if parts else None


def _chosen_page(archive: Log, question: FetchLog, end: int, is_spent: Spent) -> LogPage:
    """Return the records under a prefix, chosen one by one."""
    rows_max, bytes_max = (
        (PAGE_ROWS_MAX, PAGE_BYTES) if question.contents else (STORED_MAX, math.inf)
    )
    rows = EncodedRecords([], [], [])
    size = scanned = 0
    # A reader of a prefix verifies the content by the digest of the prefix. Verifying whole
    # segments here, of which only a part is sent, would cost more than the rest of the request.
    is_checked = question.bits == 0 or not question.contents
    segments = _segments(
        archive,
        question.start,
        end,
        _firsts(question),
        count_max=rows_max,
        is_checked=is_checked,
    )
    for segment in segments:
        found, room = segment.rows, rows_max - len(rows.ids)
        found_bytes = sum(map(len, found.data))
        if found_bytes > RECORD_BYTES_MAX:
            found = _servable(found)
            found_bytes = sum(map(len, found.data))
        size_before, size = size, size + found_bytes
        if size >= bytes_max:
            sizes = list(accumulate(map(len, found.data), initial=size_before))
            room = min(room, bisect_left(sizes, bytes_max, lo=1))
        rows.offsets.extend(found.offsets[:room])
        rows.ids.extend(found.ids[:room])
        rows.data.extend(found.data[:room])
        if room <= len(found.ids):
            return _page(question, *rows, (rows.offsets[-1] + 1, end))
        scanned += segment.size_bytes
        if scanned >= SCANNED_BYTES_MAX or is_spent():
            return _page(question, *rows, (segment.end, end))
    return _page(question, *rows, (end, end))


def _servable(rows: EncodedRecords) -> EncodedRecords:
    """Return the rows that readers accept; the scrub quarantines the others (T12)."""
    return rows.chosen(len(data) <= RECORD_BYTES_MAX for data in rows.data)


def _page(
    question: FetchLog,
    offsets: Sequence[int],
    ids: Iterable[Piece],
    data: Iterable[Piece],
    place: tuple[int, int],  # end of this page, and end of the requested range
) -> LogPage:
    reached, end = place
    head = ARRAY_HEAD + len(offsets).to_bytes(4, "big")
    return LogPage(
        request=question.request,
        next=reached if reached < end else None,
        offsets=tuple(offsets),
        ids=b"".join(ids),
        publications=b"".join((head, *data)) if question.contents else b"",
    )


def _firsts(question: FetchLog) -> range:
    """Return the first bytes of ids under a prefix; outside 0 to 255 for an invalid prefix."""
    width = 1 << (BYTE_BITS - question.bits)
    return range(question.prefix * width, (question.prefix + 1) * width)


def _segments(
    archive: Log,
    start: int,
    end: int,
    firsts: range,
    *,
    count_max: int | None = None,
    is_checked: bool = True,
) -> Iterator[Stored]:
    if isinstance(archive, TopicLog):
        yield from archive.stored(start, end, firsts, count_max=count_max, is_checked=is_checked)
        return
    while start < end:
        segment = _segment_in_memory(archive, start, end, firsts)
        yield segment
        start = segment.end


def _segment_in_memory(archive: Log, start: int, end: int, firsts: range) -> Stored:
    """Return publications of a log in memory as one segment, limited in number and size."""
    found: list[Publication | None] = []
    size = 0
    for offset in range(start, min(end, start + MEMORY_SEGMENT)):
        publication = archive.read(offset)
        found.append(publication)
        size += publication.size_bytes if publication is not None else 0
        if size >= SCANNED_BYTES_MAX:
            break
    return Stored(start + len(found), size, _rows_in_memory(start, found, firsts))


def _rows_in_memory(start: int, found: list[Publication | None], firsts: range) -> EncodedRecords:
    some = [
        (offset, publication)
        for offset, publication in enumerate(found, start)
        if publication is not None and publication.id[0] in firsts
    ]
    return EncodedRecords(
        [offset for offset, _ in some],
        [publication.id for _, publication in some],
        [encoded(publication) for _, publication in some],
    )


# -- deliveries --------------------------------------------------------------------------------


def handle_deliveries_request(
    trace: DeliveryLog,
    topic: TopicId,
    machine: Subscriber | None,
    question: FetchDeliveries,
    is_spent: Spent = never_spent,
) -> DeliveryPage | Refused:
    """Return a page of the delivery log; a node outside the topic refuses."""
    if machine is None:
        return Refused(question.request, NOT_A_MEMBER)
    return delivery_page(trace, topic, machine.archive, question, is_spent)


def delivery_page(
    trace: DeliveryLog,
    topic: TopicId,
    archive: Log,
    question: FetchDeliveries,
    is_spent: Spent = never_spent,
) -> DeliveryPage:
    """Return the recorded deliveries between two offsets, up to the size of a page.

    With a disk, only durable offsets are returned: a crash never revokes a returned offset.
    """
    kept_end = archive.durable_end if isinstance(archive, TopicLog) else archive.end
    end = min(question.end, kept_end, trace.end(topic))
    page = _DeliveryColumns()
    scanned = inspected = 0
    for known in trace.read(topic, question.start, end, DELIVERIES_MAX):
        for segment in _segments(archive, known.start, known.end, ANY_BYTE):
            for offset, key in zip(segment.rows.offsets, segment.rows.ids, strict=True):
                page.add(known, offset, key)
            scanned += segment.size_bytes
            if scanned >= SCANNED_BYTES_MAX or is_spent():
                return page.finished(question, min(segment.end, known.end), end)
        inspected += len(known.times)
        if inspected >= DELIVERIES_MAX:
            return page.finished(question, known.end, end)
    return page.finished(question, end, end)


class _DeliveryColumns:
    """Columns of a page of deliveries."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._hops, self._origins = bytearray(), bytearray()
        self._ids: list[bytes] = []

    def add(self, known: DeliveryRows, offset: int, key: bytes) -> None:
        """Add the delivery of the publication that is stored at an offset."""
        place = offset - known.start
        self._offsets.append(offset)
        self._times.append(known.times[place])
        self._hops.append(known.hops[place])
        self._origins.append(known.origins[place])
        self._ids.append(key)

    def finished(self, question: FetchDeliveries, reached: int, end: int) -> DeliveryPage:
        """Return the page; the next one starts at ``reached``."""
        return DeliveryPage(
            request=question.request,
            next=reached if reached < end else None,
            offsets=tuple(self._offsets),
            times=tuple(self._times),
            hops=bytes(self._hops),
            origins=bytes(self._origins),
            ids=b"".join(self._ids),
        )
