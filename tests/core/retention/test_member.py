"""Retention at one member: what it admits, drops and quarantines, and what a restart knows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.effects import Deliver, Drop, SaveTerms
from skipring.core.events import PublishRequested, Received, SubmitRequested
from skipring.core.limits import NUMBER_MAX
from skipring.core.log import MemoryLog
from skipring.core.log_messages import FetchLog, FetchRecords, LogPage
from skipring.core.log_pages import answer, hidden_of, record_page
from skipring.core.messages import PublishNew
from skipring.core.retention.charter import RETAIN_NOTHING, US, Charter, Policy
from skipring.core.retention.floors import FloorStamps
from skipring.core.retention.stamp_index import StampIndex
from tests.support.fake_host import FakeHost, kinds
from tests.support.machines import TOPIC
from tests.support.publications import made_many
from tests.support.retention import (
    AGED,
    COMPACTED,
    COUNTED,
    HOUR,
    NOW,
    Subscriber,
    arrives,
    charter_row,
    held,
    member,
    retention_of,
    row,
    ticked,
)

OLD = NOW - 3 * HOUR
MINUTE = 60 * US


def test_member_of_a_topic_without_a_charter_has_no_retention() -> None:
    host = member(None, row(0, OLD), row(1))
    assert host.machine.replica.retention is None
    assert (held(host), host.all(SaveTerms)) == ({0, 1}, [])


@pytest.mark.parametrize(
    ("policy", "rows", "kept"),
    [
        (AGED, [row(0, OLD), row(1)], {1}),
        (COUNTED, [row(k, NOW - 100 + k) for k in range(20)], set(range(4, 20))),
        (COMPACTED, [row(k, NOW - 100 + k) for k in range(20)], {19}),
        (COMPACTED, [row(0, OLD), row(1, OLD + 1, is_deleted=True)], set()),
        (COMPACTED, [row(0), row(1, NOW + 1, is_deleted=True)], {1}),
    ],
)
def test_rows_outside_the_policy_are_dropped(
    policy: Policy,
    rows: list,
    kept: set[int],  # type: ignore[type-arg]
) -> None:
    host = member(policy, *rows)
    ticked(host, ticks=2)
    assert held(host) == kept
    assert host.all(Drop)
    assert {b.first for b in host.stored} == kept | {1000}


@pytest.mark.parametrize(
    "refused",
    [row(5, OLD), row(5, 0), row(5, NOW - 1, key=b"l"), charter_row(COUNTED, seq=1001, stamp=0)],
    ids=["expired", "without a time", "superseded", "superseded charter"],
)
def test_arriving_row_that_would_be_dropped_is_refused(refused: RecordBatch) -> None:
    host = member(Policy(max_age_s=3600, compact=True), row(1, key=b"l"))
    assert not any(isinstance(each, Deliver) for each in arrives(host, refused))


def test_row_from_the_future_is_refused_until_its_time_and_uses_no_memory() -> None:
    host = member(AGED)
    assert kinds(arrives(host, row(1, NOW + HOUR))) == []
    assert (len(retention_of(host).quarantine), len(host.stored)) == (0, 1)
    ticked(host, NOW + HOUR)
    arrives(host, row(1, NOW + HOUR))
    assert held(host) == {1}


def test_stored_row_from_the_future_is_hidden_in_the_log_until_its_time() -> None:
    host = member(None, row(1, NOW + HOUR))
    arrives(host, charter_row(AGED))
    ticked(host, ticks=3)
    assert (held(host), host.all(Drop)) == (set(), [])
    assert kinds(arrives(host, row(1, NOW + HOUR))) == []
    ticked(host, NOW + HOUR, ticks=2)
    assert held(host) == {1}


@pytest.mark.parametrize("policy", [AGED, COMPACTED, COUNTED, Policy()])
def test_clock_step_removes_no_acknowledged_row_and_a_restart_finds_them(policy: Policy) -> None:
    host = member(policy)
    ticked(host, NOW + HOUR, ticks=2)
    host.handle(PublishRequested(tuple(BatchRecord(b"%d" % k, 0, b"%d" % k) for k in range(5))))
    published = [each for each in host.stored if each.publisher == "m"]
    ticked(host, NOW, ticks=40)  # all clocks are set back
    assert held(host) == set()
    assert (host.all(Drop), set(published) <= set(host.stored)) == ([], True)
    again = member(log=host.log)
    ticked(again, ticks=40)
    assert held(again) == set()
    assert len(retention_of(again).quarantine.early) == len(published)
    ticked(again, NOW + HOUR, ticks=2)
    assert len(retention_of(again).quarantine) == 0
    assert {each.id for each in published} <= set(again.machine.trie().keys())


def test_charter_from_the_future_stays_in_the_log_and_begins_at_its_time() -> None:
    host = member(AGED)
    ticked(host, NOW + HOUR, ticks=2)
    arrives(host, charter_row(COUNTED, seq=1001, stamp=NOW + HOUR))
    ticked(host, ticks=3)
    assert (retention_of(host).policy, len(host.stored)) == (AGED, 2)
    ticked(host, NOW + HOUR, ticks=2)
    assert retention_of(host).policy == COUNTED


def test_row_without_a_time_is_refused_from_clients_and_admitted_from_members() -> None:
    host = member(COMPACTED)
    host.handle(SubmitRequested((row(1, 0, None),)))
    assert held(host) == set()
    arrives(host, row(1, 0, None))
    assert held(host) == {1}


def test_charter_takes_effect_at_its_time_and_replaces_the_previous_one() -> None:
    host = member(AGED)
    arrives(host, charter_row(COUNTED, seq=1001, stamp=NOW, start=NOW + HOUR))
    ticked(host)
    assert retention_of(host).policy == AGED
    ticked(host, NOW + HOUR)
    assert retention_of(host).policy == COUNTED
    ticked(host, NOW + 24 * HOUR, ticks=2)
    assert {each.first for each in host.stored} == {1000, 1001}  # a late undo may cancel the second
    ticked(host, NOW + 25 * HOUR, ticks=2)
    assert {each.first for each in host.stored} == {1001}


def test_undone_mistake_destroys_nothing() -> None:
    host = member(replace(AGED, max_age_s=86_400), row(0, NOW - HOUR), row(1))
    mistake = charter_row(RETAIN_NOTHING, seq=1001, stamp=NOW, start=NOW + 10 * MINUTE)
    undo = charter_row(AGED, seq=1002, stamp=NOW + 3 * MINUTE, start=NOW + 13 * MINUTE)
    arrives(host, mistake)
    ticked(host, NOW + 3 * MINUTE)
    arrives(host, undo)
    for minutes in (9, 11, 12):
        ticked(host, NOW + minutes * MINUTE, ticks=3)
        assert held(host) == {0, 1}
        assert retention_of(host).policy.max_age_s == 86_400
    ticked(host, NOW + 13 * MINUTE, ticks=3)
    assert retention_of(host).policy == AGED


@pytest.mark.parametrize("stamp", [1, NOW - HOUR, NOW], ids=["past", "slow clock", "now"])
@pytest.mark.parametrize(
    "policy", [RETAIN_NOTHING, Policy(max_count=1), Policy(max_bytes=1), COMPACTED]
)
def test_charter_of_a_stranger_leaves_the_policy_delay_for_an_undo(
    stamp: int, policy: Policy
) -> None:
    rows = {row(k, NOW - 1000 + k) for k in range(40)}
    host = member(None, *rows)
    host.handle(Received(PublishNew(charter_row(policy, stamp=stamp)), "a"))
    for minutes in (0, 5, 9):
        ticked(host, NOW + minutes * MINUTE, ticks=3)
        assert len(held(host)) == 40
    arrives(host, charter_row(AGED, seq=1001, stamp=NOW + 9 * MINUTE))
    for minutes in (10, 11, 18, 19, 20):
        ticked(host, NOW + minutes * MINUTE, ticks=3)
        assert len(held(host)) == 40
    assert retention_of(host).policy == AGED


def test_charter_without_a_record_of_its_offset_is_found_by_the_scrub() -> None:
    log = MemoryLog([row(0), charter_row(COUNTED)])
    host = member(log=log)
    ticked(host, ticks=3)
    assert retention_of(host).policy == COUNTED


def test_restarted_member_knows_charter_and_confirmation() -> None:
    host = member(COMPACTED, row(0))
    retention_of(host).confirm()
    ticked(host, ticks=70)
    again = member(log=host.log)
    assert (retention_of(again).policy, retention_of(again).last_confirmed) == (COMPACTED, NOW)


def test_charter_that_has_begun_at_once_acts_after_a_restart() -> None:
    host = member(None)
    host.handle(Received(PublishNew(charter_row(COUNTED, stamp=NOW, start=NOW)), "a"))
    ticked(host)
    arrives(host, row(1))
    again = member(log=host.log)
    assert retention_of(again).policy == COUNTED


def test_confirmation_is_not_saved_while_rows_are_returned() -> None:
    host = member(COMPACTED, row(0, OLD))
    retention = retention_of(host)
    retention.confirm()
    batch = row(0, OLD)
    host.machine.replica.remove(batch.id, 0)
    retention.hide(0, batch)
    ticked(host, ticks=70)
    assert retention_of(member(log=host.log)).last_confirmed == 0


def test_own_records_have_rising_stamps_above_those_of_the_topic() -> None:
    host = member(COMPACTED, row(0, NOW + 7))
    times = [NOW - HOUR, 0, NOW + 10 * HOUR, NOW + 9]
    host.handle(PublishRequested(tuple(BatchRecord(b"x", t, b"l") for t in times)))
    own = [batch for batch in host.stored if batch.publisher == "m"]
    stamps = [each.records()[0].time for each in own]
    assert stamps == sorted(set(stamps))
    assert all(NOW + 7 < stamp <= NOW + 20 for stamp in stamps)
    assert [batch.count for batch in own] == [1, 1, 1, 1]


def test_records_of_a_topic_that_is_not_compacted_share_a_batch() -> None:
    host = member(AGED)
    host.publish(b"one", b"two")
    assert [batch.count for batch in host.stored if batch.publisher == "m"] == [2]


def puts(host: FakeHost[Subscriber], count: int, keys: int) -> None:
    """Publish values of some keys in turn, with a tick after each 500."""
    for start in range(0, count, 500):
        made = [BatchRecord(b"v", NOW, b"%d" % (k % keys)) for k in range(start, start + 500)]
        host.handle(PublishRequested(tuple(made)))
        ticked(host)
        host.flush()


def test_compacted_topic_holds_little_more_than_one_batch_of_each_key() -> None:
    host = member(COMPACTED)
    puts(host, 5000, 100)
    ticked(host, ticks=3)
    assert host.machine.count <= 110
    assert len(host.stored) <= 110


def test_row_with_a_tombstone_lasts_as_long_as_an_older_record_in_a_batch() -> None:
    records = [BatchRecord(b"1", OLD, b"k"), BatchRecord(b"2", NOW, b"other")]
    both = row(0).of(records, publisher="z", first=0, topic=TOPIC)
    host = member(COMPACTED, both, row(5, OLD + 1, is_deleted=True))
    ticked(host, ticks=3)
    assert held(host) == {0, 5}  # without row 5 the value of k would return


def test_event_of_a_large_log_indexes_a_slice() -> None:
    host = member(None, *made_many(3000))
    arrives(host, charter_row(COUNTED))
    ticked(host)
    assert retention_of(host).is_behind
    assert host.machine.has_to_flush
    ticked(host, ticks=20)  # with the drops
    assert not retention_of(host).is_behind


# -- corrupted memory ----------------------------------------------------------------------------


def test_wrong_derived_terms_are_corrected_within_16_ticks() -> None:
    host = member(COMPACTED, row(0), row(1, key=b"l"))
    retention, exchange = retention_of(host), host.machine.replication.terms
    assert exchange is not None
    right = retention.digest(), retention.clock.horizon
    wrong = Charter(stamp=5, policy=COUNTED)
    retention.charters.acting, retention.charters._false = (wrong, b"x" * 32), {0: None, 77: None}
    retention.clock.topic = retention.clock.earlier = retention.clock.horizon = -5
    retention.quarantine._next = retention.clock._expected = 10**12
    retention.clock._has_ticked = False
    exchange._known, exchange._has_counted = (b"x",), True
    exchange._sent = {("a", b"x"): 99}
    ticked(host, ticks=16)
    assert (retention.digest(), retention.clock.horizon) == right
    assert held(host) == {0, 1}


def test_wrong_index_of_rows_is_derived_again() -> None:
    host = member(COMPACTED, *(row(k, NOW - 50 + k, b"%d" % (k % 5)) for k in range(20)))
    ticked(host)
    rows = retention_of(host).rows
    assert rows is not None
    stamps = rows.stamps
    bucket = stamps._buckets[0]
    bucket.offsets = bucket.stamps = bucket.records = bucket.sizes = bucket.stamps[:0]
    bucket.total = bucket.size_bytes = -7
    stamps._firsts, stamps.records, stamps.size_bytes = [(1, 1)], -3, 10**9
    stamps._buckets = [bucket]
    rows.stamps = StampIndex()
    rows._deleted, rows._holders, rows._newest = {b"0": True}, {b"1": 9}, {}
    rows._live, rows._expiring, rows._end, rows._next = {}, [(1, b"2")], 3, 1
    rows.has_more = True
    ticked(host, ticks=80)
    arrives(host, *(row(100 + k, NOW + 1, b"%d" % k) for k in range(5)))
    ticked(host, ticks=3)
    assert held(host) == {100, 101, 102, 103, 104}


def test_live_rows_that_memory_calls_superseded_are_not_dropped() -> None:
    host = member(COMPACTED, *(row(k, NOW - 50 + k, b"%d" % k) for k in range(10)))
    rows = retention_of(host).rows
    assert rows is not None
    wrong = StampIndex()
    for number in range(10):
        wrong.add(NOW - 50 + number, number, 1, 64)
    rows._superseded = wrong
    ticked(host, ticks=3)
    assert held(host) == set(range(10))


@pytest.mark.parametrize("stamp", [-5, 0, NOW - 1, NUMBER_MAX, 1 << 70])
def test_no_corrupted_floor_destroys_a_row_that_clock_and_rows_do_not(stamp: int) -> None:
    host = member(replace(COUNTED, max_age_s=3600), row(0, NOW - 60), row(1))
    retention_of(host).floors.stamps = FloorStamps(stamp, stamp, stamp)
    ticked(host, ticks=3)
    assert held(host) == {0, 1}


def test_pages_of_a_snapshot_omit_hidden_rows_as_its_digests_do() -> None:
    host = member(AGED, row(1, NOW + HOUR), row(2, NOW))
    replica = host.machine.replica
    stored = replica.end

    def read(*, indexed: bool) -> list[set[int]]:
        asked = FetchLog(1, "", 0, 0, stored, 0, 0, contents=True, indexed=indexed)
        records = FetchRecords(1, "", 0, 0, stored, 0, 0, payloads=True, indexed=indexed)
        hidden = hidden_of(replica, records)
        pages = [
            answer(replica, asked),
            record_page(replica.log, records, lambda: False, hidden=hidden),
        ]
        batches = [each.batches for each in pages if isinstance(each, LogPage)]
        return [{each.first for each in found if each.first < 1000} for found in batches]

    assert read(indexed=True) == [held(host), held(host)] == [{2}, {2}]
    assert read(indexed=False) == [{1, 2}, {1, 2}]


def test_member_without_the_clocks_of_its_neighbours_admits_new_rows() -> None:
    host = member(AGED)
    retention_of(host).clock.retain(["a", "b", "c"])
    retention_of(host).clock.record("a", 0)
    assert not retention_of(host).clock.is_sure
    host.handle(SubmitRequested((row(1, NOW - 2 * HOUR), row(2, NOW + 2 * HOUR))))
    assert held(host) == {1, 2}
    ticked(host, ticks=3)
    assert held(host) == set()
