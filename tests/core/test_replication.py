"""Replication at a subscriber: comparison of tries, indexing and backfill."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core import replica as replica_module
from skipring.core.batches import RecordBatch
from skipring.core.broadcast import Broadcast
from skipring.core.effects import Deliver, Discard, Origin, Rejected, Send, Store
from skipring.core.events import (
    Flush,
    Received,
    ResendRequested,
    SubmitRequested,
    SubscribeRequested,
    SyncRequested,
    Tick,
)
from skipring.core.log import MemoryLog
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage, Refused
from skipring.core.messages import (
    MESSAGE_TYPES,
    CheckAndPublish,
    CheckHeld,
    CheckTrie,
    Draining,
    HandoverDone,
    Held,
    IHave,
    Message,
    Publications,
    RequestHandover,
    Terms,
    TrieEqual,
    Want,
)
from skipring.core.peers import SUPERVISOR
from skipring.core.prefix import ALL
from skipring.core.publications import ID_BYTES
from skipring.core.replication import Replication
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import RangeSummary
from skipring.core.trie import PublicationTrie
from skipring.world.snapshot import publications_in
from tests.support.backfill import begin, end, feed
from tests.support.batches import batch_of, opaque_batch, with_rows
from tests.support.fake_host import FakeHost, distinct, kinds
from tests.support.machines import TOPIC
from tests.support.publications import arrive, deferring, made, made_many, news, store
from tests.wire.samples import SAMPLES

LOG_MESSAGE_TYPES = (GetLogInfo, LogInfo, FetchLog, LogPage, Refused)
WRONG_ID = b"x" * ID_BYTES


def is_about(message: object) -> bool:
    return bool(publications_in(message)) or hasattr(message, "claims")  # type: ignore[arg-type]


def test_broadcast_and_replication_handle_every_message_about_publications() -> None:
    about = {type(each) for each in SAMPLES if type(each) in MESSAGE_TYPES and is_about(each)}
    handing_over = {CheckHeld, Held, Draining, RequestHandover, HandoverDone}
    handled = {*Broadcast.HANDLERS, *Replication.HANDLERS}
    assert handled == about | {IHave, Want, TrieEqual, Terms} | handing_over


# -- anti-entropy while new publications arrive ------------------------------------------------


def compares(host: FakeHost[Subscriber]) -> bool:
    """Return True if the machine sends a CheckTrie in the next tick."""
    return distinct(host.handle(Tick()), CheckTrie) != []


def test_tries_are_compared_in_one_of_several_ticks_while_publications_arrive() -> None:
    host = deferring(repairs=True, news_ticks=4)
    compared = []
    for seq in range(12):
        arrive(host, news(seq))
        compared.append(compares(host))
    assert compared == [False, False, False, True] * 3


def test_tries_are_compared_in_the_first_tick_without_new_publications() -> None:
    host = deferring(repairs=True, news_ticks=8)
    assert compares(host)
    arrive(host, news(0))
    assert not compares(host)
    assert compares(host)
    arrive(host, news(1))
    assert not compares(host)  # the count of ticks restarts


def test_own_publications_defer_comparisons_and_publications_from_repair_do_not() -> None:
    host = deferring(repairs=True, news_ticks=8)
    host.publish()
    assert not compares(host)
    arrive(host, Publications((made(0),)), "b")
    assert compares(host)


def test_tries_are_compared_in_every_tick_by_default() -> None:
    host = deferring(repairs=True)
    for seq in range(3):
        arrive(host, news(seq))
        assert compares(host)


# -- index backlog of a machine ----------------------------------------------------------------


TURNS_MAX = 10_000  # a run that needs more does not end


def backlog(host: FakeHost[Subscriber]) -> int:
    """Return the number of publications that are not in the trie yet."""
    return host.machine.count - len(host.machine.replica.indexed_trie)


def eager(batches: tuple[RecordBatch, ...]) -> PublicationTrie:
    """Return a trie with all batches inserted at once."""
    trie = PublicationTrie()
    trie.add_many(MemoryLog(batches).entries())
    return trie


def test_machine_with_deferred_indexing_flushes_until_all_is_indexed_and_hashed() -> None:
    host = deferring(repairs=True, hashed_ids=50)
    feed(host, *made_many(2000))
    end(host)
    host.handle(Tick())
    host.handle(Tick())
    flushes = 0
    while host.machine.has_to_flush and flushes < TURNS_MAX:
        assert host.handle(Flush()) == []
        flushes += 1
    assert 1 < flushes < TURNS_MAX
    assert host.machine.trie().is_fresh
    assert host.machine.trie().root() == eager(made_many(2000)).root()


def test_nothing_is_indexed_before_a_tick_without_new_publications() -> None:
    host = deferring()
    arrive(host, news(0))
    host.handle(Flush())
    left = []
    for event in (Flush(), Tick(), Flush(), Tick(), Flush()):
        host.handle(event)
        left.append(backlog(host))
    assert left == [1, 1, 1, 1, 0]


def test_machine_without_deferred_indexing_does_not_flush_for_its_trie() -> None:
    host = deferring(defers_indexing=False)
    feed(host, *made_many(50))
    end(host)
    assert not host.machine.has_to_flush


def test_machine_counts_its_publications_without_its_trie() -> None:
    host = deferring()
    feed(host, *made_many(50))
    assert (host.machine.count, backlog(host)) == (50, 50)


@pytest.mark.parametrize("event", [Flush(), Tick()])
def test_large_log_is_indexed_in_slices_after_a_start_and_compared_afterwards(
    event: Flush | Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    host = deferring(log=MemoryLog(made_many(38)), repairs=True, hashed_ids=6)
    counts = [host.machine.count]
    while host.machine.replica.is_starting and len(counts) < TURNS_MAX:
        assert host.machine.has_to_flush
        assert arrive(host, news(37, 70)) == []  # one is stored, the other is dropped too
        assert not is_answered(host)
        host.handle(event)
        counts.append(host.machine.count)
    assert counts == [10, 10, 10, 22, 34, 38]
    assert kinds(arrive(host, news(37, 70))) == [Store, Deliver, Send]
    assert is_answered(host)
    assert host.stored == [*made_many(38), made(70)]


def test_own_publications_are_accepted_while_a_large_log_is_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    host = deferring(log=MemoryLog(made_many(40)), repairs=True, hashed_ids=6)
    assert host.publish(b"x", b"y") != []
    assert host.machine.replica.is_starting
    assert host.machine.handle(SubmitRequested((made(39),))) == []
    assert len(host.machine.trie()) == 41
    assert len(host.delivered) == 1


def messages_to_a_starting_node() -> list[Message | GetLogInfo]:
    """Return a message of every type, and those that a forger derives from what it received."""
    everything = RangeSummary.make(ALL)
    replies = [Held("n1", session, False, (everything,), b"", b"") for session in range(4)]
    return [
        *(each for each in SAMPLES if type(each) in (*MESSAGE_TYPES, *LOG_MESSAGE_TYPES)),
        RequestHandover("n1", 1),
        *replies,
        CheckHeld("n1", 1, (everything,), made(39).id),
        CheckTrie("n1", (everything,), 1),
        CheckAndPublish("n1", (everything,), 1, (everything,)),
        IHave("n1", made(70).id[:8], b"\0"),
        Want("n1", made(39).id[:8] + made(70).id[:8], b"\0\0"),
        Publications((made(39), made(70)), 1),
        GetLogInfo(1, 4, None),
    ]


@pytest.mark.parametrize(
    "message", messages_to_a_starting_node(), ids=lambda message: type(message).__name__
)
def test_no_message_to_a_node_with_a_backlog_indexes_it(
    message: Message | GetLogInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    host = deferring(log=MemoryLog(made_many(40)), repairs=True, hashed_ids=6)
    host.handle(Received(RequestHandover("n1", 1), "n1"))
    for sender in ("n1", SUPERVISOR):
        host.handle(Received(message, sender))
        host.machine.replica.end_event()
    assert host.machine.count == 10
    assert host.machine.replica.is_starting


def test_resent_and_lost_batches_do_not_index_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    log = MemoryLog(made_many(40))
    host = deferring(log=log, repairs=True, hashed_ids=6)
    host.publish(b"own")
    own = host.stored[-1].id
    assert kinds(host.handle(ResendRequested((own, made(0).id, made(39).id)))) == [Send]
    lost = next(key for key, _ in host.machine.replica.indexed_trie.entries() if key != own)
    offset = host.machine.replica.offset_of(lost)
    assert offset is not None
    log.discard(offset)
    assert host.handle(ResendRequested((lost,))) == [Discard(offset)]
    assert host.machine.replica.offset_of(lost) is None
    assert host.machine.replica.is_starting


def test_new_member_with_a_large_log_surveys_its_neighbours_once_it_is_indexed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    host = deferring(log=MemoryLog(made_many(40)))
    host.handle(SubscribeRequested())
    host.tick()
    assert not host.machine.replication.is_backfilling
    host.machine.replica.index()
    assert distinct(host.handle(Tick()), GetLogInfo) != []
    assert host.machine.replication.is_backfilling


# -- backfill (decision 41) --------------------------------------------------------------------


def test_backfilled_publications_are_stored_and_delivered_and_not_announced() -> None:
    host = deferring()
    rows = (made(0), batch_of(b"x", b"y", publisher="z", first=1, topic=TOPIC), made(3))
    effects = feed(host, *rows)
    records = tuple(each.records() for each in rows)
    assert effects == [store(0, *rows), Deliver(rows, records, 0, 4, Origin.REPAIR, 0)]
    assert not any(isinstance(each, Send) for each in host.handle(Flush()))


def test_only_unknown_publications_of_a_page_are_added_each_once() -> None:
    host = deferring()
    feed(host, *made_many(3))
    feed(host, *made_many(5), *made_many(5))
    feed(host, *made_many(5))
    assert host.stored == [*made_many(5)]
    assert host.delivered == list(enumerate(made_many(5)))


def test_publication_that_waits_to_be_indexed_is_not_delivered_again_by_a_backfill() -> None:
    host = deferring()
    arrive(host, news(0, 1))
    assert len(host.machine.replica.indexed_trie) == 0
    feed(host, *made_many(3))
    assert host.stored == [*made_many(3)]
    assert [offset for offset, _ in host.delivered] == [0, 1, 2]


def test_backfilled_publication_is_not_delivered_again_when_it_arrives_as_new() -> None:
    host = deferring()
    feed(host, *made_many(3))
    for seq in range(3):
        assert arrive(host, news(seq)) == []
    assert kinds(arrive(host, news(3))) == [Store, Deliver, Send]
    assert host.stored == [*made_many(4)]


FIRST, SECOND, THIRD = made_many(3)
UNKNOWN_FIELD = with_rows([[b"x", 0, None, {}, 1]], topic=TOPIC)
PAGES = {
    "a wrong id": ((FIRST, replace(SECOND, id=WRONG_ID), THIRD), 1, [FIRST, THIRD]),
    "an id of another": ((FIRST, replace(SECOND, id=THIRD.id), THIRD), 1, [FIRST, THIRD]),
    "numbers below 0": ((replace(SECOND, first=-1), FIRST), 1, [FIRST]),
    "an unreadable body": ((UNKNOWN_FIELD, FIRST), 1, [FIRST]),
    "no body": ((opaque_batch(WRONG_ID), FIRST), 0, [FIRST]),
    "a corrupt duplicate": ((replace(FIRST, id=WRONG_ID), FIRST, FIRST), 1, [FIRST]),
    "a duplicate": ((FIRST, SECOND, FIRST), 0, [FIRST, SECOND]),
}


@pytest.mark.parametrize(("rows", "rejected", "stored"), PAGES.values(), ids=PAGES)
def test_T10_valid_batches_of_a_page_are_stored_once(
    rows: tuple[RecordBatch, ...], rejected: int, stored: list[RecordBatch]
) -> None:
    host = deferring()
    feed(host, *rows)
    assert host.stored == stored
    assert host.machine.count == len(stored)
    assert host.all(Rejected) == [Rejected(rejected)] * bool(rejected)


@pytest.mark.parametrize("is_indexed", [False, True])
def test_known_publications_of_a_page_keep_their_offsets_and_new_ones_follow(
    is_indexed: bool,
) -> None:
    host = deferring()
    rows = made_many(6)
    feed(host, *rows[2:4])
    if is_indexed:
        assert len(host.machine.trie()) == 2
    feed(host, *rows)
    assert host.stored == [*rows[2:4], *rows[:2], *rows[4:]]
    assert dict(host.machine.trie().entries()) == {row.id: at for at, row in enumerate(host.stored)}


def asks(host: FakeHost[Subscriber]) -> bool:
    return distinct(host.handle(Tick()), CheckTrie) != []


def is_answered(host: FakeHost[Subscriber], sender: str = "x") -> bool:
    """Return True if an empty member that compares tries gets an answer."""
    return arrive(host, CheckTrie(sender, (RangeSummary.make(ALL),), 1), sender) != []


def test_T8_no_session_is_started_or_answered_during_a_backfill() -> None:
    host = deferring(repairs=True, history_ticks=8)
    assert asks(host)
    feed(host, *made_many(3))
    for start in range(3, 30, 3):
        assert not is_answered(host)
        assert not asks(host)
        feed(host, *made_many(3, start))
    assert host.stored == [*made_many(30)]


def test_T8_announced_backfill_blocks_other_sessions_for_a_bounded_time() -> None:
    host = deferring(repairs=True, history_ticks=4)
    feed(host, *made_many(3))
    end(host)
    host.handle(Tick())
    assert is_answered(host)
    assert begin(host) is None
    assert not is_answered(host)
    assert [asks(host) for _ in range(4)] == [False, False, False, True]
    host.handle(Tick())  # the backfill has ended: its source did not answer
    assert is_answered(host)


def test_T8_tries_are_compared_from_the_tick_after_a_backfill_on() -> None:
    host = deferring(repairs=True, history_ticks=8, quiet_ticks_max=64)
    feed(host, *made_many(3))
    end(host)
    assert not is_answered(host)  # from the next tick on
    assert asks(host)
    assert is_answered(host)


def test_T8_backfill_that_stops_blocks_sessions_for_a_bounded_time() -> None:
    host = deferring(repairs=True, history_ticks=4)
    feed(host, *made_many(3))
    assert [asks(host) for _ in range(3)] == [False] * 3
    assert not is_answered(host)
    assert asks(host)
    host.handle(Tick())  # the backfill has ended: its source did not answer
    assert is_answered(host)


def test_nothing_is_indexed_or_scrubbed_during_a_backfill() -> None:
    host = deferring(repairs=True, history_ticks=8)
    feed(host, *made_many(30))
    effects = [
        effect for _ in range(4) for event in (Tick(), Flush()) for effect in host.handle(event)
    ]
    assert not any(isinstance(effect, Discard | Store) for effect in effects)
    assert not host.machine.has_to_flush
    assert not is_answered(host)
    assert backlog(host) == 30


def test_sync_request_during_a_backfill_waits_for_its_end() -> None:
    host = deferring(repairs=True, history_ticks=8)
    feed(host, *made_many(30))
    assert host.handle(SyncRequested()) == []
    assert backlog(host) == 30
    end(host)
    host.handle(Tick())
    assert distinct(host.handle(SyncRequested()), CheckTrie) != []


def test_ticks_index_nothing_during_a_backfill_at_any_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "FAR_BEHIND", 10)
    host = deferring(repairs=True, history_ticks=8, hashed_ids=10)
    feed(host, *made_many(30))
    host.handle(Tick())
    assert backlog(host) == 30
    end(host)
    host.handle(Tick())
    host.handle(Tick())
    assert backlog(host) == 20


@pytest.mark.parametrize(
    "message",
    [
        Refused(1, "busy"),
        LogInfo(1, "", 0, 0, 9, 9, (), b""),
        LogPage(1, None, (0, 1), made_many(2)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_answer_without_a_backfill_has_no_effect(message: Message) -> None:
    host = deferring(repairs=True)
    assert host.handle(Received(message, "a")) == []
    assert (host.stored, host.delivered) == ([], [])
