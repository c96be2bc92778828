"""Index backlog: publications are indexed and hashed later; every reader of the trie sees all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core import replica as replica_module
from skipring.core.effects import Deliver, Discard, Effect, Origin, Outbox, Send, Store
from skipring.core.events import Flush, HistoryRead, SyncRequested, Tick
from skipring.core.log import MemoryLog
from skipring.core.messages import CheckTrie, PublishMany, PublishNew
from skipring.core.prefix import ALL
from skipring.core.publications import ID_BYTES, Encoded, Publication
from skipring.core.replica import UNINDEXED_MAX, Replica
from skipring.core.scrub import Scrubber
from skipring.core.summaries import RangeSummary
from skipring.core.trie import PublicationTrie
from tests.core.test_late_keeping import Host, genuine, kinds, made, store, to_all
from tests.support.machines import TOPIC, unhurried

TURNS_MAX = 10_000  # a run that needs more does not end


def some(count: int, start: int = 0) -> tuple[Publication, ...]:
    return tuple(genuine(*(made(seq) for seq in range(start, start + count))))


def read(publications: tuple[Publication, ...]) -> HistoryRead:
    """Return the page of a valid store; a publication that cannot have an id has zeros."""
    ids = (each.id_in(TOPIC) if each.seq >= 0 else bytes(ID_BYTES) for each in publications)
    return HistoryRead(publications, b"".join(ids))


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
            assert isinstance(replica.archive, MemoryLog)
            replica.archive.write(effect.offset, *effect.publications)
    return out.effects


def waiting(replica: Replica) -> int:
    """Return the number of publications that are not in the trie yet."""
    return len(replica._unindexed or ())


def turns(replica: Replica, ids: int) -> int:
    """Return how often the replica has to index until it has no backlog."""
    for turn in range(TURNS_MAX):
        if not replica.is_behind:
            return turn
        replica.index_some(ids)
    raise AssertionError(f"no end after {TURNS_MAX} turns")


# -- replica ---------------------------------------------------------------------------------


def test_added_publications_are_counted_and_known_before_they_are_indexed() -> None:
    replica = Replica(TOPIC, None)
    take(replica, some(10))
    assert (replica.count, waiting(replica), replica.is_behind) == (10, 10, True)
    assert take(replica, some(10)) == []
    assert kinds(take(replica, some(12))) == [Store, Deliver]
    assert (replica.count, waiting(replica)) == (12, 12)


def test_reader_of_the_trie_sees_all_publications() -> None:
    replica = Replica(TOPIC, None)
    take(replica, some(10))
    assert sorted(replica.index().entries()) == sorted(eager(some(10)).entries())
    assert (replica.count, waiting(replica)) == (10, 0)


def test_backlog_is_indexed_in_slices_first_into_the_trie_and_then_as_digests() -> None:
    replica = Replica(TOPIC, None)
    take(replica, some(100))
    for left in (70, 40, 10, 0):
        assert replica.is_behind
        replica.index_some(30)
        assert (replica.count, waiting(replica)) == (100, left)
    assert replica.is_behind  # no digest is known yet
    assert turns(replica, 30) > 0
    assert replica.index().is_fresh
    assert replica.index().root == eager(some(100)).root


def test_indexing_an_empty_backlog_has_no_effect() -> None:
    replica = Replica(TOPIC, None)
    assert not replica.is_behind
    replica.index_some(10)
    assert (replica.count, replica.is_behind) == (0, False)
    assert Replica(TOPIC, None).count == 0


def test_publications_that_arrive_during_indexing_are_indexed_too() -> None:
    replica = Replica(TOPIC, None)
    take(replica, some(50))
    replica.index_some(20)
    take(replica, some(80))  # 50 of them are known, in the trie or not
    assert (replica.count, waiting(replica)) == (80, 60)
    turns(replica, 20)
    assert sorted(replica.index().entries()) == sorted(eager(some(80)).entries())


def test_backlog_is_limited_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "UNINDEXED_MAX", 10)
    replica, most = Replica(TOPIC, None), 0
    for start, count in ((0, 4), (4, 4), (8, 4), (12, 1), (13, 25), (38, 3), (41, 9)):
        before = waiting(replica)
        take(replica, some(count, start))
        most = max(most, waiting(replica))
        assert before + count - waiting(replica) <= 2 * count  # no single step takes long
    assert 0 < most <= 10
    assert replica.count == 50
    assert replica.index().root == eager(some(50)).root


def test_backlog_limit_is_at_least_100_000() -> None:
    assert UNINDEXED_MAX >= 100_000


def test_recovery_indexes_the_stored_publications_and_nothing_else() -> None:
    replica = Replica(TOPIC, MemoryLog())
    take(replica, some(10))
    replica.add(some(5, 10), Outbox(), origin=Origin.REPAIR)  # never stored
    replica.recover({})
    assert (replica.count, waiting(replica)) == (10, 0)
    assert replica.index().root == eager(some(10)).root


def test_loaded_index_replaces_the_backlog() -> None:
    replica = Replica(TOPIC, None)
    take(replica, some(10))
    replica.adopt(eager(some(10)))
    assert (replica.count, waiting(replica)) == (10, 0)
    assert take(replica, some(10)) == []


def find(replica: Replica, out: Outbox) -> None:
    assert [replica.find(each.id[:8], out) for each in some(10)] == list(some(10))


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
    take(replica, some(10))
    if worked_off:
        replica.index_some(worked_off)
    look(replica, out)
    assert out.effects == []
    assert replica.index().root == eager(some(10)).root


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
        patch.setattr(replica_module, "UNINDEXED_MAX", limit)
        for turn, (start, count) in enumerate(packs):
            take(replica, some(count, start))
            taken |= {each.id: each for each in some(count, start) if each.id not in taken}
            assert waiting(replica) <= limit
            assert replica.count == len(taken)
            ids = slices[turn % len(slices)]
            if ids and replica.is_behind:
                replica.index_some(ids)
    turns(replica, 7)
    every = tuple(taken.values())
    assert tuple(replica.archive.publications()) == every
    assert sorted(replica.index().entries()) == sorted(eager(every).entries())
    assert replica.index().root == eager(every).root


# -- a machine -------------------------------------------------------------------------------


def test_machine_with_deferred_storage_flushes_until_all_is_indexed_and_hashed() -> None:
    host = Host(repairs=True, hashed_ids=50)
    host.act(read(some(2000)))
    host.act(HistoryRead(()))
    host.act(Tick())
    host.act(Tick())
    flushes = 0
    while host.machine.has_to_flush and flushes < TURNS_MAX:
        assert host.act(Flush()) == []
        flushes += 1
    assert 1 < flushes < TURNS_MAX
    assert host.machine.index().is_fresh
    assert host.machine.index().root == eager(some(2000)).root


def test_nothing_is_indexed_before_a_tick_without_new_publications() -> None:
    host = Host()
    replica = host.machine._circulation.holdings
    host.hear(PublishNew(made(0)))
    assert Store in kinds(host.act(Flush()))
    left = []
    for event in (Flush(), Tick(), Flush(), Tick(), Flush()):
        host.act(event)
        left.append(waiting(replica))
    assert left == [1, 1, 1, 1, 0]


def test_machine_with_immediate_storage_does_not_flush_for_its_trie() -> None:
    host = Host(defers_storage=False)
    host.act(read(some(50)))
    host.act(HistoryRead(()))
    assert not host.machine.has_to_flush


def test_machine_counts_its_publications_without_its_trie() -> None:
    host = Host()
    host.act(read(some(50)))
    replica = host.machine._circulation.holdings
    assert (host.machine.count, waiting(replica)) == (50, 50)


# -- backfill --------------------------------------------------------------------------------


def test_backfilled_publications_are_stored_and_delivered_and_not_announced() -> None:
    host = Host()
    rows = some(3)
    effects = host.act(read(rows))
    size = sum(row.size_bytes for row in rows)
    assert effects == [store(0, *rows), Deliver(rows, 0, Origin.REPAIR, 0, size)]
    assert not any(isinstance(each, Send) for each in host.act(Flush()))


def test_only_unknown_publications_of_a_page_are_added_each_once() -> None:
    host = Host()
    host.act(read(some(3)))
    unnamed = tuple(replace(each, id=b"") for each in some(5))
    host.act(read(unnamed + unnamed))
    host.act(read(some(5)))
    assert host.stored == [*some(5)]
    assert host.delivered == list(enumerate(some(5)))


def test_publication_with_deferred_storage_is_not_delivered_again_by_a_backfill() -> None:
    host = Host()
    host.hear(PublishMany((made(0), made(1))))
    assert host.stored == []
    host.act(read(some(3)))
    assert host.stored == [*some(3)]
    assert [offset for offset, _ in host.delivered] == [0, 1, 2]


def test_backfilled_publication_is_not_delivered_again_when_it_arrives_as_new() -> None:
    host = Host()
    host.act(read(some(3)))
    for seq in range(3):
        assert host.hear(PublishNew(made(seq))) == []
    assert kinds(host.hear(PublishNew(made(3)))) == [Deliver, Send]
    host.settle()
    assert host.stored == [*some(4)]


def test_T10_ids_derive_from_the_fields_whatever_ids_a_page_carries() -> None:
    host = Host()
    host.act(read(tuple(replace(each, id=b"x" * 32) for each in some(3))))
    assert host.stored == [*some(3)]


def test_publication_without_a_payload_in_a_page_is_dropped() -> None:
    host = Host()
    nameless = Publication(publisher="p", seq=0, id=b"x" * 32)
    below = replace(made(1), seq=-1)
    host.act(read((nameless, below, *some(1))))
    assert host.stored == [*some(1)]


def test_corrupt_duplicate_in_a_page_does_not_hide_the_valid_one() -> None:
    host = Host()
    (row,) = some(1)
    host.act(HistoryRead((row, row, row), b"x" * 32 + row.id + row.id))
    assert host.stored == [row]


def test_publication_with_a_wrong_id_is_dropped_from_a_page_and_the_rest_is_stored() -> None:
    host = Host()
    first, spoilt, last = some(3)
    host.act(HistoryRead((first, spoilt, last), first.id + b"x" * 32 + last.id))
    assert host.stored == [first, last]


def test_publication_that_cannot_have_an_id_is_not_stored() -> None:
    host = Host()
    (row,) = some(1)
    host.act(HistoryRead((replace(made(1), seq=-1), row), row.id))
    assert host.stored == []
    assert host.machine.count == 0


def test_duplicates_in_a_page_are_stored_once_and_the_others_too() -> None:
    host = Host()
    first, second = some(2)
    host.act(read((first, second, first)))
    assert host.stored == [first, second]
    assert host.machine.count == 2


@pytest.mark.parametrize("is_indexed", [False, True])
def test_known_publications_of_a_page_keep_their_offsets_and_new_ones_follow(
    is_indexed: bool,
) -> None:
    host = Host()
    rows = some(6)
    host.act(read(rows[2:4]))
    replica = host.machine._circulation.holdings
    if is_indexed:
        replica.index_some(2)
    host.act(read(rows))
    assert host.stored == [*rows[2:4], *rows[:2], *rows[4:]]
    assert dict(replica.index().entries()) == {row.id: at for at, row in enumerate(host.stored)}


def test_encoded_publications_of_a_page_are_stored_as_received() -> None:
    host = Host()
    rows = some(4)
    host.act(read(rows[:1]))
    ids = rows[0].id + rows[1].id + b"x" * 32 + rows[3].id
    encoded = Encoded(memoryview(b"zeroonetwothree"), [4, 3, 3, 5])
    effects = host.act(HistoryRead(rows, ids, encoded))
    taken = (rows[1], rows[3])
    assert effects == [
        Store(1, taken, len(b"onethree"), Encoded(b"onethree", [3, 5])),
        Deliver(taken, 1, Origin.REPAIR, 0, len(b"onethree")),
    ]


def asks(host: Host) -> bool:
    return to_all(host.act(Tick()), CheckTrie) != []


def is_answered(host: Host, sender: str = "x") -> bool:
    """Return True if an empty member that compares tries gets an answer."""
    return host.hear(CheckTrie(sender, (RangeSummary.make(ALL),), 1), sender) != []


def test_T8_no_session_is_started_or_answered_during_a_backfill() -> None:
    host = Host(repairs=True, history_ticks=8)
    assert asks(host)
    host.act(read(some(3)))
    for start in range(3, 30, 3):
        assert not is_answered(host)
        assert not asks(host)
        host.act(read(some(3, start)))
    assert host.stored == [*some(30)]


def test_T8_announced_backfill_blocks_other_sessions_for_a_bounded_time() -> None:
    host = Host(repairs=True, history_ticks=4)
    host.act(read(some(3)))
    host.act(HistoryRead(()))
    host.act(Tick())
    assert is_answered(host)
    assert host.act(HistoryRead((), is_awaited=True)) == []
    assert not is_answered(host)
    assert [asks(host) for _ in range(4)] == [False, False, False, True]
    assert is_answered(host)


def test_T8_tries_are_compared_from_the_tick_after_a_backfill_on() -> None:
    host = Host(repairs=True, history_ticks=8, quiet_ticks_max=64)
    host.act(read(some(3)))
    host.act(HistoryRead(()))
    assert not is_answered(host)  # enough to do
    assert asks(host)
    assert is_answered(host)


def test_T8_backfill_that_stops_blocks_sessions_for_a_bounded_time() -> None:
    host = Host(repairs=True, history_ticks=4)
    host.act(read(some(3)))
    assert [asks(host) for _ in range(3)] == [False] * 3
    assert not is_answered(host)
    assert asks(host)
    assert is_answered(host)


def test_nothing_is_indexed_or_scrubbed_during_a_backfill() -> None:
    host = Host(repairs=True, history_ticks=8)
    host.act(read(some(30)))
    effects = [
        effect for _ in range(4) for event in (Tick(), Flush()) for effect in host.act(event)
    ]
    assert not any(isinstance(effect, Discard | Store) for effect in effects)
    assert not host.machine.has_to_flush
    assert not is_answered(host)
    assert waiting(host.machine._circulation.holdings) == 30


def test_sync_request_during_a_backfill_waits_for_its_end() -> None:
    host = Host(repairs=True, history_ticks=8)
    host.act(read(some(30)))
    assert host.act(SyncRequested()) == []
    assert waiting(host.machine._circulation.holdings) == 30
    host.act(HistoryRead(()))
    host.act(Tick())
    assert to_all(host.act(SyncRequested()), CheckTrie) != []


def test_ticks_index_nothing_during_a_backfill_at_any_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    host = Host(repairs=True, history_ticks=8, hashed_ids=10)
    host.act(read(some(30)))
    host.act(Tick())
    assert waiting(host.machine._circulation.holdings) == 30
    host.act(HistoryRead(()))
    host.act(Tick())
    host.act(Tick())
    assert waiting(host.machine._circulation.holdings) == 20


def test_end_without_a_backfill_has_no_effect() -> None:
    host = Host(repairs=True)
    assert host.act(HistoryRead(())) == []
    assert (host.stored, host.delivered) == ([], [])
