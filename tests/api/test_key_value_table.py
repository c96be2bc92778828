"""Tables of newest values: any order of arrival, deletions, leases, marks and slow watchers."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.api.key_value_table import (
    AFTER,
    UNTIL,
    Change,
    Entry,
    KeyValueTable,
    PendingChanges,
    bytes_of_key,
)
from skipring.api.reader import Publication
from skipring.core.publications import DELETED
from skipring.errors import InputError

NOW = 1_000


def write(
    key: str | bytes | None,
    value: bytes,
    time: int,
    publisher: str = "a",
    seq: int = 0,
    *,
    headers: dict[str, str] | None = None,
) -> Publication:
    encoded = key.encode() if isinstance(key, str) else key
    batch_id = f"{publisher}{seq}{time}".encode().ljust(32, b".")
    return Publication(
        publisher, seq, time, encoded, headers or {}, value, False, None, 0, batch_id, 0
    )


def tombstone(key: str, time: int, publisher: str = "a") -> Publication:
    return write(key, b"", time, publisher, headers={DELETED: "1"})


def leased(key: str, until: int, time: int = 1) -> Publication:
    return write(key, b"1", time, seq=time, headers={UNTIL: str(until)})


def state(table: KeyValueTable) -> dict[str, bytes]:
    return {each.key: each.value for each in table.entries()}


def keys(table: KeyValueTable, prefix: str = "") -> list[str]:
    return [each.key for each in table.entries(prefix)]


writes = st.builds(
    write,
    st.sampled_from(["k", "l", "m"]),
    st.binary(max_size=2),
    st.integers(1, 9),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 3),
) | st.builds(
    tombstone, st.sampled_from(["k", "l", "m"]), st.integers(1, 9), st.sampled_from(["a", "b"])
)


def revision_of(publication: Publication) -> tuple[int, str, int]:
    return publication.time, publication.publisher, publication.seq


@given(st.lists(writes, max_size=30, unique_by=revision_of), st.integers(0, 99))
def test_tables_are_equal_after_any_order_with_duplicates_and_compacted_writes(
    publications: list[Publication], seed: int
) -> None:
    newest: dict[bytes, Publication] = {}
    for each in publications:
        assert each.key is not None
        if each.key not in newest or revision_of(each) > revision_of(newest[each.key]):
            newest[each.key] = each
    expected = {
        key.decode(): each.payload for key, each in newest.items() if DELETED not in each.headers
    }
    random = Random(seed)
    for _ in range(3):
        kept = [each for each in publications if random.random() < 0.5]  # the rest is compacted
        order = [*kept, *newest.values(), *random.sample(kept, len(kept) // 2)]
        random.shuffle(order)
        table = KeyValueTable()
        highest: dict[str, tuple[int, str, int]] = {}
        for each in order:
            change = table.apply(each, NOW)
            if change is not None:
                assert revision_of(each) > highest.get(change.key, (0, "", 0))
                highest[change.key] = revision_of(each)
        assert state(table) == expected
        assert len(table) == len(expected)


def test_publication_without_a_key_or_with_a_reserved_one_is_no_write() -> None:
    table = KeyValueTable()
    assert table.apply(write(None, b"v", 1), NOW) is None
    assert table.apply(write("", b"v", 1), NOW) is None
    assert table.apply(write("\x00charter", b"v", 1), NOW) is None
    assert len(table) == 0


def test_older_write_does_not_restore_a_deleted_key_until_the_tombstone_is_forgotten() -> None:
    table = KeyValueTable()
    table.apply(tombstone("k", 5), NOW)
    assert table.apply(write("k", b"old", 4), NOW) is None
    assert table.deleted_count == 1
    assert table.forget("k") is None
    assert table.deleted_count == 0
    assert table.apply(write("k", b"old", 4), NOW) is not None


def test_forgotten_value_is_a_deletion() -> None:
    table = KeyValueTable()
    table.apply(write("k", b"1", 5), NOW)
    before = entry(table, "k")
    assert table.forget("k") == Change("k", None, before)
    assert table.forget("k") is None
    assert (keys(table), table.known_keys()) == ([], [])


def test_renewals_of_a_long_lease_need_no_memory() -> None:
    table = KeyValueTable()
    for time in range(1, 10_000):
        table.apply(leased("k", 10**15 + time, time), NOW)
    assert table.lease_count < 100
    assert [each.key for each in table.expire(10**16)] == ["k"]


@pytest.mark.parametrize(
    ("after", "publisher", "is_concurrent"),
    [
        ("5", "b", False),  # it had seen the value
        ("6", "b", False),  # it had seen a newer one, which compaction removed here
        ("4", "b", True),
        (None, "b", True),
        ("x", "b", True),
        ("9" * 5000, "b", True),
        (None, "a", False),  # the publisher of the replaced value
    ],
)
def test_write_that_replaces_an_unseen_value_is_marked_as_concurrent(
    after: str | None, publisher: str, is_concurrent: bool
) -> None:
    table = KeyValueTable()
    first = table.apply(write("k", b"1", 5, "a"), NOW)
    headers = {} if after is None else {AFTER: after}
    change = table.apply(write("k", b"2", 7, publisher, headers=headers), NOW)
    assert first is not None
    assert not first.concurrent
    assert change is not None
    assert change.concurrent is is_concurrent
    assert change.before == first.entry
    assert change.entry is not None
    assert change.entry.value == b"2"


def test_first_write_of_a_key_is_not_concurrent() -> None:
    change = KeyValueTable().apply(write("k", b"1", 5, headers={AFTER: "3"}), NOW)
    assert change is not None
    assert not change.concurrent


def test_value_is_deleted_when_its_lease_ends_unless_it_was_renewed() -> None:
    table = KeyValueTable()
    table.apply(leased("k", 1500), NOW)
    table.apply(leased("l", 1500), NOW)
    table.apply(leased("l", 1600, 2), NOW)
    assert table.next_expiry == 1500
    assert list(table.expire(1499)) == []
    assert [(each.key, each.deleted) for each in table.expire(1500)] == [("k", True)]
    assert keys(table) == ["l"]
    assert [each.key for each in table.expire(1600)] == ["l"]
    assert table.apply(leased("k", 1500), 1500) is None  # it arrives once more


def test_write_whose_lease_has_ended_deletes_the_value_that_it_replaces() -> None:
    table = KeyValueTable()
    table.apply(write("k", b"1", 1), NOW)
    change = table.apply(leased("k", NOW, 2), NOW)
    assert change is not None
    assert change.deleted
    assert len(table) == 0


def test_keys_with_a_prefix_are_sorted() -> None:
    table = KeyValueTable()
    for key in ("b/2", "a", "b/1", "c", "b", "b0"):
        table.apply(write(key, b"", 1), NOW)
    assert keys(table, "b/") == ["b/1", "b/2"]
    assert keys(table, "x") == []
    assert keys(table) == ["a", "b", "b/1", "b/2", "b0", "c"]
    table.apply(tombstone("b/1", 2), NOW)
    assert keys(table, "b/") == ["b/2"]


@pytest.mark.parametrize("key", ["", b"", "x" * 1025, "\x00k", b"\x00", 5, "\ud800", None])
def test_invalid_key_is_refused(key: object) -> None:
    with pytest.raises(InputError, match="key"):
        bytes_of_key(key)  # type: ignore[arg-type]


def test_bytes_that_are_not_text_are_a_key() -> None:
    table = KeyValueTable()
    change = table.apply(write(b"\xff\xfe", b"v", 1), NOW)
    assert change is not None
    assert bytes_of_key(change.key) == b"\xff\xfe"


# -- pending changes of a watcher ------------------------------------------------------------


def drain(pending: PendingChanges) -> list[Change[bytes]]:
    found = []
    while (change := pending.pop_oldest()) is not None:
        found.append(change)
    return found


def entry(table: KeyValueTable, key: str) -> Entry[bytes]:
    found = table.get(key)
    assert found is not None
    return found


def test_slow_watcher_gets_the_last_value_of_each_key_once() -> None:
    table, pending = KeyValueTable(), PendingChanges()
    for time in range(1, 100):
        change = table.apply(write("kl"[time % 2], str(time).encode(), time, seq=time), NOW)
        assert change is not None
        pending.add(change)
        assert len(pending) <= 2
    last = {each.key: each for each in drain(pending)}
    assert last["k"].entry == entry(table, "k")
    assert last["l"].entry == entry(table, "l")
    assert last["k"].before is None


def test_key_that_was_set_and_deleted_unseen_is_not_reported() -> None:
    table, pending = KeyValueTable(), PendingChanges()
    for publication in (write("k", b"1", 1), tombstone("k", 2)):
        change = table.apply(publication, NOW)
        assert change is not None
        pending.add(change)
    assert drain(pending) == []


@pytest.mark.parametrize(
    ("headers", "before"),
    [
        ([{AFTER: "1"}, {AFTER: "2"}], b"1"),  # the value that the watcher has
        ([{}, {AFTER: "2"}], b"1"),  # it lost
        ([{AFTER: "1"}, {}], b"2"),  # this one lost, and the watcher has not received it
        ([{}, {}], b"2"),
    ],
)
def test_merged_changes_keep_the_mark_and_the_losing_value(
    headers: list[dict[str, str]], before: bytes
) -> None:
    table = KeyValueTable()
    table.apply(write("k", b"1", 1, "a"), NOW)
    pending = PendingChanges()
    for number, each in enumerate(headers):
        written = write("k", b"%d" % (number + 2), number + 2, "bc"[number], headers=each)
        change = table.apply(written, NOW)
        assert change is not None
        pending.add(change)
    (merged,) = drain(pending)
    assert merged.before is not None
    assert (merged.before.value, merged.concurrent) == (before, {} in headers)
    assert merged.entry is not None
    assert merged.entry.value == b"3"


def test_snapshot_comes_first_and_is_marked() -> None:
    table = KeyValueTable()
    table.apply(write("k", b"1", 1), NOW)
    table.apply(write("l", b"1", 1), NOW)
    pending = PendingChanges([entry(table, "k"), entry(table, "l")])
    change = table.apply(write("m", b"1", 1), NOW)
    assert change is not None
    pending.add(change)
    assert [(each.key, each.is_snapshot) for each in drain(pending)] == [
        ("k", True),
        ("l", True),
        ("m", False),
    ]


def test_key_that_changes_before_the_snapshot_is_read_stays_in_the_snapshot() -> None:
    table = KeyValueTable()
    for key in "kl":
        table.apply(write(key, b"1", 1), NOW)
    pending = PendingChanges([entry(table, "k"), entry(table, "l")])
    for publication in (write("m", b"1", 2), write("k", b"2", 2)):
        change = table.apply(publication, NOW)
        assert change is not None
        pending.add(change)
    found = [(each.key, each.is_snapshot) for each in drain(pending)]
    assert found == [("k", True), ("l", True), ("m", False)]


def test_slow_watcher_gets_a_key_that_changes_all_the_time_as_often_as_others() -> None:
    table, pending, found = KeyValueTable(), PendingChanges(), Counter[str]()
    for time in range(1, 1001):
        for key in ("hot", f"other{time % 3}"):
            change = table.apply(write(key, b"", time, seq=time), NOW)
            assert change is not None
            pending.add(change)
        oldest = pending.pop_oldest()
        assert oldest is not None
        found[oldest.key] += 1
    assert min(found.values()) >= 1000 // 5
    assert len(found) == 4
