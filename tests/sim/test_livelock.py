"""Livelocks of the pseudocode: the repeated state, its coins, and a proof by repetition."""

from __future__ import annotations

from random import Random

import pytest

from skipring.core.config import Mode, ProtocolConfig, Rule
from skipring.core.ring import asks_supervisor
from skipring.sim.livelock import (
    Cycle,
    RoundCoins,
    advance,
    is_strict,
    of_the_paper,
    pseudocode,
    run_in_lockstep,
)
from skipring.world.adversaries import ADVERSARIES, legitimate_world
from skipring.world.snapshot import Snapshot

CONFIG = ProtocolConfig.of(Mode.PAPER)


def start_of(code: str, seed: int = 0, n: int = 8) -> Snapshot:
    return ADVERSARIES[code].build(n, Random(f"{code}/{seed}"))


def cycle_of(start: Snapshot, rounds_max: int = 300) -> Cycle:
    found = run_in_lockstep(start, rounds_max, lambda state: 0).cycle
    assert found is not None
    return found


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_coin_of_the_paper_shows_heads_with_its_probability_as_frequency(k: int) -> None:
    period = k * k << k
    heads = [
        number for number in range(2 * period) if asks_supervisor(k, RoundCoins(number), rare=False)
    ]
    assert heads == [period - 1, 2 * period - 1]


def livelocks() -> list[tuple[Snapshot, Cycle]]:
    """Return starts within the hypotheses of the theorem of convergence that livelock."""
    starts = [start_of(code, seed) for code in ("A04", "A12", "A13", "A44") for seed in range(3)]
    ends = [run_in_lockstep(start, 300, lambda state: 0).cycle for start in starts]
    return [(start, cycle) for start, cycle in zip(starts, ends, strict=True) if cycle is not None]


def test_livelock_of_the_paper_repeats_without_end_and_ends_with_r1() -> None:
    """Advance two more cycles from the first repeated state."""
    found = livelocks()
    assert found
    for start, cycle in found:
        assert cycle.length % cycle.coin_period == 0
        state, repeated = of_the_paper(start), None
        for number in range(cycle.start + 2 * cycle.length):
            assert not is_strict(state)
            if number == cycle.start:
                repeated = state
            if number == cycle.start + cycle.length:
                assert state == repeated
            state = advance(state, number, CONFIG)
        assert state == repeated
        healed = run_in_lockstep(start, 300, lambda state: 0, pseudocode(Rule.PROBE))
        assert healed.is_legitimate


def test_dead_neighbour_stays_although_the_detector_reports_it() -> None:
    """A36: a quarter has crashed; the state does not even change."""
    cycle = cycle_of(start_of("A36"))
    assert cycle.changing == {}


def test_legitimate_state_ends_the_computation() -> None:
    ring = legitimate_world(8, Random(1))
    found = run_in_lockstep(ring, 300, lambda state: 5)
    assert (found.rounds, found.is_legitimate, found.cycle) == (0, True, None)


def test_computation_without_a_repeated_state_ends_at_its_limit() -> None:
    found = run_in_lockstep(start_of("A22"), 20, lambda state: 0)
    assert (found.rounds, found.is_legitimate, found.cycle) == (20, False, None)


def test_lockstep_state_has_the_variables_of_the_paper_only() -> None:
    state = of_the_paper(start_of("A66"))
    assert state.supervisor.memory is None
    assert all(it.memory is None and not it.digests for it in state.subscribers.values())
    assert of_the_paper(state) == state
