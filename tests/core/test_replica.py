"""Replica: the stored batches of one topic and their index (section 4.2; decisions 41, 53)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core import replica as replica_module
from skipring.core.batches import RECORDS_MAX, BatchRecord, RecordBatch
from skipring.core.effects import Deliver, Discard, Effect, Origin, Outbox, Rejected, Store
from skipring.core.log import LogEntry, MemoryLog, UnreadEntries
from skipring.core.prefix import ALL
from skipring.core.publications import COUNTER_BITS, COUNTERS, ID_BYTES
from skipring.core.replica import FAR_BEHIND, UNINDEXED_MAX, Replica
from skipring.core.scrub import Scrubber
from skipring.core.state import NumberState, ReplicaState
from skipring.core.summaries import DIGEST_BYTES, EMPTY_ROOT
from skipring.core.transfers import read_ahead
from skipring.core.trie import RECORD_BYTES, PublicationTrie
from tests.support.batches import batch, batch_of, opaque_batch, with_rows
from tests.support.fake_host import FakeHost, kinds
from tests.support.machines import TOPIC, unhurried
from tests.support.publications import made_many, store

WRONG_ID = b"x" * ID_BYTES


WRONG_DIGEST = b"x" * DIGEST_BYTES


def settled(seq: int, publisher: str = "ann", payload: bytes = b"") -> RecordBatch:
    """Return a batch of one record."""
    return batch(payload, publisher=publisher, first=seq, topic=TOPIC)


def pair(first: int, publisher: str = "ann") -> RecordBatch:
    """Return a batch of two records."""
    return batch_of(b"one", b"two", publisher=publisher, first=first, topic=TOPIC)


class Kept(FakeHost[Replica]):
    """Replica of the node ann with its host."""

    def __init__(self, rows: Iterable[RecordBatch] | MemoryLog = ()) -> None:
        log = rows if isinstance(rows, MemoryLog) else MemoryLog(rows)
        super().__init__(Replica(TOPIC, log, node="ann"), log)
        self.machine.recover({})

    def add(
        self, *rows: RecordBatch, origin: Origin = Origin.SPREAD, hops: int = 0
    ) -> list[Effect]:
        """Add batches, by default of a broadcast; return the effects."""
        self.machine.end_event()
        return self.run(lambda out: self.machine.add(rows, out, origin=origin, hops=hops))


# -- adding ------------------------------------------------------------------------------------


def test_batch_is_stored_and_then_delivered_with_its_records() -> None:
    kept = Kept()
    one = settled(0, payload=b"news")
    records = ((BatchRecord(b"news"),),)
    delivered = Deliver((one,), records, 0, one.count, Origin.SPREAD, 3)
    assert kept.add(one, hops=3) == [store(0, one), delivered]
    assert kept.machine.trie().offset_of(one.id) == 0


def test_batch_occupies_an_offset_for_each_record() -> None:
    kept = Kept([pair(0)])
    more = pair(2), settled(4), pair(5)
    stored, delivered = kept.add(*more)
    assert isinstance(stored, Store)
    assert isinstance(delivered, Deliver)
    assert stored.offset == delivered.offset == 2
    assert [kept.machine.offset_of(each.id) for each in more] == [2, 4, 5]
    assert (kept.machine.end, kept.log.end, kept.machine.count) == (7, 7, 4)
    assert kept.delivered == [(2, more[0]), (4, more[1]), (5, more[2])]


def test_trie_contains_waiting_ids_and_the_query_indexes_none() -> None:
    kept = Kept([settled(0)])
    kept.add(settled(1))
    assert kept.machine.is_behind
    before = kept.machine.state()
    assert sorted(kept.machine.trie().keys()) == sorted([settled(0).id, settled(1).id])
    assert kept.machine.trie().root() == Kept(kept.stored).machine.index().root()
    assert kept.machine.is_behind
    assert kept.machine.state() == before
    assert kept.machine.id_of(settled(0).id[:8]) == settled(0).id
    assert kept.machine.id_of(settled(1).id[:8]) == settled(1).id
    assert kept.machine.id_of(settled(2).id[:8]) is None


def test_delivery_has_the_records_of_each_batch() -> None:
    records = [
        BatchRecord(b"payload", time=5, key=b"k", headers={"a": "b"}),
        BatchRecord(b"", time=6),
    ]
    full = RecordBatch.of(records, publisher="bob", first=0, topic=TOPIC)
    opaque = opaque_batch(WRONG_ID)
    _, delivered = Kept().add(full, opaque, settled(9))
    assert isinstance(delivered, Deliver)
    assert delivered.batches == (full, opaque, settled(9))
    assert delivered.records == (tuple(records), (), (BatchRecord(b""),))
    assert delivered.end - delivered.offset == sum(each.count for each in delivered.batches)


class Noting(MemoryLog):
    """Log that records the offsets of all reads."""

    def __init__(self, rows: Iterable[RecordBatch]) -> None:
        self.offsets: list[int] = []
        super().__init__(rows)

    def read_range(self, start: int, end: int) -> Iterator[LogEntry]:
        for entry in super().read_range(start, end):
            self.offsets.append(entry.offset)
            yield entry


def test_batches_are_read_in_order_of_offsets_and_returned_in_order_of_ids() -> None:
    rows = [settled(seq) for seq in range(40)]
    log = Noting(rows)
    replica, offsets = Replica(TOPIC, log), log.offsets
    replica.recover({})
    offsets.clear()
    log.discard(7)
    got = list(read_ahead(replica, replica.index().entries(), Outbox()))
    assert got == sorted((row for row in rows if row != rows[7]), key=lambda row: row.id)
    assert sorted(offsets) == [*range(7), *range(8, 40)]
    at = {row.id: offset for offset, row in enumerate(rows)}
    ahead = [at[key] for key in sorted(at)[:16]]  # the first part; parts grow
    cut = len([offset for offset in ahead if offset != 7])
    parts = [offsets[:cut], offsets[cut:]]
    assert [sorted(part) for part in parts] == parts


def test_offsets_grow_by_the_number_of_records() -> None:
    kept = Kept([settled(0), settled(1)])
    for seq in (2, 4, 6):
        store, deliver = kept.add(pair(seq))
        assert isinstance(store, Store)
        assert isinstance(deliver, Deliver)
        assert store.offset == deliver.offset == seq
    assert [row.first for row in kept.stored] == [0, 1, 2, 4, 6]


def test_add_returns_the_new_batches_themselves() -> None:
    kept, out = Kept(), Outbox()
    one, other = settled(0), settled(1)
    added = kept.machine.add([one], out, origin=Origin.OWN)
    assert added[0] is one
    assert kept.machine.add([settled(0), other, other], out, origin=Origin.OWN) == (other,)
    assert kept.machine.add([settled(0)], out, origin=Origin.OWN) == ()


INVALID = {
    "wrong id": replace(settled(1), id=WRONG_ID),
    "id of another batch": replace(settled(1), id=settled(7).id),
    "short id": replace(settled(1), id=b"short"),
    "id in another topic": settled(1).with_id("elsewhere"),
    "another body": replace(settled(1), body=pair(1).body),
    "another number": replace(settled(1), first=2),
    "number out of range": replace(settled(1), first=-1),
    "no records": replace(settled(1), count=0),
    "unreadable body": RecordBatch("ann", 1, 1, b"\xc1").with_id(TOPIC),
    "surplus bytes": RecordBatch("ann", 1, 1, settled(1).body + b"\0").with_id(TOPIC),
    "unknown field": with_rows([[b"x", 0, None, {}, 1]], publisher="ann", topic=TOPIC),
    "fewer records": with_rows([[b"x"]], count=2, publisher="ann", topic=TOPIC),
    "more records": with_rows([[b"x"], [b"y"]], count=1, publisher="ann", topic=TOPIC),
    "negative time": with_rows([[b"x", -1]], publisher="ann", topic=TOPIC),
    "opaque with a short id": opaque_batch(b"x" * 31),
    "opaque with a long id": opaque_batch(b"x" * 33),
}


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("origin", list(Origin))
def test_T10_invalid_batch_is_rejected_and_the_others_of_its_message_are_stored(
    invalid: RecordBatch, origin: Origin
) -> None:
    kept = Kept([settled(7)])
    before, after = pair(20), settled(30)
    effects = kept.add(before, invalid, after, origin=origin)
    if invalid.id == settled(7).id:  # it counts as known
        assert kinds(effects) == [Store, Deliver]
    else:
        assert effects[0] == Rejected(1)
        assert kinds(effects) == [Rejected, Store, Deliver]
    assert kept.stored == [settled(7), before, after]
    assert [offset for offset, _ in kept.delivered] == [1, 3]
    assert sorted(kept.machine.trie().keys()) == sorted(each.id for each in kept.stored)


def test_T10_number_of_rejected_batches_is_stated_and_nothing_else_happens() -> None:
    kept = Kept()
    rejected = [each for each in INVALID.values() if each.id != settled(7).id]
    assert kept.add(*rejected) == [Rejected(len(rejected))]
    assert (kept.stored, kept.machine.count, kept.machine.end) == ([], 0, 0)


def test_T10_wrong_id_does_not_keep_out_the_batch_it_belongs_to() -> None:
    kept = Kept()
    assert kept.add(replace(settled(1), id=settled(0).id)) == [Rejected(1)]
    assert kept.add(settled(0))[0] == store(0, settled(0))
    assert kept.stored == [settled(0)]


def test_known_batch_is_dropped_and_not_rejected() -> None:
    kept = Kept([pair(0)])
    kept.add(settled(2))
    assert kept.add(pair(0), settled(2)) == []
    assert kept.machine.count == 2


def test_batch_twice_in_a_message_is_stored_once() -> None:
    kept = Kept()
    kept.add(pair(0), settled(2), pair(0))
    assert kept.stored == [pair(0), settled(2)]


def test_opaque_batch_is_stored_under_its_own_id() -> None:
    kept = Kept()
    opaque = opaque_batch(WRONG_ID)
    assert kept.add(opaque)[0] == store(0, opaque)
    assert WRONG_ID in kept.machine.trie()


def test_two_replicas_without_a_log_do_not_share_batches() -> None:
    one, other = Replica(TOPIC, None), Replica(TOPIC, None)
    one.add([settled(0)], Outbox(), origin=Origin.OWN)
    assert (len(one.index()), len(other.index()), len(Replica(TOPIC, None).index())) == (1, 0, 0)


@unhurried
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3))))
def test_log_and_trie_hold_the_same_batches(drawn: list[tuple[int, int]]) -> None:
    kept = Kept()
    made = [batch_of(*[b"x"] * count, first=first, topic=TOPIC) for first, count in drawn]
    for each in made:
        kept.add(each)
    assert kept.stored == list({each.id: each for each in made}.values())
    assert sorted(kept.machine.trie().entries()) == sorted(kept.log.entries())
    assert kept.machine.end == sum(each.count for each in kept.stored)


# -- reading back ------------------------------------------------------------------------------


def test_stored_batch_is_found_by_its_id_or_a_prefix_of_it() -> None:
    rows = [pair(2 * number) for number in range(40)]
    replica = Kept(rows).machine
    out = Outbox()
    for number, row in enumerate(rows):
        assert replica.read(row.id, 2 * number, out) == row
        assert replica.find(row.id[:8], out) == row
        assert replica.find(row.record_id(1)[:30], out) == row
    assert replica.find(WRONG_ID[:8], out) is None
    assert out == []


@pytest.mark.parametrize(
    "corrupted",
    [
        replace(settled(1), body=b"changed"),
        replace(settled(1), id=WRONG_ID),
        replace(settled(1), publisher="bob"),
        replace(settled(1), count=-1),
        None,
    ],
    ids=["body", "id", "publisher", "count", "gone"],
)
def test_T12_corrupt_batch_is_quarantined(corrupted: RecordBatch | None) -> None:
    log = MemoryLog([settled(0), corrupted or settled(1)])
    if corrupted is None:
        log.discard(1)
    kept = Kept(log)
    kept.machine.index().remove(WRONG_ID)
    kept.machine.index().add(settled(1).id, 1)
    out = Outbox()
    assert kept.machine.read(settled(1).id, 1, out) is None
    assert kept.apply(out) == [Discard(1)]
    assert list(kept.machine.trie().keys()) == [settled(0).id]
    assert kept.stored == [settled(0)]


@pytest.mark.parametrize(
    ("key", "offset"),
    [
        (pair(1).id, 2),  # in the middle of its batch
        (pair(1).id, 0),
        (settled(9).id, 1),
        (settled(9).id, 2),
    ],
)
def test_T12_id_at_an_offset_that_does_not_begin_its_batch_is_dropped_and_the_batch_kept(
    key: bytes, offset: int
) -> None:
    kept = Kept([settled(0), pair(1)])
    kept.machine.index().add(key, offset)
    out = Outbox()
    assert kept.machine.read(key, offset, out) is None
    assert kept.apply(out) == []
    assert kept.stored == [settled(0), pair(1)]
    assert key not in kept.machine.trie()


def test_T12_id_beyond_the_end_of_the_log_is_dropped_and_no_batch_is_lost() -> None:
    kept = Kept([settled(0), pair(1)])
    kept.machine.index().add(WRONG_ID, 7)
    out = Outbox()
    assert kept.machine.find(WRONG_ID, out) is None
    kept.apply(out)
    assert kept.stored == [settled(0), pair(1)]
    assert WRONG_ID not in kept.machine.trie()


def test_T12_quarantined_batch_can_be_added_again() -> None:
    kept = Kept([pair(0), settled(2)])
    kept.log.discard(0)
    out = Outbox()
    assert kept.machine.find(pair(0).id, out) is None
    kept.apply(out)
    assert kept.add(pair(0))[0] == store(3, pair(0))
    assert kept.machine.find(pair(0).id, Outbox()) == pair(0)


def test_T12_batch_stored_under_a_wrong_id_is_quarantined_on_read() -> None:
    kept = Kept([replace(settled(0), id=WRONG_ID)])
    assert WRONG_ID in kept.machine.trie()
    out = Outbox()
    assert kept.machine.find(WRONG_ID, out) is None
    assert out == [Discard(0)]
    assert len(kept.machine.trie()) == 0


# -- recovery ----------------------------------------------------------------------------------


def test_recovery_indexes_the_log_without_reading_the_batches() -> None:
    rows = [settled(0), replace(settled(1), id=WRONG_ID), settled(2)]
    log = Noting(rows)
    replica = Kept(log).machine
    assert sorted(replica.index().entries()) == sorted((row.id, row.first) for row in rows)
    assert log.offsets == []


def test_T10_recovery_loads_exactly_the_given_corrupted_digests() -> None:
    log = MemoryLog([settled(seq) for seq in range(3)])
    replica = Replica(TOPIC, log)
    replica.recover({ALL: WRONG_DIGEST})
    assert replica.index().wrong_digests() == {ALL: WRONG_DIGEST}
    replica.recover({})
    assert replica.index().wrong_digests() == {}


@pytest.mark.parametrize("log", [None, MemoryLog()], ids=["none", "empty"])
def test_T2_replica_without_batches_has_an_empty_trie(log: MemoryLog | None) -> None:
    replica = Replica(TOPIC, log)
    assert replica.index().root() == EMPTY_ROOT == PublicationTrie().root()
    replica.recover({})
    assert replica.index().root() == EMPTY_ROOT
    assert list(replica.log.entries()) == []


# -- a large log after a start -----------------------------------------------------------------


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a log of more than ten batches as large."""
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)


