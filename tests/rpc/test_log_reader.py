"""Batches in the pages of a member's log."""

from __future__ import annotations

from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log_messages import LogPage
from skipring.rpc.log_reader import readable_batches

TOPIC = "news"


def batch(first: int, count: int) -> RecordBatch:
    records = [BatchRecord(b"%d" % seq) for seq in range(first, first + count)]
    return RecordBatch.of(records, publisher="a", first=first, topic=TOPIC)


def payloads(page: LogPage, start: int = 0) -> list[bytes]:
    found = readable_batches(page, TOPIC, start)
    return [each.payload for _, publications in found for each in publications]


def test_records_have_the_fields_and_ids_of_their_batch() -> None:
    one, two = batch(7, 2), batch(9, 1)
    found = dict(readable_batches(LogPage(1, None, (0, 2), (one, two)), TOPIC))
    assert list(found) == [one, two]
    assert [(each.seq, each.payload) for each in found[one]] == [(7, b"7"), (8, b"8")]
    assert [each.id for each in found[one]] == one.record_ids()
    assert found[two] == two.publications()


def test_page_that_begins_inside_a_batch_gives_the_records_from_the_start_on() -> None:
    page = LogPage(1, None, (10, 15), (batch(0, 5), batch(5, 2)))
    assert payloads(page, start=10) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert payloads(page, start=13) == [b"3", b"4", b"5", b"6"]
    assert payloads(page, start=15) == [b"5", b"6"]
    assert payloads(page, start=16) == [b"6"]


def test_forged_and_unreadable_batches_are_omitted() -> None:
    good = batch(0, 1)
    bad = (
        replace(good, first=1),  # another id
        replace(good, id=bytes(32)),
        RecordBatch("a", 0, 2, good.body).with_id(TOPIC),  # a right id, but one record
        RecordBatch("a", 0, 1, b"\xc1").with_id(TOPIC),
        RecordBatch("a", 0, 1, b"", id=good.id),  # no body
    )
    page = LogPage(1, None, tuple(range(6)), (*bad, good))
    assert payloads(page) == [b"0"]
