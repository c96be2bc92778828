"""Pages of a log: its extent, and stored batches under a prefix.

The work for one page is bounded: by the batches and bytes that it contains, and by those that the
member scans for it.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from skipring.core.limits import STORED_MAX
from skipring.core.log import EVERY, EntryFilter, Log, PageLimits
from skipring.core.log_messages import (
    ANOTHER_STORE,
    FetchLog,
    GetLogInfo,
    LogInfo,
    LogPage,
    Refused,
)
from skipring.core.prefix import Prefix
from skipring.core.replica import Replica

# Guesses: large pages are read fastest; one more batch of maximal size still fits into the frame.
# A scan of either size takes less than 20 ms.
CONTENT_PAGE: Final = PageLimits(352 * 1024, 2048, 4 << 20, 1 << 14)
LISTING_PAGE: Final = PageLimits(4 << 20, min(4096, STORED_MAX), 4 << 20, 1 << 14)
BYTE_BITS: Final = 8


def answer(replica: Replica, question: GetLogInfo | FetchLog) -> LogInfo | LogPage | Refused:
    """Return the response of a member to a request for its log."""
    log = replica.log
    if isinstance(question, GetLogInfo):
        return _log_info(replica, log, question)
    if question.store and (question.store, question.epoch) != (log.store, log.epoch):
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
    """Return the batches between two offsets under a prefix, up to the size of a page.

    It omits batches that no reader accepts; the scrub quarantines them (T12).
    """
    end = min(question.end, log.end)
    limits = CONTENT_PAGE if question.contents else LISTING_PAGE
    page = log.read_page(question.start, end, limits, _entry_filter(question))
    found = [entry for entry in page.entries if entry.batch.is_acceptable]
    return LogPage(
        request=question.request,
        next=page.next if page.next < end else None,
        offsets=tuple([entry.offset for entry in found]),
        batches=tuple(
            [e.batch if question.contents else replace(e.batch, body=b"") for e in found]
        ),
    )


def _entry_filter(question: FetchLog) -> EntryFilter:
    """Return the possible first bytes of ids under a prefix; all above 255 if it is invalid."""
    if not question.bits and not question.prefix:
        return EVERY
    width = 1 << (BYTE_BITS - question.bits)
    return EntryFilter(range(question.prefix * width, (question.prefix + 1) * width))
