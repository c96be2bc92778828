"""What is seen of a world after every round."""

from __future__ import annotations

from skipring.core.config import ProtocolConfig
from skipring.core.labels import Label
from skipring.core.peers import Peer
from skipring.core.state import SubscriberState
from skipring.lab.experiments.samples import Samples, degrees
from skipring.sim.engine import World
from skipring.world.snapshot import Snapshot


def test_a_degree_counts_every_other_node_once() -> None:
    """Several references to one node, under any labels, count once; a node's own do not count."""
    zero, one, two, three = (Label.nth(index) for index in range(4))
    state = SubscriberState(
        label=zero,
        left=Peer(one, "b"),
        right=Peer(two, "b"),
        ring=Peer(zero, "a"),
        shortcuts={one: "b", two: "c", three: None},
    )
    start = Snapshot(subscribers={"a": state, "b": SubscriberState(), "c": SubscriberState()})
    world = World(start, seed=0, config=ProtocolConfig())
    assert degrees(world) == [2, 0, 0]
    samples = Samples()
    samples(world)
    assert samples.degree_peak == samples.rows[0]["degree_max"] == 2


def test_a_world_without_subscribers_has_no_degrees() -> None:
    world = World(Snapshot(subscribers={}), seed=0, config=ProtocolConfig())
    samples = Samples()
    assert samples.degree_peak == 0
    samples(world)
    assert samples.degree_peak == 0
