"""Scrub of a table: it has what a newcomer would read, whatever retention has removed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipring.api.key_value_table import Change, KeyValueTable
from skipring.api.reader import stored_publications
from skipring.api.table_scrub import KEYS_AT_ONCE, TableScrub
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.publications import DELETED
from skipring.core.retention.charter import US, Policy
from skipring.core.subscriber import Subscriber
from tests.support.fake_host import FakeHost
from tests.support.machines import TOPIC
from tests.support.retention import HOUR_S, NOW, arrives, member, retention_of, row, ticked


class View:
    """Table that reads the log of a member, and its scrub."""

    def __init__(self, host: FakeHost[Subscriber]) -> None:
        self.host = host
        self.table = KeyValueTable()
        self.offset = 0
        self._scrub = TableScrub(self.table)

    def read(self) -> None:
        log = self.host.machine.replica.log
        for _, publications in stored_publications(log, range(self.offset, log.end)):
            for each in publications:
                self.table.apply(each, NOW)
        self.offset = log.end

    def scrub(self) -> list[Change[bytes]]:
        log = self.host.machine.replica.log
        return self._scrub.step(retention_of(self.host), log, self.offset, NOW)

    def values(self) -> dict[str, bytes]:
        return {each.key: each.value for each in self.table.entries()}


def values_of_a_newcomer(host: FakeHost[Subscriber]) -> dict[str, bytes]:
    """Return the values of a table that reads what the member serves."""
    table, replica = KeyValueTable(), host.machine.replica
    hidden = retention_of(host).quarantine.hidden
    for batch, publications in stored_publications(replica.log, range(replica.log.end)):
        for each in publications if batch.id not in hidden else ():
            table.apply(each, NOW)
    return {each.key: each.value for each in table.entries()}


def records(*keys: str, time: int, seq: int, is_deleted: bool = False) -> RecordBatch:
    headers = {DELETED: "1"} if is_deleted else {}
    each = [BatchRecord(b"%d" % seq, time, key.encode(), headers) for key in keys]
    return RecordBatch.of(each, publisher="z", first=seq * 10, topic=TOPIC)


batches = st.builds(
    lambda keys, age, seq, gone: records(
        *keys, time=NOW - age * US * 600, seq=seq, is_deleted=gone
    ),
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3),
    st.integers(0, 9),
    st.integers(0, 999),
    st.booleans(),
)


@pytest.mark.parametrize(
    "limits", [{"max_count": 4}, {"max_age_s": HOUR_S}, {"max_bytes": 1000}, {}], ids=str
)
@given(st.lists(batches, max_size=30, unique_by=lambda each: each.first), st.integers(1, 9))
@settings(max_examples=30)
def test_table_has_the_values_of_a_newcomer_after_any_arrivals_and_removals(
    limits: dict[str, int], arrivals: list[RecordBatch], parts: int
) -> None:
    host = member(Policy(compact=True, tombstones_s=HOUR_S, **limits))
    view = View(host)
    for start in range(parts):
        arrives(host, *arrivals[start::parts])
        view.read()
        ticked(host)
        view.scrub()
    ticked(host, NOW + 2 * HOUR_S * US, ticks=8)
    view.read()
    for _ in range(4):  # the one before began earlier, and each has two parts
        view.scrub()
    assert view.values() == values_of_a_newcomer(host)
    rows = retention_of(host).rows
    assert rows is not None
    assert len(view.table.known_keys()) == rows.keys


def test_removed_values_are_deletions_and_an_unchanged_topic_is_not_compared_again() -> None:
    host = member(Policy(compact=True, max_count=8))
    view = View(host)
    arrives(host, *(row(seq, NOW + seq, b"k%d" % seq) for seq in range(20)))
    view.read()
    ticked(host, ticks=4)
    changes = view.scrub()
    assert changes
    assert all(each.deleted and each.before is not None for each in changes)
    assert view.scrub() == []
    assert view.values() == values_of_a_newcomer(host)


def test_deletions_are_forgotten_with_their_tombstones() -> None:
    host = member(Policy(compact=True, tombstones_s=HOUR_S))
    view = View(host)
    for seq in range(50):
        arrives(host, row(2 * seq, NOW, b"k%d" % seq))
        arrives(host, row(2 * seq + 1, NOW + 1, b"k%d" % seq, is_deleted=True))
    view.read()
    ticked(host, ticks=4)
    view.scrub()
    assert view.table.deleted_count == 50
    ticked(host, NOW + 2 * HOUR_S * US, ticks=8)
    assert view.scrub() == []
    assert view.table.deleted_count == 0


def test_older_value_in_a_batch_with_a_newer_record_is_the_value_again() -> None:
    host = member(Policy(compact=True, max_count=3))
    view = View(host)
    early, late = NOW - 9 * US, NOW + 9 * US
    both = [BatchRecord(b"1", early, b"a"), BatchRecord(b"1", late, b"b")]
    arrives(host, RecordBatch.of(both, publisher="z", first=0, topic=TOPIC), row(9, NOW, b"a"))
    view.read()
    assert view.values()["a"] == b"value 9"
    arrives(host, *(row(seq, late + seq, b"k%d" % seq) for seq in (20, 21)))
    ticked(host, ticks=4)
    view.read()
    changes = view.scrub()
    assert view.values() == values_of_a_newcomer(host)
    (change,) = (each for each in changes if each.key == "a")
    assert change.before is not None
    assert change.before.value == b"value 9"


def test_values_in_quarantine_are_absent_and_return_from_it() -> None:
    host = member(Policy(compact=True))
    view = View(host)
    arrives(host, batch := row(1, NOW, b"a"))
    view.read()
    replica, retention = host.machine.replica, retention_of(host)
    offset = replica.offset_of(batch.id)
    assert offset is not None
    retention.hide(offset, batch)
    assert [each.deleted for each in view.scrub()] == [True]
    assert retention.reveal(batch.id) == offset
    (change,) = view.scrub() + view.scrub()
    assert change.entry is not None
    assert view.values() == {"a": b"value 1"}


def test_values_in_quarantine_that_are_read_later_are_absent() -> None:
    host = member(Policy(compact=True))
    view = View(host)
    arrives(host, batch := row(1, NOW, b"a"), row(2, NOW, b"b"))
    offset = host.machine.replica.offset_of(batch.id)
    assert offset is not None
    retention_of(host).hide(offset, batch)
    assert view.scrub() == []
    view.read()
    assert sorted(view.values()) == ["a", "b"]
    assert [each.key for each in view.scrub()] == ["a"]
    assert view.values() == values_of_a_newcomer(host) == {"b": b"value 2"}


def test_one_step_compares_a_bounded_number_of_keys() -> None:
    host = member(Policy(compact=True))
    view = View(host)
    count = KEYS_AT_ONCE + 5
    for seq in range(count):
        view.table.apply(row(seq, NOW, b"k%d" % seq).publications()[0], NOW)
    arrives(host, row(1, NOW, b"a"))
    view.read()
    assert len(view.scrub()) == KEYS_AT_ONCE
    assert len(view.scrub()) == count - KEYS_AT_ONCE
    assert view.values() == {"a": b"value 1"}
