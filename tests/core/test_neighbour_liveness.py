"""Liveness of ring neighbours: requests after silence (R9) and reports to the supervisor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipring.core.config import ProtocolConfig
from skipring.core.failure_detector import UNHEARD_TICKS
from skipring.core.neighbour_liveness import HEARD, NeighbourLiveness
from skipring.core.peers import NodeId
from skipring.core.state import LivenessState
from tests.support.machines import unhurried


def watching(**states: LivenessState) -> NeighbourLiveness:
    silence = NeighbourLiveness(ProtocolConfig(), {})
    silence.load(states)
    return silence


def ticks_to_alarm(silence: NeighbourLiveness, limit: int = 200) -> int:
    """Return the number of timeouts until the silence of ``a`` is reported."""
    for count in range(1, limit):
        if silence.on_tick(["a"]):
            return count
    raise AssertionError("never noticed")


def test_R9_eight_silent_timeouts_raise_the_first_alarm() -> None:
    assert ticks_to_alarm(watching()) == 8


def test_R9_count_restarts_after_an_alarm_and_the_request_is_pending() -> None:
    silence = watching()
    ticks_to_alarm(silence)
    assert silence.states() == {"a": LivenessState(0, 8, pending=True)}
    assert ticks_to_alarm(silence) == 8


def test_R9_neighbour_that_sends_messages_is_not_silent() -> None:
    silence = watching()
    for _ in range(100):
        assert not silence.on_tick(["a"])
        silence.on_heard("a")


def test_R9_message_of_one_neighbour_does_not_count_for_the_other() -> None:
    silence = watching()
    alarms = []
    for _ in range(8):
        alarms.append(silence.on_tick(["a", "b"]))
        silence.on_heard("b")
    assert alarms == [False] * 7 + [True]


def test_R9_threshold_doubles_only_when_a_configuration_confirms() -> None:
    silence = watching()
    waits = []
    for _ in range(6):
        waits.append(ticks_to_alarm(silence))
        silence.confirm(["a"])
    assert waits == [8, 16, 32, 64, 64, 64]


def test_R9_threshold_does_not_double_without_an_answer() -> None:
    silence = watching()
    assert [ticks_to_alarm(silence) for _ in range(5)] == [8] * 5


def test_R9_unanswered_request_is_repeated_soon_at_any_back_off() -> None:
    silence = watching(a=LivenessState(0, 64, pending=False))
    assert [ticks_to_alarm(silence) for _ in range(3)] == [64, 8, 8]
    silence.confirm(["a"])
    assert ticks_to_alarm(silence) == 64


def test_R9_configuration_with_other_neighbours_confirms_nothing() -> None:
    silence = watching()
    ticks_to_alarm(silence)
    silence.confirm(["b"])
    assert silence.states() == {"a": LivenessState(0, 8, pending=True)}


def test_R9_configuration_without_a_request_confirms_nothing() -> None:
    silence = watching()
    silence.on_tick(["a"])
    silence.confirm(["a"])
    assert silence.states() == {"a": LivenessState(1, 8, pending=False)}


def test_R9_one_answer_confirms_once() -> None:
    silence = watching()
    ticks_to_alarm(silence)
    silence.confirm(["a"])
    silence.confirm(["a"])
    assert silence.states() == {"a": LivenessState(0, 16, pending=False)}


def test_R9_corrupted_threshold_is_clamped_when_it_is_read() -> None:
    for wrong, wait in ((-5, 8), (0, 8), (7, 8), (9, 9), (65, 64), (1024, 64), (10**30, 64)):
        assert ticks_to_alarm(watching(a=LivenessState(0, wrong, pending=False))) == wait
    for wrong, doubled in ((-1024, 16), (1, 16), (20, 40), (40, 64), (1024, 64)):
        silence = watching(a=LivenessState(0, wrong, pending=True))
        silence.confirm(["a"])
        assert silence.states()["a"].threshold == doubled


def test_R9_impossible_tick_counts_are_read_as_zero() -> None:
    assert ticks_to_alarm(watching(a=LivenessState(-(10**9), 8, pending=False))) == 8
    assert ticks_to_alarm(watching(a=LivenessState(10**9, 8, pending=False))) == 1


def test_R9_only_current_neighbours_are_remembered() -> None:
    silence = watching(b=LivenessState(3, 32, pending=True))
    silence.on_heard("c")
    silence.on_tick(["a"])
    silence.on_tick(["a"])
    assert silence.states() == {"a": LivenessState(2, 8, pending=False)}


counters = st.integers(-(10**6), 10**6)
states = st.builds(LivenessState, counters, counters, st.booleans())


@unhurried
@given(states)
def test_R9_silent_neighbour_is_detected_within_64_timeouts_from_any_memory(
    state: LivenessState,
) -> None:
    assert ticks_to_alarm(watching(a=state)) <= 64


@unhurried
@given(st.dictionaries(st.sampled_from("abc"), states))
def test_loaded_memory_can_be_read_back(loaded: dict[str, LivenessState]) -> None:
    assert watching(**loaded).states() == loaded


# -- reports to the supervisor (decision 32) ----------------------------------------------------


def test_neighbour_is_reported_after_three_silent_ticks() -> None:
    silence = watching()
    reported = [silence.unresponsive(["a", "b"], is_late=False) for _ in range(UNHEARD_TICKS + 1)]
    assert reported == [[]] * (UNHEARD_TICKS - 1) + [["a", "b"]] * 2


def test_active_neighbour_is_not_reported() -> None:
    unheard: dict[NodeId, int] = {}
    silence = NeighbourLiveness(ProtocolConfig(), unheard)
    for _ in range(2 * UNHEARD_TICKS):
        unheard["a"] = HEARD
        assert "a" not in silence.unresponsive(["a", "b"], is_late=False)


def test_late_node_reports_no_neighbour_and_starts_again() -> None:
    silence = watching()
    for _ in range(UNHEARD_TICKS):
        silence.unresponsive(["a"], is_late=False)
    assert silence.unresponsive(["a"], is_late=True) == []
    assert silence.unresponsive(["a"], is_late=False) == []


def test_former_neighbour_is_not_reported() -> None:
    silence = watching()
    for _ in range(UNHEARD_TICKS):
        silence.unresponsive(["a"], is_late=False)
    assert silence.unresponsive(["b"], is_late=False) == []
    assert silence.unresponsive(["a"], is_late=False) == []


@pytest.mark.parametrize("ticks", [-(10**9), 10**9])
def test_corrupted_counter_lasts_one_tick_after_a_message(ticks: int) -> None:
    unheard = {"a": ticks}
    silence = NeighbourLiveness(ProtocolConfig(), unheard)
    unheard["a"] = HEARD
    assert silence.unresponsive(["a"], is_late=False) == []
    assert unheard == {"a": 0}
