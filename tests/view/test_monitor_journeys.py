"""Delivery paths of publications, assembled from the arrivals at the nodes."""

import pytest

from skipring.core.effects import Origin
from skipring.view import monitor as module
from skipring.view.monitor import KEPT, DeliveryPaths, pulse_of
from skipring.wire.rpc import Arrival

SPREAD = list(Origin).index(Origin.SPREAD)
OWN = list(Origin).index(Origin.OWN)


def arrival(
    time: int, sender: str | None, seq: int = 7, *, count: int = 1, fresh: int = 1, hops: int = 1
) -> Arrival:
    origin = SPREAD if sender is not None else OWN
    return Arrival(time, sender, hops, origin, count, fresh, "a", seq, 1_000)


def test_path_has_a_step_for_each_node_in_order_of_arrival() -> None:
    journeys = DeliveryPaths()
    journeys.add([pulse_of("c", arrival(3_000, "b", hops=2)), pulse_of("b", arrival(2_000, "a"))])
    journeys.add([pulse_of("a", arrival(1_500, None, hops=0))])
    journey = journeys.find("a", 7, members=4)
    assert journey is not None
    steps = [(each.node, each.sender, each.hops, each.way) for each in journey.arrivals]
    assert steps == [("a", None, 0, "own"), ("b", "a", 1, "spread"), ("c", "b", 2, "spread")]
    assert [each.latency for each in journey.arrivals] == [0.5, 1.0, 2.0]
    assert (journey.reached, journey.members, journey.messages) == (3, 4, 2)
    assert (journey.duplicates, journey.published) == (0, 1.0)


def test_repeated_arrival_is_a_duplicate_and_a_message() -> None:
    journeys = DeliveryPaths()
    journeys.add([pulse_of("b", arrival(2_000, "a"))])
    journeys.add([pulse_of("b", arrival(2_500, "c", fresh=0))])
    journey = journeys.find("a", 7, members=2)
    assert journey is not None
    assert (journey.messages, journey.duplicates) == (2, 1)
    assert journey.arrivals[0].sender == "a"


def test_pack_adds_a_step_for_each_publication() -> None:
    journeys = DeliveryPaths()
    journeys.add([pulse_of("b", arrival(2_000, "a", seq=10, count=3, fresh=3))])
    assert all(journeys.find("a", seq, 2) is not None for seq in (10, 11, 12))
    assert journeys.find("a", 13, 2) is None


def test_arrival_without_publication_time_has_no_latency() -> None:
    pulse = pulse_of("b", Arrival(2_000, "a", 1, SPREAD, 1, 1, "a", 7, 0))
    assert pulse.latency is None


def test_unknown_origin_is_shown_as_repair() -> None:
    assert pulse_of("b", Arrival(2_000, "a", 1, 99, 1, 1, "a", 7, 0)).way == "repair"


def test_only_the_last_paths_are_kept() -> None:
    journeys = DeliveryPaths()
    journeys.add(pulse_of("b", arrival(2_000, "a", seq=seq)) for seq in range(KEPT + 1))
    assert journeys.find("a", 0, 2) is None
    assert journeys.find("a", KEPT, 2) is not None


def test_number_of_steps_is_limited_for_any_ring_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STEPS_MAX", 10)
    journeys = DeliveryPaths()
    for seq in range(4):
        journeys.add(pulse_of(f"n{number}", arrival(2_000, "a", seq)) for number in range(4))
    assert journeys.find("a", 0, members=4) is None
    last = journeys.find("a", 3, members=4)
    assert last is not None
    assert last.reached == 4
    assert sum(map(len, journeys._steps.values())) == journeys._count <= 10
