"""Replica: the stored publications of one topic and their index (section 4.2; decision 41)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core import replica as holdings_module
from skipring.core.effects import Deliver, Discard, Effect, Origin, Outbox, Store
from skipring.core.log import MemoryLog
from skipring.core.prefix import ALL
from skipring.core.publications import COUNTERS, ID_BYTES, Publication
from skipring.core.replica import UNINDEXED_MAX, Replica
from skipring.core.scrub import Scrubber
from skipring.core.state import NumberState, ReplicaState
from skipring.core.summaries import DIGEST_BYTES, EMPTY_ROOT
from skipring.core.trie import PublicationTrie
from tests.support.fake_host import FakeHost, kinds
from tests.support.machines import TOPIC, unhurried
from tests.support.publications import made_many, store

WRONG_ID = b"x" * ID_BYTES


WRONG_DIGEST = b"x" * DIGEST_BYTES


def publication(seq: int, publisher: str = "ann", **fields: object) -> Publication:
    return Publication(**{"publisher": publisher, "seq": seq, "payload": b"", **fields})


def settled(seq: int, **fields: object) -> Publication:
    return publication(seq, **fields).with_id(TOPIC)


class Kept(FakeHost[Replica]):
    """Replica of the node ann with its host."""

    def __init__(self, rows: Iterable[Publication] | MemoryLog = ()) -> None:
        log = rows if isinstance(rows, MemoryLog) else MemoryLog(rows)
        super().__init__(Replica(TOPIC, log, node="ann"), log)
        self.machine.recover({})

    def add(self, *rows: Publication, hops: int = 0) -> list[Effect]:
        """Add publications that a broadcast has brought; return the effects."""
        return self.run(lambda out: self.machine.add(rows, out, origin=Origin.SPREAD, hops=hops))


# -- adding ------------------------------------------------------------------------------------


def test_publication_is_stored_and_then_delivered() -> None:
    kept = Kept()
    one = settled(0)
    delivered = Deliver((one,), 0, Origin.SPREAD, 3, one.size_bytes)
    assert kept.add(one, hops=3) == [store(0, one), delivered]
    assert kept.machine.index().offset_of(one.id) == 0


class Noting(MemoryLog):
    """Log that records the offsets of all reads."""

    def __init__(self, rows: Iterable[Publication]) -> None:
        super().__init__(rows)
        self.offsets: list[int] = []

    def read(self, offset: int) -> Publication | None:
        self.offsets.append(offset)
        return super().read(offset)

    def read_range(self, start: int, end: int) -> Iterator[tuple[int, Publication]]:
        for offset, publication in super().read_range(start, end):
            self.offsets.append(offset)
            yield offset, publication


def test_publications_are_read_in_order_of_offsets_and_returned_in_order_of_ids() -> None:
    rows = [settled(seq) for seq in range(40)]
    log = Noting(rows)
    replica, offsets = Replica(TOPIC, log), log.offsets
    replica.recover({})
    offsets.clear()
    log.discard(7)
    got = list(replica.read_many(replica.index().entries(), Outbox()))
    assert got == sorted((row for row in rows if row != rows[7]), key=lambda row: row.id)
    assert sorted(offsets) == list(range(40))
    parts = [offsets[:16], offsets[16:]]  # batches grow
    assert [sorted(part) for part in parts] == parts


def test_offsets_grow_by_one() -> None:
    kept = Kept([settled(0), settled(1)])
    for seq in (2, 3, 4):
        store, deliver = kept.add(publication(seq))
        assert isinstance(store, Store)
        assert isinstance(deliver, Deliver)
        assert store.offset == deliver.offset == seq
    assert [row.seq for row in kept.log.publications()] == [0, 1, 2, 3, 4]


def test_add_returns_the_publication_as_it_is_stored() -> None:
    kept = Kept()
    out = Outbox()
    assert kept.machine.add([publication(0)], out, origin=Origin.OWN) == (settled(0),)
    assert kept.machine.add([publication(0)], out, origin=Origin.OWN) == ()


@pytest.mark.parametrize("claimed", [b"", WRONG_ID, b"short", WRONG_ID * 2])
def test_T10_id_derives_from_the_fields_whatever_id_a_message_carries(
    claimed: bytes,
) -> None:
    kept = Kept()
    right = settled(0)
    assert kept.add(publication(0, id=claimed))[0] == store(0, right)
    assert list(kept.machine.index().keys()) == [right.id]


@pytest.mark.parametrize("claimed", [None, b"", WRONG_ID])
def test_T10_known_publication_is_dropped_whatever_id_it_carries(claimed: bytes | None) -> None:
    kept = Kept([settled(0)])
    again = settled(0) if claimed is None else publication(0, id=claimed)
    assert kept.add(again) == []
    assert len(kept.machine.index()) == 1


def test_T10_publication_with_the_id_of_another_is_stored_and_does_not_replace_it() -> None:
    kept = Kept([settled(0)])
    kept.add(publication(1, id=settled(0).id))
    assert [kept.log.read(offset) for offset in (0, 1)] == [settled(0), settled(1)]


def test_equal_fields_in_another_topic_are_another_publication() -> None:
    kept = Kept()
    elsewhere = publication(0).with_id("elsewhere")
    assert kept.add(elsewhere)[0] == store(0, settled(0))


def test_opaque_publication_is_stored_under_its_own_id() -> None:
    kept = Kept()
    opaque = publication(0, payload=None, id=WRONG_ID)
    assert kept.add(opaque)[0] == store(0, opaque)
    assert WRONG_ID in kept.machine.index()


@pytest.mark.parametrize("size", [1, 31, 33])
def test_T10_opaque_publication_with_an_invalid_id_does_no_harm(size: int) -> None:
    kept = Kept([settled(seq) for seq in range(3)])
    kept.add(publication(0, payload=None, id=b"x" * size))
    kept.add(publication(9))
    assert all(settled(seq).id in kept.machine.index() for seq in (0, 1, 2, 9))


def test_two_replicas_without_a_log_do_not_share_publications() -> None:
    one, other = Replica(TOPIC, None), Replica(TOPIC, None)
    one.add([publication(0)], Outbox(), origin=Origin.OWN)
    assert (len(one.index()), len(other.index()), len(Replica(TOPIC, None).index())) == (1, 0, 0)


@unhurried
@given(st.lists(st.integers(0, 20)))
def test_log_and_trie_hold_the_same_publications(numbers: list[int]) -> None:
    kept = Kept()
    for seq in numbers:
        kept.add(publication(seq))
    first = list(dict.fromkeys(numbers))
    assert [row.seq for row in kept.log.publications()] == first
    assert sorted(kept.machine.index().entries()) == sorted(kept.log.entries())


# -- reading back ------------------------------------------------------------------------------


def test_stored_publication_is_found_by_its_id_or_a_prefix_of_it() -> None:
    rows = [settled(seq) for seq in range(40)]
    replica = Kept(rows).machine
    out = Outbox()
    for offset, row in enumerate(rows):
        assert replica.read(row.id, offset, out) == row
        assert replica.find(row.id[:8], out) == row
    assert replica.find(WRONG_ID[:8], out) is None
    assert out.effects == []


@pytest.mark.parametrize(
    "corrupted",
    [
        replace(settled(1), payload=b"changed"),
        replace(settled(1), id=WRONG_ID),
        replace(settled(1), publisher="bob"),
        None,
    ],
    ids=["payload", "id", "publisher", "gone"],
)
def test_T12_corrupt_row_is_quarantined(corrupted: Publication | None) -> None:
    kept = Kept([settled(0), settled(1)])
    assert kept.log._rows is not None
    kept.log._rows[1] = corrupted
    out = Outbox()
    assert kept.machine.read(settled(1).id, 1, out) is None
    assert kept.apply(out.effects) == [Discard(1)]
    assert list(kept.machine.index().keys()) == [settled(0).id]


def test_T12_quarantined_publication_can_be_added_again() -> None:
    kept = Kept([settled(0), settled(1)])
    kept.log.discard(0)
    out = Outbox()
    assert kept.machine.find(settled(0).id, out) is None
    kept.apply(out.effects)
    assert kept.add(settled(0))[0] == store(2, settled(0))
    assert kept.machine.find(settled(0).id, Outbox()) == settled(0)


def test_T12_row_stored_under_a_wrong_id_is_quarantined_on_read() -> None:
    wrong = publication(0, id=WRONG_ID)
    kept = Kept([wrong])
    assert WRONG_ID in kept.machine.index()
    out = Outbox()
    assert kept.machine.find(WRONG_ID, out) is None
    assert out.effects == [Discard(0)]
    assert len(kept.machine.index()) == 0


# -- recovery ----------------------------------------------------------------------------------


def test_recovery_indexes_the_log_without_reading_the_rows() -> None:
    rows = [settled(0), publication(1, id=WRONG_ID), settled(2)]
    replica = Kept(rows).machine
    assert sorted(replica.index().entries()) == sorted((row.id, row.seq) for row in rows)


def test_T10_recovery_loads_exactly_the_given_corrupted_digests() -> None:
    log = MemoryLog([settled(seq) for seq in range(3)])
    replica = Replica(TOPIC, log)
    replica.recover({ALL: WRONG_DIGEST})
    assert replica.index().wrong_digests() == {ALL: WRONG_DIGEST}
    replica.recover({})
    assert replica.index().wrong_digests() == {}


@pytest.mark.parametrize("log", [None, MemoryLog()], ids=["none", "empty"])
def test_T2_replica_without_publications_has_an_empty_trie(log: MemoryLog | None) -> None:
    replica = Replica(TOPIC, log)
    assert replica.index().root() == EMPTY_ROOT == PublicationTrie().root()
    replica.recover({})
    assert replica.index().root() == EMPTY_ROOT
    assert list(replica.log.publications()) == []


def test_wrong_numbers_of_two_sequences_of_one_publisher_survive_state_and_load() -> None:
    first, second = settled(3), settled(COUNTERS + 5)
    wrong = (
        NumberState("ann", 0, None),
        NumberState("ann", 1, COUNTERS + 9),
        NumberState("ann", 2, 7),
    )
    held = Replica(TOPIC, MemoryLog((first, second)))
    held.load(ReplicaState(numbers=wrong))
    assert sorted(held.state().numbers, key=lambda each: each.incarnation) == list(wrong)


def test_numbers_of_incarnation_0_continue_after_stored_ones() -> None:
    replica = Kept([settled(0), settled(4), publication(9, "bob").with_id(TOPIC)]).machine
    assert [replica.next_seq(0) for _ in range(3)] == [5, 6, 7]
    replica.recover({})
    assert replica.next_seq(0) == 5


def test_numbers_of_incarnation_0_start_at_zero() -> None:
    replica = Replica(TOPIC, None, node="ann")
    assert [replica.next_seq(0) for _ in range(2)] == [0, 1]


def test_numbers_of_incarnation_0_continue_after_own_publications_received_from_others() -> None:
    kept = Kept()
    assert kept.machine.next_seq(0) == 0
    kept.add(publication(1))
    assert kept.machine.next_seq(0) > 1


# -- index backlog (decision 41) ---------------------------------------------------------------


TURNS_MAX = 10_000  # a run that needs more does not end


def eager(publications: tuple[Publication, ...]) -> PublicationTrie:
    """Return a trie with all publications inserted at once."""
    trie = PublicationTrie()
    trie.add_many((each.id, offset) for offset, each in enumerate(publications))
    return trie


def take(replica: Replica, publications: tuple[Publication, ...]) -> list[Effect]:
    """Add publications to a replica and store the new ones."""
    out = Outbox()
    replica.add(publications, out, origin=Origin.REPAIR)
    for effect in out.effects:
        if isinstance(effect, Store):
            assert isinstance(replica.log, MemoryLog)
            replica.log.write(effect.offset, *effect.publications)
    return out.effects


def waiting(replica: Replica) -> int:
    """Return the number of publications that are not in the trie yet."""
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
    take(replica, made_many(10))
    assert (replica.count, waiting(replica), replica.is_behind) == (10, 10, True)
    assert take(replica, made_many(10)) == []
    assert kinds(take(replica, made_many(12))) == [Store, Deliver]
    assert (replica.count, waiting(replica)) == (12, 12)


def test_reader_of_the_trie_sees_all_publications() -> None:
    replica = Replica(TOPIC, None)
    take(replica, made_many(10))
    assert sorted(replica.index().entries()) == sorted(eager(made_many(10)).entries())
    assert (replica.count, waiting(replica)) == (10, 0)


def test_backlog_is_indexed_in_slices_first_into_the_trie_and_then_as_digests() -> None:
    replica = Replica(TOPIC, None)
    take(replica, made_many(100))
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
    take(replica, made_many(50))
    replica.index_some(20)
    take(replica, made_many(80))  # 50 of them are known, in the trie or not
    assert (replica.count, waiting(replica)) == (80, 60)
    turns(replica, 20)
    assert sorted(replica.index().entries()) == sorted(eager(made_many(80)).entries())


def test_backlog_is_limited_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings_module, "UNINDEXED_MAX", 10)
    replica, most = Replica(TOPIC, None), 0
    for start, count in ((0, 4), (4, 4), (8, 4), (12, 1), (13, 25), (38, 3), (41, 9)):
        before = waiting(replica)
        take(replica, made_many(count, start))
        most = max(most, waiting(replica))
        assert before + count - waiting(replica) <= 2 * count  # no single step takes long
    assert 0 < most <= 10
    assert replica.count == 50
    assert replica.index().root() == eager(made_many(50)).root()


def test_backlog_limit_is_at_least_100_000() -> None:
    assert UNINDEXED_MAX >= 100_000


def test_recovery_indexes_the_stored_publications_and_nothing_else() -> None:
    replica = Replica(TOPIC, MemoryLog())
    take(replica, made_many(10))
    replica.add(made_many(5, 10), Outbox(), origin=Origin.REPAIR)  # never stored
    replica.recover({})
    assert (replica.count, waiting(replica)) == (10, 0)
    assert replica.index().root() == eager(made_many(10)).root()


def test_loaded_index_replaces_the_backlog() -> None:
    replica = Replica(TOPIC, None)
    take(replica, made_many(10))
    replica.adopt(eager(made_many(10)))
    assert (replica.count, waiting(replica)) == (10, 0)
    assert take(replica, made_many(10)) == []


def find(replica: Replica, out: Outbox) -> None:
    assert [replica.find(each.id[:8], out) for each in made_many(10)] == list(made_many(10))


def read_all(replica: Replica, out: Outbox) -> None:
    assert len(list(replica.read_many(replica.index().entries(), out))) == 10


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
    take(replica, made_many(10))
    if worked_off:
        replica.index_some(worked_off)
    look(replica, out)
    assert out.effects == []
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
    replica, taken = Replica(TOPIC, MemoryLog()), dict[bytes, Publication]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdings_module, "UNINDEXED_MAX", limit)
        for turn, (start, count) in enumerate(packs):
            take(replica, made_many(count, start))
            taken |= {each.id: each for each in made_many(count, start) if each.id not in taken}
            assert waiting(replica) <= limit
            assert replica.count == len(taken)
            ids = slices[turn % len(slices)]
            if ids and replica.is_behind:
                replica.index_some(ids)
    turns(replica, 7)
    every = tuple(taken.values())
    assert tuple(replica.log.publications()) == every
    assert sorted(replica.index().entries()) == sorted(eager(every).entries())
    assert replica.index().root() == eager(every).root()
