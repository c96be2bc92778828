"""Pages of a log: its extent and stored records at the source, their check at the reader.

Records are sent as stored, so a page costs little. The work for one page is bounded: by the records
and bytes that it contains, and by those that the server scans for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, compress
from typing import Final

from skipring.core.limits import STORED_BYTES_MAX, STORED_MAX, check_publications
from skipring.core.log import EncodedRecords, HistoryPage, Log
from skipring.core.log_messages import (
    ANOTHER_STORE,
    FetchLog,
    GetLogInfo,
    LogInfo,
    LogPage,
    Refused,
)
from skipring.core.prefix import Prefix
from skipring.core.publications import (
    ID_BYTES,
    RECORD_BYTES_MAX,
    UNREADABLE,
    Encoded,
    Publication,
    decoded_page,
    rows_of_page,
)
from skipring.core.replica import Replica
from skipring.errors import MessageError

# Guess: large pages are read fastest; one more record of maximal size still fits into the frame.
PAGE_BYTES: Final = 384 * 1024
PAGE_ROWS_MAX: Final = 2048  # with contents; this many offsets and ids leave room in the frame
# Guesses: a scan of either size takes less than 20 ms.
SCANNED_BYTES_MAX: Final = 4 << 20
SCANNED_RECORDS_MAX: Final = 1 << 15
BYTE_BITS: Final = 8
ANY_BYTE: Final = range(1 << BYTE_BITS)
ARRAY_HEAD: Final = b"\xdd"  # of MessagePack: an array with a length of four bytes

Piece = bytes | memoryview  # of one publication or many


def answer(replica: Replica, question: GetLogInfo | FetchLog) -> LogInfo | LogPage | Refused:
    """Return the response of a member to a request for its log."""
    log = replica.log
    if isinstance(question, GetLogInfo):
        return _log_info(replica, log, question)
    if (question.store, question.epoch) != (log.store, log.epoch):
        return Refused(question.request, ANOTHER_STORE)
    return log_page(log, question)


def _log_info(replica: Replica, log: Log, question: GetLogInfo) -> LogInfo:
    """Return the extent of a log and, if requested, the digests of its prefixes."""
    durable_end = log.durable_end  # read once: a commit may end in between
    offset = durable_end if question.offset is None else question.offset
    digests: tuple[bytes, ...] = ()
    if question.bits is not None:
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
    )


def log_page(log: Log, question: FetchLog) -> LogPage:
    """Return the records between two offsets under a prefix, up to the size of a page."""
    end = min(question.end, log.end)
    return _whole_page(log, question, end) or _chosen_page(log, question, end)


def _whole_page(log: Log, question: FetchLog, end: int) -> LogPage | None:
    """Return all records from an offset on; None if some are damaged or filtered out.

    The page is copied as a few byte ranges, without locating single records.
    """
    if not question.contents or _firsts(question) != ANY_BYTE:
        return None
    start = question.start
    parts = log.contiguous_ranges(start, end, PAGE_ROWS_MAX, PAGE_BYTES)
    if sum(len(part.data) for part in parts) + len(ARRAY_HEAD) + 4 > STORED_BYTES_MAX:
        return None  # a record exceeds the largest size that readers accept
    reached = start + sum(part.length for part in parts)
    ids, data = [part.ids for part in parts], [part.data for part in parts]
    return _page(question, range(start, reached), ids, data, (reached, end)) if parts else None


def _chosen_page(log: Log, question: FetchLog, end: int) -> LogPage:
    """Return the records under a prefix, chosen one by one."""
    rows_max, bytes_max = (
        (PAGE_ROWS_MAX, PAGE_BYTES) if question.contents else (STORED_MAX, math.inf)
    )
    rows = EncodedRecords([], [], [])
    size = scanned = 0
    # A reader of a prefix verifies the content by the digest of the prefix. Verifying whole
    # segments here, of which only a part is sent, would cost more than the rest of the request.
    is_checked = question.bits == 0 or not question.contents
    segments = log.stored(
        question.start, end, _firsts(question), count_max=rows_max, is_checked=is_checked
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
        records = segment.end - question.start
        if scanned >= SCANNED_BYTES_MAX or records >= SCANNED_RECORDS_MAX:
            return _page(question, *rows, (segment.end, end))
    return _page(question, *rows, (end, end))


def _servable(rows: EncodedRecords) -> EncodedRecords:
    """Return the records that readers accept; the scrub quarantines the others (T12)."""
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
    """Return the possible first bytes of ids under a prefix; all above 255 if it is invalid."""
    width = 1 << (BYTE_BITS - question.bits)
    return range(question.prefix * width, (question.prefix + 1) * width)


# -- reader ------------------------------------------------------------------------------------


def decode_page(data: bytes, ids: bytes) -> HistoryPage | None:
    """Return the publications of a page with their stored ids, or None for an invalid page.

    Rows that no member accepts are omitted.
    """
    try:
        publications = decoded_page(data)
        # A second pass over the same bytes is the only reliable way to find the end of each row.
        sizes = list(map(len, rows_of_page(data)))
        rows = memoryview(data)[len(data) - sum(sizes) :]
        page = HistoryPage(tuple(publications), ids, Encoded(rows, sizes))
        if len(ids) != ID_BYTES * len(publications):
            return None
        if not _is_acceptable(page.publications, sizes):
            page = _readable(page, sizes)
            check_publications(page.publications)
    except MessageError:
        return None
    return page


def _is_acceptable(publications: tuple[Publication, ...], sizes: list[int]) -> bool:
    """Return True if a member accepts all rows of a page, which is the usual case."""
    try:
        check_publications(publications)
    except MessageError:
        return False
    return max(sizes, default=0) <= RECORD_BYTES_MAX


def _readable(page: HistoryPage, sizes: list[int]) -> HistoryPage:
    """Return the page without rows that are unreadable or too long."""
    assert page.encoded is not None, "a page has rows"
    pairs = zip(page.publications, sizes, strict=True)
    chosen = [each is not UNREADABLE and size <= RECORD_BYTES_MAX for each, size in pairs]
    ids = (page.ids[at : at + ID_BYTES] for at in range(0, len(page.ids), ID_BYTES))
    return HistoryPage(
        tuple(compress(page.publications, chosen)),
        b"".join(compress(ids, chosen)),
        page.encoded.chosen(chosen),
    )
