"""Pages of wanted records: what a member sends, skips and refuses."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core import log_pages
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log import EVERY as EVERY_ENTRY
from skipring.core.log import EntryFilter, EntryPage, MemoryLog, PageLimits
from skipring.core.log_messages import ANOTHER_STORE, FetchRecords, LogPage, RecordFilter, Refused
from skipring.core.log_pages import record_page
from skipring.net.work_budget import never_spent
from tests.support.batches import opaque_batch

TOPIC = "news"
EVERY = RecordFilter()
BATCHES = [
    RecordBatch.of(
        [
            BatchRecord(b"payload %d" % number, 1000 * first + number, key=b"k%d" % (number % 3))
            for number in range(first % 5 + 1)
        ],
        publisher=f"p{first % 4}",
        first=10 * first,
        topic=TOPIC,
    )
    for first in range(60)
]
LOG = MemoryLog(BATCHES)


def question(where: RecordFilter = EVERY, **changed: object) -> FetchRecords:
    fields = {"start": 0, "end": LOG.end, "bits": 0, "prefix": 0, "payloads": True} | changed
    return FetchRecords(7, "", 0, where=where, **fields)  # type: ignore[arg-type]


def pages_of(asked: FetchRecords, log: MemoryLog = LOG) -> list[LogPage]:
    """Return all pages of a read."""
    found: list[LogPage] = []
    start: int | None = asked.start
    while start is not None:
        at = question(asked.where, start=start, payloads=asked.payloads)
        page = record_page(log, at, never_spent)
        assert isinstance(page, LogPage)
        assert page.next is None or page.next > start
        found.append(page)
        start = page.next
    return found


def sent(asked: FetchRecords) -> list[RecordBatch]:
    return [batch for page in pages_of(asked) for batch in page.batches]


RANGES = st.tuples(st.integers(0, 700), st.integers(0, 700)).map(lambda pair: tuple(sorted(pair)))


@given(
    where=st.builds(
        RecordFilter,
        publishers=st.none() | st.lists(st.sampled_from(["p0", "p3", "other"])).map(tuple),
        keys=st.none() | st.lists(st.sampled_from([b"k0", b"k2", b"none"])).map(tuple),
        times=st.none() | RANGES.map(lambda each: (each[0] * 80, each[1] * 80)),
        sequence=st.none() | RANGES,
        id_start=st.sampled_from([b"", *[batch.id[:1] for batch in BATCHES[:9]]]),
    )
)
def test_batches_with_a_wanted_record_are_sent_and_no_others(where: RecordFilter) -> None:
    wanted = [
        batch
        for batch in BATCHES
        if where.includes(batch)
        and any(includes(where, each.time, each.key) for each in batch.records())
    ]
    assert sent(question(where)) == wanted


def includes(where: RecordFilter, time: int, key: bytes | None) -> bool:
    test = where.record_test()
    return test is None or test(time, key)


def test_record_without_time_or_key_is_not_in_a_range_or_among_keys() -> None:
    assert includes(EVERY, 0, None)
    assert includes(RecordFilter(keys=(b"k",)), 0, b"k")
    assert not includes(RecordFilter(times=(0, 9)), 0, b"k")
    assert not includes(RecordFilter(keys=(b"",)), 3, None)
    assert includes(RecordFilter(times=(3, 3), keys=(b"",)), 3, b"")


def test_id_of_a_record_selects_its_batch() -> None:
    assert sent(question(RecordFilter(id_start=BATCHES[9].record_id(1)))) == [BATCHES[9]]


def test_batches_without_payloads_have_the_other_fields() -> None:
    found = sent(question(payloads=False))
    assert [each.id for each in found] == [each.id for each in BATCHES]
    for bare, batch in zip(found, BATCHES, strict=True):
        expected = [BatchRecord(b"", each.time, each.key) for each in batch.records()]
        assert list(bare.records()) == expected
        assert not bare.is_genuine(TOPIC)


def test_unreadable_batch_has_no_records() -> None:
    log = MemoryLog([opaque_batch(bytes(32)), BATCHES[0]])
    assert [len(page.batches) for page in pages_of(question(payloads=False), log)] == [1]


def test_page_is_limited_by_what_it_sends_and_by_what_it_scans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_pages, "CONTENT_PAGE", log_pages.CONTENT_PAGE._replace(entries_max=4))
    assert max(len(page.batches) for page in pages_of(question())) == 4
    monkeypatch.setattr(log_pages, "LISTING_PAGE", log_pages.LISTING_PAGE._replace(entries_max=8))
    nothing = pages_of(question(RecordFilter(keys=(b"none",))))
    assert [page.batches for page in nothing] == [()] * 8  # 60 batches, 8 in a page
    small = log_pages.CONTENT_PAGE._replace(entries_max=1000, bytes_max=900)
    monkeypatch.setattr(log_pages, "CONTENT_PAGE", small)
    monkeypatch.setattr(log_pages, "LISTING_PAGE", log_pages.LISTING_PAGE._replace(entries_max=99))
    for page in pages_of(question()):
        assert sum(batch.size_bytes for batch in page.batches[:-1]) < 900


class CountingLog(MemoryLog):
    """A log that records the limits of each read."""

    def __init__(self, batches: Iterable[RecordBatch]) -> None:
        self.reads: list[PageLimits] = []
        super().__init__(batches)

    def read_page(
        self, start: int, end: int, limits: PageLimits, wanted: EntryFilter = EVERY_ENTRY
    ) -> EntryPage:
        self.reads.append(limits)
        return super().read_page(start, end, limits, wanted)


RARE = RecordFilter(keys=(b"none",), id_start=BATCHES[0].id[:1])


def test_page_ends_when_its_time_is_spent_and_the_next_one_continues() -> None:
    """A filter that the index evaluates excludes nearly all batches of a long log."""
    log = CountingLog(
        RecordBatch.of([BatchRecord(b"", 1)], publisher="p", first=first, topic=TOPIC)
        for first in range(5_000)
    )
    pages, start = 0, 0
    while start is not None:
        log.reads.clear()
        page = record_page(log, question(RARE, start=start, end=log.end), lambda: True)
        assert isinstance(page, LogPage)
        assert page.next is None or page.next > start
        assert len(log.reads) == 1
        assert log.reads[0].scanned_entries_max <= log_pages.READ_PAGE.scanned_entries_max
        assert log.reads[0].scanned_bytes_max <= log_pages.READ_PAGE.scanned_bytes_max
        pages, start = pages + 1, page.next
    assert pages == -(-5_000 // log_pages.READ_PAGE.scanned_entries_max)


def test_page_continues_after_a_read_without_matches() -> None:
    log = CountingLog(BATCHES * 50)
    page = record_page(log, question(RARE, end=log.end), never_spent)
    assert (len(log.reads) > 1, page) == (True, LogPage(7, None, (), ()))


def test_another_store_is_refused() -> None:
    asked = FetchRecords(7, "5eed", 3, 0, LOG.end, 0, 0, payloads=True)
    assert record_page(LOG, asked, never_spent) == Refused(7, ANOTHER_STORE)


def test_impossible_requests_get_an_empty_page() -> None:
    for changed in ({"start": LOG.end + 5}, {"end": 0}, {"bits": 8, "prefix": 255, "start": 9999}):
        page = record_page(LOG, question(**changed), never_spent)
        assert page == LogPage(7, None, (), ())
    reversed_times = question(RecordFilter(times=(9, 3), sequence=(9, 3)))
    assert sent(reversed_times) == []