LARGE = tuple(pair(2 * number, "bob") for number in range(35))


@pytest.mark.parametrize(("count", "is_large"), [(FAR_BEHIND - 1, False), (FAR_BEHIND + 1, True)])
def test_log_of_more_than_16_384_batches_is_large(count: int, is_large: bool) -> None:
    assert FAR_BEHIND == 1 << 14
    replica = Kept(opaque_batch(n.to_bytes(ID_BYTES, "big")) for n in range(count)).machine
    assert replica.is_starting is is_large
    assert replica.count == min(count, FAR_BEHIND)
    assert len(replica.index()) == count


@pytest.mark.usefixtures("_small_steps")
def test_large_log_is_indexed_in_slices_after_a_start() -> None:
    replica = Kept(LARGE).machine
    counts = []
    for _ in range(TURNS_MAX):
        assert replica.has_index_backlog is replica.is_starting
        if not replica.is_starting:
            break
        assert replica.is_behind
        counts.append(replica.count)
        replica.index_some(6)
    assert counts == [10, 10, 10, 22, 34]  # all are read before the next is indexed
    assert sorted(replica.index().entries()) == sorted(MemoryLog(LARGE).entries())
    assert replica.index().root() == eager(LARGE).root()


@pytest.mark.usefixtures("_small_steps")
@pytest.mark.parametrize("origin", [Origin.SPREAD, Origin.REPAIR])
def test_batches_of_others_are_dropped_until_a_large_log_is_indexed(origin: Origin) -> None:
    kept, new = Kept(LARGE), settled(1, "carl")
    assert kept.add(LARGE[-1], new, origin=origin) == []
    turns(kept.machine, 6)
    assert kinds(kept.add(LARGE[-1], new, origin=origin)) == [Store, Deliver]
    assert kept.stored == [*LARGE, new]


