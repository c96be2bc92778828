"""Servable records: every request that returns pages serves every accepted record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import DecodeError, msgpack

from skipring.core.effects import Discard, Outbox
from skipring.core.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NUMBER_MAX,
    PAYLOAD_BYTES_MAX,
    STORED_BYTES_MAX,
)
from skipring.core.log import Log, MemoryLog
from skipring.core.log_messages import FetchLog, LogPage
from skipring.core.log_pages import PAGE_BYTES, decode_page, log_page
from skipring.core.messages import PublishNew
from skipring.core.publications import (
    ID_BYTES,
    RECORD_BYTES_MAX,
    Encoded,
    Publication,
    decoded_page,
    encoded,
    restored,
)
from skipring.core.replica import Replica
from skipring.core.scrub import Scrubber
from skipring.errors import MessageError
from skipring.node.status_server import publication_page
from skipring.storage.store import PublicationStore
from skipring.storage.topic_log import TopicLog
from skipring.wire.codec import decode, encode
from skipring.wire.rpc import FetchPublications
from tests.wire.samples import the_frame

TOPIC = "news"
END = 2**40 - 1
LARGEST = Publication(
    publisher="p" * 64,
    seq=NUMBER_MAX,
    payload=bytes(PAYLOAD_BYTES_MAX),
    time=NUMBER_MAX,
    key=bytes(KEY_BYTES_MAX),
    headers={
        f"{n:02d}".ljust(HEADERS_BYTES_MAX // HEADERS_MAX, "h"): "" for n in range(HEADERS_MAX)
    },
).with_id(TOPIC)


def small(seq: int) -> Publication:
    return Publication(publisher="p", seq=seq, payload=b"%d" % seq, time=1).with_id(TOPIC)


def with_more(publication: Publication, more: object) -> bytes:
    """Return a row with a field that no publication has."""
    p = publication
    return msgpack.encode((p.publisher, p.seq, p.payload, p.time, p.key, p.headers, b"", more))


def with_repeated_header(publication: Publication, count: int) -> bytes:
    """Return a row that repeats one header; decoding it yields one header."""
    p = publication
    head = msgpack.encode((p.publisher, p.seq, p.payload, p.time, p.key))
    headers = b"\xdf" + count.to_bytes(4, "big") + msgpack.encode("h") * 2 * count
    return b"\x96" + head[1:] + headers


REPEATED = Publication(publisher="p", seq=0, payload=b"x", time=1, headers={"h": "h"})
ROWS: dict[str, Callable[[], tuple[Publication, bytes]]] = {
    "a short field more": lambda: (small(0), with_more(small(0), b"more")),
    "a field of 900 KB more": lambda: (small(0), with_more(small(0), bytes(900_000))),
    "a field more than fits into a page": lambda: (small(0), with_more(small(0), bytes(990_000))),
    "a header 200,000 times": lambda: (
        REPEATED.with_id(TOPIC),
        with_repeated_header(REPEATED, 200_000),
    ),
}
of_every_bad_row = pytest.mark.parametrize("name", ROWS)


def page_of(*rows: tuple[Publication, bytes]) -> LogPage:
    head = b"\xdd" + len(rows).to_bytes(4, "big")
    ids = b"".join(publication.id for publication, _ in rows)
    return LogPage(1, None, tuple(range(len(rows))), ids, head + b"".join(r for _, r in rows))


def pages(archive: Log, *, bits: int = 0, contents: bool = True) -> Iterator[LogPage]:
    for prefix in range(1 << bits):
        start: int | None = 0
        while start is not None:
            question = FetchLog(1, "", 0, start, END, bits, prefix, contents=contents)
            page = log_page(archive, question)
            assert decode(the_frame(encode(TOPIC, page))).message == page
            assert page.next is None or page.next > start
            yield page
            start = page.next


def ids_in(page: LogPage) -> list[bytes]:
    return [page.ids[at : at + ID_BYTES] for at in range(0, len(page.ids), ID_BYTES)]


def served(archive: Log) -> set[bytes]:
    """Return the ids of the records that all requests serve."""
    found = []
    for bits in (0, 1):
        read = list(pages(archive, bits=bits))
        for page in read:
            publications = decoded_page(page.publications)
            assert [each.id_in(TOPIC) for each in publications] == ids_in(page)
        found.append({key for page in read for key in ids_in(page)})
        without = pages(archive, bits=bits, contents=False)
        found.append({key for page in without for key in ids_in(page)})
    found += [listed(archive, payloads=payloads) for payloads in (True, False)]
    assert all(each == found[0] for each in found)
    return found[0]


def listed(archive: Log, *, payloads: bool) -> set[bytes]:
    found: set[bytes] = set()
    start: int | None = 0
    while start is not None:
        page = publication_page(archive, FetchPublications(1, start, END, payloads))
        assert decode(the_frame(encode(TOPIC, page))).message == page
        assert page.next is None or page.next > start
        found.update(each.id for each in page.publications)
        start = page.next
    return found


# -- accepted records ----------------------------------------------------------------------


def test_largest_record_and_a_full_page_fit_into_one_page() -> None:
    assert len(encoded(LARGEST)) <= RECORD_BYTES_MAX
    assert PAGE_BYTES + RECORD_BYTES_MAX <= STORED_BYTES_MAX


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from((0, 1, 1000, 130_000, PAGE_BYTES, PAYLOAD_BYTES_MAX)), max_size=8
    ),
    key=st.sampled_from((None, b"", bytes(KEY_BYTES_MAX))),
    headers=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=HEADERS_MAX),
)
def test_every_accepted_record_is_served_by_every_request(
    sizes: list[int], key: bytes | None, headers: dict[str, str]
) -> None:
    made = [
        Publication(publisher="p", seq=n, payload=bytes(size), time=n, key=key, headers=headers)
        for n, size in enumerate(sizes)
    ]
    accepted = [decode(the_frame(encode(TOPIC, PublishNew(each)))).message for each in made]
    stored = [each.publication.with_id(TOPIC) for each in accepted if isinstance(each, PublishNew)]
    stored.append(LARGEST)
    ids = {each.id for each in stored}
    assert served(MemoryLog(stored)) == ids
    with TemporaryDirectory() as directory, PublicationStore.open(Path(directory)) as store:
        archive = store.archive(TOPIC)
        archive.write(0, *stored)
        assert served(archive) == ids
        store.commit()
        assert served(archive) == ids


# -- refused records -------------------------------------------------------------------------


@of_every_bad_row
def test_bad_row_of_a_history_is_omitted_and_the_others_are_accepted(name: str) -> None:
    good = [(small(n), encoded(small(n))) for n in (1, 2)]
    page = page_of(good[0], ROWS[name](), good[1])
    part = decode_page(page.publications, page.ids)
    assert part is not None
    assert part.publications == tuple(
        Publication(publisher="p", seq=n, payload=b"%d" % n, time=1) for n in (1, 2)
    )
    assert part.ids == small(1).id + small(2).id
    assert part.encoded is not None
    assert bytes(part.encoded.data) == good[0][1] + good[1][1]


@of_every_bad_row
def test_bad_row_in_a_store_is_unreadable(name: str) -> None:
    publication, row = ROWS[name]()
    assert restored(row, publication.id, TOPIC) is None
    assert restored(encoded(publication), publication.id, TOPIC) == publication


def with_bad_row(archive: TopicLog, name: str) -> None:
    """Store a row that an earlier version would have accepted, between two good ones."""
    publication, row = ROWS[name]()
    archive.write(0, small(1))
    archive.write(1, publication, encoded=Encoded.of([row]))
    archive.write(2, small(2))


@of_every_bad_row
@pytest.mark.parametrize("is_committed", [False, True])
def test_store_with_a_bad_row_serves_all_other_rows(
    name: str, is_committed: bool, tmp_path: Path
) -> None:
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        with_bad_row(archive, name)
        if is_committed:
            store.commit()
        for bits in (0, 1):
            found = {
                each.id_in(TOPIC)
                for page in pages(archive, bits=bits)
                for each in decoded_page(page.publications)
                if each.payload is not None
            }
            assert found >= {small(1).id, small(2).id}
        assert listed(archive, payloads=True) == {small(1).id, small(2).id}


@of_every_bad_row
def test_scrub_quarantines_an_unservable_row(name: str, tmp_path: Path) -> None:
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        with_bad_row(archive, name)
        store.commit()
        replica = Replica(TOPIC, archive)
        replica.recover({})
        scrub = Scrubber(replica)
        for _ in range(4):
            out = Outbox()
            scrub.step(16, out)
            for effect in out.effects:
                assert isinstance(effect, Discard)
                archive.discard(effect.offset)
        assert served(archive) == {small(1).id, small(2).id}
        assert replica.count == 2


def test_page_without_an_array_of_rows_is_unreadable() -> None:
    with pytest.raises((DecodeError, MessageError)):
        decoded_page(b"\xc1")
    assert decode_page(b"\xc1", b"") is None
