"""Convergence with the configuration of live processes, and with the failure detector of core."""

from __future__ import annotations

import pytest

from skipring.core.config import Preset
from skipring.sim.runner import Simulation
from skipring.sim.scenario import Scenario, make_scenario
from skipring.world.adversaries import ADVERSARIES
from tests.support.retention import CHARTERED


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("adversary", sorted(ADVERSARIES.keys() - CHARTERED))
def test_ring_converges_from_every_adversary_with_live_settings(adversary: str, seed: int) -> None:
    scenario = Scenario(
        n=12, adversary=adversary, config=Preset.LIVE, publications=6, seed=seed, closure=5
    )
    report = Simulation(scenario).run()
    assert report.converged, f"replay with this scenario: {scenario}"
    assert report.closure_ok is not False


@pytest.mark.parametrize("seed", range(4))
def test_crashed_members_are_evicted_without_an_oracle(seed: int) -> None:
    values = {"n": 16, "config": "live", "seed": seed, "crash": {"rounds": [3], "share": 0.25}}
    simulation = Simulation(make_scenario(values))
    assert simulation.run().converged
    assert sorted(simulation.world.evicted) == sorted(simulation.world.crashed)


def test_live_member_is_not_evicted_from_a_calm_ring() -> None:
    simulation = Simulation(Scenario(n=16, config=Preset.LIVE, closure=50))
    assert simulation.run().converged
    assert simulation.world.evicted == []
