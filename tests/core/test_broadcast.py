"""Broadcast: over all edges, over the tree, and before storage (section 4.3; decisions 26, 40)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from skipring.core.broadcast import HOPS_MAX
from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Deliver, Discard, Origin, Send, Store, Unsubscribed
from skipring.core.events import (
    Event,
    Flush,
    Overwritten,
    PublishManyRequested,
    PublishRequested,
    Received,
    Shutdown,
    Tick,
)
from skipring.core.labels import Label
from skipring.core.messages import (
    UNRECORDED,
    CheckTrie,
    IntroduceShortcut,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    Want,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.prefix import ALL
from skipring.core.publications import SEQ_BELIEVED_MAX, Publication
from skipring.core.state import SubscriberState, legitimate_state, legitimate_states
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import RangeSummary
from skipring.core.topology import chains_around, levels
from skipring.node.settings import NodeSettings
from skipring.sim.engine import World
from skipring.sim.network_faults import DELIVERED, LOST, Verdict
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.storage.store import PublicationStore
from skipring.world.adversaries.builders import node_names
from skipring.world.legitimacy import has_all_publications
from skipring.world.snapshot import Parcel
from tests.support.conversations import at, standing_ring
from tests.support.fake_host import FakeHost, distinct, kinds, receivers, sent
from tests.support.machines import ME, TOPIC, subscriber, unhurried
from tests.support.publications import (
    CALM,
    NEIGHBOURS,
    NODES,
    QUARTER,
    TREE,
    Losing,
    addressed,
    arrive,
    arriving,
    calm_quarter,
    deferring,
    genuine,
    i_have,
    made,
    made_many,
    news,
    quarter,
    store,
    want,
    want_each,
)

LEAVING = replace(QUARTER, member=False)


# -- publishing --------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", list(Spread))
@pytest.mark.parametrize("event", [PublishRequested(payload=b"own"), Received(news(0), "a")])
def test_publication_is_stored_then_delivered_then_sent(spread: Spread, event: Event) -> None:
    assert kinds(calm_quarter(spread=spread).handle(event)) == [Store, Deliver, Send]


@pytest.mark.parametrize(
    ("event", "origin", "hops", "publisher"),
    [
        (PublishRequested(payload=b"own"), Origin.OWN, 0, ME),
        (Received(PublishNew(made(0), 4), "a"), Origin.SPREAD, 5, "z"),
    ],
)
def test_delivery_and_messages_state_origin_and_hops(
    event: Event, origin: Origin, hops: int, publisher: NodeId
) -> None:
    effects = quarter().handle(event)
    (delivered,) = [effect for effect in effects if isinstance(effect, Deliver)]
    assert (delivered.origin, delivered.hops) == (origin, hops)
    assert delivered.publications[0].publisher == publisher
    assert {message.hops for _, message in sent(effects)} == {hops}


def test_own_publications_are_numbered() -> None:
    host = quarter()
    for _ in range(3):
        host.publish(b"the same")
    assert [publication.seq for publication in host.stored] == [0, 1, 2]


def test_numbers_continue_after_a_restart() -> None:
    own = tuple(made(seq, ME) for seq in (0, 1, 4))
    host = quarter(SubscriberState(label=Label.parse("01"), publications=(*own, made(9))))
    host.publish()
    host.publish()
    assert [publication.seq for publication in host.stored][4:] == [5, 6]


def test_given_publisher_and_number_are_kept() -> None:
    host = quarter()
    host.handle(
        PublishRequested(payload=b"for x", publisher="x", seq=7, time=3, headers={"k": "v"})
    )
    assert host.stored == [
        Publication(publisher="x", seq=7, payload=b"for x", time=3, headers={"k": "v"}).with_id(
            TOPIC
        )
    ]


def test_publication_for_another_publisher_does_not_change_the_own_numbers() -> None:
    own = tuple(made(seq, ME) for seq in range(5))
    host = quarter(SubscriberState(label=Label.parse("01"), publications=own))
    host.handle(PublishRequested(payload=b"for x", publisher="x", seq=0))
    host.publish()
    assert [publication.seq for publication in host.stored][5:] == [0, 5]


def test_publication_repeated_under_the_same_number_is_ignored() -> None:
    host = quarter()
    event = PublishRequested(payload=b"p", publisher="x", seq=1)
    assert host.handle(event) != []
    assert host.handle(event) == []


def test_node_without_a_label_stores_its_own_publications() -> None:
    host = quarter(SubscriberState())
    assert host.publish() == []
    assert len(host.machine.index()) == 1


# -- packs of own publications -----------------------------------------------------------------


def test_own_publications_are_packed_up_to_the_chunk_size() -> None:
    payloads = [b"%d" % number for number in range(7)]
    requests = tuple(PublishRequested(payload=payload) for payload in payloads)
    size = arriving(0, ME, b"0").size_bytes
    host = deferring(chunk_bytes=3 * size)
    effects = host.handle(PublishManyRequested(requests))
    assert kinds(effects) == [Store, Deliver, Send]
    packs = distinct(effects, PublishMany)
    assert [len(pack.publications) for pack in packs] == [3, 3]
    [last] = distinct(effects, PublishNew)
    every = [*(each for pack in packs for each in pack.publications), last.publication]
    assert [(each.seq, each.payload) for each in every] == list(enumerate(payloads))
    assert every == host.stored


def test_publication_larger_than_a_chunk_is_sent_alone() -> None:
    requests = tuple(PublishRequested(payload=bytes(size)) for size in (1, 999, 1))
    effects = deferring(chunk_bytes=500).handle(PublishManyRequested(requests))
    assert [each.publication.seq for each in distinct(effects, PublishNew)] == [0, 1, 2]


# -- incoming publications ---------------------------------------------------------------------


@pytest.mark.parametrize("spread", list(Spread))
def test_known_publication_is_dropped(spread: Spread) -> None:
    host = calm_quarter(spread=spread)
    host.receive(PublishNew(made(0)), "a")
    assert host.handle(Received(PublishNew(made(0)), "e")) == []


def test_id_of_a_received_publication_is_recomputed() -> None:
    """T10: the id derives from the fields only."""
    host = quarter()
    forged = Publication(publisher="z", seq=0, payload=b"news", id=b"\0" * 32)
    host.receive(PublishNew(forged), "a")
    assert host.machine.publications == (made(0),)
    assert host.receive(PublishNew(made(0)), "e") == []


def test_node_that_has_left_drops_publications() -> None:
    host = quarter(SubscriberState(member=False))
    for message in (PublishNew(made(0)), i_have("a", made(1)), want("a", made(2))):
        assert host.handle(Received(message, "a")) == []
    assert host.flush() == []
    assert len(host.machine.index()) == 0


def test_node_that_waits_for_its_label_stores_publications() -> None:
    host = quarter(SubscriberState())
    host.receive(PublishNew(made(0)), "a")
    assert len(host.machine.index()) == 1


def test_node_that_waits_for_permission_to_leave_forwards_publications() -> None:
    assert addressed(quarter(LEAVING).receive(PublishNew(made(0)), "a")) == [
        "b",
        "e",
        "f",
        "j",
        "k",
    ]


@pytest.mark.parametrize(
    ("forged", "counted"), [(-(1 << 63), 1), (-1, 1), (0, 1), (254, 255), ((1 << 63) - 1, HOPS_MAX)]
)
@pytest.mark.parametrize("spread", list(Spread))
def test_forged_hops_are_clamped(spread: Spread, forged: int, counted: int) -> None:
    host = calm_quarter(spread=spread)
    passed_on = host.receive(PublishNew(made(0), forged), "a")
    assert {message.hops for _, message in passed_on} == {counted}
    announced = {message.hops for _, message in host.flush()}
    assert announced == ({bytes([counted])} if spread is Spread.ADAPTIVE else set())


@unhurried
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(NEIGHBOURS)
        ),
        max_size=12,
    )
)
def test_publication_is_never_forwarded_twice(parcels: list[tuple[int, int, NodeId]]) -> None:
    host = calm_quarter()
    said: Counter[tuple[NodeId, bytes]] = Counter()
    for seq, hops, sender in parcels:
        for receiver, message in host.receive(PublishNew(made(seq), hops), sender):
            said[receiver, message.publication.id] += 1
    for receiver, message in host.flush():
        for short, _ in message.short_ids():
            said[receiver, short] += 1
    assert set(said.values()) <= {1}
    assert host.flush() == []


def test_publication_without_a_payload_is_not_stored() -> None:
    """A forged publication without a payload could keep out the real one permanently."""
    host = calm_quarter()
    forged = replace(made(0), publisher="evil", payload=None)
    assert host.receive(PublishNew(forged), "a") == []
    host.receive(Publications((forged,)), "a")
    assert host.stored == []
    host.receive(PublishNew(made(0)), "a")
    assert host.stored == [made(0)]


# -- the tree ----------------------------------------------------------------------------------


def tree_of(n: int) -> dict[NodeId, list[NodeId]]:
    """Return the tree edges of every node of SR(n): the receivers of its own publication."""
    config = ProtocolConfig(spread=Spread.TREE)
    return {
        node: addressed(subscriber(state, node=node, config=config).publish())
        for node, state in legitimate_states(node_names(n))
    }


def distances(edges: dict[NodeId, list[NodeId]], start: NodeId) -> dict[NodeId, int]:
    """Return the number of hops to every reachable node."""
    found = {start: 0}
    for near in (queue := [start]):  # grows in the loop; each node is added once
        for far in edges[near]:
            if far not in found:
                found[far] = found[near] + 1
                queue.append(far)
    return found


@pytest.mark.parametrize("n", range(1, 131))
def test_every_node_but_the_root_has_one_parent_and_is_its_child(n: int) -> None:
    names = node_names(n)
    chains = {}
    for node, state in legitimate_states(names):
        around = [
            peer.label if peer is not None else None
            for peer in (state.left or state.ring, state.right or state.ring)
        ]
        chains[node] = chains_around(Label.nth(names.index(node)), *around)
    parents = {node: found.parent for node, found in chains.items()}
    assert [node for node, parent in parents.items() if parent is None] == ["n0000"]
    below = [(names[parent.index], node) for node, parent in parents.items() if parent is not None]
    above = [
        (node, names[child.index]) for node, found in chains.items() for child in found.children
    ]
    assert sorted(below) == sorted(above)
    assert len(below) == n - 1


@pytest.mark.parametrize("n", range(1, 131))
def test_tree_reaches_all_within_log_n_hops_of_its_root_and_twice_that_of_any_node(
    n: int,
) -> None:
    edges = tree_of(n)
    assert all(node in edges[far] for node, others in edges.items() for far in others)
    assert sum(len(others) for others in edges.values()) == 2 * (n - 1)
    from_root = distances(edges, "n0000")
    assert sorted(from_root) == node_names(n)
    assert max(from_root.values()) <= levels(n)
    for start in node_names(n)[:: max(1, n // 8)]:
        assert max(distances(edges, start).values()) <= 2 * levels(n)


def spread_out(n: int, publisher: NodeId, spread: Spread, *, calm: bool = True) -> World:
    """Return SR(n) after one publication was broadcast without a Flush."""
    config = ProtocolConfig(spread=spread, repairs=False)
    world = World(standing_ring(n), seed=0, config=config)
    if calm:
        run_rounds(world, RandomOrder(), levels(n) + config.calm_ticks)
    world.channels.clear()
    world.sent.clear()
    world.publish(publisher, b"p")
    for _ in range(n + 1):  # no path is longer
        present = list(world.channels)
        world.channels.clear()
        for parcel in present:
            world.deliver(parcel)
    assert not world.channels
    return world


@pytest.mark.parametrize("spread", [Spread.TREE, Spread.ADAPTIVE])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16])
def test_n_minus_1_messages_reach_all_in_a_calm_ring_from_every_publisher(
    spread: Spread, n: int
) -> None:
    for publisher in node_names(n):
        world = spread_out(n, publisher, spread)
        assert world.sent.total() == n - 1
        assert world.sent[PublishNew] == n - 1
        assert has_all_publications(world)
        assert world.deliveries.duplicates == 0


@pytest.mark.parametrize("n", [31, 33, 64, 100, 130])
def test_n_minus_1_messages_reach_all_in_larger_calm_rings(n: int) -> None:
    for publisher in node_names(n)[:: n // 3]:
        world = spread_out(n, publisher, Spread.ADAPTIVE)
        assert world.sent[PublishNew] == n - 1
        assert has_all_publications(world)
        assert world.deliveries.hops_max <= 2 * levels(n)


def test_tree_mode_uses_the_tree_in_any_view() -> None:
    assert addressed(quarter(spread=Spread.TREE).publish()) == TREE


def test_tree_mode_uses_the_known_edges() -> None:
    host = calm_quarter(spread=Spread.TREE)
    assert addressed(host.publish()) == TREE
    host.receive(RemoveConnections("a"))
    assert addressed(host.publish()) == [node for node in TREE if node != "a"]


def test_flood_mode_uses_all_edges_including_the_one_to_the_sender() -> None:
    host = calm_quarter(spread=Spread.FLOOD)
    assert addressed(host.publish()) == NEIGHBOURS
    assert addressed(host.receive(PublishNew(made(0)), "a")) == NEIGHBOURS


# -- choice between tree and flood -------------------------------------------------------------


def test_stable_view_uses_the_tree() -> None:
    assert addressed(calm_quarter().publish()) == TREE


@pytest.mark.parametrize("ticks", [0, 1, CALM - 1])
def test_new_view_uses_all_edges(ticks: int) -> None:
    host = quarter()
    host.tick(ticks)
    assert addressed(host.publish()) == NEIGHBOURS


def test_required_age_of_a_view_depends_on_the_longest_known_label() -> None:
    host = quarter(legitimate_state(2, [*NODES, *(f"r{number:02d}" for number in range(16))]))
    host.tick(5 + 4 - 1)
    assert len(addressed(host.publish())) == 8
    host.tick(1)
    assert len(addressed(host.publish(b"later"))) < 8


@pytest.mark.parametrize(
    "change",
    [
        IntroduceShortcut(at("x@1")),  # the label of an edge outside the tree
        IntroduceShortcut(at("x@0")),
        RemoveConnections("b"),
        RemoveConnections("j"),
    ],
)
def test_changed_view_uses_all_edges_until_it_is_old_enough(
    change: Message,
) -> None:
    host = calm_quarter()
    assert addressed(host.publish(b"before")) == TREE
    host.receive(change)
    edges = sorted(host.machine.neighbours())
    assert addressed(host.publish()) == edges
    assert edges != NEIGHBOURS
    host.tick(CALM - 1)
    assert addressed(host.publish(b"later")) == sorted(host.machine.neighbours())


def test_reverted_change_of_the_view_still_counts_as_a_change() -> None:
    host = calm_quarter()
    host.receive(IntroduceShortcut(at("x@1")))
    host.publish()
    host.receive(IntroduceShortcut(at("b@1")))
    assert addressed(host.publish(b"later")) == NEIGHBOURS


def test_introduction_of_a_known_peer_does_not_change_the_view() -> None:
    host = calm_quarter()
    host.receive(IntroduceShortcut(at("b@1")))
    assert addressed(host.publish()) == TREE


@pytest.mark.parametrize(("bits", "edges"), [("0", ["b", "e", "f", "j", "k"]), ("1", TREE)])
def test_unknown_holder_of_a_tree_edge_causes_a_flood_and_of_another_edge_does_not(
    bits: str, edges: list[NodeId]
) -> None:
    shortcuts = {**QUARTER.shortcuts, Label.parse(bits): None}
    host = calm_quarter(replace(QUARTER, shortcuts=shortcuts))
    host.tick(100)
    assert addressed(host.publish()) == edges


@pytest.mark.parametrize("sender", NEIGHBOURS)
def test_publication_is_not_sent_back_to_its_sender(sender: NodeId) -> None:
    calm = calm_quarter().receive(PublishNew(made(0)), sender)
    assert addressed(calm) == [node for node in TREE if node != sender]
    young = quarter().receive(PublishNew(made(0)), sender)
    assert addressed(young) == [node for node in NEIGHBOURS if node != sender]


@pytest.mark.parametrize("spread", list(Spread))
def test_publication_is_never_sent_to_the_supervisor_or_to_the_node_itself(spread: Spread) -> None:
    strange = SubscriberState(
        label=QUARTER.label,
        left=at(f"{SUPERVISOR}@0011"),
        right=at(f"{ME}@0101"),
        shortcuts={Label.parse("0"): ME, Label.parse("1"): SUPERVISOR},
    )
    assert quarter(strange, spread=spread).publish() == []


def test_adaptive_mode_reaches_all_by_flooding_in_a_new_ring() -> None:
    world = spread_out(64, "n0000", Spread.ADAPTIVE, calm=False)
    assert has_all_publications(world)
    assert world.deliveries.hops_max <= levels(64)
    # A flood, except that no node sends the publication back to its sender.
    assert world.sent[PublishNew] == 4 * 64 - 6 - 63


# -- deferred storage: deliver and forward, then store (decision 40) ---------------------------


@pytest.mark.parametrize("spread", list(Spread))
@pytest.mark.parametrize(
    "message", [PublishNew(arriving(0), 2), PublishMany((arriving(0), arriving(1), arriving(4)), 2)]
)
def test_new_publication_is_delivered_and_sent_before_it_is_stored(
    spread: Spread, message: PublishNew | PublishMany
) -> None:
    host = deferring(spread=spread)
    effects = arrive(host, message)
    assert kinds(effects) == [Deliver, Send]
    delivered = effects[0]
    assert isinstance(delivered, Deliver)
    assert (delivered.offset, delivered.origin, delivered.hops) == (0, Origin.SPREAD, 3)
    assert distinct(effects, type(message)) == [replace(message, hops=3)]
    assert (host.stored, len(host.machine.index())) == ([], 0)
    assert host.machine.has_to_flush
    flushed = host.handle(Flush())
    assert flushed[0] == store(0, *delivered.publications)
    assert Store not in kinds(flushed[1:])
    assert {publication.id for publication in host.stored} == set(host.machine.index().keys())


def test_delivery_states_the_size_of_its_publications() -> None:
    plain, rich = arriving(0), replace(arriving(1), key=b"k" * 9, headers={"a": "b"})
    [delivered, *_] = arrive(deferring(), PublishMany((plain, rich)))
    assert isinstance(delivered, Deliver)
    assert delivered.size_bytes == plain.size_bytes + rich.size_bytes


def test_deferred_publications_are_stored_at_their_offsets_in_delivery_order() -> None:
    before = tuple(genuine(arriving(0, "y"), arriving(1, "y")))
    host = deferring(replace(QUARTER, publications=before), busy_arrivals=32)
    packs = [
        (arriving(0), arriving(3)),
        (arriving(2, "y"),),
        (arriving(0, "x"), arriving(1, "x")),
        (arriving(9),),
    ]
    for pack in packs:
        arrive(host, PublishMany(pack))
    every = genuine(*(each for pack in packs for each in pack))
    assert host.stored == [*before]
    host.handle(Flush())
    assert host.stored == [*before, *every]
    assert [offset for offset, _ in host.delivered] == [2, 3, 4, 5, 6, 7]
    assert genuine(*(each for _, each in host.delivered)) == every


def test_publication_checked_by_id_is_stored_after_deferred_ones() -> None:
    host = deferring()
    arrive(host, news(5))
    effects = arrive(host, news(3))
    assert kinds(effects) == [Store, Store, Deliver, Send]
    assert host.stored == [made(5), made(3)]
    assert [offset for offset, _ in host.delivered] == [0, 1]


def test_deferred_storage_announces_the_same_as_immediate_storage() -> None:
    late, eager = deferring(), deferring(defers_storage=False)
    for host in (late, eager):
        for _ in range(8):
            host.handle(Tick())
        arrive(host, PublishMany((arriving(0), arriving(1)), 1))
        arrive(host, PublishNew(arriving(0, "y")), "b")
    announced = [sent(host.handle(Flush())) for host in (late, eager)]
    assert announced[0] == announced[1] != []


# -- deferred storage: publications that may be known ------------------------------------------


NOT_CERTAIN = {
    "the same": ((arriving(5),), ()),
    "a lower number": ((arriving(3),), (arriving(3),)),
    "the same number of something else": (
        (arriving(5, payload=b"x"),),
        (arriving(5, payload=b"x"),),
    ),
    "a pack that overlaps": ((arriving(5), arriving(6)), (arriving(6),)),
    "a pack whose numbers fall": ((arriving(7), arriving(6)), (arriving(7), arriving(6))),
    "a pack with one twice": ((arriving(6), arriving(6)), (arriving(6),)),
    "a pack of two publishers": ((arriving(6), arriving(0, "y")), (arriving(6), arriving(0, "y"))),
    "a pack with an id alone": ((arriving(6), replace(arriving(7), payload=None)), (arriving(6),)),
    "an incredible number": ((arriving(SEQ_BELIEVED_MAX),), (arriving(SEQ_BELIEVED_MAX),)),
    "a pack up to an incredible number": (
        (arriving(6), arriving(SEQ_BELIEVED_MAX)),
        (arriving(6), arriving(SEQ_BELIEVED_MAX)),
    ),
}


@pytest.mark.parametrize("is_settled", [True, False])
@pytest.mark.parametrize(("pack", "new"), NOT_CERTAIN.values(), ids=NOT_CERTAIN)
def test_id_decides_if_the_number_does_not_prove_a_publication_new(
    pack: tuple[Publication, ...], new: tuple[Publication, ...], is_settled: bool
) -> None:
    host = deferring()
    arrive(host, news(5))
    if is_settled:
        host.handle(Shutdown())
    effects = arrive(host, PublishMany(pack))
    before = [] if is_settled else [Store]
    assert kinds(effects) == [*before, *([Store, Deliver, Send] if new else [])]
    assert host.stored == genuine(arriving(5), *new)
    assert arrive(host, PublishMany(pack)) == []  # repeated
    assert genuine(*(each for _, each in host.delivered)) == host.stored


def test_publication_with_a_negative_time_is_dropped() -> None:
    host = deferring()
    assert arrive(host, PublishMany((arriving(0), replace(arriving(1), time=-1)))) != []
    assert host.stored == [made(0)]


def test_own_publication_that_returns_is_known() -> None:
    host = deferring()
    host.handle(PublishRequested(payload=b"own"))
    [own] = host.stored
    assert arrive(host, PublishNew(replace(own, id=b""))) == []
    assert len(host.delivered) == 1


def test_number_of_a_lost_own_publication_that_returns_is_not_used_again() -> None:
    host = deferring()
    assert kinds(arrive(host, PublishNew(arriving(7, ME)))) == [Deliver, Send]
    host.handle(PublishRequested(payload=b"own"))
    assert [publication.seq for publication in host.stored] == [7, 8]


def test_publication_from_repair_counts_as_seen() -> None:
    host = deferring()
    arrive(host, news(0))
    arrive(host, Publications((arriving(4),)))
    assert arrive(host, news(4)) == []
    assert kinds(arrive(host, news(5))) == [Deliver, Send]


def test_implausible_number_does_not_hide_later_numbers() -> None:
    host = deferring()
    arrive(host, PublishNew(arriving(SEQ_BELIEVED_MAX + 5)))
    assert kinds(arrive(host, news(0))) == [Deliver, Send]


def test_storage_is_not_deferred_by_default() -> None:
    host = deferring(defers_storage=False)
    assert kinds(arrive(host, news(0, 1))) == [Store, Deliver, Send]


def test_empty_pack_has_no_effect() -> None:
    host = deferring()
    assert arrive(host, PublishMany(())) == []
    assert not host.machine.has_to_flush


def test_stored_publications_are_known_and_later_ones_new_after_a_restart(
    tmp_path: Path,
) -> None:
    with PublicationStore.open(tmp_path) as store:
        log = store.archive(TOPIC)
        log.write(
            0, *genuine(arriving(0), arriving(8), arriving(3, "y"), arriving(SEQ_BELIEVED_MAX, "y"))
        )
        store.commit()
        log.write(4, *genuine(arriving(2), arriving(1, "x")))
        store.commit()
        log.discard(1)
    with PublicationStore.open(tmp_path) as store:
        log = store.archive(TOPIC)
        log.write(6, *genuine(arriving(4, "y"), arriving(1)))  # not committed
        assert log.newest() == {("z", 0): 8, ("y", 0): 4, ("x", 0): 1}
        host = deferring(log=log)
        for known in (
            arriving(2),
            arriving(4, "y"),
            arriving(1, "x"),
            arriving(SEQ_BELIEVED_MAX, "y"),
        ):
            assert arrive(host, PublishNew(known)) == []
        for unseen in (arriving(9), arriving(5, "y"), arriving(2, "x"), arriving(0, "w")):
            assert kinds(arrive(host, PublishNew(unseen))) == [Deliver, Send]


def test_numbers_of_a_pending_commit_count(tmp_path: Path) -> None:
    with PublicationStore.open(tmp_path) as store:
        log = store.archive(TOPIC)
        log.write(0, *[made(7)])
        assert log.prepare() is not None
        log.write(1, *genuine(arriving(3, "y")))
        assert log.newest() == {("z", 0): 7, ("y", 0): 3}
        log.abort()


# -- deferred storage: its end and its limits --------------------------------------------------


def test_deferred_publications_survive_a_load_and_are_not_delivered_again() -> None:
    host = deferring()
    arrive(host, news(0))
    arrive(host, news(1, 2))
    host.machine.handle(Overwritten(QUARTER))
    assert arrive(host, news(1, 2)) == [store(0, made(0), made(1), made(2))]
    arrive(host, news(3))
    host.handle(Shutdown())
    assert host.delivered == list(enumerate([made(0), made(1), made(2), made(3)]))
    assert host.stored == [each for _, each in host.delivered]


def test_leaver_stores_all_deliveries_before_it_is_unsubscribed() -> None:
    host = deferring(LEAVING)
    assert kinds(arrive(host, news(0))) == [Deliver, Send]
    effects = arrive(host, UNRECORDED)
    assert kinds(effects)[-2:] == [Store, Unsubscribed]
    assert host.stored == [made(0)]


def test_host_can_request_storage_at_any_time() -> None:
    host = deferring()
    arrive(host, news(0))
    host.handle(Shutdown())
    assert host.stored == [made(0)]
    assert host.machine.handle(Shutdown()) == []


def test_number_of_deferred_publications_is_bounded() -> None:
    host = deferring(deferred_max=3)
    assert kinds(arrive(host, news(0, 1, 2))) == [
        Deliver,
        Send,
    ]
    assert kinds(arrive(host, news(3))) == [Deliver, Send, Store]
    assert host.stored == [*made_many(4)]
    assert kinds(arrive(host, news(4))) == [
        Deliver,
        Send,
    ]  # counted from zero again
    assert [offset for offset, _ in host.delivered] == [0, 1, 2, 3, 4]


def test_bytes_of_deferred_publications_are_bounded() -> None:
    host = deferring(deferred_bytes_max=2 * arriving(0).size_bytes)
    assert kinds(arrive(host, news(0))) == [Deliver, Send]
    assert kinds(arrive(host, news(1))) == [Deliver, Send]
    assert kinds(arrive(host, news(2))) == [Deliver, Send, Store]
    assert kinds(arrive(host, news(3))) == [Deliver, Send]
    assert len(host.stored) == 3


def kept_at(host: FakeHost[Subscriber], count: int, flushes: int) -> list[bool]:
    """Return for each Flush whether it stores when ``count`` publications arrive before each."""
    kept = []
    for number in range(flushes):
        several = range(count * number, count * (number + 1))
        arrive(host, news(*several))
        kept.append(Store in kinds(host.handle(Flush())))
    return kept


def test_flush_is_deferred_under_load_a_bounded_number_of_times() -> None:
    host = deferring(busy_arrivals=1, flush_deferrals_max=4)
    assert kept_at(host, 8, flushes=8) == [False, False, False, True] * 2
    assert host.stored == [*made_many(64)]


@pytest.mark.parametrize(("count", "put_off"), [(1, 1), (2, 2), (3, 3), (5, 5)])
def test_flush_is_deferred_longer_under_higher_load(count: int, put_off: int) -> None:
    host = deferring(busy_arrivals=1, flush_deferrals_max=30)
    assert kept_at(host, count, flushes=put_off + 1) == [False] * put_off + [True]


def test_flush_is_no_longer_deferred_when_the_load_falls() -> None:
    host = deferring(busy_arrivals=2, flush_deferrals_max=30)
    arrive(host, news(0, 1, 2))
    assert host.handle(Flush()) == []
    assert host.machine.has_to_flush
    assert Store in kinds(host.handle(Flush()))


def test_few_publications_are_stored_at_the_next_flush() -> None:
    host = deferring(busy_arrivals=3)
    arrive(host, news(0, 1))
    assert kinds(host.handle(Flush()))[:1] == [Store]


# -- deferred storage: reads and any interleaving ----------------------------------------------


def test_requested_publication_is_sent_before_its_deferred_storage() -> None:
    host = deferring()
    arrive(host, news(0, 1))
    effects = arrive(host, want_each("x", (arriving(1), 1)))
    assert kinds(effects) == [Store, Send]
    assert sent(effects) == [("x", PublishNew(arriving(1).with_id(TOPIC), 1))]
    assert len(host.machine.index()) == 2


def test_missing_publication_is_sent_by_anti_entropy_before_its_deferred_storage() -> None:
    host = deferring()
    arrive(host, news(0, 1))
    effects = arrive(host, CheckTrie("x", (RangeSummary.make(ALL),), 1))
    [answer] = distinct(effects, Publications)
    assert sorted(answer.publications, key=number) == [made(0), made(1)]
    assert len(host.machine.index()) == 2


def test_scrub_removes_nothing_that_was_stored_in_the_same_tick() -> None:
    host = deferring(repairs=True)
    for seq in range(0, 40, 4):
        arrive(host, news(*range(seq, seq + 4)))
        assert Store in kinds(host.handle(Tick()))
        assert len(host.machine.index()) == seq + 4
    for _ in range(10):
        assert kinds(host.handle(Tick())) in ([], [Send])  # no Store and no Discard
    assert len(host.machine.index()) == 40


def number(publication: Publication) -> tuple[NodeId, int]:
    return publication.publisher, publication.seq


def some() -> SearchStrategy[tuple[Publication, ...]]:
    """Draw publications of few publishers with few numbers, sometimes with other contents."""
    one = st.builds(
        arriving,
        st.sampled_from([0, 1, 2, 3, 4, 5, SEQ_BELIEVED_MAX]),
        st.sampled_from(["z", "y", ME]),
        st.sampled_from([b"news", b"news", b"other"]),
    )
    rising = st.builds(
        lambda start, count: tuple(arriving(seq) for seq in range(start, start + count)),
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
        st.builds(lambda several: want_each("x", *((each, 1) for each in several)), some()),
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
    late = deferring(
        repairs=True, deferred_max=deferred_max, busy_arrivals=busy, flush_deferrals_max=3
    )
    eager = deferring(repairs=True, defers_storage=False)
    for event in events:
        late.handle(event)
        eager.handle(event)
    late.handle(Shutdown())
    assert late.stored == eager.stored
    assert late.all(Discard) == []
    assert [offset for offset, _ in late.delivered] == list(range(len(late.stored)))
    assert genuine(*(each for _, each in late.delivered)) == late.stored
    assert len({publication.id for publication in late.stored}) == len(late.stored)
    assert sorted(late.machine.index().keys()) == sorted(p.id for p in late.stored)


# -- whole rings -------------------------------------------------------------------------------


class LosingTo:
    """Scheduler that loses broadcasts to one node, so that only answers to its requests arrive."""

    def __init__(self, victim: NodeId) -> None:
        self.victim = victim
        self.asked: set[NodeId] = set()

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        if isinstance(parcel.message, Want) and parcel.sender == self.victim:
            self.asked.add(parcel.to)
        is_lost = isinstance(parcel.message, PublishNew) and parcel.to == self.victim
        return LOST if is_lost and parcel.sender not in self.asked else DELIVERED


def test_node_cut_off_from_the_tree_requests_and_forwards_to_its_subtree() -> None:
    victim = "n0002"  # its label is 01, and it has a subtree
    world = World(
        standing_ring(32),
        seed=0,
        config=ProtocolConfig(repairs=False),
        faults=(LosingTo(victim),),
    )
    run_rounds(world, RandomOrder(), 5 + 4)
    world.publish("n0001", b"p")
    run_rounds(world, RandomOrder(), 10)
    assert world.sent[Want] >= 1
    assert has_all_publications(world)


@pytest.mark.parametrize("spread", list(Spread))
def test_anti_entropy_reaches_all_if_every_PublishNew_is_lost(spread: Spread) -> None:
    config = ProtocolConfig(spread=spread)
    faults = (Losing(PublishNew, PublishMany),)
    world = World(standing_ring(16), seed=0, config=config, faults=faults)
    for number in range(5):
        world.publish(f"n{3 * number:04d}", b"p")
    for _ in range(100):
        if has_all_publications(world):
            break
        run_rounds(world, RandomOrder(), 1)
    assert has_all_publications(world)
    assert world.deliveries.by_origin == {Origin.OWN: 5, Origin.REPAIR: 5 * 15}


def test_anti_entropy_completes_a_broadcast_over_a_broken_tree() -> None:
    """A node that has just crashed is still a tree edge of its neighbours."""
    world = World(standing_ring(32), seed=0, config=ProtocolConfig(spread=Spread.TREE))
    world.crash("n0002")
    world.publish("n0001", b"p")
    for _ in range(100):
        if has_all_publications(world):
            break
        run_rounds(world, RandomOrder(), 1)
    assert has_all_publications(world)
    assert world.deliveries.by_origin[Origin.REPAIR] > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_all_members_get_all_publications_once_with_live_settings_and_losses(
    share: float, seed: int
) -> None:
    config, rng = NodeSettings().config, Random(seed)
    assert config.defers_storage
    world = World(
        standing_ring(16),
        seed=seed,
        config=config,
        faults=(Losing(PublishNew, PublishMany, share=share),),
    )
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


# -- corrupted memory --------------------------------------------------------------------------


def test_wrong_count_of_arrivals_is_corrected_within_a_tick() -> None:
    host = quarter(defers_storage=True)
    spreading = host.machine._broadcast
    spreading._arrived, spreading._arrived_bytes = 10**9, -(10**9)
    host.handle(Tick())
    effects = [*host.handle(Received(PublishNew(made(0)), "j")), *host.handle(Flush())]
    (delivery,) = [each for each in effects if isinstance(each, Deliver)]
    (stored,) = [each for each in effects if isinstance(each, Store)]
    assert delivery.offset == stored.offset == 0


def test_wrong_view_and_routes_are_repaired_within_a_tick() -> None:
    host = quarter()
    host.tick(CALM)
    spreading = host.machine._broadcast
    route = type(spreading._route(None))
    spreading._routes = {None: route(("x",), frozenset())}
    spreading._is_view_sure, spreading._view = True, 7
    host.handle(Tick())
    assert receivers(host.publish(), PublishNew) != ["x"]
    assert sorted(receivers(host.publish(), PublishNew)) == NEIGHBOURS  # the view seems new: flood
    host.tick(CALM)
    assert sorted(receivers(host.publish(), PublishNew)) == TREE