@pytest.mark.usefixtures("_small_steps")
def test_own_batches_are_accepted_before_a_large_log_is_indexed_and_indexed_once() -> None:
    kept, own = Kept(LARGE), [pair(0), settled(2)]
    for each in own:
        assert kinds(kept.add(each, origin=Origin.OWN)) == [Store, Deliver]
        kept.machine.index_some(7)
    assert kept.add(*own) == []
    turns(kept.machine, 6)
    assert kept.stored == [*LARGE, *own]
    assert sorted(kept.machine.trie().entries()) == sorted(kept.log.entries())
    assert kept.machine.count == len(kept.machine.trie()) == len(kept.stored)
    assert kept.machine.trie().root() == Kept(kept.stored).machine.trie().root()


@pytest.mark.usefixtures("_small_steps")
def test_submitted_batch_that_may_be_stored_is_not_stored_again_before_the_log_is_indexed() -> None:
    kept = Kept(LARGE)
    assert kept.add(LARGE[-1], origin=Origin.OWN) == []
    turns(kept.machine, 6)
    assert kept.add(LARGE[-1], origin=Origin.OWN) == []
    assert kept.stored == [*LARGE]


@pytest.mark.usefixtures("_small_steps")
def test_trie_of_a_large_log_is_complete_for_a_reader_at_any_time() -> None:
    kept = Kept(LARGE)
    kept.add(pair(0), origin=Origin.OWN)
    assert sorted(kept.machine.trie().entries()) == sorted(kept.log.entries())
    assert kept.machine.is_starting, "the query indexes nothing"
    assert sorted(kept.machine.index().entries()) == sorted(kept.log.entries())
    assert not kept.machine.is_starting


