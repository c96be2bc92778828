"""The timer, on an event loop with simulated time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from skipring.net import event_loop as event_loop_module
from skipring.net.event_loop import JITTER, Timer


class DueCall:
    """One pending call."""

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """A substitute for the event loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[DueCall] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> DueCall:
        timer = DueCall(self.now + delay_s, call)
        self._timers.append(timer)
        return timer

    @property
    def pending(self) -> list[DueCall]:
        return [timer for timer in self._timers if not timer.is_cancelled]

    def run_next(self) -> None:
        timer = min(self.pending, key=lambda timer: timer.due)
        self._timers.remove(timer)
        self.now = max(self.now, timer.due)
        timer.call()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(event_loop_module.asyncio, "get_running_loop", lambda: clock)
    return clock


@pytest.mark.parametrize("seed", range(20))
def test_first_call_is_within_a_period_and_the_others_have_a_tenth_of_jitter(
    clock: Clock, seed: int
) -> None:
    times: list[float] = []
    Timer(lambda: times.append(clock.now), 2.0, Random(seed)).start()
    for _ in range(200):
        clock.run_next()
    assert 0 <= times[0] <= 2.0
    gaps = [later - earlier for earlier, later in pairwise(times)]
    slack = 1e-9
    low, high = 2.0 * (1 - JITTER) - slack, 2.0 * (1 + JITTER) + slack
    assert all(low <= gap <= high for gap in gaps)
    assert max(gaps) - min(gaps) > 2.0 * JITTER, "there is jitter"
    assert abs(sum(gaps) / len(gaps) - 2.0) < 0.05, "and it does not change the pace"


def test_calls_never_overlap(clock: Clock) -> None:
    depth = deepest = calls = 0

    def call() -> None:
        nonlocal depth, deepest, calls
        depth, calls = depth + 1, calls + 1
        deepest = max(deepest, depth)
        clock.now += 10.0  # it takes far longer than the period
        assert len(clock.pending) == 1
        depth -= 1

    Timer(call, 1.0, Random(1)).start()
    for _ in range(50):
        assert len(clock.pending) == 1
        clock.run_next()
    assert (calls, deepest) == (50, 1)


def test_missed_calls_are_not_repeated(clock: Clock) -> None:
    times: list[float] = []

    def call() -> None:
        times.append(clock.now)
        if len(times) == 1:
            clock.now += 100.0

    Timer(call, 1.0, Random(1)).start()
    for _ in range(5):
        clock.run_next()
    assert times[1] >= times[0] + 100.0
    assert all(later - earlier >= 1 - JITTER for earlier, later in pairwise(times[1:]))


def test_failing_call_does_not_stop_the_timer(clock: Clock) -> None:
    def call() -> None:
        raise ValueError("as it happens")

    Timer(call, 1.0, Random(1)).start()
    for _ in range(3):
        with pytest.raises(ValueError, match="as it happens"):
            clock.run_next()
    assert len(clock.pending) == 1


def test_stopped_timer_makes_no_calls(clock: Clock) -> None:
    ticker = Timer(lambda: None, 1.0, Random(1))
    ticker.stop()  # nothing to stop yet
    ticker.start()
    clock.run_next()
    ticker.stop()
    ticker.stop()
    assert clock.pending == []


def test_call_can_stop_its_timer(clock: Clock) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        ticker.stop()

    ticker = Timer(call, 1.0, Random(1))
    ticker.start()
    clock.run_next()
    assert calls == 1
    assert clock.pending == []
