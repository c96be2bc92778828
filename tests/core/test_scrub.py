"""Scrub: wrong batches, ids and digests are found in bounded time (T10 to T12)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.effects import Discard, Effect, Origin, Outbox
from skipring.core.log import MemoryLog
from skipring.core.prefix import ALL, Prefix
from skipring.core.publications import SEQ_BELIEVED_MAX
from skipring.core.scrub import STEP_BYTES, Scrubber
from skipring.core.state import ScrubState
from tests.core.test_replica import WRONG_DIGEST, WRONG_ID, Kept, Noting, pair, settled
from tests.support.batches import with_rows
from tests.support.machines import TOPIC


class Scrubbed(Kept):
    """Replica with a scrubber and a host."""

    def __init__(self, rows: Iterable[RecordBatch] | MemoryLog = ()) -> None:
        super().__init__(rows)
        self.scrubber = Scrubber(self.machine)

    def scrub(self, ids: int) -> list[Effect]:
        """Scrub a slice; return the effects."""
        return self.run(lambda out: self.scrubber.step(ids, out))


def test_T12_valid_batch_with_a_wrong_trie_entry_stays_and_is_indexed_again() -> None:
    kept = Scrubbed([settled(0), settled(1)])
    kept.machine.index().remove(settled(1).id)
    kept.machine.index().add(settled(7).id, 1)
    out = Outbox()
    assert kept.machine.read(settled(7).id, 1, out) is None
    kept.apply(out)
    assert kept.scrub(16) == []
    assert set(kept.machine.trie().keys()) == {settled(0).id, settled(1).id}


@pytest.mark.parametrize("is_first", [True, False])
def test_T12_valid_batch_of_two_under_one_id_stays(is_first: bool) -> None:
    spoilt = replace(settled(1), id=settled(0).id)
    kept = Scrubbed([settled(0), spoilt] if is_first else [spoilt, settled(0)])
    for _ in range(3):
        kept.scrub(16)
    assert kept.stored == [settled(0)]
    assert list(kept.machine.trie().keys()) == [settled(0).id]


def test_T12_duplicate_batch_is_quarantined_once() -> None:
    kept = Scrubbed([settled(0), settled(0)])
    kept.scrub(16)
    assert kept.stored == [settled(0)]


def test_T12_scrub_quarantines_every_corrupt_batch_in_slices() -> None:
    rows = [settled(seq) for seq in range(200)]
    bad = {3, 77, 78, 150}
    kept = Scrubbed(replace(row, body=b"changed") if row.first in bad else row for row in rows)
    found: list[Effect] = []
    slices = [kept.scrub(16) for _ in range(20)]
    for effects in slices:
        found += effects
    assert sorted(effect.offset for effect in found if isinstance(effect, Discard)) == sorted(bad)
    assert len(found) == len(bad)
    assert len(kept.machine.trie()) == len(rows) - len(bad)


def test_T10_scrub_reads_one_slice_only() -> None:
    kept = Scrubbed(replace(settled(seq), body=b"changed") for seq in range(400))
    assert 16 <= len(kept.scrub(16)) < 100


def test_T12_scrub_reads_consecutive_batches_and_each_in_turn() -> None:
    log = Noting([settled(seq) for seq in range(100)])
    kept = Scrubbed(log)
    for _ in range(20):
        before = len(log.offsets)
        assert kept.scrub(16) == []
        first, count = log.offsets[before], len(log.offsets) - before
        assert log.offsets[before:] == list(range(first, first + count))
        assert 0 < count <= 16
    assert log.offsets[:100] == log.offsets[100:200] == list(range(100))


def test_T12_scrub_reads_fewer_large_batches() -> None:
    log = Noting([settled(seq, payload=bytes(STEP_BYTES // 4)) for seq in range(20)])
    kept = Scrubbed(log)
    assert kept.scrub(16) == []
    assert log.offsets == [0, 1, 2, 3]
    for _ in range(4):
        kept.scrub(16)
    assert log.offsets == list(range(20))


def test_T12_id_without_a_batch_is_found_by_the_second_pass() -> None:
    kept = Scrubbed(settled(seq) for seq in range(40))
    kept.machine.index().add(WRONG_ID, 7)
    found = [effect for _ in range(12) for effect in kept.scrub(16)]
    assert found == []  # the batch at that offset is valid
    assert set(kept.machine.trie().keys()) == {settled(seq).id for seq in range(40)}
    assert kept.stored == [settled(seq) for seq in range(40)]


def test_T12_batch_that_the_trie_has_at_another_offset_stays() -> None:
    kept = Scrubbed(settled(seq) for seq in range(40))
    trie = kept.machine.index()
    trie.remove(settled(3).id)
    trie.add(settled(3).id, 17)
    assert [effect for _ in range(3) for effect in kept.scrub(16)] == []
    assert sorted(trie.entries()) == sorted((settled(seq).id, seq) for seq in range(40))


def test_T10_scrub_repairs_digests() -> None:
    kept = Scrubbed(settled(seq) for seq in range(100))
    trie = kept.machine.index()
    root = trie.root()
    trie.corrupt({ALL: WRONG_DIGEST, Prefix.parse("01"): WRONG_DIGEST})
    for _ in range(20):
        assert kept.scrub(10) == []
    assert trie.wrong_digests() == {}
    assert trie.root() == root


def test_T12_pass_ends_while_batches_keep_arriving() -> None:
    kept = Scrubbed(settled(seq) for seq in range(40))
    kept.machine.index().add(WRONG_ID, 7)
    for tick in range(100):
        for seq in range(20):  # more than a slice
            kept.add(settled(100 + 20 * tick + seq))
        kept.scrub(16)
        if WRONG_ID not in kept.machine.trie():
            return
    pytest.fail("an id without a batch was not found")


def test_scrub_does_not_index_waiting_batches() -> None:
    kept = Scrubbed(settled(seq) for seq in range(20))
    for seq in range(20, 40):
        kept.add(settled(seq))
    for _ in range(8):  # more than two passes
        assert kept.scrub(16) == []
    assert len(kept.machine.indexed_trie) == 20
    assert kept.machine.count == 40


def test_T12_duplicate_batch_that_waits_to_be_indexed_is_quarantined() -> None:
    kept = Scrubbed()
    kept.add(settled(0))
    kept.log.append(settled(0))  # simulates a disk that returns a wrong batch
    kept.machine.add([settled(1)], Outbox(), origin=Origin.SPREAD)
    assert [effect for _ in range(4) for effect in kept.scrub(16)] == [Discard(1)]


def test_T12_batches_are_indexed_again_even_if_no_id_is_left() -> None:
    kept = Scrubbed(settled(seq) for seq in range(20))
    for seq in range(20):
        kept.machine.index().remove(settled(seq).id)
    for _ in range(2):
        assert kept.scrub(16) == []
    assert set(kept.machine.trie().keys()) == {settled(seq).id for seq in range(20)}


def test_T12_id_of_an_unreadable_batch_is_removed_within_two_passes() -> None:
    kept = Scrubbed(settled(seq) for seq in range(160))
    kept.log.discard(37)  # simulates a disk that loses a batch silently
    for _ in range(2 * 160 // 16):
        kept.scrub(16)
    assert set(kept.machine.trie().keys()) == {settled(seq).id for seq in range(160) if seq != 37}


# -- batches of several records ----------------------------------------------------------------

UNREADABLE = {
    "no MessagePack": RecordBatch("ann", 4, 2, b"\xc1").with_id(TOPIC),
    "unknown field": with_rows([[b"x", 0, None, {}, 1]] * 2, count=2, first=4, topic=TOPIC),
    "fewer records": with_rows([[b"x"]], count=2, first=4, topic=TOPIC),
    "wrong name": replace(pair(4), publisher="no name").with_id(TOPIC),
}


@pytest.mark.parametrize("unreadable", UNREADABLE.values(), ids=UNREADABLE)
def test_T12_batch_with_the_right_id_that_no_reader_accepts_is_quarantined(
    unreadable: RecordBatch,
) -> None:
    assert unreadable.is_genuine(TOPIC)
    kept = Scrubbed([pair(0), pair(2), unreadable, pair(6)])
    assert [effect for _ in range(4) for effect in kept.scrub(2)] == [Discard(4)]
    assert kept.stored == [pair(0), pair(2), pair(6)]
    assert {*kept.machine.trie().keys()} == {each.id for each in kept.stored}


@pytest.mark.parametrize("change", [{"count": 0}, {"count": -3}, {"first": -1}], ids=str)
def test_T12_batch_with_numbers_out_of_range_is_quarantined(change: dict[str, int]) -> None:
    wrong = replace(pair(2), **change)
    kept = Scrubbed([pair(0), wrong, pair(4)])
    assert [effect for _ in range(6) for effect in kept.scrub(1)] == [Discard(2)]
    assert kept.stored == [pair(0), pair(4)]


@pytest.mark.parametrize("offset", [0, 3, 99])
def test_T12_batch_whose_id_has_an_offset_within_or_beyond_it_stays(offset: int) -> None:
    kept = Scrubbed([settled(0), pair(1), pair(3), settled(5)])
    trie = kept.machine.index()
    trie.remove(pair(1).id)
    trie.add(pair(1).id, offset)
    for _ in range(8):
        kept.scrub(2)
    assert kept.stored == [settled(0), pair(1), pair(3), settled(5)]
    assert sorted(trie.entries()) == sorted(kept.log.entries())


def test_T12_scrub_from_any_progress_keeps_sound_batches() -> None:
    sound = [pair(2 * number) for number in range(20)]
    for offset in (-(10**9), -1, 1, 17, 39, 40, 10**9):
        for end in (-1, 0, 7, 40, 10**9):
            kept = Scrubbed(sound)
            kept.scrubber.load(ScrubState(offset=offset, end=end, ids=-3, found=10**6))
            assert [effect for _ in range(20) for effect in kept.scrub(4)] == []
            assert kept.stored == sound
            assert len(kept.machine.trie()) == 20


def test_number_of_an_own_batch_that_the_scrub_reads_is_not_issued() -> None:
    kept = Scrubbed([settled(0)])
    assert kept.machine.issue_numbers(1, 0) == 1
    kept.log.append(pair(6))  # simulates a lost number in memory
    kept.log.append(settled(SEQ_BELIEVED_MAX))
    for _ in range(4):
        kept.scrub(16)
    assert kept.machine.issue_numbers(1, 0) == 8
