"""Replica: the stored publications of one topic and their ids (section 4.2)."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.effects import Deliver, Discard, Effect, Origin, Outbox, Store
from skipring.core.log import MemoryLog
from skipring.core.prefix import ALL
from skipring.core.publications import ID_BYTES, Publication
from skipring.core.replica import Replica
from skipring.core.sequences import COUNTERS
from skipring.core.state import NumberState, ReplicaState
from skipring.core.summaries import DIGEST_BYTES, EMPTY_ROOT
from skipring.core.trie import PublicationTrie
from tests.support.machines import TOPIC, unhurried

WRONG_ID = b"x" * ID_BYTES
WRONG_DIGEST = b"x" * DIGEST_BYTES


def publication(seq: int, publisher: str = "ann", **fields: object) -> Publication:
    return Publication(**{"publisher": publisher, "seq": seq, "payload": b"", **fields})


def settled(seq: int, **fields: object) -> Publication:
    return publication(seq, **fields).with_id(TOPIC)


def store(offset: int, *rows: Publication) -> Store:
    """Return the Store effect of rows with their total size."""
    return Store(offset, rows, sum(row.size_bytes for row in rows))


class Kept:
    """Replica whose effects are applied as by a host."""

    def __init__(self, rows: Iterable[Publication] | MemoryLog = ()) -> None:
        self.archive = rows if isinstance(rows, MemoryLog) else MemoryLog(rows)
        self.replica = Replica(TOPIC, self.archive, node="ann")
        self.replica.recover({})

    def carry_out(self, out: Outbox) -> list[Effect]:
        for effect in out.effects:
            match effect:
                case Store(offset=offset, publications=rows):
                    self.archive.write(offset, *rows)
                case Discard(offset=offset):
                    self.archive.discard(offset)
        return out.effects

    def take(self, one: Publication, *, hops: int = 0) -> list[Effect]:
        out = Outbox()
        self.replica.add([one], out, origin=Origin.SPREAD, hops=hops)
        return self.carry_out(out)


# -- adding ------------------------------------------------------------------------------------


def test_publication_is_stored_and_then_delivered() -> None:
    kept = Kept()
    one = settled(0)
    delivered = Deliver((one,), 0, Origin.SPREAD, 3, one.size_bytes)
    assert kept.take(one, hops=3) == [store(0, one), delivered]
    assert kept.replica.index().offset_of(one.id) == 0


class Noting(MemoryLog):
    """Log that records the offsets that are read."""

    def __init__(self, rows: Iterable[Publication]) -> None:
        super().__init__(rows)
        self.offsets: list[int] = []

    def read(self, offset: int) -> Publication | None:
        self.offsets.append(offset)
        return super().read(offset)


def test_publications_are_read_in_order_of_offsets_and_returned_in_order_of_ids() -> None:
    rows = [settled(seq) for seq in range(40)]
    archive = Noting(rows)
    replica, offsets = Replica(TOPIC, archive), archive.offsets
    replica.recover({})
    offsets.clear()
    archive.discard(7)
    got = list(replica.read_many(replica.index().entries(), Outbox()))
    assert got == sorted((row for row in rows if row != rows[7]), key=lambda row: row.id)
    assert sorted(offsets) == list(range(40))
    parts = [offsets[:16], offsets[16:]]  # batches grow
    assert [sorted(part) for part in parts] == parts


def test_offsets_grow_by_one() -> None:
    kept = Kept([settled(0), settled(1)])
    for seq in (2, 3, 4):
        store, deliver = kept.take(publication(seq))
        assert isinstance(store, Store)
        assert isinstance(deliver, Deliver)
        assert store.offset == deliver.offset == seq
    assert [row.seq for row in kept.archive.publications()] == [0, 1, 2, 3, 4]


def test_add_returns_the_publication_as_it_is_stored() -> None:
    kept = Kept()
    out = Outbox()
    assert kept.replica.add([publication(0)], out, origin=Origin.OWN) == (settled(0),)
    assert kept.replica.add([publication(0)], out, origin=Origin.OWN) == ()


@pytest.mark.parametrize("claimed", [b"", WRONG_ID, b"short", WRONG_ID * 2])
def test_T10_id_derives_from_the_fields_whatever_id_a_message_carries(
    claimed: bytes,
) -> None:
    kept = Kept()
    right = settled(0)
    assert kept.take(publication(0, id=claimed))[0] == store(0, right)
    assert list(kept.replica.index().keys()) == [right.id]


@pytest.mark.parametrize("claimed", [None, b"", WRONG_ID])
def test_T10_known_publication_is_dropped_whatever_id_it_carries(claimed: bytes | None) -> None:
    kept = Kept([settled(0)])
    again = settled(0) if claimed is None else publication(0, id=claimed)
    assert kept.take(again) == []
    assert len(kept.replica.index()) == 1


def test_T10_publication_with_the_id_of_another_is_stored_and_does_not_replace_it() -> None:
    kept = Kept([settled(0)])
    kept.take(publication(1, id=settled(0).id))
    assert [kept.archive.read(offset) for offset in (0, 1)] == [settled(0), settled(1)]


def test_equal_fields_in_another_topic_are_another_publication() -> None:
    kept = Kept()
    elsewhere = publication(0).with_id("elsewhere")
    assert kept.take(elsewhere)[0] == store(0, settled(0))


def test_opaque_publication_is_stored_under_its_own_id() -> None:
    kept = Kept()
    opaque = publication(0, payload=None, id=WRONG_ID)
    assert kept.take(opaque)[0] == store(0, opaque)
    assert WRONG_ID in kept.replica.index()


@pytest.mark.parametrize("size", [1, 31, 33])
def test_T10_opaque_publication_with_an_invalid_id_does_no_harm(size: int) -> None:
    kept = Kept([settled(seq) for seq in range(3)])
    kept.take(publication(0, payload=None, id=b"x" * size))
    kept.take(publication(9))
    assert all(settled(seq).id in kept.replica.index() for seq in (0, 1, 2, 9))


def test_two_replicas_without_a_log_do_not_share_publications() -> None:
    one, other = Replica(TOPIC, None), Replica(TOPIC, None)
    one.add([publication(0)], Outbox(), origin=Origin.OWN)
    assert (len(one.index()), len(other.index()), len(Replica(TOPIC, None).index())) == (1, 0, 0)


@unhurried
@given(st.lists(st.integers(0, 20)))
def test_log_and_trie_hold_the_same_publications(numbers: list[int]) -> None:
    kept = Kept()
    for seq in numbers:
        kept.take(publication(seq))
    first = list(dict.fromkeys(numbers))
    assert [row.seq for row in kept.archive.publications()] == first
    assert sorted(kept.replica.index().entries()) == sorted(kept.archive.entries())


# -- reading back ------------------------------------------------------------------------------


def test_stored_publication_is_found_by_its_id_or_a_prefix_of_it() -> None:
    rows = [settled(seq) for seq in range(40)]
    replica = Kept(rows).replica
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
    assert kept.archive._rows is not None
    kept.archive._rows[1] = corrupted
    out = Outbox()
    assert kept.replica.read(settled(1).id, 1, out) is None
    assert kept.carry_out(out) == [Discard(1)]
    assert list(kept.replica.index().keys()) == [settled(0).id]


def test_T12_quarantined_publication_can_be_added_again() -> None:
    kept = Kept([settled(0), settled(1)])
    kept.archive.discard(0)
    out = Outbox()
    assert kept.replica.find(settled(0).id, out) is None
    kept.carry_out(out)
    assert kept.take(settled(0))[0] == store(2, settled(0))
    assert kept.replica.find(settled(0).id, Outbox()) == settled(0)


def test_T12_row_stored_under_a_wrong_id_is_quarantined_on_read() -> None:
    wrong = publication(0, id=WRONG_ID)
    kept = Kept([wrong])
    assert WRONG_ID in kept.replica.index()
    out = Outbox()
    assert kept.replica.find(WRONG_ID, out) is None
    assert out.effects == [Discard(0)]
    assert len(kept.replica.index()) == 0


# -- recovery ----------------------------------------------------------------------------------


def test_recovery_indexes_the_log_without_reading_the_rows() -> None:
    rows = [settled(0), publication(1, id=WRONG_ID), settled(2)]
    replica = Kept(rows).replica
    assert sorted(replica.index().entries()) == sorted((row.id, row.seq) for row in rows)


def test_T10_corrupted_digests_are_loaded_and_nothing_else_is() -> None:
    archive = MemoryLog([settled(seq) for seq in range(3)])
    replica = Replica(TOPIC, archive)
    replica.recover({ALL: WRONG_DIGEST})
    assert replica.index().wrong_digests() == {ALL: WRONG_DIGEST}
    replica.recover({})
    assert replica.index().wrong_digests() == {}


@pytest.mark.parametrize("archive", [None, MemoryLog()], ids=["none", "empty"])
def test_T2_replica_without_publications_has_an_empty_trie(archive: MemoryLog | None) -> None:
    replica = Replica(TOPIC, archive)
    assert replica.index().root == EMPTY_ROOT == PublicationTrie().root
    replica.recover({})
    assert replica.index().root == EMPTY_ROOT
    assert list(replica.archive.publications()) == []


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
    replica = Kept([settled(0), settled(4), publication(9, "bob").with_id(TOPIC)]).replica
    assert [replica.next_seq(0) for _ in range(3)] == [5, 6, 7]
    replica.recover({})
    assert replica.next_seq(0) == 5


def test_numbers_of_incarnation_0_start_at_zero() -> None:
    replica = Replica(TOPIC, None, node="ann")
    assert [replica.next_seq(0) for _ in range(2)] == [0, 1]


def test_numbers_of_incarnation_0_continue_after_own_publications_received_from_others() -> None:
    kept = Kept()
    assert kept.replica.next_seq(0) == 0
    kept.take(publication(1))
    assert kept.replica.next_seq(0) > 1
