"""Replication at a subscriber: storage before any answer, indexing and backfill."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core import replica as holdings_module
from skipring.core.broadcast import Broadcast
from skipring.core.config import ProtocolConfig
from skipring.core.effects import (
    Deliver,
    Discard,
    Origin,
    Send,
    Store,
)
from skipring.core.events import (
    DrainRequested,
    Event,
    Flush,
    PublishManyRequested,
    PublishRequested,
    Received,
    ReplicationRequested,
    Shutdown,
    SubscribeRequested,
    SyncRequested,
    Tick,
    UnsubscribeRequested,
)
from skipring.core.log import HistoryPage, MemoryLog
from skipring.core.log_messages import LogInfo, LogPage, Refused
from skipring.core.messages import (
    MESSAGE_TYPES,
    CheckHeld,
    CheckLabel,
    CheckTrie,
    ConfigurationAck,
    Digest,
    Draining,
    GetConfiguration,
    HandoverDone,
    Held,
    IHave,
    Introduce,
    IntroduceShortcut,
    Message,
    Ping,
    Pong,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    ReportUnresponsive,
    RequestHandover,
    SetConfiguration,
    Subscribe,
    TrieEqual,
    Unsubscribe,
    Want,
)
from skipring.core.prefix import ALL
from skipring.core.publications import ID_BYTES, Encoded, Publication, encoded_all
from skipring.core.replica import Replica
from skipring.core.replication import Replication
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import RangeSummary
from skipring.core.trie import PublicationTrie
from skipring.world.snapshot import publications_in
from tests.support.backfill import begin, end, feed, rows_of
from tests.support.fake_host import FakeHost, distinct, kinds
from tests.support.machines import TOPIC
from tests.support.publications import arrive, arriving, deferring, made, made_many, news, store
from tests.wire.samples import SAMPLES

WRONG_ID = b"x" * ID_BYTES
LATE = ProtocolConfig(defers_storage=True)


def is_about(message: object) -> bool:
    return bool(publications_in(message)) or hasattr(message, "claims")  # type: ignore[arg-type]


def test_broadcast_and_replication_handle_every_message_about_publications() -> None:
    about = {type(each) for each in SAMPLES if type(each) in MESSAGE_TYPES and is_about(each)}
    handing_over = {CheckHeld, Held, Draining, RequestHandover, HandoverDone}
    handled = {*Broadcast.HANDLERS, *Replication.HANDLERS}
    assert handled == about | {IHave, Want, TrieEqual} | handing_over


# -- events that need the log ------------------------------------------------------------------


UNCONCERNED = {
    IHave,
    SetConfiguration,
    CheckLabel,
    Introduce,
    IntroduceShortcut,
    RemoveConnections,
    Digest,
    HandoverDone,
    *(ReportUnresponsive, Ping, Pong, ConfigurationAck),
    *(Subscribe, Unsubscribe, GetConfiguration),  # requests to supervisors; dropped
}


ONES = [
    message
    for message in SAMPLES
    if type(message) in MESSAGE_TYPES and type(message) not in (PublishNew, PublishMany)
]


EVENTS = [
    SyncRequested(),
    DrainRequested(),
    ReplicationRequested((), ("b",)),
    PublishRequested(payload=b"own"),
    PublishManyRequested((PublishRequested(payload=b"own"),)),
    UnsubscribeRequested(),
    SubscribeRequested(),
]


@pytest.mark.parametrize("message", ONES, ids=lambda message: type(message).__name__)
def test_only_ring_messages_and_announcements_leave_storage_deferred(
    message: Message,
) -> None:
    host = deferring()
    arrive(host, news(0))
    effects = arrive(host, message, "b")
    if type(message) in UNCONCERNED:
        assert Store not in kinds(effects)
    else:
        assert effects[0] == store(0, made(0))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_application_request_stores_deferred_publications_first(event: Event) -> None:
    host = deferring()
    arrive(host, news(0))
    assert host.handle(event)[0] == store(0, made(0))


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


def test_deferred_publications_stay_deferred_in_ticks_without_a_comparison() -> None:
    host = deferring(repairs=True, news_ticks=4)
    arrive(host, news(0))
    assert Store not in kinds(host.handle(Tick()))
    assert Store in kinds(host.handle(Tick()))


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
    host.handle(PublishRequested(payload=b"own"))
    assert not compares(host)
    arrive(host, Publications((arriving(0),)), "b")
    assert compares(host)


def test_tries_are_compared_in_every_tick_by_default() -> None:
    host = deferring(repairs=True)
    for seq in range(3):
        arrive(host, news(seq))
        assert compares(host)


# -- index backlog of a machine ----------------------------------------------------------------


TURNS_MAX = 10_000  # a run that needs more does not end


def page(publications: tuple[Publication, ...], **fields: object) -> HistoryPage:
    """Return the page of a valid store; a publication that cannot have an id has zeros."""
    ids = (each.id_in(TOPIC) if each.seq >= 0 else bytes(ID_BYTES) for each in publications)
    return HistoryPage(tuple(replace(each, **fields) for each in publications), b"".join(ids))


def backlog(host: FakeHost[Subscriber]) -> int:
    """Return the number of publications that are not in the trie yet."""
    return host.machine.count - len(host.machine.replica.indexed_trie)


def eager(publications: tuple[Publication, ...]) -> PublicationTrie:
    """Return a trie with all publications inserted at once."""
    trie = PublicationTrie()
    trie.add_many((each.id, offset) for offset, each in enumerate(publications))
    return trie


def test_machine_with_deferred_storage_flushes_until_all_is_indexed_and_hashed() -> None:
    host = deferring(repairs=True, hashed_ids=50)
    feed(host, page(made_many(2000)))
    end(host)
    host.handle(Tick())
    host.handle(Tick())
    flushes = 0
    while host.machine.has_to_flush and flushes < TURNS_MAX:
        assert host.handle(Flush()) == []
        flushes += 1
    assert 1 < flushes < TURNS_MAX
    assert host.machine.index().is_fresh
    assert host.machine.index().root() == eager(made_many(2000)).root()


def test_nothing_is_indexed_before_a_tick_without_new_publications() -> None:
    host = deferring()
    arrive(host, news(0))
    assert Store in kinds(host.handle(Flush()))
    left = []
    for event in (Flush(), Tick(), Flush(), Tick(), Flush()):
        host.handle(event)
        left.append(backlog(host))
    assert left == [1, 1, 1, 1, 0]


def test_machine_with_immediate_storage_does_not_flush_for_its_trie() -> None:
    host = deferring(defers_storage=False)
    feed(host, page(made_many(50)))
    end(host)
    assert not host.machine.has_to_flush


def test_machine_counts_its_publications_without_its_trie() -> None:
    host = deferring()
    feed(host, page(made_many(50)))
    assert (host.machine.count, backlog(host)) == (50, 50)


# -- backfill (decision 41) --------------------------------------------------------------------


def test_backfilled_publications_are_stored_and_delivered_and_not_announced() -> None:
    host = deferring()
    rows = made_many(3)
    effects = feed(host, page(rows))
    encoded = Encoded.of(encoded_all(rows))
    size = len(encoded.data)
    assert effects == [Store(0, rows, size, encoded), Deliver(rows, 0, Origin.REPAIR, 0, size)]
    assert not any(isinstance(each, Send) for each in host.handle(Flush()))


def test_only_unknown_publications_of_a_page_are_added_each_once() -> None:
    host = deferring()
    feed(host, page(made_many(3)))
    unnamed = tuple(replace(each, id=b"") for each in made_many(5))
    feed(host, page(unnamed + unnamed))
    feed(host, page(made_many(5)))
    assert host.stored == [*made_many(5)]
    assert host.delivered == list(enumerate(made_many(5)))


def test_publication_with_deferred_storage_is_not_delivered_again_by_a_backfill() -> None:
    host = deferring()
    arrive(host, news(0, 1))
    assert host.stored == []
    feed(host, page(made_many(3)))
    assert host.stored == [*made_many(3)]
    assert [offset for offset, _ in host.delivered] == [0, 1, 2]


def test_backfilled_publication_is_not_delivered_again_when_it_arrives_as_new() -> None:
    host = deferring()
    feed(host, page(made_many(3)))
    for seq in range(3):
        assert arrive(host, news(seq)) == []
    assert kinds(arrive(host, news(3))) == [Deliver, Send]
    host.handle(Shutdown())
    assert host.stored == [*made_many(4)]


FIRST, SECOND, THIRD = made_many(3)
UNNUMBERED = replace(made(1), seq=-1)  # cannot have an id
NAMELESS = Publication(publisher="p", seq=0, id=WRONG_ID)  # has no payload
PAGES = {
    "wrong ids in the rows": (page((FIRST, SECOND), id=WRONG_ID), [FIRST, SECOND]),
    "a row without an id": (page((UNNUMBERED, FIRST)), [FIRST]),
    "a row without a payload": (page((NAMELESS, FIRST)), []),  # the source is replaced
    "a corrupt duplicate": (
        HistoryPage((FIRST,) * 3, WRONG_ID + FIRST.id + FIRST.id),
        [FIRST],
    ),
    "a wrong id": (
        HistoryPage((FIRST, SECOND, THIRD), FIRST.id + WRONG_ID + THIRD.id),
        [FIRST, THIRD],
    ),
    "fewer ids than rows": (HistoryPage((UNNUMBERED, FIRST), FIRST.id), []),
    "a duplicate": (page((FIRST, SECOND, FIRST)), [FIRST, SECOND]),
}


@pytest.mark.parametrize(("read", "stored"), PAGES.values(), ids=PAGES)
def test_T10_rows_of_a_page_are_stored_once_under_the_ids_of_their_fields(
    read: HistoryPage, stored: list[Publication]
) -> None:
    host = deferring()
    feed(host, read)
    assert host.stored == stored
    assert host.machine.count == len(stored)


@pytest.mark.parametrize("is_indexed", [False, True])
def test_known_publications_of_a_page_keep_their_offsets_and_new_ones_follow(
    is_indexed: bool,
) -> None:
    host = deferring()
    rows = made_many(6)
    feed(host, page(rows[2:4]))
    if is_indexed:
        assert len(host.machine.index()) == 2
    feed(host, page(rows))
    assert host.stored == [*rows[2:4], *rows[:2], *rows[4:]]
    assert dict(host.machine.index().entries()) == {
        row.id: at for at, row in enumerate(host.stored)
    }


def test_encoded_publications_of_a_page_are_stored_as_received() -> None:
    log, rows = MemoryLog(), made_many(4)
    host = FakeHost(Replica(TOPIC, log), log)
    host.run(lambda out: host.machine.add_backfill(page(rows[:1]), out))
    host.machine.end_event()
    ids = rows[0].id + rows[1].id + b"x" * 32 + rows[3].id
    encoded = Encoded(memoryview(b"zeroonetwothree"), [4, 3, 3, 5])
    read = HistoryPage(rows, ids, encoded)
    effects = host.run(lambda out: host.machine.add_backfill(read, out))
    taken = (rows[1], rows[3])
    assert effects == [
        Store(1, taken, len(b"onethree"), Encoded(b"onethree", [3, 5])),
        Deliver(taken, 1, Origin.REPAIR, 0, len(b"onethree")),
    ]


def asks(host: FakeHost[Subscriber]) -> bool:
    return distinct(host.handle(Tick()), CheckTrie) != []


def is_answered(host: FakeHost[Subscriber], sender: str = "x") -> bool:
    """Return True if an empty member that compares tries gets an answer."""
    return arrive(host, CheckTrie(sender, (RangeSummary.make(ALL),), 1), sender) != []


def test_T8_no_session_is_started_or_answered_during_a_backfill() -> None:
    host = deferring(repairs=True, history_ticks=8)
    assert asks(host)
    feed(host, page(made_many(3)))
    for start in range(3, 30, 3):
        assert not is_answered(host)
        assert not asks(host)
        feed(host, page(made_many(3, start)))
    assert host.stored == [*made_many(30)]


def test_T8_announced_backfill_blocks_other_sessions_for_a_bounded_time() -> None:
    host = deferring(repairs=True, history_ticks=4)
    feed(host, page(made_many(3)))
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
    feed(host, page(made_many(3)))
    end(host)
    assert not is_answered(host)  # from the next tick on
    assert asks(host)
    assert is_answered(host)


def test_T8_backfill_that_stops_blocks_sessions_for_a_bounded_time() -> None:
    host = deferring(repairs=True, history_ticks=4)
    feed(host, page(made_many(3)))
    assert [asks(host) for _ in range(3)] == [False] * 3
    assert not is_answered(host)
    assert asks(host)
    host.handle(Tick())  # the backfill has ended: its source did not answer
    assert is_answered(host)


def test_nothing_is_indexed_or_scrubbed_during_a_backfill() -> None:
    host = deferring(repairs=True, history_ticks=8)
    feed(host, page(made_many(30)))
    effects = [
        effect for _ in range(4) for event in (Tick(), Flush()) for effect in host.handle(event)
    ]
    assert not any(isinstance(effect, Discard | Store) for effect in effects)
    assert not host.machine.has_to_flush
    assert not is_answered(host)
    assert backlog(host) == 30


def test_sync_request_during_a_backfill_waits_for_its_end() -> None:
    host = deferring(repairs=True, history_ticks=8)
    feed(host, page(made_many(30)))
    assert host.handle(SyncRequested()) == []
    assert backlog(host) == 30
    end(host)
    host.handle(Tick())
    assert distinct(host.handle(SyncRequested()), CheckTrie) != []


def test_ticks_index_nothing_during_a_backfill_at_any_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holdings_module, "FAR_BEHIND", 10)
    host = deferring(repairs=True, history_ticks=8, hashed_ids=10)
    feed(host, page(made_many(30)))
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
        LogPage(1, None, (), b"", rows_of(made_many(2))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_answer_without_a_backfill_has_no_effect(message: Message) -> None:
    host = deferring(repairs=True)
    assert host.handle(Received(message, "a")) == []
    assert (host.stored, host.delivered) == ([], [])
