"""Lazy push: announcements, requests and answers, and the lookups that they cost."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skipring.core import lazy_push as lazy_push_module
from skipring.core.batches import RecordBatch
from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Deliver, Origin
from skipring.core.events import (
    Flush,
    Received,
    Tick,
)
from skipring.core.lazy_push import Announcement, LazyPush
from skipring.core.messages import (
    IHave,
    Publications,
    PublishMany,
    PublishNew,
    Want,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.replica import Replica
from skipring.core.state import (
    LazyPushState,
    PendingWantState,
)
from skipring.core.subscriber import Subscriber
from tests.support.fake_host import FakeHost, Sent, distinct, sent
from tests.support.machines import ME, TOPIC
from tests.support.publications import (
    LAZY,
    NEIGHBOURS,
    TREE,
    addressed,
    arrive,
    calm_quarter,
    deferring,
    i_have,
    made,
    made_many,
    news,
    quarter,
    want,
    want_each,
)

SOME = made_many(6)
EVERYWHERE = Announcement(1, frozenset({"a", "b"}))  # all neighbours have it


class Edges(FakeHost[LazyPush]):
    """Lazy push of a node with a replica and a host."""

    def __init__(self, **constants: int) -> None:
        self.replica = Replica(TOPIC, None)
        lazy_push = LazyPush(ME, self.replica, ProtocolConfig(**constants))
        super().__init__(lazy_push, self.replica.log)

    def keep(self, *batches: RecordBatch, is_queued: bool = True) -> None:
        """Store batches that have arrived; index nothing."""
        self.replica.end_event()
        self.run(lambda out: self.replica.add(batches, out, origin=Origin.SPREAD))
        if is_queued:
            self.machine.queue([each.id for each in batches], EVERYWHERE)

    def receive_ihave(self, sender: NodeId, *batches: RecordBatch) -> None:
        """Receive an announcement."""
        self.machine.on_ihave(i_have(sender, *batches))

    def flush(self) -> Sent:
        """Flush with two neighbours; return the messages sent."""
        return sent(self.run(lambda out: self.machine.on_flush(["a", "b"], out)))

    def wanted(self) -> list[set[bytes]]:
        """Return the ids that a Flush requests, one set per message."""
        return [message.shorts() for _, message in self.flush() if isinstance(message, Want)]

    @property
    def is_indexed(self) -> bool:
        """Return True if a lookup has indexed the trie."""
        return len(self.replica.indexed_trie) > 0


def short(*publications: RecordBatch) -> set[bytes]:
    return {each.id[:8] for each in publications}


def test_new_publication_is_announced_once_to_nodes_that_may_lack_it() -> None:
    edges = Edges()
    assert not edges.machine.has_pending
    assert edges.flush() == []
    edges.machine.queue([each.id for each in SOME[:2]], Announcement(3, frozenset({"a"})))
    assert edges.machine.has_pending
    assert edges.flush() == [("b", i_have(ME, *SOME[:2], hops=3))]
    assert edges.flush() == []


def test_publications_stored_since_the_flush_before_last_are_not_looked_up() -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.flush()
    edges.keep(*SOME[2:4])
    edges.receive_ihave("a", *SOME[:4])
    assert edges.wanted() == []
    assert not edges.is_indexed


def test_publications_stored_earlier_are_looked_up_and_found() -> None:
    edges = Edges()
    edges.keep(*SOME[:2])
    edges.flush()
    edges.flush()
    edges.receive_ihave("a", *SOME[:2])
    assert edges.is_indexed
    assert edges.wanted() == []


def test_trie_is_used_if_more_is_stored_than_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_push_module, "RECENT_MAX", 2)
    edges = Edges()
    edges.keep(*SOME[:3])
    edges.receive_ihave("a", *SOME[:4])
    assert edges.is_indexed
    assert edges.wanted() == [short(SOME[3])]


def test_number_of_missing_publications_is_bounded() -> None:
    edges = Edges(announced_max=3)
    for each in SOME:
        edges.receive_ihave("a", each)
    assert len(edges.machine.state().missing) == 3
    assert edges.wanted() == [short(*SOME[:3])]


def test_empty_announcement_is_not_remembered() -> None:
    edges = Edges()
    for _ in range(1000):
        edges.receive_ihave("a")
    assert not edges.machine.has_pending
    assert edges.machine.state() == LazyPushState()


def test_publication_that_arrives_before_its_request_is_not_looked_up() -> None:
    edges = Edges(want_flushes=2)
    edges.receive_ihave("a", SOME[0])
    assert edges.wanted() == []
    edges.keep(SOME[0])
    assert edges.wanted() == []
    assert not edges.is_indexed


def test_only_stored_publications_count_after_a_recovery() -> None:
    edges = Edges()
    edges.keep(*SOME[:2], is_queued=False)
    edges.machine.queue(
        [each.id for each in SOME], EVERYWHERE
    )  # including publications that are gone
    edges.machine.forget_stored()
    edges.receive_ihave("a", *SOME[:3])
    assert edges.wanted() == [short(SOME[2])]


def test_node_with_a_large_index_backlog_does_not_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edges = Edges(want_flushes=2)
    edges.receive_ihave("a", *SOME[2:4])
    edges.keep(*SOME[:2])
    monkeypatch.setattr("skipring.core.replica.FAR_BEHIND", 1)
    assert [edges.wanted(), edges.wanted()] == [[], []]
    assert not edges.is_indexed


def test_node_with_a_large_index_backlog_ignores_announcements_and_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = deferring()
    arrive(host, news(0, 1))
    host.handle(Flush())
    with monkeypatch.context() as small:
        small.setattr("skipring.core.replica.FAR_BEHIND", 1)
        assert arrive(host, i_have("b", made(5))) == []
        assert arrive(host, want("b", made(0))) == []
        assert len(host.machine.replica.indexed_trie) == 0
    assert distinct(host.handle(Flush()), Want) == []


def announced(*publications: RecordBatch, hops: int = 1, to: list[NodeId] = LAZY) -> Sent:
    """Return the announcements of publications to all neighbours outside the tree."""
    return [(node, i_have(ME, *publications, hops=hops)) for node in to]


# -- announcements of a machine ----------------------------------------------------------------


@pytest.mark.parametrize("spread", [Spread.TREE, Spread.FLOOD])
def test_only_adaptive_mode_announces(spread: Spread) -> None:
    host = calm_quarter(spread=spread)
    host.publish()
    host.receive(Publications((made(0),)))
    assert not host.machine.has_to_flush
    assert host.flush() == []


def test_nothing_is_announced_before_the_flush() -> None:
    host = calm_quarter()
    assert addressed(host.publish(), IHave) == []
    assert host.machine.has_to_flush
    assert addressed(host.receive(PublishNew(made(0)), "a"), IHave) == []


def test_flush_announces_once_on_edges_outside_the_tree() -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(0), 3), "a")
    assert host.flush() == announced(made(0), hops=4)
    assert not host.machine.has_to_flush
    assert host.flush() == []


def test_one_message_announces_all_publications_since_the_last_flush() -> None:
    host = calm_quarter()
    for seq in range(5):
        host.receive(PublishNew(made(seq)), "a")
    assert host.flush() == announced(*(made(seq) for seq in range(5)))


def test_publication_is_not_announced_to_its_sender() -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(0)), "b")
    host.receive(PublishNew(made(1)), "a")
    assert host.flush() == [
        *announced(made(1), to=["b"]),
        *announced(made(0), made(1), to=["e", "f"]),
    ]
    host.receive(PublishNew(made(2)), "b")
    assert host.flush() == announced(made(2), to=["e", "f"])


def test_own_publication_is_announced_with_zero_hops() -> None:
    host = calm_quarter()
    host.publish()
    own = host.stored[0]
    assert host.flush() == announced(own, hops=0)


def test_number_of_announced_publications_is_bounded() -> None:
    host = calm_quarter(announced_max=2)
    for seq in range(5):
        host.receive(PublishNew(made(seq)), "a")
    assert host.flush() == announced(made(0), made(1))
    host.receive(PublishNew(made(5)), "a")
    assert host.flush() == announced(made(5))


def test_publication_is_not_announced_to_nodes_that_were_sent_it() -> None:
    """A new view: the publication went over all edges."""
    host = quarter()
    host.receive(PublishNew(made(0)), "b")
    assert host.flush() == []


def test_publication_from_repair_is_announced_to_all_neighbours() -> None:
    host = calm_quarter()
    assert host.receive(Publications((made(0), made(1)))) == []
    assert host.flush() == announced(made(0), made(1), hops=0, to=NEIGHBOURS)


def test_publication_from_repair_is_not_announced_to_its_sender() -> None:
    host = calm_quarter()
    host.receive(Publications((made(0),)), "e")
    assert host.flush() == announced(
        made(0), hops=0, to=[node for node in NEIGHBOURS if node != "e"]
    )


def test_known_publication_from_repair_is_not_announced() -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(0)), "a")
    host.flush()
    host.receive(Publications((made(0),)))
    assert host.flush() == []


def test_repair_of_more_than_a_few_publications_is_not_announced() -> None:
    host = calm_quarter(repair_announce_max=2)
    host.receive(Publications(tuple(made(seq) for seq in range(3))))
    assert len(host.machine.trie()) == 3
    assert host.flush() == []
    host.receive(Publications((made(3), made(4))))
    assert host.flush() == announced(made(3), made(4), hops=0, to=NEIGHBOURS)


# -- requests of a machine ---------------------------------------------------------------------


def test_announced_publication_that_is_missing_at_the_flush_is_requested() -> None:
    host = calm_quarter()
    assert host.receive(i_have("b", made(0), made(1), hops=2)) == []
    assert host.machine.has_to_flush
    assert host.flush() == [("b", want(ME, made(0), made(1), hops=2))]
    assert host.flush() == []


def test_announced_publication_that_arrived_before_the_flush_is_not_requested() -> None:
    host = calm_quarter()
    host.receive(i_have("b", made(0), made(1)))
    host.receive(PublishNew(made(0)), "b")
    assert ("b", want(ME, made(1))) in host.flush()


def test_known_publication_is_not_requested() -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(0)), "b")
    host.flush()
    host.receive(i_have("b", made(0)))
    assert host.flush() == []


def test_publication_is_requested_from_the_first_announcer() -> None:
    host = calm_quarter()
    host.receive(i_have("b", made(0), hops=3))
    host.receive(i_have("x", made(0), made(1), hops=1))
    assert host.flush() == [("b", want(ME, made(0), hops=3)), ("x", want(ME, made(1)))]


def test_publication_is_requested_from_the_next_announcer_if_the_first_does_not_answer() -> None:
    host = calm_quarter()
    host.receive(i_have("b", made(0)))
    host.flush()
    host.receive(i_have("x", made(0)))
    assert host.flush() == [("x", want(ME, made(0)))]


def test_number_of_requested_publications_is_bounded() -> None:
    host = calm_quarter(announced_max=2)
    host.receive(i_have("b", *(made(seq) for seq in range(5))))
    host.receive(i_have("x", made(7)))
    assert host.flush() == [("b", want(ME, made(0), made(1)))]


@pytest.mark.parametrize("forged", [ME, SUPERVISOR])
def test_request_in_the_name_of_the_node_itself_or_the_supervisor_is_ignored(
    forged: NodeId,
) -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(0)), "b")
    host.flush()
    assert host.receive(i_have(forged, made(1))) == []
    assert host.flush() == []
    assert host.receive(want(forged, made(0))) == []


@pytest.mark.parametrize("flushes", [1, 2, 3])
def test_announced_publication_is_requested_after_want_flushes(flushes: int) -> None:
    host = deferring(want_flushes=flushes)
    arrive(host, i_have("b", made(0)))
    for _ in range(flushes - 1):
        assert host.handle(Flush()) == []
        assert host.machine.has_to_flush
    assert sent(host.handle(Flush())) == [("b", want(ME, made(0)))]
    assert not host.machine.has_to_flush


def test_publication_that_arrives_between_flushes_is_not_requested() -> None:
    host = deferring(want_flushes=2)
    arrive(host, i_have("b", made(0), made(1)))
    host.handle(Flush())
    arrive(host, news(0), "b")
    assert distinct(host.handle(Flush()), Want) == [want(ME, made(1))]


def test_second_announcement_does_not_delay_the_request_to_the_first_announcer() -> None:
    host = deferring(want_flushes=2)
    arrive(host, i_have("b", made(0)))
    host.handle(Flush())
    arrive(host, i_have("e", made(0)))
    assert sent(host.handle(Flush())) == [("b", want(ME, made(0)))]


def test_publication_that_has_arrived_is_not_requested() -> None:
    host = deferring()
    arrive(host, news(0), "b")
    arrive(host, i_have("b", made(0)))
    assert distinct(host.handle(Flush()), Want) == []


def test_only_the_missing_publications_of_an_announcement_are_requested() -> None:
    host = deferring()
    arrive(host, news(0), "b")
    arrive(host, i_have("e", made(0), made(1)))
    assert distinct(host.handle(Flush()), Want) == [want(ME, made(1))]


def test_announcement_of_recent_publications_is_evaluated_without_the_trie() -> None:
    """One arrived before the last Flush, the other after it."""
    host = deferring()
    arrive(host, news(0), "b")
    host.handle(Flush())
    arrive(host, news(1), "b")
    arrive(host, i_have("e", made(0), made(1)))
    assert distinct(host.handle(Flush()), Want) == []
    assert len(host.machine.replica.indexed_trie) == 0


def test_rejected_publication_is_requested_from_another_announcer() -> None:
    host = deferring()
    arrive(host, PublishNew(replace(made(0), body=made(0, payload=b"other").body)), "b")
    arrive(host, i_have("e", made(0)))
    assert distinct(host.handle(Flush()), Want) == [want(ME, made(0))]


def test_lost_publication_is_requested_once_no_new_ones_arrive() -> None:
    host = deferring()
    arrive(host, news(0), "b")
    host.handle(Flush())
    host.machine.replica.index().remove(made(0).id)
    for _ in range(2):  # a publication was new before the first
        host.handle(Tick())
    arrive(host, i_have("b", made(0)))
    assert distinct(host.handle(Flush()), Want) == [want(ME, made(0))]


# -- answers of a machine ----------------------------------------------------------------------


def test_requested_publication_is_sent_to_the_requester_only() -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(0), 2), "a")
    assert host.receive(want("x", made(0), hops=3)) == [("x", PublishNew(made(0), 3))]


def test_request_for_an_unknown_publication_is_not_answered() -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(0)), "a")
    assert addressed(host.receive(want("x", made(0), made(1)))) == ["x"]
    assert host.receive(want("x", made(1))) == []


def test_T14_answer_is_limited_to_one_chunk() -> None:
    host = calm_quarter(chunk_bytes=made(0).size_bytes + 1)
    for seq in range(5):
        host.receive(PublishNew(made(seq)), "a")
    answers = host.receive(want("x", *(made(seq) for seq in range(5))))
    assert [message.publication.first for _, message in answers] == [0, 1]


def test_T14_repeated_requests_use_up_the_credit() -> None:
    host = calm_quarter(credit_chunks=2)
    host.receive(PublishNew(made(0)), "a")
    answers = [addressed(host.receive(want("x", made(0)))) for _ in range(3)]
    assert answers == [["x"], ["x"], []]
    assert addressed(host.receive(want("b", made(0)))) == ["b"]


def test_hops_continue_after_a_lazy_push() -> None:
    """It reached b after two hops; b announces it, is asked and sends it: three hops."""
    host = calm_quarter()
    host.receive(i_have("b", made(0), hops=2))
    assert host.flush() == [("b", want(ME, made(0), hops=2))]
    effects = host.handle(Received(PublishNew(made(0), 2), "b"))
    assert [effect.hops for effect in effects if isinstance(effect, Deliver)] == [3]
    assert addressed(sent(effects)) == TREE  # other nodes may be missing it too


def with_some(host: FakeHost[Subscriber], count: int) -> FakeHost[Subscriber]:
    """Return a machine that has stored some publications."""
    arrive(host, news(*range(count)))
    return host


def test_requested_publications_are_packed_by_hops_in_the_order_of_their_numbers() -> None:
    host = with_some(deferring(), 5)
    wanted = [(made(4), 1), (made(2), 7), (made(0), 1), (made(3), 1)]
    assert sent(arrive(host, want_each("x", *wanted))) == [
        ("x", PublishMany((made(0), made(3), made(4)), 1)),
        ("x", PublishNew(made(2), 7)),
    ]


def test_T14_answer_in_packs_is_limited_to_one_chunk_and_one_publication() -> None:
    size = made(0).size_bytes
    host = with_some(deferring(chunk_bytes=3 * size + 1), 9)
    answers = sent(arrive(host, want_each("x", *((made(seq), 1) for seq in range(9)))))
    packs = [message.publications for _, message in answers if isinstance(message, PublishMany)]
    assert [len(pack) for pack in packs] == [3]
    assert [message.publication.first for _, message in answers[1:]] == [3]


def test_T14_different_hops_do_not_extend_the_limit_of_an_answer() -> None:
    host = with_some(deferring(chunk_bytes=3 * made(0).size_bytes), 9)
    answers = sent(arrive(host, want_each("x", *((made(seq), seq) for seq in range(9)))))
    assert len(answers) == 3


def test_T14_answer_in_packs_uses_credit_that_a_tick_restores() -> None:
    host = with_some(deferring(credit_chunks=2, repairs=True), 3)
    wanted = want_each("x", *((made(seq), seq) for seq in range(3)))
    assert [len(sent(arrive(host, wanted))) for _ in range(3)] == [3, 3, 0]
    assert len(sent(arrive(host, replace(wanted, sender="y")))) == 3
    host.handle(Tick())
    assert len(sent(arrive(host, wanted))) == 3


# -- corrupted memory --------------------------------------------------------------------------


def test_number_of_flushes_to_wait_is_limited_to_the_configured_one() -> None:
    edges = Edges(want_flushes=2)
    start = SOME[0].id[:8]
    edges.machine.load(LazyPushState(missing={start: PendingWantState("a", 3, 10**9)}))
    assert [edges.wanted() for _ in range(3)] == [[], [{start}], []]
