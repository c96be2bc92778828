"""The longest pause of an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from skipring.net.event_loop import new_loop
from skipring.observability.loop_pause import BEATS, LoopPause
from tests.support.rings import until

BLOCKED_S = 0.3
TICK_S = 0.1


def measured(block: Callable[[], None], pause: LoopPause) -> float:
    """Block the loop once; return the longest pause after the next beat."""

    async def scene() -> float:
        pause.start()
        try:
            await asyncio.sleep(0)
            block()
            await until(lambda: pause.longest_s > 0)
            return pause.longest_s
        finally:
            pause.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(scene())


def sleep() -> None:
    time.sleep(BLOCKED_S)


def test_delay_of_a_beat_is_at_most_a_period_shorter_than_the_pause() -> None:
    pause_s = measured(sleep, LoopPause(TICK_S, lambda: 0.0))
    assert pause_s >= BLOCKED_S - TICK_S / BEATS


def test_time_spent_waiting_for_a_processor_does_not_count() -> None:
    calls = 0

    def waited_s() -> float:  # each time longer than any test takes
        nonlocal calls
        calls += 1
        return 1000.0 * calls

    async def scene() -> float:
        pause = LoopPause(TICK_S, waited_s)
        pause.start()
        sleep()
        await until(lambda: calls >= 4)  # two beats
        pause.stop()
        return pause.longest_s

    assert asyncio.run(scene()) == 0.0


@pytest.mark.parametrize("repeats", [1, 2])
def test_stop_can_be_called_again(repeats: int) -> None:
    async def scene() -> None:
        pause = LoopPause(TICK_S)
        pause.start()
        for _ in range(repeats):
            pause.stop()

    asyncio.run(scene())
