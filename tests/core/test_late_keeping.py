"""Deferred storage: a node delivers and forwards new publications before it stores them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Deliver, Discard, Effect, Origin, Send, Store, Unsubscribed
from skipring.core.events import (
    DrainRequested,
    Event,
    Flush,
    Overwritten,
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
from skipring.core.log import Log, MemoryLog
from skipring.core.messages import (
    MESSAGE_TYPES,
    UNRECORDED,
    CheckLabel,
    CheckTrie,
    ConfigurationAck,
    Digest,
    GetConfiguration,
    HandoverDone,
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
    SetConfiguration,
    Subscribe,
    Unsubscribe,
    Want,
)
from skipring.core.peers import NodeId
from skipring.core.prefix import ALL
from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.core.state import SubscriberState, legitimate_state
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import SHORT_BYTES, RangeSummary
from skipring.node.settings import NodeSettings
from skipring.sim.engine import World
from skipring.sim.network_faults import DELIVERED, LOST, Verdict
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.storage.store import PublicationStore
from skipring.world.adversaries.builders import node_names
from skipring.world.legitimacy import has_all_publications
from skipring.world.snapshot import Parcel
from tests.support.conversations import standing_ring
from tests.support.machines import ME, TOPIC, Scripted, sent, unhurried
from tests.wire.samples import SAMPLES

# In a ring of 16, m has the label 01: a, j and k are beside it in the tree, b, e and f are not.
QUARTER = legitimate_state(2, ["a", "b", ME, *"defghijklnopq"])
LEAVING = replace(QUARTER, member=False)

Said: TypeAlias = list[tuple[NodeId, Any]]


def made(seq: int, publisher: NodeId = "z", payload: bytes = b"news") -> Publication:
    """Return a publication as it arrives over a connection: without an id."""
    return Publication(publisher=publisher, seq=seq, payload=payload)


def genuine(*publications: Publication) -> list[Publication]:
    """Return publications with their ids."""
    return [publication.with_id(TOPIC) for publication in publications]


def store(offset: int, *publications: Publication) -> Store:
    """Return the Store effect of publications with their ids and total size."""
    kept = tuple(genuine(*publications))
    return Store(offset, kept, sum(each.size_bytes for each in kept))


class Host:
    """Machine with deferred storage, the log of its host, and the deliveries to its application."""

    def __init__(
        self,
        state: SubscriberState = QUARTER,
        archive: Log | None = None,
        **constants: object,
    ) -> None:
        self.archive = archive if archive is not None else MemoryLog(state.publications)
        config = replace(ProtocolConfig(repairs=False, defers_storage=True), **constants)
        self.machine = Subscriber(
            ME, topic=TOPIC, rng=Scripted(1), config=config, archive=self.archive
        )
        self.machine.handle(Overwritten(state))
        self.delivered: list[tuple[int, Publication]] = []

    def act(self, event: Event) -> list[Effect]:
        """Handle an event and apply the effects."""
        return self.carry_out(self.machine.handle(event))

    def carry_out(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            match effect:
                case Store(offset=offset, publications=publications):
                    assert isinstance(self.archive, MemoryLog)
                    self.archive.write(offset, *publications)
                case Deliver(publications=publications, offset=offset):
                    self.delivered += enumerate(publications, offset)
                case Discard():
                    pytest.fail(f"a valid publication was quarantined: {effect}")
        return effects

    def hear(self, message: Message, sender: NodeId | None = "a") -> list[Effect]:
        return self.act(Received(message, sender))

    def settle(self) -> None:
        self.carry_out(self.machine.handle(Shutdown()))

    @property
    def stored(self) -> list[Publication]:
        return list(self.archive.publications())


def kinds(effects: Iterable[Effect]) -> list[type]:
    """Return the types of effects, in order; consecutive messages count as one."""
    found: list[type] = []
    for effect in effects:
        if not (found and found[-1] is type(effect) is Send):
            found.append(type(effect))
    return found


def to_all(effects: list[Effect], kind: type[Message]) -> list[Any]:
    """Return the distinct messages of a type among the effects."""
    found: list[Any] = []
    for _, message in sent(effects):
        if type(message) is kind and message not in found:
            found.append(message)
    return found


# -- deliver and forward, then store -------------------------------------------------------------


@pytest.mark.parametrize("spread", list(Spread))
@pytest.mark.parametrize(
    "message", [PublishNew(made(0), 2), PublishMany((made(0), made(1), made(4)), 2)]
)
def test_new_publication_is_delivered_and_sent_before_it_is_stored(
    spread: Spread, message: PublishNew | PublishMany
) -> None:
    host = Host(spread=spread)
    effects = host.hear(message)
    assert kinds(effects) == [Deliver, Send]
    delivered = effects[0]
    assert isinstance(delivered, Deliver)
    assert (delivered.offset, delivered.origin, delivered.hops) == (0, Origin.SPREAD, 3)
    assert to_all(effects, type(message)) == [replace(message, hops=3)]
    assert (host.stored, len(host.machine.index())) == ([], 0)
    assert host.machine.has_to_flush
    flushed = host.act(Flush())
    assert flushed[0] == store(0, *delivered.publications)
    assert Store not in kinds(flushed[1:])
    assert {publication.id for publication in host.stored} == set(host.machine.index().keys())


def test_delivery_states_the_size_of_its_publications() -> None:
    plain, rich = made(0), replace(made(1), key=b"k" * 9, headers={"a": "b"})
    [delivered, *_] = Host().hear(PublishMany((plain, rich)))
    assert isinstance(delivered, Deliver)
    assert delivered.size_bytes == plain.size_bytes + rich.size_bytes


def test_deferred_publications_are_stored_at_their_offsets_in_delivery_order() -> None:
    before = tuple(genuine(made(0, "y"), made(1, "y")))
    host = Host(replace(QUARTER, publications=before), busy_arrivals=32)
    packs = [(made(0), made(3)), (made(2, "y"),), (made(0, "x"), made(1, "x")), (made(9),)]
    for pack in packs:
        host.hear(PublishMany(pack))
    every = genuine(*(each for pack in packs for each in pack))
    assert host.stored == [*before]
    host.act(Flush())
    assert host.stored == [*before, *every]
    assert [offset for offset, _ in host.delivered] == [2, 3, 4, 5, 6, 7]
    assert genuine(*(each for _, each in host.delivered)) == every


def test_publication_checked_by_id_is_stored_after_deferred_ones() -> None:
    host = Host()
    host.hear(PublishNew(made(5)))
    effects = host.hear(PublishNew(made(3)))
    assert kinds(effects) == [Store, Store, Deliver, Send]
    assert host.stored == genuine(made(5), made(3))
    assert [offset for offset, _ in host.delivered] == [0, 1]


def test_deferred_storage_announces_the_same_as_immediate_storage() -> None:
    late, eager = Host(), Host(defers_storage=False)
    for host in (late, eager):
        for _ in range(8):
            host.act(Tick())
        host.hear(PublishMany((made(0), made(1)), 1))
        host.hear(PublishNew(made(0, "y")), "b")
    announced = [sent(host.act(Flush())) for host in (late, eager)]
    assert announced[0] == announced[1] != []


# -- publications that may be known --------------------------------------------------------------

NOT_CERTAIN = {
    "the same": ((made(5),), ()),
    "a lower number": ((made(3),), (made(3),)),
    "the same number of something else": ((made(5, payload=b"x"),), (made(5, payload=b"x"),)),
    "a pack that overlaps": ((made(5), made(6)), (made(6),)),
    "a pack whose numbers fall": ((made(7), made(6)), (made(7), made(6))),
    "a pack with one twice": ((made(6), made(6)), (made(6),)),
    "a pack of two publishers": ((made(6), made(0, "y")), (made(6), made(0, "y"))),
    "a pack with an id alone": ((made(6), replace(made(7), payload=None)), (made(6),)),
    "an incredible number": ((made(SEQ_BELIEVED_MAX),), (made(SEQ_BELIEVED_MAX),)),
    "a pack up to an incredible number": (
        (made(6), made(SEQ_BELIEVED_MAX)),
        (made(6), made(SEQ_BELIEVED_MAX)),
    ),
}


@pytest.mark.parametrize("is_settled", [True, False])
@pytest.mark.parametrize(("pack", "new"), NOT_CERTAIN.values(), ids=NOT_CERTAIN)
def test_id_decides_if_the_number_does_not_prove_a_publication_new(
    pack: tuple[Publication, ...], new: tuple[Publication, ...], is_settled: bool
) -> None:
    host = Host()
    host.hear(PublishNew(made(5)))
    if is_settled:
        host.settle()
    effects = host.hear(PublishMany(pack))
    before = [] if is_settled else [Store]
    assert kinds(effects) == [*before, *([Store, Deliver, Send] if new else [])]
    assert host.stored == genuine(made(5), *new)
    assert host.hear(PublishMany(pack)) == []  # repeated
    assert genuine(*(each for _, each in host.delivered)) == host.stored


def test_publication_with_a_negative_time_is_dropped() -> None:
    host = Host()
    assert host.hear(PublishMany((made(0), replace(made(1), time=-1)))) != []
    assert host.stored == genuine(made(0))


def test_own_publication_that_returns_is_known() -> None:
    host = Host()
    host.act(PublishRequested(payload=b"own"))
    [own] = host.stored
    assert host.hear(PublishNew(replace(own, id=b""))) == []
    assert len(host.delivered) == 1


def test_number_of_a_lost_own_publication_that_returns_is_not_used_again() -> None:
    host = Host()
    assert kinds(host.hear(PublishNew(made(7, ME)))) == [Deliver, Send]
    host.act(PublishRequested(payload=b"own"))
    assert [publication.seq for publication in host.stored] == [7, 8]


def test_publication_from_repair_counts_as_seen() -> None:
    host = Host()
    host.hear(PublishNew(made(0)))
    host.hear(Publications((made(4),)))
    assert host.hear(PublishNew(made(4))) == []
    assert kinds(host.hear(PublishNew(made(5)))) == [Deliver, Send]


def test_implausible_number_does_not_hide_later_numbers() -> None:
    host = Host()
    host.hear(PublishNew(made(SEQ_BELIEVED_MAX + 5)))
    assert kinds(host.hear(PublishNew(made(0)))) == [Deliver, Send]


def test_storage_is_not_deferred_by_default() -> None:
    host = Host(defers_storage=False)
    assert kinds(host.hear(PublishMany((made(0), made(1))))) == [Store, Deliver, Send]


def test_empty_pack_has_no_effect() -> None:
    host = Host()
    assert host.hear(PublishMany(())) == []
    assert not host.machine.has_to_flush


def test_stored_publications_are_known_and_later_ones_new_after_a_restart(
    tmp_path: Path,
) -> None:
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        archive.write(0, *genuine(made(0), made(8), made(3, "y"), made(SEQ_BELIEVED_MAX, "y")))
        store.commit()
        archive.write(4, *genuine(made(2), made(1, "x")))
        store.commit()
        archive.discard(1)
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        archive.write(6, *genuine(made(4, "y"), made(1)))  # not committed
        assert archive.newest() == {("z", 0): 8, ("y", 0): 4, ("x", 0): 1}
        host = Host(archive=archive)
        for known in (made(2), made(4, "y"), made(1, "x"), made(SEQ_BELIEVED_MAX, "y")):
            assert host.hear(PublishNew(known)) == []
        for unseen in (made(9), made(5, "y"), made(2, "x"), made(0, "w")):
            assert kinds(host.hear(PublishNew(unseen))) == [Deliver, Send]


def test_numbers_of_a_pending_commit_count(tmp_path: Path) -> None:
    with PublicationStore.open(tmp_path) as store:
        archive = store.archive(TOPIC)
        archive.write(0, *genuine(made(7)))
        assert archive.prepare() is not None
        archive.write(1, *genuine(made(3, "y")))
        assert archive.newest() == {("z", 0): 7, ("y", 0): 3}
        archive.abort()


# -- events that need the log --------------------------------------------------------------------

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
    host = Host()
    host.hear(PublishNew(made(0)))
    effects = host.hear(message, "b")
    if type(message) in UNCONCERNED:
        assert Store not in kinds(effects)
    else:
        assert effects[0] == store(0, made(0))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_application_request_stores_deferred_publications_first(event: Event) -> None:
    host = Host()
    host.hear(PublishNew(made(0)))
    assert host.act(event)[0] == store(0, made(0))


def test_deferred_publications_survive_a_load_and_are_not_delivered_again() -> None:
    host = Host()
    host.hear(PublishNew(made(0)))
    host.hear(PublishMany((made(1), made(2))))
    host.machine.handle(Overwritten(QUARTER))
    assert host.hear(PublishMany((made(1), made(2)))) == [store(0, made(0), made(1), made(2))]
    host.hear(PublishNew(made(3)))
    host.settle()
    assert host.delivered == list(enumerate(genuine(made(0), made(1), made(2), made(3))))
    assert host.stored == [each for _, each in host.delivered]


def test_leaver_stores_all_deliveries_before_it_is_unsubscribed() -> None:
    host = Host(LEAVING)
    assert kinds(host.hear(PublishNew(made(0)))) == [Deliver, Send]
    effects = host.hear(UNRECORDED)
    assert kinds(effects)[-2:] == [Store, Unsubscribed]
    assert host.stored == genuine(made(0))


def test_host_can_request_storage_at_any_time() -> None:
    host = Host()
    host.hear(PublishNew(made(0)))
    host.settle()
    assert host.stored == genuine(made(0))
    assert host.machine.handle(Shutdown()) == []


# -- limits --------------------------------------------------------------------------------------


def test_number_of_deferred_publications_is_bounded() -> None:
    host = Host(deferred_max=3)
    assert kinds(host.hear(PublishMany((made(0), made(1), made(2))))) == [Deliver, Send]
    assert kinds(host.hear(PublishNew(made(3)))) == [Deliver, Send, Store]
    assert host.stored == genuine(*(made(seq) for seq in range(4)))
    assert kinds(host.hear(PublishNew(made(4)))) == [Deliver, Send]  # counted from zero again
    assert [offset for offset, _ in host.delivered] == [0, 1, 2, 3, 4]


def test_bytes_of_deferred_publications_are_bounded() -> None:
    host = Host(deferred_bytes_max=2 * made(0).size_bytes)
    assert kinds(host.hear(PublishNew(made(0)))) == [Deliver, Send]
    assert kinds(host.hear(PublishNew(made(1)))) == [Deliver, Send]
    assert kinds(host.hear(PublishNew(made(2)))) == [Deliver, Send, Store]
    assert kinds(host.hear(PublishNew(made(3)))) == [Deliver, Send]
    assert len(host.stored) == 3


def kept_at(host: Host, count: int, flushes: int) -> list[bool]:
    """Return for each Flush whether it stores, if ``count`` publications arrive before each."""
    kept = []
    for number in range(flushes):
        several = range(count * number, count * (number + 1))
        host.hear(PublishMany(tuple(made(seq) for seq in several)))
        kept.append(Store in kinds(host.act(Flush())))
    return kept


def test_flush_is_deferred_under_load_a_bounded_number_of_times() -> None:
    host = Host(busy_arrivals=1, flush_deferrals_max=4)
    assert kept_at(host, 8, flushes=8) == [False, False, False, True] * 2
    assert host.stored == genuine(*(made(seq) for seq in range(64)))


@pytest.mark.parametrize(("count", "put_off"), [(1, 1), (2, 2), (3, 3), (5, 5)])
def test_flush_is_deferred_longer_under_higher_load(count: int, put_off: int) -> None:
    host = Host(busy_arrivals=1, flush_deferrals_max=30)
    assert kept_at(host, count, flushes=put_off + 1) == [False] * put_off + [True]


def test_flush_is_no_longer_deferred_when_the_load_falls() -> None:
    host = Host(busy_arrivals=2, flush_deferrals_max=30)
    host.hear(PublishMany((made(0), made(1), made(2))))
    assert host.act(Flush()) == []
    assert host.machine.has_to_flush
    assert Store in kinds(host.act(Flush()))


def test_few_publications_are_stored_at_the_next_flush() -> None:
    host = Host(busy_arrivals=3)
    host.hear(PublishMany((made(0), made(1))))
    assert kinds(host.act(Flush()))[:1] == [Store]


# -- reads within the event that stores ----------------------------------------------------------


def test_requested_publication_is_sent_before_its_deferred_storage() -> None:
    host = Host()
    host.hear(PublishMany((made(0), made(1))))
    effects = host.hear(want("x", (made(1), 1)))
    assert kinds(effects) == [Store, Send]
    assert sent(effects) == [("x", PublishNew(made(1).with_id(TOPIC), 1))]
    assert len(host.machine.index()) == 2


def test_missing_publication_is_sent_by_anti_entropy_before_its_deferred_storage() -> None:
    host = Host()
    host.hear(PublishMany((made(0), made(1))))
    effects = host.hear(CheckTrie("x", (RangeSummary.make(ALL),), 1))
    [answer] = to_all(effects, Publications)
    assert sorted(answer.publications, key=number) == genuine(made(0), made(1))
    assert len(host.machine.index()) == 2


def test_scrub_removes_nothing_that_was_stored_in_the_same_tick() -> None:
    host = Host(repairs=True)
    for seq in range(0, 40, 4):
        host.hear(PublishMany(tuple(made(each) for each in range(seq, seq + 4))))
        assert Store in kinds(host.act(Tick()))
        assert len(host.machine.index()) == seq + 4
    for _ in range(10):
        assert Store not in kinds(host.act(Tick()))  # Host fails on a Discard
    assert len(host.machine.index()) == 40


# -- any interleaving ----------------------------------------------------------------------------


def number(publication: Publication) -> tuple[NodeId, int]:
    return publication.publisher, publication.seq


def want(sender: NodeId, *wanted: tuple[Publication, int]) -> Want:
    """Return a request for publications, with their hops."""
    ids = b"".join(each.with_id(TOPIC).id[:8] for each, _ in wanted)
    return Want(sender, ids, bytes(hops for _, hops in wanted))


def some() -> SearchStrategy[tuple[Publication, ...]]:
    """Draw publications of few publishers with few numbers, sometimes with other contents."""
    one = st.builds(
        made,
        st.sampled_from([0, 1, 2, 3, 4, 5, SEQ_BELIEVED_MAX]),
        st.sampled_from(["z", "y", ME]),
        st.sampled_from([b"news", b"news", b"other"]),
    )
    rising = st.builds(
        lambda start, count: tuple(made(seq) for seq in range(start, start + count)),
        st.integers(0, 8),
        st.integers(1, 4),
    )
    return rising | st.lists(one, min_size=1, max_size=4).map(tuple)


def histories() -> SearchStrategy[list[Event]]:
    """Draw events of a machine in any order."""
    hops = st.integers(0, 3)
    messages = st.one_of(
        st.builds(lambda several, hops: PublishNew(several[0], hops), some(), hops),
        st.builds(PublishMany, some(), hops),
        st.builds(PublishMany, some(), hops),
        st.builds(Publications, some()),
        st.builds(lambda several: want("x", *((each, 1) for each in several)), some()),
    )
    received = st.builds(Received, messages, st.sampled_from(["a", "b", "x"]))
    own: list[Event] = [Flush(), Flush(), Tick(), PublishRequested(payload=b"own")]
    others = st.sampled_from(own)
    return st.lists(st.one_of(received, received, others), max_size=24)


@unhurried
@given(histories(), st.integers(1, 8), st.integers(1, 4))
def test_deferred_storage_delivers_once_and_stores_the_same_as_immediate_storage(
    events: list[Event], deferred_max: int, busy: int
) -> None:
    late = Host(repairs=True, deferred_max=deferred_max, busy_arrivals=busy, flush_deferrals_max=3)
    eager = Host(repairs=True, defers_storage=False)
    for event in events:
        late.act(event)
        eager.act(event)
    late.settle()
    assert late.stored == eager.stored
    assert [offset for offset, _ in late.delivered] == list(range(len(late.stored)))
    assert genuine(*(each for _, each in late.delivered)) == late.stored
    assert len({publication.id for publication in late.stored}) == len(late.stored)
    assert sorted(late.machine.index().keys()) == sorted(p.id for p in late.stored)


# -- anti-entropy while new publications arrive --------------------------------------------------


def compares(host: Host) -> bool:
    """Return True if the machine sends a CheckTrie in the next tick."""
    return to_all(host.act(Tick()), CheckTrie) != []


def test_tries_are_compared_in_one_of_several_ticks_while_publications_arrive() -> None:
    host = Host(repairs=True, news_ticks=4)
    compared = []
    for seq in range(12):
        host.hear(PublishNew(made(seq)))
        compared.append(compares(host))
    assert compared == [False, False, False, True] * 3


def test_deferred_publications_stay_deferred_in_ticks_without_a_comparison() -> None:
    host = Host(repairs=True, news_ticks=4)
    host.hear(PublishNew(made(0)))
    assert Store not in kinds(host.act(Tick()))
    assert Store in kinds(host.act(Tick()))


def test_tries_are_compared_in_the_first_tick_without_new_publications() -> None:
    host = Host(repairs=True, news_ticks=8)
    assert compares(host)
    host.hear(PublishNew(made(0)))
    assert not compares(host)
    assert compares(host)
    host.hear(PublishNew(made(1)))
    assert not compares(host)  # the count of ticks restarts


def test_own_publications_defer_comparisons_and_publications_from_repair_do_not() -> None:
    host = Host(repairs=True, news_ticks=8)
    host.act(PublishRequested(payload=b"own"))
    assert not compares(host)
    host.hear(Publications((made(0),)), "b")
    assert compares(host)


def test_tries_are_compared_in_every_tick_by_default() -> None:
    host = Host(repairs=True)
    for seq in range(3):
        host.hear(PublishNew(made(seq)))
        assert compares(host)


# -- announced publications that arrive later ----------------------------------------------------


def i_have(sender: NodeId, *publications: Publication) -> IHave:
    wanted = want(sender, *((each, 2) for each in publications))
    return IHave(sender, wanted.ids, wanted.hops)


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_announced_publication_is_requested_after_want_flushes(flushes: int) -> None:
    host = Host(want_flushes=flushes)
    host.hear(i_have("b", made(0)))
    for _ in range(flushes - 1):
        assert host.act(Flush()) == []
        assert host.machine.has_to_flush
    assert sent(host.act(Flush())) == [("b", want(ME, (made(0), 2)))]
    assert not host.machine.has_to_flush


def test_publication_that_arrives_between_flushes_is_not_requested() -> None:
    host = Host(want_flushes=2)
    host.hear(i_have("b", made(0), made(1)))
    host.act(Flush())
    host.hear(PublishNew(made(0)), "b")
    assert to_all(host.act(Flush()), Want) == [want(ME, (made(1), 2))]


def test_second_announcement_does_not_delay_the_request_to_the_first_announcer() -> None:
    host = Host(want_flushes=2)
    host.hear(i_have("b", made(0)))
    host.act(Flush())
    host.hear(i_have("e", made(0)))
    assert sent(host.act(Flush())) == [("b", want(ME, (made(0), 2)))]


def test_publication_with_deferred_storage_is_not_requested() -> None:
    host = Host()
    host.hear(PublishNew(made(0)), "b")
    host.hear(i_have("b", made(0)))
    assert to_all(host.act(Flush()), Want) == []


def test_publication_announced_during_deferred_storage_is_requested_if_it_is_missing() -> None:
    host = Host()
    host.hear(PublishNew(made(0)), "b")
    host.hear(i_have("e", made(0), made(1)))
    assert to_all(host.act(Flush()), Want) == [want(ME, (made(1), 2))]


def test_number_of_remembered_announcements_is_bounded() -> None:
    host = Host(announced_max=3)
    host.hear(PublishNew(made(0)), "b")
    for seq in range(1, 7):
        host.hear(i_have("e", made(seq)))
    (asked,) = to_all(host.act(Flush()), Want)
    assert isinstance(asked, Want)
    assert asked.shorts() == {made(seq).with_id(TOPIC).id[:SHORT_BYTES] for seq in (1, 2, 3)}


def test_recent_publications_are_not_looked_up_in_the_trie() -> None:
    host = Host()
    host.hear(PublishNew(made(0)), "b")
    host.act(Flush())  # announced by now
    host.hear(PublishNew(made(1)), "b")
    host.hear(i_have("e", made(0), made(1)))
    assert to_all(host.act(Flush()), Want) == []
    assert len(host.machine._circulation.holdings._trie) == 0  # nothing was indexed


def test_lost_publication_is_requested_once_no_new_ones_arrive() -> None:
    host = Host()
    host.hear(PublishNew(made(0)), "b")
    host.act(Flush())
    host.machine.index().remove(made(0).with_id(TOPIC).id)
    for _ in range(2):  # a publication was new before the first
        host.act(Tick())
    host.hear(i_have("b", made(0)))
    assert to_all(host.act(Flush()), Want) == [want(ME, (made(0), 2))]


# -- packs ---------------------------------------------------------------------------------------


def with_some(host: Host, count: int) -> Host:
    """Return a machine that has stored some publications."""
    host.hear(PublishMany(tuple(made(seq) for seq in range(count))))
    host.settle()
    return host


def test_requested_publications_are_packed_by_hops_in_the_order_of_their_numbers() -> None:
    host = with_some(Host(), 5)
    wanted = [(made(4), 1), (made(2), 7), (made(0), 1), (made(3), 1)]
    assert sent(host.hear(want("x", *wanted))) == [
        ("x", PublishMany(tuple(genuine(made(0), made(3), made(4))), 1)),
        ("x", PublishNew(made(2).with_id(TOPIC), 7)),
    ]


def test_T14_answer_in_packs_is_limited_to_one_chunk_and_one_publication() -> None:
    size = made(0).size_bytes
    host = with_some(Host(chunk_bytes=3 * size + 1), 9)
    answers: Said = sent(host.hear(want("x", *((made(seq), 1) for seq in range(9)))))
    packs = [message.publications for _, message in answers if isinstance(message, PublishMany)]
    assert [len(pack) for pack in packs] == [3]
    assert [message.publication.seq for _, message in answers[1:]] == [3]


def test_T14_different_hops_do_not_extend_the_limit_of_an_answer() -> None:
    host = with_some(Host(chunk_bytes=3 * made(0).size_bytes), 9)
    answers = sent(host.hear(want("x", *((made(seq), seq) for seq in range(9)))))
    assert len(answers) == 3


def test_T14_answer_in_packs_uses_credit_that_a_tick_restores() -> None:
    host = with_some(Host(credit_chunks=2, repairs=True), 3)
    wanted = want("x", *((made(seq), seq) for seq in range(3)))
    assert [len(sent(host.hear(wanted))) for _ in range(3)] == [3, 3, 0]
    assert len(sent(host.hear(replace(wanted, sender="y")))) == 3
    host.act(Tick())
    assert len(sent(host.hear(wanted))) == 3


def test_own_publications_are_packed_up_to_the_chunk_size() -> None:
    payloads = [b"%d" % number for number in range(7)]
    requests = tuple(PublishRequested(payload=payload) for payload in payloads)
    size = made(0, ME, b"0").size_bytes
    host = Host(chunk_bytes=3 * size)
    effects = host.act(PublishManyRequested(requests))
    assert kinds(effects) == [Store, Deliver, Send]
    packs = to_all(effects, PublishMany)
    assert [len(pack.publications) for pack in packs] == [3, 3]
    [last] = to_all(effects, PublishNew)
    every = [*(each for pack in packs for each in pack.publications), last.publication]
    assert [(each.seq, each.payload) for each in every] == list(enumerate(payloads))
    assert every == host.stored


def test_publication_larger_than_a_chunk_is_sent_alone() -> None:
    requests = tuple(PublishRequested(payload=bytes(size)) for size in (1, 999, 1))
    effects = Host(chunk_bytes=500).act(PublishManyRequested(requests))
    assert [each.publication.seq for each in to_all(effects, PublishNew)] == [0, 1, 2]


def test_removed_tree_edge_is_no_longer_used() -> None:
    host = Host(spread=Spread.TREE)
    assert sorted(to for to, _ in sent(host.hear(PublishNew(made(0)), "b"))) == ["a", "j", "k"]
    host.hear(RemoveConnections("j"))
    assert "j" not in [to for to, _ in sent(host.hear(PublishNew(made(1)), "b"))]


# -- whole rings ---------------------------------------------------------------------------------


class Losing:
    """Fault that loses a share of the broadcasts."""

    def __init__(self, share: float) -> None:
        self._share = share

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        is_new = isinstance(parcel.message, PublishNew | PublishMany)
        return LOST if is_new and rng.random() < self._share else DELIVERED


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_all_members_get_all_publications_once_with_live_settings_and_losses(
    share: float, seed: int
) -> None:
    config, rng = NodeSettings().config, Random(seed)
    assert config.defers_storage
    world = World(standing_ring(16), seed=seed, config=config, faults=(Losing(share),))
    for number in range(60):
        world.publish(rng.choice(node_names(16)[:3]), b"%d" % number)
        if number % 2:
            run_rounds(world, RandomOrder(), 1)
    for _ in range(100):
        if has_all_publications(world):
            break
        run_rounds(world, RandomOrder(), 1)
    assert has_all_publications(world)
    assert world.deliveries.by_origin.total() == 60 * 16
    assert share == 0 or world.deliveries.by_origin[Origin.REPAIR] > 0
