"""Servable batches: every request that returns pages serves every accepted batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import Discard, Origin, Outbox, Rejected
from skipring.core.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NUMBER_MAX,
    PAYLOAD_BYTES_MAX,
)
from skipring.core.log import Log, MemoryLog
from skipring.core.log_messages import FetchLog, LogPage
from skipring.core.log_pages import CONTENT_PAGE, log_page
from skipring.core.messages import PublishNew
from skipring.core.replica import Replica
from skipring.core.scrub import Scrubber
from skipring.errors import MessageError
from skipring.storage.store import LogStore
from skipring.wire.codec import decode, encode
from tests.support.batches import batch, with_rows
from tests.wire.samples import the_frame

TOPIC = "news"
END = 2**40 - 1
LARGEST = RecordBatch.of(
    [
        BatchRecord(
            bytes(PAYLOAD_BYTES_MAX),
            time=NUMBER_MAX,
            key=bytes(KEY_BYTES_MAX),
            headers={
                f"{n:02d}".ljust(HEADERS_BYTES_MAX // HEADERS_MAX, "h"): ""
                for n in range(HEADERS_MAX)
            },
        )
    ],
    publisher="p" * 64,
    first=NUMBER_MAX,
    topic=TOPIC,
)


def small(first: int) -> RecordBatch:
    return batch(b"%d" % first, publisher="p", first=first, topic=TOPIC)


def with_body(body: bytes, count: int = 1) -> RecordBatch:
    """Return a batch with any body, under the id of its fields."""
    return RecordBatch("p", 7, count, body).with_id(TOPIC)


def with_repeated_header(count: int) -> RecordBatch:
    """Return a batch whose record repeats one header; if accepted, it has one header."""
    headers = b"\xdf" + count.to_bytes(4, "big") + msgpack.encode("h") * 2 * count
    return with_body(b"\x91\x94" + msgpack.encode(b"x") + b"\x01\xc0" + headers)


# Invalid batches with the id of their fields.
INVALID: dict[str, Callable[[], RecordBatch]] = {
    "a short field more": lambda: with_rows([[b"x", 1, None, {}, b"more"]], topic=TOPIC),
    "a field of 500 KB more": lambda: with_rows([[b"x", 1, None, {}, bytes(500_000)]], topic=TOPIC),
    "a field of 900 KB more": lambda: with_rows([[b"x", 1, None, {}, bytes(900_000)]], topic=TOPIC),
    "a header 65 times": lambda: with_repeated_header(HEADERS_MAX + 1),
    "a header 200,000 times": lambda: with_repeated_header(200_000),
    "a record more than its count": lambda: with_rows([[b"x"], [b"y"]], count=1, topic=TOPIC),
    "bytes after the records": lambda: with_body(small(0).body + b"\xc0"),
    "no records": lambda: with_rows([], topic=TOPIC),
    "no array": lambda: with_body(b"\xc1"),
}
of_every_invalid_batch = pytest.mark.parametrize("name", INVALID)


def pages(log: Log, *, bits: int = 0, contents: bool = True) -> Iterator[LogPage]:
    """Yield the pages of a log, as a client in another process receives them."""
    for prefix in range(1 << bits):
        start: int | None = 0
        while start is not None:
            question = FetchLog(1, "", 0, start, END, bits, prefix, contents=contents)
            page = log_page(log, question)
            assert decode(the_frame(encode("x" * 255, page))).message == page
            assert page.next is None or page.next > start
            yield page
            start = page.next


def served(log: Log) -> list[RecordBatch]:
    """Return the batches that all requests serve, in the order of the log."""
    found = [(at, each) for page in pages(log) for at, each in by_offset(page)]
    in_parts = [(at, each) for page in pages(log, bits=1) for at, each in by_offset(page)]
    assert sorted(in_parts, key=lambda each: each[0]) == found
    for bits in (0, 1):
        bare = [
            (at, each)
            for page in pages(log, bits=bits, contents=False)
            for at, each in by_offset(page)
        ]
        assert sorted(bare, key=lambda each: each[0]) == [
            (at, replace(each, body=b"")) for at, each in found
        ]
    return [each for _, each in found]


def by_offset(page: LogPage) -> Iterator[tuple[int, RecordBatch]]:
    return zip(page.offsets, page.batches, strict=True)


# -- accepted batches ----------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(
        st.lists(st.sampled_from((0, 1, 1000, 130_000)), min_size=1, max_size=3)
        | st.sampled_from(([CONTENT_PAGE.bytes_max], [PAYLOAD_BYTES_MAX])),
        max_size=8,
    ),
    key=st.sampled_from((None, b"", bytes(KEY_BYTES_MAX))),
    headers=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=HEADERS_MAX),
)
def test_every_accepted_batch_is_served_by_every_request(
    sizes: list[list[int]], key: bytes | None, headers: dict[str, str]
) -> None:
    made = [
        RecordBatch.of(
            [BatchRecord(bytes(size), n, key, headers) for size in several],
            publisher="p",
            first=10 * n,
            topic=TOPIC,
        )
        for n, several in enumerate(sizes)
    ]
    received = [decode(the_frame(encode(TOPIC, PublishNew(each)))).message for each in made]
    stored = [each.publication for each in received if isinstance(each, PublishNew)]
    assert stored == made
    stored += [LARGEST, with_repeated_header(HEADERS_MAX)]
    assert served(MemoryLog(stored)) == stored
    with TemporaryDirectory() as directory, LogStore.open(Path(directory)) as store:
        log = store.log(TOPIC)
        for each in stored:
            log.append(each)
        assert served(log) == stored
        store.commit()
        assert served(log) == stored


# -- refused batches ---------------------------------------------------------------------------


@of_every_invalid_batch
def test_invalid_batch_among_others_is_dropped(name: str) -> None:
    replica = Replica(TOPIC, MemoryLog())
    out = Outbox()
    added = replica.add((small(1), INVALID[name](), small(2)), out, origin=Origin.REPAIR)
    assert added == (small(1), small(2))
    assert out[0] == Rejected(1)


@pytest.mark.parametrize("name", ["a field of 900 KB more", "a header 200,000 times"])
def test_batch_with_too_long_a_body_is_refused_by_the_codec(name: str) -> None:
    with pytest.raises(MessageError):
        decode(the_frame(encode(TOPIC, PublishNew(INVALID[name]()))))


def with_invalid_batch(store: LogStore, name: str) -> Log:
    """Store a batch that an earlier version would have accepted, between two good ones."""
    log = store.log(TOPIC)
    for each in (small(1), INVALID[name](), small(2)):
        log.append(each)
    return log


@of_every_invalid_batch
@pytest.mark.parametrize("is_committed", [False, True])
def test_store_with_an_invalid_batch_serves_all_others(
    name: str, is_committed: bool, tmp_path: Path
) -> None:
    with LogStore.open(tmp_path) as store:
        log = with_invalid_batch(store, name)
        if is_committed:
            store.commit()
        assert [each for each in served(log) if each.publisher == "p" and each.first < 7] == [
            small(1),
            small(2),
        ]


@of_every_invalid_batch
def test_scrub_quarantines_an_invalid_batch(name: str, tmp_path: Path) -> None:
    with LogStore.open(tmp_path) as store:
        log = with_invalid_batch(store, name)
        store.commit()
        replica = Replica(TOPIC, log)
        replica.recover({})
        scrub = Scrubber(replica)
        for _ in range(4):
            out = Outbox()
            scrub.step(16, out)
            for effect in out:
                assert isinstance(effect, Discard)
                log.discard(effect.offset)
        assert served(log) == [small(1), small(2)]
        assert (replica.count, log.records) == (2, 2)
