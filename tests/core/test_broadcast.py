"""Broadcast: over all edges, over the tree, and lazy push over the others (section 4.3)."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skipring.core.broadcast import HOPS_MAX
from skipring.core.config import ProtocolConfig, Spread
from skipring.core.effects import Deliver, Effect, Origin, Send, Store
from skipring.core.events import Event, Flush, Overwritten, PublishRequested, Received, Tick
from skipring.core.labels import Label
from skipring.core.log import MemoryLog
from skipring.core.messages import (
    IHave,
    IntroduceShortcut,
    Message,
    Publications,
    PublishMany,
    PublishNew,
    RemoveConnections,
    Want,
)
from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.publications import Publication
from skipring.core.state import SubscriberState, legitimate_state, legitimate_states
from skipring.core.subscriber import Subscriber
from skipring.core.topology import chains_around, levels
from skipring.sim.engine import World
from skipring.sim.network_faults import DELIVERED, LOST, Verdict
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries.builders import node_names
from skipring.world.legitimacy import has_all_publications
from skipring.world.snapshot import Parcel
from tests.support.conversations import at, standing_ring
from tests.support.fake_host import Sent, receivers, sent
from tests.support.machines import ME, TOPIC, Scripted, unhurried

# In a ring of 16, m has the label 01. Its parent is a@0, its children are j@0011 and k@0101;
# the other neighbours, b@1, e@001 and f@011, are not beside it in the tree.
NODES = ["a", "b", ME, *"defghijklnopq"]
QUARTER = legitimate_state(2, NODES)
TREE, LAZY = ["a", "j", "k"], ["b", "e", "f"]
ALL = sorted([*TREE, *LAZY])
CALM = 4 + 4  # the longest label that m knows, plus calm_ticks


def made(seq: int, publisher: NodeId = "z") -> Publication:
    """Return a publication of another node."""
    return Publication(publisher=publisher, seq=seq, payload=b"news").with_id(TOPIC)


Said: TypeAlias = list[tuple[NodeId, Any]]


class Host:
    """Machine and the log that its host keeps for it."""

    def __init__(self, state: SubscriberState = QUARTER, **constants: object) -> None:
        self.archive = MemoryLog(state.publications)
        config = replace(ProtocolConfig(repairs=False), **constants)
        rng = Scripted(1)  # never asks the supervisor by chance
        self.machine = Subscriber(ME, topic=TOPIC, rng=rng, config=config, archive=self.archive)
        self.machine.handle(Overwritten(state))

    def act(self, event: Event) -> list[Effect]:
        """Handle an event and apply the Store effects."""
        effects = self.machine.handle(event)
        for effect in effects:
            if isinstance(effect, Store):
                self.archive.write(effect.offset, *effect.publications)
        return effects

    def hear(self, message: Message, sender: NodeId | None = None) -> Said:
        return sent(self.act(Received(message, sender)))

    def flush(self) -> Said:
        """Flush the deferred messages; return them in the order of receivers."""
        return sorted(sent(self.act(Flush())), key=lambda item: item[0])

    def publish(self, payload: bytes = b"own") -> Said:
        return sent(self.act(PublishRequested(payload=payload)))

    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.act(Tick())


def calm_host(state: SubscriberState = QUARTER, **constants: object) -> Host:
    """Return a host whose view has not changed for long enough."""
    host = Host(state, **constants)
    host.wait(CALM)
    return host


def to(messages: Sent, kind: type[Message] = PublishNew) -> list[NodeId]:
    """Return the receivers of messages of a type, sorted by name."""
    return sorted(receivers(messages, kind))


def i_have(sender: NodeId, *publications: Publication, hops: int = 1) -> IHave:
    return IHave(sender, *_shorts(publications, hops))


def want(sender: NodeId, *publications: Publication, hops: int = 1) -> Want:
    return Want(sender, *_shorts(publications, hops))


def told(*publications: Publication, hops: int = 1, to: list[NodeId] = LAZY) -> Sent:
    """Return the announcements of publications to all neighbours outside the tree."""
    return [(node, i_have(ME, *publications, hops=hops)) for node in to]


def _shorts(publications: tuple[Publication, ...], hops: int) -> tuple[bytes, bytes]:
    return b"".join(p.id[:8] for p in publications), bytes([hops] * len(publications))


# -- publishing --------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", list(Spread))
def test_own_publication_is_stored_then_delivered_then_sent(
    spread: Spread,
) -> None:
    effects = calm_host(spread=spread).act(PublishRequested(payload=b"own"))
    kinds = [type(effect) for effect in effects]
    assert kinds[:2] == [Store, Deliver]
    assert set(kinds[2:]) == {Send}


@pytest.mark.parametrize("spread", list(Spread))
def test_new_publication_is_stored_then_delivered_then_forwarded(
    spread: Spread,
) -> None:
    effects = calm_host(spread=spread).act(Received(PublishNew(made(0)), "a"))
    kinds = [type(effect) for effect in effects]
    assert kinds[:2] == [Store, Deliver]
    assert set(kinds[2:]) == {Send}


def test_own_publication_is_delivered_as_own_with_zero_hops() -> None:
    effects = Host().act(PublishRequested(payload=b"own"))
    delivered = next(effect for effect in effects if isinstance(effect, Deliver))
    assert (delivered.origin, delivered.hops) == (Origin.OWN, 0)
    assert delivered.publications[0].publisher == ME


def test_received_publication_is_delivered_as_broadcast_with_one_more_hop() -> None:
    effects = Host().act(Received(PublishNew(made(0), 4), "a"))
    delivered = next(effect for effect in effects if isinstance(effect, Deliver))
    assert (delivered.origin, delivered.hops) == (Origin.SPREAD, 5)
    passed_on: Said = sent(effects)
    assert {message.hops for _, message in passed_on} == {5}


def test_own_publications_are_numbered() -> None:
    host = Host()
    for _ in range(3):
        host.publish(b"the same")
    assert [publication.seq for publication in host.archive.publications()] == [0, 1, 2]


def test_numbers_continue_after_a_restart() -> None:
    own = tuple(made(seq, ME) for seq in (0, 1, 4))
    host = Host(SubscriberState(label=Label.parse("01"), publications=(*own, made(9))))
    host.publish()
    host.publish()
    assert [publication.seq for publication in host.archive.publications()][4:] == [5, 6]


def test_given_publisher_and_number_are_kept() -> None:
    host = Host()
    host.act(PublishRequested(payload=b"for x", publisher="x", seq=7, time=3, headers={"k": "v"}))
    assert list(host.archive.publications()) == [
        Publication(publisher="x", seq=7, payload=b"for x", time=3, headers={"k": "v"}).with_id(
            TOPIC
        )
    ]


def test_publication_for_another_publisher_does_not_change_the_own_numbers() -> None:
    own = tuple(made(seq, ME) for seq in range(5))
    host = Host(SubscriberState(label=Label.parse("01"), publications=own))
    host.act(PublishRequested(payload=b"for x", publisher="x", seq=0))
    host.publish()
    assert [publication.seq for publication in host.archive.publications()][5:] == [0, 5]


def test_publication_repeated_under_the_same_number_is_ignored() -> None:
    host = Host()
    event = PublishRequested(payload=b"p", publisher="x", seq=1)
    assert host.act(event) != []
    assert host.act(event) == []


def test_node_without_a_label_stores_its_own_publications() -> None:
    host = Host(SubscriberState())
    assert host.publish() == []
    assert len(host.machine.index()) == 1


# -- incoming publications ---------------------------------------------------------------------


@pytest.mark.parametrize("spread", list(Spread))
def test_known_publication_is_dropped(spread: Spread) -> None:
    host = calm_host(spread=spread)
    host.hear(PublishNew(made(0)), "a")
    assert host.act(Received(PublishNew(made(0)), "e")) == []


def test_id_of_a_received_publication_is_recomputed() -> None:
    """T10: the id derives from the fields only."""
    host = Host()
    forged = Publication(publisher="z", seq=0, payload=b"news", id=b"\0" * 32)
    host.hear(PublishNew(forged), "a")
    assert host.machine.publications == (made(0),)
    assert host.hear(PublishNew(made(0)), "e") == []


def test_node_that_has_left_drops_publications() -> None:
    host = Host(SubscriberState(member=False))
    for message in (PublishNew(made(0)), i_have("a", made(1)), want("a", made(2))):
        assert host.act(Received(message, "a")) == []
    assert host.flush() == []
    assert len(host.machine.index()) == 0


def test_node_that_waits_for_its_label_stores_publications() -> None:
    host = Host(SubscriberState())
    host.hear(PublishNew(made(0)), "a")
    assert len(host.machine.index()) == 1


def test_node_that_waits_for_permission_to_leave_forwards_publications() -> None:
    leaver = SubscriberState(
        member=False,
        label=QUARTER.label,
        left=QUARTER.left,
        right=QUARTER.right,
        shortcuts=QUARTER.shortcuts,
    )
    assert to(Host(leaver).hear(PublishNew(made(0)), "a")) == ["b", "e", "f", "j", "k"]


@pytest.mark.parametrize(
    ("forged", "counted"), [(-(1 << 63), 1), (-1, 1), (0, 1), (254, 255), ((1 << 63) - 1, HOPS_MAX)]
)
@pytest.mark.parametrize("spread", list(Spread))
def test_forged_hops_are_clamped(spread: Spread, forged: int, counted: int) -> None:
    host = calm_host(spread=spread)
    passed_on = host.hear(PublishNew(made(0), forged), "a")
    assert {message.hops for _, message in passed_on} == {counted}
    announced = {message.hops for _, message in host.flush()}
    assert announced == ({bytes([counted])} if spread is Spread.ADAPTIVE else set())


@unhurried
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(ALL)),
        max_size=12,
    )
)
def test_publication_is_never_forwarded_twice(parcels: list[tuple[int, int, NodeId]]) -> None:
    host = calm_host()
    said: Counter[tuple[NodeId, bytes]] = Counter()
    for seq, hops, sender in parcels:
        for receiver, message in host.hear(PublishNew(made(seq), hops), sender):
            said[receiver, message.publication.id] += 1
    for receiver, message in host.flush():
        for short, _ in message.short_ids():
            said[receiver, short] += 1
    assert set(said.values()) <= {1}
    assert host.flush() == []


# -- the tree ----------------------------------------------------------------------------------


def tree_of(n: int) -> dict[NodeId, list[NodeId]]:
    """Return the tree edges of every node of SR(n), as each node computes them."""
    edges: dict[NodeId, list[NodeId]] = {}
    for node, state in legitimate_states(node_names(n)):
        machine = Subscriber(node, topic=TOPIC, rng=Random(0), config=ProtocolConfig())
        machine.handle(Overwritten(state))
        found = machine._circulation.spreading.tree_edges()
        assert found is not None
        edges[node] = found
    return edges


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
        machine = Subscriber(node, topic=TOPIC, rng=Random(0), config=ProtocolConfig())
        machine.handle(Overwritten(state))
        pred, succ = machine._ring.pred, machine._ring.succ
        chains[node] = chains_around(
            Label.nth(names.index(node)),
            pred.label if pred is not None else None,
            succ.label if succ is not None else None,
        )
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


def test_tree_edges_of_one_quarter_are_zero_and_both_ring_neighbours() -> None:
    assert sorted(Host().machine._circulation.spreading.tree_edges() or ()) == TREE


def test_tree_mode_uses_the_tree_in_any_view() -> None:
    assert to(Host(spread=Spread.TREE).publish()) == TREE


def test_tree_mode_uses_the_known_edges() -> None:
    host = calm_host(spread=Spread.TREE)
    host.hear(RemoveConnections("a"))
    assert to(host.publish()) == [node for node in TREE if node != "a"]


def test_flood_mode_uses_all_edges_including_the_one_to_the_sender() -> None:
    host = calm_host(spread=Spread.FLOOD)
    assert to(host.publish()) == ALL
    assert to(host.hear(PublishNew(made(0)), "a")) == ALL


@pytest.mark.parametrize("spread", [Spread.TREE, Spread.FLOOD])
def test_only_adaptive_mode_announces(spread: Spread) -> None:
    host = calm_host(spread=spread)
    host.publish()
    assert not host.machine.has_to_flush
    assert host.flush() == []


# -- choice between tree and flood -------------------------------------------------------------


def test_stable_view_uses_the_tree() -> None:
    assert to(calm_host().publish()) == TREE


@pytest.mark.parametrize("ticks", [0, 1, CALM - 1])
def test_new_view_uses_all_edges(ticks: int) -> None:
    host = Host()
    host.wait(ticks)
    assert to(host.publish()) == ALL


def test_required_age_of_a_view_depends_on_the_longest_known_label() -> None:
    host = Host(legitimate_state(2, [*NODES, *(f"r{number:02d}" for number in range(16))]))
    host.wait(5 + 4 - 1)
    assert len(to(host.publish())) == 8
    host.wait(1)
    assert len(to(host.publish(b"later"))) < 8


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
    host = calm_host()
    assert to(host.publish(b"before")) == TREE
    host.hear(change)
    edges = sorted(host.machine._circulation.spreading.neighbours())
    assert to(host.publish()) == edges
    assert edges != ALL
    host.wait(CALM - 1)
    assert to(host.publish(b"later")) == sorted(host.machine._circulation.spreading.neighbours())


def test_reverted_change_of_the_view_still_counts_as_a_change() -> None:
    host = calm_host()
    host.hear(IntroduceShortcut(at("x@1")))
    host.publish()
    host.hear(IntroduceShortcut(at("b@1")))
    assert to(host.publish(b"later")) == ALL


def test_introduction_of_a_known_peer_does_not_change_the_view() -> None:
    host = calm_host()
    host.hear(IntroduceShortcut(at("b@1")))
    assert to(host.publish()) == TREE


def test_unknown_holder_of_a_tree_edge_causes_a_flood() -> None:
    unknown = SubscriberState(
        label=QUARTER.label,
        left=QUARTER.left,
        right=QUARTER.right,
        shortcuts={**QUARTER.shortcuts, Label.parse("0"): None},
    )
    host = calm_host(unknown)
    host.wait(100)
    assert to(host.publish()) == ["b", "e", "f", "j", "k"]


def test_unknown_holder_of_another_edge_does_not_prevent_the_tree() -> None:
    unknown = SubscriberState(
        label=QUARTER.label,
        left=QUARTER.left,
        right=QUARTER.right,
        shortcuts={**QUARTER.shortcuts, Label.parse("1"): None},
    )
    assert to(calm_host(unknown).publish()) == TREE


@pytest.mark.parametrize("sender", ALL)
def test_publication_is_not_sent_back_to_its_sender(sender: NodeId) -> None:
    calm = calm_host().hear(PublishNew(made(0)), sender)
    assert to(calm) == [node for node in TREE if node != sender]
    young = Host().hear(PublishNew(made(0)), sender)
    assert to(young) == [node for node in ALL if node != sender]


@pytest.mark.parametrize("spread", list(Spread))
def test_publication_is_never_sent_to_the_supervisor_or_to_the_node_itself(spread: Spread) -> None:
    strange = SubscriberState(
        label=QUARTER.label,
        left=at(f"{SUPERVISOR}@0011"),
        right=at(f"{ME}@0101"),
        shortcuts={Label.parse("0"): ME, Label.parse("1"): SUPERVISOR},
    )
    assert Host(strange, spread=spread).publish() == []


def test_adaptive_mode_reaches_all_by_flooding_in_a_new_ring() -> None:
    world = spread_out(64, "n0000", Spread.ADAPTIVE, calm=False)
    assert has_all_publications(world)
    assert world.deliveries.hops_max <= levels(64)
    # A flood, except that no node sends the publication back to its sender.
    assert world.sent[PublishNew] == 4 * 64 - 6 - 63


# -- lazy push: announcements --------------------------------------------------------------------


def test_nothing_is_announced_before_the_flush() -> None:
    host = calm_host()
    assert to(host.publish(), IHave) == []
    assert host.machine.has_to_flush
    assert to(host.hear(PublishNew(made(0)), "a"), IHave) == []


def test_flush_announces_once_on_edges_outside_the_tree() -> None:
    host = calm_host()
    host.hear(PublishNew(made(0), 3), "a")
    assert host.flush() == told(made(0), hops=4)
    assert not host.machine.has_to_flush
    assert host.flush() == []


def test_one_message_announces_all_publications_since_the_last_flush() -> None:
    host = calm_host()
    for seq in range(5):
        host.hear(PublishNew(made(seq)), "a")
    assert host.flush() == told(*(made(seq) for seq in range(5)))


def test_publication_is_not_announced_to_its_sender() -> None:
    host = calm_host()
    host.hear(PublishNew(made(0)), "b")
    host.hear(PublishNew(made(1)), "a")
    assert host.flush() == [
        *told(made(1), to=["b"]),
        *told(made(0), made(1), to=["e", "f"]),
    ]
    host.hear(PublishNew(made(2)), "b")
    assert host.flush() == told(made(2), to=["e", "f"])


def test_own_publication_is_announced_with_zero_hops() -> None:
    host = calm_host()
    host.publish()
    own = next(host.archive.publications())
    assert host.flush() == told(own, hops=0)


def test_number_of_announced_publications_is_bounded() -> None:
    host = calm_host(announced_max=2)
    for seq in range(5):
        host.hear(PublishNew(made(seq)), "a")
    assert host.flush() == told(made(0), made(1))
    host.hear(PublishNew(made(5)), "a")
    assert host.flush() == told(made(5))


def test_publication_is_not_announced_to_nodes_that_were_sent_it() -> None:
    """A new view: the publication went over all edges."""
    host = Host()
    host.hear(PublishNew(made(0)), "b")
    assert host.flush() == []


def test_publication_from_repair_is_announced_to_all_neighbours() -> None:
    host = calm_host()
    assert host.hear(Publications((made(0), made(1)))) == []
    assert host.flush() == told(made(0), made(1), hops=0, to=ALL)


def test_publication_from_repair_is_not_announced_to_its_sender() -> None:
    host = calm_host()
    host.hear(Publications((made(0),)), "e")
    assert host.flush() == told(made(0), hops=0, to=[node for node in ALL if node != "e"])


def test_known_publication_from_repair_is_not_announced() -> None:
    host = calm_host()
    host.hear(PublishNew(made(0)), "a")
    host.flush()
    host.hear(Publications((made(0),)))
    assert host.flush() == []


def test_repair_of_more_than_a_few_publications_is_not_announced() -> None:
    host = calm_host(repair_announce_max=2)
    host.hear(Publications(tuple(made(seq) for seq in range(3))))
    assert len(host.machine.index()) == 3
    assert host.flush() == []
    host.hear(Publications((made(3), made(4))))
    assert host.flush() == told(made(3), made(4), hops=0, to=ALL)


@pytest.mark.parametrize("spread", [Spread.TREE, Spread.FLOOD])
def test_only_adaptive_mode_announces_publications_from_repair(spread: Spread) -> None:
    host = calm_host(spread=spread)
    host.hear(Publications((made(0),)))
    assert host.flush() == []


# -- lazy push: requests -------------------------------------------------------------------------


def test_announced_publication_that_is_missing_at_the_flush_is_requested() -> None:
    host = calm_host()
    assert host.hear(i_have("b", made(0), made(1), hops=2)) == []
    assert host.machine.has_to_flush
    assert host.flush() == [("b", want(ME, made(0), made(1), hops=2))]
    assert host.flush() == []


def test_announced_publication_that_arrived_before_the_flush_is_not_requested() -> None:
    host = calm_host()
    host.hear(i_have("b", made(0), made(1)))
    host.hear(PublishNew(made(0)), "b")
    assert ("b", want(ME, made(1))) in host.flush()


def test_known_publication_is_not_requested() -> None:
    host = calm_host()
    host.hear(PublishNew(made(0)), "b")
    host.flush()
    host.hear(i_have("b", made(0)))
    assert host.flush() == []


def test_publication_is_requested_from_the_first_announcer() -> None:
    host = calm_host()
    host.hear(i_have("b", made(0), hops=3))
    host.hear(i_have("x", made(0), made(1), hops=1))
    assert host.flush() == [("b", want(ME, made(0), hops=3)), ("x", want(ME, made(1)))]


def test_publication_is_requested_from_the_next_announcer_if_the_first_does_not_answer() -> None:
    host = calm_host()
    host.hear(i_have("b", made(0)))
    host.flush()
    host.hear(i_have("x", made(0)))
    assert host.flush() == [("x", want(ME, made(0)))]


def test_number_of_requested_publications_is_bounded() -> None:
    host = calm_host(announced_max=2)
    host.hear(i_have("b", *(made(seq) for seq in range(5))))
    host.hear(i_have("x", made(7)))
    assert host.flush() == [("b", want(ME, made(0), made(1)))]


@pytest.mark.parametrize("forged", [ME, SUPERVISOR])
def test_request_in_the_name_of_the_node_itself_or_the_supervisor_is_ignored(
    forged: NodeId,
) -> None:
    host = calm_host()
    host.hear(PublishNew(made(0)), "b")
    host.flush()
    assert host.hear(i_have(forged, made(1))) == []
    assert host.flush() == []
    assert host.hear(want(forged, made(0))) == []


# -- lazy push: answers --------------------------------------------------------------------------


def test_requested_publication_is_sent_to_the_requester_only() -> None:
    host = calm_host()
    host.hear(PublishNew(made(0), 2), "a")
    assert host.hear(want("x", made(0), hops=3)) == [("x", PublishNew(made(0), 3))]


def test_request_for_an_unknown_publication_is_not_answered() -> None:
    host = calm_host()
    host.hear(PublishNew(made(0)), "a")
    assert to(host.hear(want("x", made(0), made(1)))) == ["x"]
    assert host.hear(want("x", made(1))) == []


def test_T14_answer_is_limited_to_one_chunk() -> None:
    host = calm_host(chunk_bytes=made(0).size_bytes + 1)
    for seq in range(5):
        host.hear(PublishNew(made(seq)), "a")
    answers = host.hear(want("x", *(made(seq) for seq in range(5))))
    assert [message.publication.seq for _, message in answers] == [0, 1]


def test_T14_repeated_requests_use_up_the_credit() -> None:
    host = calm_host(credit_chunks=2)
    host.hear(PublishNew(made(0)), "a")
    answers = [to(host.hear(want("x", made(0)))) for _ in range(3)]
    assert answers == [["x"], ["x"], []]
    assert to(host.hear(want("b", made(0)))) == ["b"]


def test_publication_without_a_payload_is_not_stored() -> None:
    """A forged publication without a payload could keep out the real one permanently."""
    host = calm_host()
    forged = replace(made(0), publisher="evil", payload=None)
    assert host.hear(PublishNew(forged), "a") == []
    host.hear(Publications((forged,)), "a")
    assert list(host.archive.publications()) == []
    host.hear(PublishNew(made(0)), "a")
    assert list(host.archive.publications()) == [made(0)]


def test_hops_continue_after_a_lazy_push() -> None:
    """It reached b after two hops; b announces it, is asked and sends it: three hops."""
    host = calm_host()
    host.hear(i_have("b", made(0), hops=2))
    assert host.flush() == [("b", want(ME, made(0), hops=2))]
    effects = host.act(Received(PublishNew(made(0), 2), "b"))
    assert [effect.hops for effect in effects if isinstance(effect, Deliver)] == [3]
    assert to(sent(effects)) == TREE  # other nodes may be missing it too


# -- whole rings ---------------------------------------------------------------------------------


class Losing:
    """Scheduler that loses every message of some types."""

    def __init__(self, *kinds: type[Message]) -> None:
        self.kinds = kinds

    def verdict(self, parcel: Parcel, now: int, rng: Random) -> Verdict:
        return LOST if isinstance(parcel.message, self.kinds) else DELIVERED


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
    faults = (Losing(PublishNew), Losing(PublishMany))
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


# -- corrupted memory --------------------------------------------------------------------------


def test_wrong_count_of_arrivals_is_gone_after_a_tick() -> None:
    host = Host(defers_storage=True)
    spreading = host.machine._circulation.spreading
    spreading._arrived, spreading._arrived_bytes = 10**9, -(10**9)
    host.act(Tick())
    effects = [*host.act(Received(PublishNew(made(0)), "j")), *host.act(Flush())]
    (delivery,) = [each for each in effects if isinstance(each, Deliver)]
    (stored,) = [each for each in effects if isinstance(each, Store)]
    assert delivery.offset == stored.offset == 0


def test_wrong_view_and_routes_are_gone_after_a_tick() -> None:
    host = Host()
    host.wait(CALM)
    spreading = host.machine._circulation.spreading
    route = type(spreading._route(None))
    spreading._routes = {None: route(("x",), frozenset())}
    spreading._is_view_sure, spreading._view = True, 7
    host.act(Tick())
    assert receivers(host.publish(), PublishNew) != ["x"]
    assert sorted(receivers(host.publish(), PublishNew)) == ALL  # the view seems new: flood
    host.wait(CALM)
    assert sorted(receivers(host.publish(), PublishNew)) == TREE
