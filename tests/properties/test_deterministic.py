"""Rule D1: the protocol converges without coins (decision 0062)."""

from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import Mode, ProtocolConfig
from skipring.core.messages import SUPERVISOR_REQUESTS
from skipring.core.state import SubscriberMemory, legitimate_state
from skipring.sim.engine import World
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.sim.schedulers import SCHEDULERS, run_rounds
from skipring.world.adversaries import ADVERSARIES, legitimate_world, scatter
from skipring.world.adversaries.memory_states import with_counters
from tests.support.machines import DETERMINISTIC, ME, asked, subscriber
from tests.support.retention import CHARTERED

WITHOUT_COINS = ProtocolConfig.of(Mode.DETERMINISTIC)


@pytest.mark.parametrize("adversary", sorted(ADVERSARIES.keys() - CHARTERED))
def test_every_adversary_heals_without_coins(adversary: str) -> None:
    scenario = make_scenario({"n": 9, "adversary": adversary, "mode": "deterministic"})
    chance = Random(f"deterministic/{adversary}")
    start = with_counters(scatter(scenario.start(), 5, chance), chance)
    report = Simulation(scenario, start).run()
    assert report.is_good, report.violations


@pytest.mark.parametrize("ticks", [-(2**70), -1, 0, 5, 10**9, 2**63])
def test_corrupted_counter_is_below_its_period_after_one_tick(ticks: int) -> None:
    """The label 01 has two bits, so its period is 2^3 * 2^2 Timeouts."""
    state = legitimate_state(2, ["a", "b", ME, "c"])
    rules = replace(DETERMINISTIC, neighbour_timeout=False)  # the neighbours are silent
    host = subscriber(replace(state, memory=SubscriberMemory(ask_ticks=ticks)), rules=rules)
    requests = [request for _ in range(3 * 32) for request in host.tick() if request in asked(ME)]
    assert len(requests) == 3
    memory = host.machine.memory()
    assert memory is not None
    assert 0 <= memory.ask_ticks < 32


def test_node_without_a_left_neighbour_asks_at_every_second_timeout() -> None:
    host = subscriber(legitimate_state(0, [ME, "a", "b", "c"]), rules=DETERMINISTIC)
    asks = [
        any(message.node == ME for _, message in requests)
        for requests in (
            [each for each in host.tick() if isinstance(each[1], SUPERVISOR_REQUESTS)]
            for _ in range(8)
        )
    ]
    assert asks in ([True, False] * 4, [False, True] * 4)


def test_requests_of_a_legitimate_ring_are_a_rate() -> None:
    """The rate for n = 16 is 1/2 + 1/4 + 1/32 + 2/144 ... per Timeout; one period is 512."""
    world = World(legitimate_world(16, Random(0)), seed=0, config=WITHOUT_COINS)
    rates = []
    for _ in range(2):
        before = sum(world.sent[kind] for kind in SUPERVISOR_REQUESTS)
        run_rounds(world, SCHEDULERS["sync"](), 512)
        rates.append((sum(world.sent[kind] for kind in SUPERVISOR_REQUESTS) - before) / 512)
    assert max(rates) < 0.9
    assert abs(rates[0] - rates[1]) < 0.02


def test_run_without_coins_does_not_depend_on_the_seed_of_the_machines() -> None:
    """Under a scheduler that draws from another generator only the network is random."""
    ends = []
    for seed in range(3):
        scenario = make_scenario(
            {"n": 8, "adversary": "A05", "mode": "deterministic", "orders": [0] * 60, "seed": seed}
        )
        start = ADVERSARIES["A05"].build(8, Random(1))
        ends.append(Simulation(scenario, start).run())
    assert {replace(end, seed=0).rounds_strict for end in ends} == {ends[0].rounds_strict}
    assert {end.messages for end in ends} == {ends[0].messages}