@pytest.mark.usefixtures("_small_steps")
def test_batch_quarantined_before_a_large_log_is_indexed_is_not_indexed() -> None:
    kept = Kept(LARGE)
    kept.log.discard(60)
    turns(kept.machine, 6)
    assert {*kept.machine.trie().keys()} == {each.id for each in LARGE if each.first != 60}


@pytest.mark.usefixtures("_small_steps")
def test_numbers_of_a_large_log_are_known_at_once() -> None:
    kept = Kept([*LARGE, settled(5), *LARGE[:0]])
    assert kept.machine.is_starting
    assert kept.machine.issue_numbers(1, 0) == 6


def no_entries() -> Iterator[tuple[bytes, int]]:
    return iter(())


def wrong_entries() -> Iterator[tuple[bytes, int]]:
    return iter([(WRONG_ID, 3), (pair(0).id, 1), (pair(2).id, 999), (pair(4).id, 4)])


@pytest.mark.parametrize("unread", [None, no_entries, wrong_entries])
@pytest.mark.parametrize("read", [None, no_entries, wrong_entries])
def test_T12_any_progress_of_reading_the_log_leads_to_a_full_index(
    unread: Callable[[], Iterator[tuple[bytes, int]]] | None,
    read: Callable[[], Iterator[tuple[bytes, int]]] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 3)
    kept = Kept(pair(2 * number) for number in range(20))
    scrubber = Scrubber(kept.machine)
    assert kept.machine.is_starting
    kept.machine._unread = entries = UnreadEntries(iter(())) if unread or read else None
    if entries is not None:
        entries._entries = unread() if unread is not None else kept.log.entries()
        entries._parts = [bytearray(b"x" * RECORD_BYTES) for _ in range(256)]
        entries._sorted = read() if read is not None else None
    for _ in range(20):
        kept.machine.index_some(4)
        kept.run(lambda out: scrubber.step(8, out))
    assert not kept.machine.is_starting
    assert sorted(kept.machine.trie().entries()) == sorted(kept.log.entries())
    assert len(kept.stored) == 20


