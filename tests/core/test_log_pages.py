"""Log pages: extents and pages that fit into their frames, made in bounded steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from msgspec import Raw
from msgspec.msgpack import Decoder
from msgspec.msgpack import encode as packed
from msgspec.structs import replace

from skipring.core import log_pages
from skipring.core.config import ProtocolConfig
from skipring.core.effects import Send
from skipring.core.events import Received
from skipring.core.limits import PAYLOAD_BYTES_MAX
from skipring.core.log import Log, MemoryLog
from skipring.core.log_messages import (
    ANOTHER_STORE,
    FetchLog,
    GetLogInfo,
    LogInfo,
    LogPage,
    Refused,
)
from skipring.core.log_pages import answer, decode_page, log_page
from skipring.core.prefix import Prefix
from skipring.core.publications import ID_BYTES, RECORD_BYTES_MAX, Publication, encoded
from skipring.core.replica import Replica
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import digest_of
from skipring.storage.store import PublicationStore
from skipring.storage.topic_log import TopicLog
from skipring.wire.codec import decode, encode
from tests.support.backfill import rows_of
from tests.wire.samples import the_frame

TOPIC = "news"
END = 2**40 - 1
DECODER = Decoder(list[Publication])


def publications(count: int, payload: bytes = b"x" * 100) -> list[Publication]:
    made = (
        Publication(publisher="p", seq=seq, payload=payload, time=1, key=b"k", headers={"a": "b"})
        for seq in range(count)
    )
    return [publication.with_id(TOPIC) for publication in made]


@contextmanager
def on_disk(directory: Path, stored: list[Publication]) -> Iterator[TopicLog]:
    with PublicationStore.open(directory) as store:
        log = store.archive(TOPIC)
        for offset, publication in enumerate(stored):
            log.write(offset, publication)
            if offset % 1000 == 999:
                store.commit()
        yield log


def pages_of(log: Log, question: FetchLog) -> Iterator[LogPage]:
    start: int | None = question.start
    while start is not None:
        page = log_page(
            log,
            FetchLog(
                1,
                "",
                0,
                start,
                question.end,
                question.bits,
                question.prefix,
                contents=question.contents,
            ),
        )
        assert decode(the_frame(encode("x" * 255, page))).message == page
        assert page.next is None or page.next > start
        yield page
        start = page.next


def read(log: Log, bits: int = 0, prefix: int = 0, end: int = END) -> dict[int, bytes]:
    """Return ids by offset, computed from the contents and compared with the bare ids."""
    found: dict[int, bytes] = {}
    for page in pages_of(log, FetchLog(1, "", 0, 0, end, bits, prefix, contents=True)):
        contents = DECODER.decode(page.publications)
        ids = (publication.id_in(TOPIC) for publication in contents)
        found.update(zip(page.offsets, ids, strict=True))
    assert found == read_ids(log, bits, prefix, end)
    return found


def read_ids(log: Log, bits: int = 0, prefix: int = 0, end: int = END) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for page in pages_of(log, FetchLog(1, "", 0, 0, end, bits, prefix, contents=False)):
        ids = [page.ids[at : at + ID_BYTES] for at in range(0, len(page.ids), ID_BYTES)]
        found.update(zip(page.offsets, ids, strict=True))
    return found


def numbered(stored: list[Publication]) -> dict[int, bytes]:
    return {offset: publication.id for offset, publication in enumerate(stored)}


@pytest.mark.parametrize("count", [0, 1, 3000, 9000])
def test_pages_together_contain_the_log(count: int, tmp_path: Path) -> None:
    stored = publications(count)
    assert read(MemoryLog(stored)) == numbered(stored)
    with on_disk(tmp_path, stored) as log:
        assert read(log) == numbered(stored)


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_every_publication_has_exactly_one_prefix_of_a_length(bits: int, tmp_path: Path) -> None:
    stored = publications(2500)
    with on_disk(tmp_path, stored) as log:
        found: dict[int, bytes] = {}
        for value in range(1 << bits):
            part = read(log, bits, value)
            assert all(Prefix.of_id(key, bits).value == value for key in part.values())
            assert not found.keys() & part.keys()
            found |= part
    assert found == numbered(stored)


def test_nothing_at_or_after_the_requested_end_is_read(tmp_path: Path) -> None:
    stored = publications(2500)
    with on_disk(tmp_path, stored) as log:
        assert read(log, end=1234) == numbered(stored[:1234])
        assert log_page(log, FetchLog(1, "", 0, 5000, 9000, 0, 0, contents=True)).offsets == ()


def test_prefix_out_of_range_has_no_publications() -> None:
    assert read(MemoryLog(publications(10)), bits=1, prefix=2) == {}


def test_invalid_prefix_of_zero_bits_matches_no_publications(tmp_path: Path) -> None:
    with on_disk(tmp_path, publications(1000)) as log:
        assert read(log, bits=0, prefix=1) == {}


@pytest.mark.parametrize("payload_bytes", [0, 100, 20_000])
def test_contiguous_page_equals_the_page_found_row_by_row(
    payload_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pages, "PAGE_ROWS_MAX", 300)
    with on_disk(tmp_path, publications(2500, bytes(payload_bytes))) as log:
        for start in (0, 1, 699, 999, 1000, 1700, 1999):
            for end in (start + 1, start + 500, 2000, 2500):
                question = FetchLog(1, "", 0, start, end, 0, 0, contents=True)
                page = log_page(log, question)
                with monkeypatch.context() as without:
                    without.setattr(TopicLog, "contiguous_ranges", lambda *_: [])
                    expected = log_page(log, question)
                if page.next == 2000 != expected.next:
                    continue  # publications in memory are read row by row
                assert page == expected


def test_publications_in_memory_or_after_a_gap_are_found_row_by_row(tmp_path: Path) -> None:
    stored = publications(3500)
    with on_disk(tmp_path, stored) as log:
        assert log.contiguous_ranges(3000, 3500, 10, 10**6) == []
        places = log._places
        for column in (places._starts, places._ends, places._rows):
            del column[1]  # as if the second segment had been lost
        assert log.contiguous_ranges(1500, 3500, 10, 10**6) == []
        assert [part.length for part in log.contiguous_ranges(990, 3500, 100, 10**6)] == [10]
        assert read(log) == {
            offset: key for offset, key in numbered(stored).items() if not 1000 <= offset < 2000
        }


def test_discarded_records_are_not_read(tmp_path: Path) -> None:
    stored = publications(1500)
    with on_disk(tmp_path, stored) as log:
        log.discard(3)
        log.discard(1400)
        expected = {o: key for o, key in numbered(stored).items() if o not in (3, 1400)}
        assert read(log) == expected


def test_damaged_segment_serves_only_intact_records(tmp_path: Path) -> None:
    stored = publications(1000, payload=b"abcdefgh" * 12)
    with on_disk(tmp_path, stored):
        pass
    with PublicationStore.open(tmp_path) as store:
        log = store.archive(TOPIC)
        spoil_first_pack(log, b"abcdefgh")
        found = read(log)
    assert 0 < len(found) < 1000
    assert all(stored[offset].id == key for offset, key in found.items())


def spoil_first_pack(log: TopicLog, sought: bytes) -> None:
    """Change one payload in the cached segment, as a bad disk would."""
    (pack, *_) = log._segments(0)
    assert not isinstance(pack, int)
    at = pack._body.index(sought)
    pack._body = pack._body[:at] + b"ABCDEFGH" + pack._body[at + 8 :]
    pack._is_whole = None


def test_damaged_segment_is_served_unchecked_under_a_prefix_and_detected_by_the_reader(
    tmp_path: Path,
) -> None:
    stored = publications(1000, payload=b"abcdefgh" * 12)
    with on_disk(tmp_path, stored):
        pass
    with PublicationStore.open(tmp_path) as store:
        log = store.archive(TOPIC)
        spoil_first_pack(log, b"abcdefgh")
        pages = [
            page
            for prefix in (0, 1)
            for page in pages_of(log, FetchLog(1, "", 0, 0, END, 1, prefix, contents=True))
        ]
    ids = {each.id_in(TOPIC) for page in pages for each in DECODER.decode(page.publications)}
    assert len(ids) == 1000
    assert len(ids & {publication.id for publication in stored}) == 999


def test_page_fits_the_largest_publications(tmp_path: Path) -> None:
    largest = [
        Publication(
            publisher="x" * 64,
            seq=2**63 - 1 - number,
            time=2**63 - 1,
            payload=bytes(512 * 1024 if number % 3 else 180_000),
            key=bytes(1024),
            headers={f"{name:064}": "x" * 64 for name in range(64)},
        ).with_id(TOPIC)
        for number in range(20)
    ]
    with on_disk(tmp_path, largest) as log:
        assert read(log) == numbered(largest)


def test_page_fits_many_of_the_smallest_publications() -> None:
    stored = [
        Publication(publisher="p", seq=seq, payload=b"").with_id(TOPIC) for seq in range(20_000)
    ]
    assert read(MemoryLog(stored)) == numbered(stored)


def test_large_publications_in_memory_are_scanned_in_steps() -> None:
    log = MemoryLog(publications(50, payload=bytes(500_000)))
    page = log_page(log, FetchLog(1, "", 0, 0, 50, 0, 0, contents=False))
    assert page.next is not None
    assert page.next < 20
    assert len(read(log)) == 50


def test_one_answer_does_not_read_the_whole_disk(tmp_path: Path) -> None:
    with on_disk(tmp_path, publications(20, payload=bytes(500_000))) as log:
        for contents in (False, True):
            page = log_page(log, FetchLog(1, "", 0, 0, 20, 8, 7, contents=contents))
            assert page.next is not None
            assert page.next < 20


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
def test_survey_has_a_digest_of_the_ids_under_each_prefix(bits: int, tmp_path: Path) -> None:
    stored = publications(300)
    with on_disk(tmp_path, stored) as log:
        seen = extent(replica_over(log), GetLogInfo(7, bits, None))
    parts: list[list[bytes]] = [[] for _ in range(1 << bits)]
    for publication in stored:
        parts[Prefix.of_id(publication.id, bits).value].append(publication.id)
    assert list(seen.digests) == [digest_of(sorted(part)) if part else b"" for part in parts]
    assert (seen.request, seen.store, seen.end, seen.count) == (7, log.store, 300, 300)


def test_survey_without_digests_has_end_and_count() -> None:
    seen = extent(replica_over(MemoryLog(publications(5))), GetLogInfo(7, None, None))
    assert (seen.digests, seen.end, seen.count) == ((), 5, 5)


def test_survey_counts_only_committed_records_as_durable(tmp_path: Path) -> None:
    with on_disk(tmp_path, publications(1500)) as log:
        seen = extent(replica_over(log), GetLogInfo(7, 0, None))
    assert (seen.durable_end, seen.end) == (1000, 1500)


def test_node_without_disk_has_no_store_and_nothing_durable() -> None:
    seen = extent(replica_over(MemoryLog(publications(5))), GetLogInfo(7, 0, None))
    assert (seen.store, seen.durable_end, seen.end, seen.chain) == ("", 0, 5, b"")


def test_survey_has_the_chain_value_at_a_durable_offset(tmp_path: Path) -> None:
    with on_disk(tmp_path, publications(1500)) as log:
        replica = replica_over(log)
        for offset in (0, 1, 64, 999, 1000):
            seen = extent(replica, GetLogInfo(7, None, offset))
            assert seen.chain == log.chain_at(offset)
        assert extent(replica, GetLogInfo(7, None, None)).chain == log.chain_at(1000)
        for beyond in (1001, 1500, END):
            assert extent(replica, GetLogInfo(7, None, beyond)).chain == b""


@pytest.mark.parametrize(
    "question", [GetLogInfo(5, 0, None), FetchLog(5, "", 0, 0, 1, 0, 0, contents=True)]
)
def test_non_member_refuses_the_request(question: GetLogInfo | FetchLog) -> None:
    machine = Subscriber("a", rng=Random(0), config=ProtocolConfig(), topic=TOPIC, wants=False)
    effects = machine.handle(Received(question, "reader"))
    assert effects == [Send("reader", Refused(5, "not a member of the topic"))]


def test_request_for_another_store_is_refused(tmp_path: Path) -> None:
    with on_disk(tmp_path, publications(5)) as log:
        replica = replica_over(log)
        for store, epoch in ((log.store, log.epoch + 1), ("0ther", log.epoch), ("", log.epoch)):
            refusal = answer(replica, FetchLog(5, store, epoch, 0, 5, 0, 0, contents=True))
            assert refusal == Refused(5, ANOTHER_STORE)
        question = FetchLog(5, log.store, log.epoch, 0, 5, 0, 0, contents=True)
        assert isinstance(answer(replica, question), LogPage)


# -- reader --------------------------------------------------------------------------------

ROWS = tuple(
    Publication(publisher="p", seq=seq, payload=b"%d" % seq).with_id(TOPIC) for seq in range(3)
)
IDS = b"".join(row.id for row in ROWS)


def test_page_has_publications_ids_and_stored_bytes() -> None:
    page = decode_page(rows_of(ROWS), IDS)
    assert page is not None
    assert page.publications == tuple(replace(row, id=b"") for row in ROWS)
    assert page.ids == IDS
    assert page.encoded is not None
    assert page.encoded.sizes == [len(encoded(row)) for row in ROWS]
    assert bytes(page.encoded.data) == b"".join(map(encoded, ROWS))


@pytest.mark.parametrize(
    "row",
    [b"\xc0", packed(["p", -1, b"x", 0, None, {}]), packed("text"), packed([1, 2])],
    ids=["nil", "number below 0", "text", "wrong types"],
)
def test_unreadable_row_is_omitted_with_its_id(row: bytes) -> None:
    data = packed([Raw(encoded(ROWS[0])), Raw(row), Raw(encoded(ROWS[2]))])
    page = decode_page(data, IDS)
    assert page is not None
    assert [each.seq for each in page.publications] == [0, 2]
    assert page.ids == ROWS[0].id + ROWS[2].id


def test_row_beyond_the_largest_record_is_omitted() -> None:
    long = packed(["p", 1, bytes(RECORD_BYTES_MAX), 0, None, {}])
    page = decode_page(packed([Raw(encoded(ROWS[0])), Raw(long)]), IDS[:64])
    assert page is not None
    assert [each.seq for each in page.publications] == [0]


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (b"\xc1", b""),
        (rows_of(ROWS)[:-1], IDS),
        (rows_of(ROWS), IDS[:-32]),
        (rows_of([replace(ROWS[0], payload=None)]), IDS[:32]),
        (rows_of([replace(ROWS[0], publisher="not a name")]), IDS[:32]),
        (rows_of([replace(ROWS[0], payload=bytes(PAYLOAD_BYTES_MAX + 1))]), IDS[:32]),
    ],
    ids=["no MessagePack", "cut off", "fewer ids", "no payload", "wrong name", "long payload"],
)
def test_invalid_page_is_refused(data: bytes, ids: bytes) -> None:
    assert decode_page(data, ids) is None
