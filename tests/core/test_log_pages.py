"""Log pages: extents and pages that fit into their frames, made in bounded steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from skipring.core.batches import BODY_BYTES_MAX, BatchRecord, RecordBatch
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Send
from skipring.core.events import Received
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import Log, MemoryLog
from skipring.core.log_messages import (
    ANOTHER_STORE,
    FetchLog,
    GetLogInfo,
    LogInfo,
    LogPage,
    Refused,
)
from skipring.core.log_pages import CONTENT_PAGE, LISTING_PAGE, answer, log_page
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BYTES
from skipring.core.replica import Replica
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import digest_of
from skipring.core.trie import OFFSET_MAX
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog
from skipring.wire.framing import DATA_BYTES_MAX
from tests.support.batches import batch, batch_of

TOPIC = "news"
END = OFFSET_MAX
FRAME_BYTES = 300  # of a frame besides the message: a topic of 255 bytes, sizes and tags


MakeLog: TypeAlias = Callable[[Iterable[RecordBatch]], Log]
Stored: TypeAlias = Callable[[Iterable[RecordBatch]], SegmentLog]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    """Return a function that stores batches in small segments; the last are in memory only."""
    with LogStore.open(tmp_path, segment_bytes_max=1 << 16) as store:

        def make(batches: Iterable[RecordBatch]) -> SegmentLog:
            log = store.log(TOPIC)
            for number, each in enumerate(batches, start=1):
                log.append(each)
                if number % 100 == 0:
                    store.commit()
            return log

        yield make


@pytest.fixture(params=["memory", "disk"])
def make_log(request: pytest.FixtureRequest) -> MakeLog:
    """Return a function that makes a log in memory, or one on disk."""
    return MemoryLog if request.param == "memory" else request.getfixturevalue("stored")


def batches(count: int, payload: bytes = b"x" * 100) -> list[RecordBatch]:
    """Return batches of one to three records."""
    return [
        batch_of(*[payload] * (1 + n % 3), publisher="p", first=3 * n, topic=TOPIC)
        for n in range(count)
    ]


def numbered(stored: Iterable[RecordBatch]) -> dict[int, RecordBatch]:
    """Return batches by the offsets of their first records."""
    return {entry.offset: entry.batch for entry in MemoryLog(stored).read_range(0, END)}


def request(
    start: int = 0, end: int = END, bits: int = 0, prefix: int = 0, *, contents: bool = True
) -> FetchLog:
    return FetchLog(1, "", 0, start, end, bits, prefix, contents=contents)


def pages_of(log: Log, question: FetchLog) -> Iterator[LogPage]:
    """Yield the pages that a reader gets, each of which fits into a frame."""
    start: int | None = question.start
    while start is not None:
        page = log_page(log, replace(question, start=start))
        encoded = msgpack.encode(page)
        assert len(encoded) + FRAME_BYTES <= DATA_BYTES_MAX
        assert msgpack.decode(encoded, type=LogPage) == page
        assert page.next is None or page.next > start
        yield page
        start = page.next


def read(log: Log, question: FetchLog | None = None) -> dict[int, RecordBatch]:
    """Return batches by offset, after a comparison with the pages without contents."""
    question = question or request()
    found: dict[int, RecordBatch] = {}
    for page in pages_of(log, question):
        found.update(zip(page.offsets, page.batches, strict=True))
    bare: dict[int, RecordBatch] = {}
    for page in pages_of(log, replace(question, contents=False)):
        bare.update(zip(page.offsets, page.batches, strict=True))
    assert bare == {offset: replace(each, body=b"") for offset, each in found.items()}
    return found


@pytest.mark.parametrize("count", [0, 1, 3000, 9000])
def test_pages_together_contain_the_log(count: int, make_log: MakeLog) -> None:
    assert read(make_log(batches(count))) == numbered(batches(count))


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_every_batch_has_exactly_one_prefix_of_a_length(bits: int, make_log: MakeLog) -> None:
    log = make_log(batches(2500))
    found: dict[int, RecordBatch] = {}
    for value in range(1 << bits):
        part = read(log, request(bits=bits, prefix=value))
        assert all(Prefix.of_id(each.id, bits).value == value for each in part.values())
        assert not found.keys() & part.keys()
        found |= part
    assert found == read(log)


def test_batches_with_a_record_between_start_and_end_are_read(make_log: MakeLog) -> None:
    log, every = make_log(batches(2500)), numbered(batches(2500))
    for start, end in ((0, 1234), (7, 1235), (8, 1236), (100, 101)):
        expected = {o: each for o, each in every.items() if o < end and o + each.count > start}
        assert read(log, request(start, end)) == expected
    assert log_page(log, request(9000, 12000)) == LogPage(1, None, (), ())


@pytest.mark.parametrize(("bits", "prefix"), [(1, 2), (0, 1), (8, 256), (3, 8)])
def test_prefix_out_of_range_has_no_batches(bits: int, prefix: int, make_log: MakeLog) -> None:
    assert read(make_log(batches(1000)), request(bits=bits, prefix=prefix)) == {}


def test_discarded_batches_are_not_read(make_log: MakeLog) -> None:
    log, expected = make_log(batches(1550)), numbered(batches(1550))
    discarded = {}
    for offset in (4, 1400, 3098):  # the last one is not on disk
        entry = log.read(offset)
        assert entry is not None
        discarded[entry.offset] = entry.batch
        log.discard(offset)
    assert len(discarded) == 3
    assert read(log) == {o: each for o, each in expected.items() if o not in discarded}


def test_page_without_contents_has_batches_without_bodies(make_log: MakeLog) -> None:
    page = log_page(make_log(batches(3)), request(contents=False))
    assert page.batches == tuple(replace(each, body=b"") for each in batches(3))
    assert [(each.first, each.count, each.id) for each in page.batches] == [
        (each.first, each.count, each.id) for each in batches(3)
    ]


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"publisher": "no name"},
        {"first": -1},
        {"first": NUMBER_MAX + 1},
        {"count": 0},
        {"count": 257},
        {"body": bytes(BODY_BYTES_MAX + 1)},
    ],
    ids=lambda change: repr(change)[:30],
)
def test_batch_that_no_reader_accepts_is_omitted(change: dict[str, object], contents: bool) -> None:
    stored = [batch(first=n, topic=TOPIC) for n in range(3)]
    log = MemoryLog([stored[0], replace(stored[1], **change), stored[2]])
    found = [each for page in pages_of(log, request(contents=contents)) for each in page.batches]
    assert [each.id for each in found] == [stored[0].id, stored[2].id]


# -- limits of a page --------------------------------------------------------------------------


def test_page_fits_the_largest_records(make_log: MakeLog) -> None:
    largest = [
        RecordBatch.of(
            [
                BatchRecord(
                    bytes(512 * 1024 if number % 3 else 180_000),
                    time=NUMBER_MAX,
                    key=bytes(1024),
                    headers={f"{name:064}": "x" * 64 for name in range(64)},
                )
            ],
            publisher="x" * 64,
            first=NUMBER_MAX - number,
            topic=TOPIC,
        )
        for number in range(20)
    ]
    assert read(make_log(largest)) == numbered(largest)


def test_page_fits_many_of_the_smallest_batches(make_log: MakeLog) -> None:
    smallest = [batch(b"", first=n, topic=TOPIC) for n in range(20_000)]
    assert read(make_log(smallest)) == numbered(smallest)


def test_page_fits_as_many_small_batches_as_possible_before_the_largest() -> None:
    row = CONTENT_PAGE.bytes_max // CONTENT_PAGE.entries_max
    small = batch(b"", topic=TOPIC).size_bytes
    made = [
        batch(bytes(row - small), publisher="x" * 64, first=NUMBER_MAX - n, topic=TOPIC)
        for n in range(CONTENT_PAGE.entries_max - 1)
    ]
    body = BODY_BYTES_MAX - len(batch(b"").body) - 3  # a longer payload has a longer size
    made.append(batch(bytes(body), publisher="x" * 64, topic=TOPIC))
    far = replace(made[0], count=END // 2)  # no reader accepts it
    (page,) = pages_of(MemoryLog([far, *made]), request(END // 2))
    assert page.batches == tuple(made)


@pytest.mark.parametrize("contents", [True, False])
def test_page_is_bounded_in_entries(contents: bool, make_log: MakeLog) -> None:
    limits = CONTENT_PAGE if contents else LISTING_PAGE
    log = make_log(batch(b"", first=n, topic=TOPIC) for n in range(2 * limits.entries_max))
    page = log_page(log, request(contents=contents))
    assert len(page.batches) == page.next == limits.entries_max


def test_page_with_contents_is_bounded_in_bytes(make_log: MakeLog) -> None:
    log = make_log(batch(bytes(20_000), first=n, topic=TOPIC) for n in range(100))
    page = log_page(log, request())
    size = sum(each.size_bytes for each in page.batches)
    assert CONTENT_PAGE.bytes_max <= size < CONTENT_PAGE.bytes_max + 21_000
    assert page.next == len(page.batches) < 100


@pytest.mark.parametrize("contents", [True, False])
def test_one_page_scans_a_bounded_number_of_bytes(contents: bool, make_log: MakeLog) -> None:
    large = [batch(bytes(500_000), first=n, topic=TOPIC) for n in range(20)]
    (absent, *_) = {*range(256)} - {each.id[0] for each in large}
    page = log_page(make_log(large), request(bits=8, prefix=absent, contents=contents))
    assert page == LogPage(1, 9, (), ())  # 4 MiB


@pytest.mark.parametrize("contents", [True, False])
def test_one_page_scans_a_bounded_number_of_batches(contents: bool, make_log: MakeLog) -> None:
    limit = CONTENT_PAGE.scanned_entries_max
    log = make_log([replace(batch(), id=bytes(ID_BYTES))] * (limit + 1))
    page = log_page(log, request(bits=8, prefix=255, contents=contents))
    # The index of a stored log excludes entries without reading them, 64 at the cost of one.
    following = limit if isinstance(log, MemoryLog) else None
    assert page == LogPage(1, following, (), ())


def test_listing_of_large_batches_is_read_in_steps(make_log: MakeLog) -> None:
    log = make_log(batch(bytes(500_000), first=n, topic=TOPIC) for n in range(50))
    page = log_page(log, request(contents=False))
    assert page.next is not None
    assert page.next < 20
    assert len(read(log)) == 50


# -- surveys ---------------------------------------------------------------------------------


def replica_over(log: Log) -> Replica:
    replica = Replica(TOPIC, log)
    replica.recover({})
    return replica


def extent(replica: Replica, question: GetLogInfo) -> LogInfo:
    info = answer(replica, question)
    assert isinstance(info, LogInfo)
    return info


@pytest.mark.parametrize("bits", [0, 3, 8])
def test_survey_has_a_digest_of_the_ids_under_each_prefix(bits: int, stored: Stored) -> None:
    log = stored(batches(300))
    seen = extent(replica_over(log), GetLogInfo(7, bits, None))
    parts: list[list[bytes]] = [[] for _ in range(1 << bits)]
    for each in batches(300):
        parts[Prefix.of_id(each.id, bits).value].append(each.id)
    assert list(seen.digests) == [digest_of(sorted(part)) if part else b"" for part in parts]
    assert (seen.request, seen.store, seen.epoch) == (7, log.store, log.epoch)
    assert seen.store != ""


def test_survey_has_the_end_in_records_and_the_number_of_batches(make_log: MakeLog) -> None:
    seen = extent(replica_over(make_log(batches(5))), GetLogInfo(7, None, None))
    assert (seen.digests, seen.end, seen.count) == ((), 9, 5)


def test_survey_counts_only_committed_records_as_durable(stored: Stored) -> None:
    seen = extent(replica_over(stored(batches(150))), GetLogInfo(7, 0, None))
    assert (seen.durable_end, seen.end) == (199, 300)


def test_node_without_disk_has_no_store_and_nothing_durable() -> None:
    seen = extent(replica_over(MemoryLog(batches(5))), GetLogInfo(7, 0, None))
    assert (seen.store, seen.durable_end, seen.end, seen.chain) == ("", 0, 9, b"")


def test_survey_has_the_chain_value_at_a_durable_offset(stored: Stored) -> None:
    log = stored(batches(150))
    replica = replica_over(log)
    for offset in (0, 1, 64, 198, 199):
        seen = extent(replica, GetLogInfo(7, None, offset))
        assert seen.chain == log.chain_at(offset)
    assert extent(replica, GetLogInfo(7, None, None)).chain == log.chain_at(199)
    for beyond in (200, 300, END):
        assert extent(replica, GetLogInfo(7, None, beyond)).chain == b""


@pytest.mark.parametrize("question", [GetLogInfo(5, 0, None), replace(request(), request=5)])
def test_non_member_refuses_the_request(question: GetLogInfo | FetchLog) -> None:
    machine = Subscriber("a", rng=Random(0), config=ProtocolConfig(), topic=TOPIC, wants=False)
    effects = machine.handle(Received(question, "reader"))
    assert effects == [Send("reader", Refused(5, "not a member of the topic"))]


def test_request_for_another_store_is_refused(stored: Stored) -> None:
    log = stored(batches(5))
    replica = replica_over(log)
    for store, epoch in ((log.store, log.epoch + 1), ("0ther", log.epoch), ("0ther", 0)):
        question = replace(request(), store=store, epoch=epoch)
        assert answer(replica, question) == Refused(1, ANOTHER_STORE)


def test_request_for_this_store_or_for_any_is_answered(stored: Stored) -> None:
    log = stored(batches(5))
    replica = replica_over(log)
    for store, epoch in ((log.store, log.epoch), ("", 0), ("", log.epoch)):
        page = answer(replica, replace(request(), store=store, epoch=epoch))
        assert isinstance(page, LogPage)
        assert page.batches == tuple(batches(5))


def test_requests_by_publisher_cover_everything_and_divide_no_publisher() -> None:
    stored = [
        batch(b"%d" % place, publisher=f"p{place % 9}", first=place, topic=TOPIC)
        for place in range(90)
    ]
    log = MemoryLog(stored)
    found = [
        {each.publisher for each in page.batches}
        for prefix in range(4)
        for page in [log_page(log, replace(request(bits=2, prefix=prefix), by_publisher=True))]
    ]
    assert sorted(name for names in found for name in names) == sorted(f"p{n}" for n in range(9))
    offsets = [
        log_page(log, replace(request(bits=2, prefix=prefix), by_publisher=True)).offsets
        for prefix in range(4)
    ]
    assert sorted(each for some in offsets for each in some) == list(range(90))
    assert all(list(some) == sorted(some) for some in offsets)