# -- numbers -----------------------------------------------------------------------------------


def test_wrong_numbers_of_three_incarnations_survive_state_and_load() -> None:
    first, second = settled(3), settled(COUNTERS + 5)
    wrong = (
        NumberState(0, None),
        NumberState(1, COUNTERS + 9),
        NumberState(2, 7),
    )
    held = Replica(TOPIC, MemoryLog((first, second)), node="ann")
    held.load(ReplicaState(numbers=wrong))
    assert sorted(held.state().numbers, key=lambda each: each.incarnation) == list(wrong)


def bytes_taken(batches: list[RecordBatch]) -> int:
    """Return the memory that a replica takes for batches that it stores."""
    kept = Kept()
    assert kept.machine.issue_numbers(1, 0) == 0
    tracemalloc.start()
    try:
        kept.add(*batches)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_batches_of_many_publishers_take_the_memory_of_those_of_one() -> None:
    one = bytes_taken([settled(number, "client") for number in range(1000)])
    many = bytes_taken([settled(number * COUNTERS, f"{number}") for number in range(1000)])
    assert many < one + 20 * 1000  # an entry of a dict alone takes more


def test_numbers_of_incarnation_0_continue_after_the_last_record_of_stored_batches() -> None:
    replica = Kept([settled(0), pair(4), settled(9, "bob")]).machine
    assert [replica.issue_numbers(count, 0) for count in (1, 3, 1)] == [6, 7, 10]
    replica.recover({})
    assert replica.issue_numbers(1, 0) == 6


