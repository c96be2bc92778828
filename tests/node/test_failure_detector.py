"""Failure detection: crashed members are evicted in time, live members are not."""

from __future__ import annotations

import pytest

from skipring.node.failure_detector import (
    EVICTION_TICKS,
    FORGET_TICKS,
    LONE_EVICTION_TICKS,
    PROBES_PER_TICK,
    REPORTS_PER_TICK,
    SILENT_TICKS,
    FailureDetector,
    NeighbourWatch,
)

A, B = ("news", "a"), ("news", "b")


def ticks_until_evicted(detector: FailureDetector, *accusers: str) -> int:
    """Return the ticks until eviction if all accusers report the node at every tick."""
    for number in range(100):
        for accuser in accusers:
            detector.report("news", "a", accuser)
        detector.tick()
        if list(detector.pop_evictions()):
            return number + 1
    raise AssertionError("never evicted")


# -- at a node ---------------------------------------------------------------------------------


def test_neighbour_is_reported_after_three_silent_ticks() -> None:
    watch = NeighbourWatch()
    reported = [watch.tick([A, B], is_late=False) for _ in range(SILENT_TICKS + 1)]
    assert reported == [[]] * (SILENT_TICKS - 1) + [[A, B]] * 2


def test_active_neighbour_is_not_reported() -> None:
    watch = NeighbourWatch()
    for _ in range(2 * SILENT_TICKS):
        watch.on_heard(*A)
        assert A not in watch.tick([A, B], is_late=False)


def test_activity_in_one_topic_does_not_count_in_another() -> None:
    watch = NeighbourWatch()
    for _ in range(SILENT_TICKS):
        watch.on_heard("sport", "a")
        reported = watch.tick([A], is_late=False)
    assert reported == [A]


def test_late_node_reports_no_neighbour_and_starts_again() -> None:
    watch = NeighbourWatch()
    for _ in range(SILENT_TICKS):
        watch.tick([A], is_late=False)
    assert watch.tick([A], is_late=True) == []
    assert watch.tick([A], is_late=False) == []


def test_former_neighbour_is_not_reported() -> None:
    watch = NeighbourWatch()
    for _ in range(SILENT_TICKS):
        watch.tick([A], is_late=False)
    assert watch.tick([B], is_late=False) == []
    assert watch.tick([A], is_late=False) == []


# -- at the supervisor -------------------------------------------------------------------------


def test_two_accusers_are_believed_sooner_than_one() -> None:
    assert ticks_until_evicted(FailureDetector(), "b", "c") == EVICTION_TICKS
    assert ticks_until_evicted(FailureDetector(), "b") == LONE_EVICTION_TICKS


def test_reply_to_a_probe_ends_the_suspicion() -> None:
    detector = FailureDetector()
    for _ in range(EVICTION_TICKS - 1):
        detector.report("news", "a", "b")
        detector.report("news", "a", "c")
        detector.tick()
    detector.on_heard("a")
    assert detector.to_probe() == []
    assert ticks_until_evicted(detector, "b", "c") == EVICTION_TICKS


def test_unrepeated_accusation_is_forgotten() -> None:
    detector = FailureDetector()
    detector.report("news", "a", "b")
    for _ in range(FORGET_TICKS + 1):
        assert list(detector.pop_evictions()) == []
        detector.tick()
    assert detector.to_probe() == []


def test_node_cannot_accuse_itself() -> None:
    detector = FailureDetector()
    detector.report("news", "a", "a")
    assert detector.to_probe() == []


def test_all_accused_nodes_are_probed_in_turn() -> None:
    detector = FailureDetector()
    for number in range(3 * PROBES_PER_TICK):
        detector.report("news", f"n{number:02d}", "x")
    probed = []
    for _ in range(3):
        probed += detector.to_probe()
        detector.tick()
    assert sorted(probed) == [("news", f"n{number:02d}") for number in range(3 * PROBES_PER_TICK)]


def test_probes_per_tick_are_limited_and_start_with_the_longest_accused() -> None:
    detector = FailureDetector()
    for number in range(2 * PROBES_PER_TICK):
        detector.report("news", f"n{number:02d}", "x")
        if number == PROBES_PER_TICK - 1:
            detector.tick()
    assert detector.to_probe() == [("news", f"n{number:02d}") for number in range(PROBES_PER_TICK)]


@pytest.mark.parametrize("reports", [REPORTS_PER_TICK, 10 * REPORTS_PER_TICK])
def test_reports_per_tick_are_limited(reports: int) -> None:
    detector = FailureDetector()
    for number in range(reports):
        detector.report("news", f"n{number}", "x")
    assert len(detector._cases) == REPORTS_PER_TICK
    detector.tick()
    detector.report("news", "more", "x")
    assert len(detector._cases) == REPORTS_PER_TICK + 1


def test_node_is_evicted_once() -> None:
    detector = FailureDetector()
    ticks_until_evicted(detector, "b", "c")
    assert list(detector.pop_evictions()) == []
