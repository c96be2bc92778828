"""Section 1.1: the overlay as a graph, channels, and operations on references."""

import re
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from skipring.core.batches import RecordBatch
from skipring.core.messages import CheckLabel, GetConfiguration, Introduce
from skipring.core.peers import SUPERVISOR, EdgeKind
from skipring.core.state import SubscriberState
from skipring.core.topology import ring_edges, shortcut_edges
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.world.adversaries.builders import with_states
from skipring.world.legitimacy import is_legitimate
from skipring.world.snapshot import Parcel, Snapshot
from tests.support.conversations import at, place, simulation, standing_ring

WORLD = Snapshot(
    subscribers={
        "a": SubscriberState(left=at("b@1"), ring=at("c@11"), shortcuts={at("d@01").label: "d"}),
        **dict.fromkeys("bcd", SubscriberState()),
    },
    channels=(
        Parcel("b", Introduce(at("c@0"), EdgeKind.LINE, first_hand=False)),
        Parcel("c", place("a@0", "01", "d@1")),
        Parcel(SUPERVISOR, GetConfiguration("a")),
    ),
)


def test_edge_is_explicit_if_the_reference_is_stored() -> None:
    assert set(WORLD.explicit_edges()) == {("a", "b"), ("a", "c"), ("a", "d")}


def test_edge_is_implicit_if_the_reference_is_in_a_message_in_the_channel() -> None:
    assert set(WORLD.implicit_edges()) == {("b", "c"), ("c", "a"), ("c", "d")}


@pytest.mark.parametrize("n", [2, 5, 16])
def test_explicit_edges_of_a_legitimate_state_are_the_skip_ring(n: int) -> None:
    """Section 2.1 in terms of section 1.1: G = (V, E_R and E_S), directed both ways."""
    world = standing_ring(n)
    label_of = {node: state.label for node, state in world.subscribers.items()}
    edges = {(label_of[u], label_of[v]) for u, v in world.explicit_edges()}
    definition = ring_edges(n) | shortcut_edges(n)
    assert edges == definition | {(b, a) for a, b in definition}


def test_processed_message_is_removed_from_the_channel() -> None:
    """One round processes every message in the channels: no message is lost or duplicated."""
    running = simulation(WORLD, scheduler="sync", without=["R14"])
    running.run_round()
    assert not set(WORLD.channels) & set(running.world.channels)
    world = running.world
    checks = [parcel for parcel in world.channels if isinstance(parcel.message, CheckLabel)]
    assert len(checks) == len(set(checks))


def renamed(value: Any) -> Any:  # noqa: ANN401 - any part of a snapshot
    """Return the same value with other names of nodes, in the same order.

    The publisher is part of a publication, not a reference: it stays, as the id does.
    """
    match value:
        case RecordBatch():
            return value
        case str():
            return re.sub(r"^n(\d{4})$", r"p\1", value)
        case Struct():
            fields = {name: renamed(getattr(value, name)) for name in value.__struct_fields__}
            return type(value)(**fields)
        case dict():
            return {renamed(key): renamed(item) for key, item in value.items()}
        case tuple() | list():
            return type(value)(renamed(item) for item in value)
        case _:
            return value


@pytest.mark.parametrize("code", ["A05", "A09", "A13", "A15", "A17"])
def test_only_the_order_of_ids_matters(code: str) -> None:
    """Compare-store-send mode: ids are compared, stored and sent, and never used in a computation.

    R14 adds hashes of ids, only to compare the sums; it is off, since the sums would differ.
    """
    scenario = make_scenario(
        {"config": "eager", "n": 8, "adversary": code, "without": ["R14"], "seed": 1}
    )
    start = scenario.start()
    one, other = Simulation(scenario, start), Simulation(scenario, renamed(start))
    for _ in range(20):
        assert renamed(one.world.snapshot()) == other.world.snapshot()
        one.run_round()
        other.run_round()


def with_slots_reversed(world: Snapshot) -> Snapshot:
    """Return the same state with the slots reversed: a map has no order."""
    return with_states(
        world, lambda _, state: replace(state, shortcuts=dict(reversed(state.shortcuts.items())))
    )


@pytest.mark.parametrize("code", ["A12", "A15"])
def test_computation_follows_from_its_initial_state(code: str) -> None:
    """The system state is an assignment of values; equal states with equal seeds run equally."""
    scenario = make_scenario({"config": "eager", "n": 8, "adversary": code, "seed": 1})
    start = scenario.start()
    same = with_slots_reversed(start)
    assert same == start
    one, other = Simulation(scenario, start), Simulation(scenario, same)
    for _ in range(10):
        assert one.world.snapshot() == other.world.snapshot()
        one.run_round()
        other.run_round()


def test_supervisor_is_known_to_all_nodes_from_the_start() -> None:
    """The star to the supervisor: no node has another reference, and a ring forms."""
    start = Snapshot(subscribers=dict.fromkeys("abcde", SubscriberState()))
    assert list(start.explicit_edges()) == []
    running = simulation(start, max_rounds=20)
    assert running.run().is_good
    assert is_legitimate(replace(running.world.snapshot(), channels=()))