def test_numbers_of_incarnation_0_start_at_zero() -> None:
    replica = Replica(TOPIC, None, node="ann")
    assert [replica.issue_numbers(1, 0) for _ in range(2)] == [0, 1]


def test_numbers_of_incarnation_0_continue_after_own_batches_received_from_others() -> None:
    kept = Kept()
    assert kept.machine.issue_numbers(1, 0) == 0
    kept.add(pair(1))
    assert kept.machine.issue_numbers(1, 0) > 2


def test_numbers_of_unordered_batches_do_not_affect_the_own_numbers() -> None:
    kept = Kept([replace(settled(7), unordered=True).with_id(TOPIC)])
    assert kept.machine.issue_numbers(1, 0) == 0
    kept.add(replace(settled(9), unordered=True).with_id(TOPIC))
    assert kept.machine.issue_numbers(1, 0) == 1


@unhurried
@given(
    st.sampled_from([0, COUNTERS - 700]),
    st.lists(st.integers(1, 3 * RECORDS_MAX), max_size=8),
    st.sets(st.integers(0, 8)),
)
def test_own_batches_never_reuse_numbers_or_belong_to_two_incarnations(
    stored: int, calls: list[int], restarts: set[int]
) -> None:
    kept = Kept([settled(stored)])
    for number, count in enumerate(calls):
        if number in restarts:
            kept = Kept(kept.stored)
        first = kept.machine.issue_numbers(count, 0)
        records = [BatchRecord(b"")] * count
        own = [*RecordBatch.split(records, publisher="ann", first=first, topic=TOPIC)]
        kept.add(*own, origin=Origin.OWN)
    numbers = [seq for each in kept.stored for seq in range(each.first, each.end)]
    assert len(numbers) == len({*numbers}) == 1 + sum(calls)
    assert all(each.first >> COUNTER_BITS == each.end - 1 >> COUNTER_BITS for each in kept.stored)


