from pathlib import Path

import pytest
from msgspec.structs import replace

from skipring.errors import ScenarioError
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario, read_scenario
from skipring.sim.schedulers import ORDER_KEYS
from skipring.sim.search import search
from tests.support.source_tree import ROOT

WORST = sorted((ROOT / "scenarios").glob("worst-*.toml"))
BASE = make_scenario({"n": 6, "closure": 0, "max_rounds": 200})


def test_equal_searches_find_the_same() -> None:
    found = [search(BASE, ["A15", "A05"], runs=16, seed=3) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].runs == 16


def test_worst_run_is_repeated_by_its_scenario(tmp_path: Path) -> None:
    found = search(BASE, ["A15"], runs=16, seed=5)
    path = tmp_path / "worst.toml"
    path.write_text(found.scenario_text, encoding="utf-8")
    report = Simulation(make_scenario(read_scenario(path))).run()
    assert max(report.rounds_strict or 0, report.rounds_publications or 0) == found.worst.rounds
    assert report.is_good


def test_greedy_schedules_are_no_better_than_their_start() -> None:
    found = search(BASE, ["A15"], runs=200, seed=0)
    sampled = search(BASE, ["A15"], runs=8, seed=0)
    assert found.worst.rounds >= sampled.worst.rounds


@pytest.mark.parametrize("kind", range(len(ORDER_KEYS)))
def test_every_listed_order_delivers_all_and_ticks_each_process_once(kind: int) -> None:
    scenario = replace(BASE, adversary="A15", orders=(kind, kind + len(ORDER_KEYS)))
    simulation = Simulation(scenario)
    for _ in scenario.orders:
        world = simulation.world
        present, events = {id(parcel) for parcel in world.channels}, world.events
        simulation.run_round()
        assert not present & {id(parcel) for parcel in simulation.world.channels}
        assert world.events - events >= len(present) + len(world.processes())


def test_orders_are_for_the_random_scheduler_only() -> None:
    with pytest.raises(ScenarioError, match="orders are for the scheduler random"):
        make_scenario({"scheduler": "sync", "orders": [1]})


@pytest.mark.parametrize("path", WORST, ids=lambda path: path.stem)
def test_worst_schedules_found_take_the_rounds_that_their_title_states(path: Path) -> None:
    scenario = make_scenario(read_scenario(path))
    report = Simulation(scenario).run()
    slowest = max(report.rounds_strict or 0, report.rounds_publications or 0)
    assert scenario.title.startswith(f"heals within {slowest} rounds: ")
