"""Broadcast: over all edges and over the tree (section 4.3; decisions 26, 40, 53)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.broadcast import HOPS_MAX
from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Deliver, Discard, Origin, Rejected, Send, Store
from skipring.core.events import (
    Event,
    Flush,
    PublishRequested,
    Received,
    ResendRequested,
    SubmitRequested,
    Tick,
)
from skipring.core.labels import Label
from skipring.core.log import MemoryLog
from skipring.core.messages import (
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
from skipring.core.publications import SEQ_BELIEVED_MAX
from skipring.core.state import SubscriberState, legitimate_state, legitimate_states
from skipring.core.summaries import RangeSummary
from skipring.core.topology import chains_around, levels
from skipring.sim.engine import World
from skipring.sim.network_faults import DELIVERED, LOST, Verdict
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries.builders import node_names
from skipring.world.legitimacy import has_all_publications
from skipring.world.snapshot import Parcel
from tests.support.batches import batch_of, opaque_batch, with_rows
from tests.support.conversations import at, standing_ring
from tests.support.fake_host import distinct, kinds, receivers, sent
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
from tests.support.round_trip import parts

LEAVING = replace(QUARTER, member=False)
OWN = PublishRequested((BatchRecord(b"own"),))
UNREADABLE = with_rows([[b"x", 0, None, {}, "unknown"]], publisher="z", first=7, topic=TOPIC)


# -- publishing --------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", list(Spread))
@pytest.mark.parametrize("event", [OWN, Received(news(0), "a")])
def test_publication_is_stored_then_delivered_then_sent(spread: Spread, event: Event) -> None:
    assert kinds(calm_quarter(spread=spread).handle(event)) == [Store, Deliver, Send]


@pytest.mark.parametrize(
    ("event", "origin", "hops", "publisher"),
    [
        (OWN, Origin.OWN, 0, ME),
        (Received(PublishNew(made(0), 4), "a"), Origin.SPREAD, 5, "z"),
    ],
)
def test_delivery_and_messages_state_origin_and_hops(
    event: Event, origin: Origin, hops: int, publisher: NodeId
) -> None:
    effects = quarter().handle(event)
    (delivered,) = [effect for effect in effects if isinstance(effect, Deliver)]
    assert (delivered.origin, delivered.hops) == (origin, hops)
    assert delivered.batches[0].publisher == publisher
    assert {message.hops for _, message in sent(effects)} == {hops}


def test_own_publications_are_numbered() -> None:
    host = quarter()
    host.publish(b"the same")
    host.publish(b"the same", b"the same")
    host.publish(b"the same")
    assert [(each.first, each.count) for each in host.stored] == [(0, 1), (1, 2), (3, 1)]


def test_numbers_continue_after_a_restart() -> None:
    own = (made(0, ME), made(1, ME), batch_of(b"x", b"y", publisher=ME, first=4, topic=TOPIC))
    host = quarter(SubscriberState(label=Label.parse("01"), publications=(*own, made(9))))
    host.publish()
    host.publish()
    assert [each.first for each in host.stored][4:] == [6, 7]


def test_node_without_a_label_stores_its_own_publications() -> None:
    host = quarter(SubscriberState())
    assert host.publish() == []
    assert len(host.machine.trie()) == 1


# -- records of one request --------------------------------------------------------------------


def test_records_of_one_request_are_one_batch_and_one_message() -> None:
    records = tuple(BatchRecord(b"%d" % n, time=n, key=b"k", headers={"a": "b"}) for n in range(7))
    host = calm_quarter()
    effects = host.handle(PublishRequested(records))
    assert kinds(effects) == [Store, Deliver, Send]
    [message] = distinct(effects, PublishNew)
    assert host.stored == [message.publication]
    assert message.publication.records() == records
    [delivered] = host.all(Deliver)
    assert delivered.records == (records,)
    assert addressed(sent(effects)) == TREE


def test_batches_of_one_request_are_sent_in_messages_up_to_the_chunk_size() -> None:
    host = calm_quarter()
    size = 200 * 1024  # two of them make a batch of at most 512 KiB
    effects = host.handle(PublishRequested(tuple(BatchRecord(bytes(size)) for _ in range(5))))
    assert kinds(effects) == [Store, Deliver, Send]
    every = [each.publication for each in distinct(effects, PublishNew)]
    assert [(each.first, each.count) for each in every] == [(0, 2), (2, 2), (4, 1)]
    assert every == host.stored
    small = tuple(BatchRecord(b"x") for _ in range(600))
    effects = host.handle(PublishRequested(small))
    [message] = distinct(effects, PublishMany)
    assert [each.count for each in message.publications] == [256, 256, 88]


def test_batch_larger_than_a_chunk_is_sent_alone() -> None:
    host = quarter(chunk_bytes=500)
    submitted = tuple(made(n, payload=bytes(size)) for n, size in enumerate((1, 999, 1)))
    effects = host.handle(SubmitRequested(submitted))
    assert [each.publication for each in distinct(effects, PublishNew)] == [*submitted]


# -- batches of clients ------------------------------------------------------------------------


def test_submitted_batch_is_stored_and_sent_as_it_is() -> None:
    host = quarter()
    for batch in (made(7, "x"), replace(made(9, "x"), unordered=True).with_id(TOPIC)):
        effects = host.handle(SubmitRequested((batch,)))
        assert kinds(effects) == [Store, Deliver, Send]
        [message] = distinct(effects, PublishNew)
        assert message == PublishNew(batch, 0)
        assert message.publication is batch
        [delivered] = [each for each in effects if isinstance(each, Deliver)]
        assert delivered.origin is Origin.OWN


def test_submitted_batch_does_not_change_the_own_numbers() -> None:
    own = tuple(made(seq, ME) for seq in range(5))
    host = quarter(SubscriberState(label=Label.parse("01"), publications=own))
    host.handle(SubmitRequested((made(0, "x"),)))
    host.publish()
    assert [each.first for each in host.stored][5:] == [0, 5]


def test_submitted_batch_is_ignored_when_it_is_submitted_again() -> None:
    host = quarter()
    event = SubmitRequested((made(1, "x"),))
    assert host.handle(event) != []
    assert host.handle(event) == []


def test_invalid_submitted_batch_is_rejected_and_not_sent() -> None:
    host = quarter()
    assert host.handle(SubmitRequested((UNREADABLE,))) == [Rejected(1)]
    assert host.stored == []


# -- sending again -----------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 2])
def test_batch_is_sent_again_by_the_id_of_a_record_or_of_the_batch(index: int) -> None:
    host = calm_quarter()
    host.publish(b"x", b"y", b"z")
    [own] = host.stored
    for key in (own.record_id(index), own.id):
        messages = host.request(ResendRequested((key,)))
        assert addressed(messages) == TREE
        assert {message for _, message in messages} == {PublishNew(own, 0)}
    assert len(host.stored) == len(host.delivered) == 1


def test_batch_is_sent_again_once_for_all_its_records() -> None:
    host = calm_quarter()
    host.publish(b"x", b"y")
    host.publish(b"z")
    one, other = host.stored
    ids = (*one.record_ids(), *other.record_ids(), made(9).id)
    messages = host.request(ResendRequested(ids))
    assert addressed(messages, PublishMany) == TREE
    assert {message for _, message in messages} == {PublishMany((one, other), 0)}


def test_unknown_id_is_not_sent_again() -> None:
    host = calm_quarter()
    host.publish()
    assert host.handle(ResendRequested((made(0).record_id(0),))) == []


# -- incoming publications ---------------------------------------------------------------------


def test_T10_batch_with_a_wrong_id_is_rejected_and_keeps_out_nothing() -> None:
    host = quarter()
    forged = replace(made(0), id=b"\0" * 32)
    assert host.handle(Received(PublishNew(forged), "a")) == [Rejected(1)]
    assert host.stored == []
    host.receive(PublishNew(made(0)), "a")
    assert host.machine.batches() == (made(0),)
    assert host.receive(PublishNew(made(0)), "e") == []


@pytest.mark.parametrize("invalid", [UNREADABLE, replace(made(7), first=8)])
def test_T10_only_valid_batches_of_a_message_are_stored_delivered_and_forwarded(
    invalid: RecordBatch,
) -> None:
    host = calm_quarter()
    effects = arrive(host, PublishMany((made(0), invalid, made(1)), 2))
    assert kinds(effects) == [Rejected, Store, Deliver, Send]
    assert distinct(effects, PublishMany) == [PublishMany((made(0), made(1)), 3)]
    assert host.stored == [made(0), made(1)]
    assert [each for _, each in host.delivered] == host.stored


def test_forwarded_message_carries_the_received_batches_themselves() -> None:
    """The host forwards the received bytes of a batch or of a tuple."""
    host = calm_quarter()
    one, several = made(0), made_many(3, 1)
    for _, message in host.receive(PublishNew(one), "a"):
        assert isinstance(message, PublishNew)
        assert message.publication is one
    messages = host.receive(PublishMany(several), "a")
    assert addressed(messages, PublishMany) == ["j", "k"]
    assert len({id(message) for _, message in messages}) == 1  # encoded once
    for _, message in messages:
        assert isinstance(message, PublishMany)
        assert message.publications is several


def test_only_new_batches_of_a_message_are_forwarded() -> None:
    host = calm_quarter()
    host.receive(PublishNew(made(1)), "a")
    several = made_many(3)
    effects = arrive(host, PublishMany(several, 4))
    assert distinct(effects, PublishMany) == [PublishMany((made(0), made(2)), 5)]
    [message] = distinct(effects, PublishMany)
    assert isinstance(message, PublishMany)
    assert [id(each) for each in message.publications] == [id(several[0]), id(several[2])]
    effects = arrive(host, PublishMany(made_many(4)), "b")
    assert distinct(effects, PublishNew) == [PublishNew(made(3), 1)]
    assert host.stored == [made(1), made(0), made(2), made(3)]


def test_node_that_has_left_drops_publications() -> None:
    host = quarter(SubscriberState(member=False))
    for message in (PublishNew(made(0)), i_have("a", made(1)), want("a", made(2))):
        assert host.handle(Received(message, "a")) == []
    assert host.flush() == []
    assert len(host.machine.trie()) == 0


def test_node_that_waits_for_its_label_stores_publications() -> None:
    host = quarter(SubscriberState())
    host.receive(PublishNew(made(0)), "a")
    assert len(host.machine.trie()) == 1


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


def test_batch_without_a_body_is_not_stored() -> None:
    """A forged batch with an id alone could keep out the real one permanently."""
    host = calm_quarter()
    forged = opaque_batch(made(0).id, publisher="evil")
    assert host.receive(PublishNew(forged), "a") == []
    host.receive(Publications((forged,)), "a")
    assert host.stored == []
    host.receive(PublishNew(made(0)), "a")
    assert host.stored == [made(0)]


def test_batch_without_a_body_in_a_message_is_not_forwarded() -> None:
    host = calm_quarter()
    effects = arrive(host, PublishMany((made(0), opaque_batch(made(1).id))))
    assert distinct(effects, PublishNew) == [PublishNew(made(0), 1)]
    assert distinct(effects, PublishMany) == []


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


# -- publications that may be known ------------------------------------------------------------


def test_store_states_the_size_of_its_batches() -> None:
    plain, rich = made(0), batch_of(b"x", b"y" * 99, first=4, topic=TOPIC)
    [stored, *_] = arrive(quarter(), PublishMany((plain, rich)))
    assert isinstance(stored, Store)
    assert stored.size_bytes == plain.size_bytes + rich.size_bytes


def test_batches_are_stored_at_their_offsets_in_delivery_order() -> None:
    before = (made(0, "y"), made(1, "y"))
    host = quarter(replace(QUARTER, publications=before))
    packs = [
        (made(0), made(3)),
        (batch_of(b"x", b"y", publisher="y", first=2, topic=TOPIC),),
        (made(0, "x"), made(1, "x")),
        (made(9),),
    ]
    for pack in packs:
        arrive(host, PublishMany(pack))
    every = [each for pack in packs for each in pack]
    assert host.stored == [*before, *every]
    assert host.delivered == list(zip([2, 3, 4, 6, 7, 8], every, strict=True))


LONE = opaque_batch(made(7).id)
ANY_NUMBERS = {
    "the same": ((made(5),), ()),
    "a lower number": ((made(3),), (made(3),)),
    "the same number of something else": ((made(5, payload=b"x"),), (made(5, payload=b"x"),)),
    "a pack that overlaps": ((made(5), made(6)), (made(6),)),
    "a batch whose numbers overlap": (
        (batch_of(b"x", b"y", publisher="z", first=4, topic=TOPIC),),
        (batch_of(b"x", b"y", publisher="z", first=4, topic=TOPIC),),
    ),
    "a pack whose numbers fall": ((made(7), made(6)), (made(7), made(6))),
    "a pack with one twice": ((made(6), made(6)), (made(6),)),
    "a pack of two publishers": ((made(6), made(0, "y")), (made(6), made(0, "y"))),
    "a pack with an id alone": ((made(6), LONE), (made(6),)),
    "an incredible number": ((made(SEQ_BELIEVED_MAX),), (made(SEQ_BELIEVED_MAX),)),
    "a pack up to an incredible number": (
        (made(6), made(SEQ_BELIEVED_MAX)),
        (made(6), made(SEQ_BELIEVED_MAX)),
    ),
}


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize(("pack", "new"), ANY_NUMBERS.values(), ids=ANY_NUMBERS)
def test_id_decides_whether_a_publication_is_new_whatever_its_number(
    pack: tuple[RecordBatch, ...], new: tuple[RecordBatch, ...], is_indexed: bool
) -> None:
    host = deferring()
    arrive(host, news(5))
    if is_indexed:
        host.machine.replica.index()
    effects = arrive(host, PublishMany(pack))
    assert kinds(effects) == ([Store, Deliver, Send] if new else [])
    assert host.stored == [made(5), *new]
    assert arrive(host, PublishMany(pack)) == []  # repeated
    assert [each for _, each in host.delivered] == host.stored


def test_own_publication_that_returns_is_known() -> None:
    host = deferring()
    host.handle(OWN)
    [own] = host.stored
    assert arrive(host, PublishNew(own)) == []
    assert len(host.delivered) == 1


def test_numbers_of_a_lost_own_publication_that_returns_are_not_used_again() -> None:
    host = deferring()
    lost = batch_of(b"x", b"y", publisher=ME, first=7, topic=TOPIC)
    assert kinds(arrive(host, PublishNew(lost))) == [Store, Deliver, Send]
    host.handle(OWN)
    assert [each.first for each in host.stored] == [7, 9]


def test_publication_from_repair_counts_as_seen() -> None:
    host = deferring()
    arrive(host, news(0))
    arrive(host, Publications((made(4),)))
    assert arrive(host, news(4)) == []
    assert kinds(arrive(host, news(5))) == [Store, Deliver, Send]


def test_implausible_number_does_not_hide_later_numbers() -> None:
    host = deferring()
    arrive(host, PublishNew(made(SEQ_BELIEVED_MAX + 5)))
    assert kinds(arrive(host, news(0))) == [Store, Deliver, Send]


def test_empty_pack_has_no_effect() -> None:
    host = deferring()
    assert arrive(host, PublishMany(())) == []
    assert not host.machine.has_to_flush


def test_stored_publications_are_known_and_others_new_after_a_restart() -> None:
    stored = (made(0), made(8), made(3, "y"), made(SEQ_BELIEVED_MAX, "y"), made(2))
    log = MemoryLog(stored)
    log.discard(1)
    host = deferring(log=log)
    for known in (made(0), made(3, "y"), made(SEQ_BELIEVED_MAX, "y"), made(2)):
        assert arrive(host, PublishNew(known)) == []
    for unseen in (made(8), made(9), made(4, "y"), made(0, "w")):
        assert kinds(arrive(host, PublishNew(unseen))) == [Store, Deliver, Send]


# -- deferred indexing: reads and any interleaving ---------------------------------------------


def test_requested_publication_is_sent_before_it_is_indexed() -> None:
    host = deferring()
    arrive(host, news(0, 1))
    effects = arrive(host, want_each("x", (made(1), 1)))
    assert effects == [Send("x", PublishNew(made(1), 1))]
    assert len(host.machine.trie()) == 2


def test_missing_publication_is_sent_by_anti_entropy_before_it_is_indexed() -> None:
    host = deferring()
    arrive(host, news(0, 1))
    effects = arrive(host, CheckTrie("x", (RangeSummary.make(ALL),), 1))
    [answer] = distinct(effects, Publications)
    assert sorted(answer.publications, key=number) == [made(0), made(1)]
    assert len(host.machine.trie()) == 2


def test_scrub_removes_nothing_while_publications_arrive() -> None:
    host = deferring(repairs=True)
    for seq in range(0, 40, 4):
        arrive(host, news(*range(seq, seq + 4)))
        assert kinds(host.handle(Tick())) in ([], [Send])  # no Discard
        assert len(host.machine.trie()) == seq + 4
    for _ in range(10):
        assert kinds(host.handle(Tick())) in ([], [Send])
    assert len(host.machine.trie()) == 40


def number(batch: RecordBatch) -> tuple[NodeId, int]:
    return batch.publisher, batch.first


def some() -> SearchStrategy[tuple[RecordBatch, ...]]:
    """Draw batches of few publishers with few numbers, some of them invalid."""
    one = st.builds(
        made,
        st.sampled_from([0, 1, 2, 3, 4, 5, SEQ_BELIEVED_MAX]),
        st.sampled_from(["z", "y", ME]),
        st.sampled_from([b"news", b"news", b"other"]),
    )
    rising = st.builds(
        lambda start, count: made_many(count, start), st.integers(0, 8), st.integers(1, 4)
    )
    pairs = st.builds(
        lambda first: batch_of(b"x", b"y", publisher="z", first=first, topic=TOPIC),
        st.integers(0, 5),
    )
    invalid = st.sampled_from([UNREADABLE, replace(made(1), first=2), opaque_batch(made(3).id)])
    several = st.lists(st.one_of(one, one, pairs, invalid), min_size=1, max_size=4)
    return rising | several.map(tuple)


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
    own: list[Event] = [Flush(), Flush(), Tick(), OWN]
    submitted = st.builds(SubmitRequested, some())
    others = st.sampled_from(own) | submitted
    return st.lists(st.one_of(received, received, others), max_size=24)


@unhurried
@given(histories())
def test_deferred_indexing_delivers_once_and_stores_the_same_as_immediate_indexing(
    events: list[Event],
) -> None:
    late = deferring(repairs=True)
    eager = deferring(repairs=True, defers_indexing=False)
    for event in events:
        late.handle(event)
        eager.handle(event)
        eager.machine.replica.index()
    assert late.stored == eager.stored
    assert late.all(Rejected) == eager.all(Rejected)
    assert late.all(Discard) == []
    assert [each for _, each in late.delivered] == late.stored
    assert [(entry.offset, entry.batch) for entry in late.log.read_range(0, late.log.end)] == (
        late.delivered
    )
    assert len({each.id for each in late.stored}) == len(late.stored)
    assert sorted(late.machine.trie().entries()) == sorted(late.log.entries())


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
    config, rng = ProtocolConfig.live(), Random(seed)
    assert config.defers_indexing
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


def test_wrong_arrivals_last_until_the_next_flush() -> None:
    host = quarter()
    host.tick(CALM)
    (spreading,) = parts(host.machine, "Broadcast")
    spreading._arrived = [([b"x" * 32], 3, frozenset({None}))]
    assert host.machine.has_to_flush
    assert sent(host.handle(Flush())) != []
    assert not host.machine.has_to_flush
    assert host.handle(Flush()) == []


def test_wrong_view_and_routes_are_repaired_within_a_tick() -> None:
    host = quarter()
    host.tick(CALM)
    (spreading,) = parts(host.machine, "Broadcast")
    route = type(spreading._route(None))
    spreading._routes = {None: route(("x",), frozenset())}
    spreading._is_view_sure, spreading._view = True, 7
    host.handle(Tick())
    assert receivers(host.publish(), PublishNew) != ["x"]
    assert sorted(receivers(host.publish(), PublishNew)) == NEIGHBOURS  # the view seems new: flood
    host.tick(CALM)
    assert sorted(receivers(host.publish(), PublishNew)) == TREE