# -- index backlog (decision 41) ---------------------------------------------------------------


TURNS_MAX = 10_000  # a run that needs more does not end


def eager(batches: tuple[RecordBatch, ...]) -> PublicationTrie:
    """Return a trie with all batches inserted at once."""
    trie = PublicationTrie()
    trie.add_many(MemoryLog(batches).entries())
    return trie


def add(replica: Replica, batches: tuple[RecordBatch, ...]) -> list[Effect]:
    """Add batches to a replica and store the new ones."""
    replica.end_event()
    out = Outbox()
    replica.add(batches, out, origin=Origin.REPAIR)
    for effect in out:
        if isinstance(effect, Store):
            assert effect.offset == replica.log.end
            for each in effect.batches:
                replica.log.append(each)
    return out


def waiting(replica: Replica) -> int:
    """Return the number of batches that are not in the trie yet."""
    return replica.count - len(replica.indexed_trie)


def turns(replica: Replica, ids: int) -> int:
    """Return how often the replica has to index until it has no backlog."""
    for turn in range(TURNS_MAX):
        if not replica.is_behind:
            return turn
        replica.index_some(ids)
    raise AssertionError(f"no end after {TURNS_MAX} turns")


def test_added_publications_are_counted_and_known_before_they_are_indexed() -> None:
    replica = Replica(TOPIC, None)
    add(replica, made_many(10))
    assert (replica.count, waiting(replica), replica.is_behind) == (10, 10, True)
    assert add(replica, made_many(10)) == []
    assert kinds(add(replica, made_many(12))) == [Store, Deliver]
    assert (replica.count, waiting(replica)) == (12, 12)


def test_reader_of_the_trie_sees_all_publications() -> None:
    replica = Replica(TOPIC, None)
    add(replica, made_many(10))
    assert sorted(replica.index().entries()) == sorted(eager(made_many(10)).entries())
    assert (replica.count, waiting(replica)) == (10, 0)


def test_backlog_is_indexed_in_slices_first_into_the_trie_and_then_as_digests() -> None:
    replica = Replica(TOPIC, None)
    add(replica, made_many(100))
    for left in (70, 40, 10, 0):
        assert replica.is_behind
        replica.index_some(30)
        assert (replica.count, waiting(replica)) == (100, left)
    assert replica.is_behind  # no digest is known yet
    assert turns(replica, 30) > 0
    assert replica.index().is_fresh
    assert replica.index().root() == eager(made_many(100)).root()


def test_indexing_an_empty_backlog_has_no_effect() -> None:
    replica = Replica(TOPIC, None)
    assert not replica.is_behind
    replica.index_some(10)
    assert (replica.count, replica.is_behind) == (0, False)
    assert Replica(TOPIC, None).count == 0


def test_publications_that_arrive_during_indexing_are_indexed_too() -> None:
    replica = Replica(TOPIC, None)
    add(replica, made_many(50))
    replica.index_some(20)
    add(replica, made_many(80))  # 50 of them are known, in the trie or not
    assert (replica.count, waiting(replica)) == (80, 60)
    turns(replica, 20)
    assert sorted(replica.index().entries()) == sorted(eager(made_many(80)).entries())


def test_backlog_is_limited_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "UNINDEXED_MAX", 10)
    replica, most = Replica(TOPIC, None), 0
    for start, count in ((0, 4), (4, 4), (8, 4), (12, 1), (13, 25), (38, 3), (41, 9)):
        before = waiting(replica)
        add(replica, made_many(count, start))
        most = max(most, waiting(replica))
        assert before + count - waiting(replica) <= 2 * count  # no single step takes long
    assert 0 < most <= 10
    assert replica.count == 50
    assert replica.index().root() == eager(made_many(50)).root()


def test_backlog_limit_is_at_least_100_000() -> None:
    assert UNINDEXED_MAX >= 100_000


def test_recovery_indexes_the_stored_publications_and_nothing_else() -> None:
    replica = Replica(TOPIC, MemoryLog())
    add(replica, made_many(10))
    replica.add(made_many(5, 10), Outbox(), origin=Origin.REPAIR)  # never stored
    replica.recover({})
    assert (replica.count, waiting(replica)) == (10, 0)
    assert replica.index().root() == eager(made_many(10)).root()


def test_loaded_index_replaces_the_backlog() -> None:
    replica = Replica(TOPIC, None)
    add(replica, made_many(10))
    replica.adopt(eager(made_many(10)))
    assert (replica.count, waiting(replica)) == (10, 0)
    assert add(replica, made_many(10)) == []


def find(replica: Replica, out: Outbox) -> None:
    assert [replica.find(each.id[:8], out) for each in made_many(10)] == list(made_many(10))


def read_all(replica: Replica, out: Outbox) -> None:
    assert len(list(read_ahead(replica, replica.index().entries(), out))) == 10


def scrub(replica: Replica, out: Outbox) -> None:
    scrubbing = Scrubber(replica)
    for _ in range(5):
        scrubbing.step(4, out)


@pytest.mark.parametrize("look", [find, read_all, scrub])
@pytest.mark.parametrize("worked_off", [0, 4])
def test_backlog_is_never_quarantined(
    look: Callable[[Replica, Outbox], None], worked_off: int
) -> None:
    replica, out = Replica(TOPIC, None), Outbox()
    add(replica, made_many(10))
    if worked_off:
        replica.index_some(worked_off)
    look(replica, out)
    assert out == []
    assert replica.index().root() == eager(made_many(10)).root()


@unhurried
@given(
    packs=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=12),
    slices=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    limit=st.integers(1, 50),
)
def test_digest_does_not_depend_on_the_slices_of_indexing(
    packs: list[tuple[int, int]], slices: list[int], limit: int
) -> None:
    replica, taken = Replica(TOPIC, MemoryLog()), dict[bytes, RecordBatch]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_module, "UNINDEXED_MAX", limit)
        for turn, (start, count) in enumerate(packs):
            add(replica, made_many(count, start))
            taken |= {each.id: each for each in made_many(count, start) if each.id not in taken}
            assert waiting(replica) <= limit
            assert replica.count == len(taken)
            ids = slices[turn % len(slices)]
            if ids and replica.is_behind:
                replica.index_some(ids)
    turns(replica, 7)
    every = tuple(taken.values())
    assert tuple(each.batch for each in replica.log.read_range(0, replica.log.end)) == every
    assert sorted(replica.index().entries()) == sorted(eager(every).entries())
    assert replica.index().root() == eager(every).root()
