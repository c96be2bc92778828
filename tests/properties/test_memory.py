"""Memory of the machines besides the paper's variables: it heals, or does no permanent harm."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.config import ProtocolConfig
from skipring.core.messages import SetConfiguration
from skipring.core.state import SubscriberMemory, SupervisorMemory
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import legitimate_world
from skipring.world.snapshot import Snapshot

N = 32
HUGE = 1 << 40


def configurations_per_round(start: Snapshot) -> float:
    """Return the configurations per round of a supervisor after 100 rounds of repair."""
    world, rounds = World(start, seed=1, config=ProtocolConfig()), 300
    run_rounds(world, RandomOrder(), 100)
    before = world.sent[SetConfiguration]
    run_rounds(world, RandomOrder(), rounds)
    return (world.sent[SetConfiguration] - before) / rounds


def supervised(memory: SupervisorMemory) -> Snapshot:
    world = legitimate_world(N, Random(1))
    return replace(world, supervisor=replace(world.supervisor, memory=memory))


@pytest.mark.parametrize(
    "memory",
    [
        SupervisorMemory(digest=7),
        SupervisorMemory(digest=7, audited=9, audited_sum=7),
        SupervisorMemory(refresh_ticks=HUGE),
    ],
)
def test_wrong_digest_does_not_cause_configurations_permanently(memory: SupervisorMemory) -> None:
    assert configurations_per_round(supervised(memory)) < 2.1  # 1.8, else 2.7 or more


def test_wrong_weight_does_not_cause_configurations_permanently() -> None:
    world = legitimate_world(N, Random(1))
    states = dict(world.subscribers)
    node = next(iter(states))
    states[node] = replace(states[node], memory=SubscriberMemory(weight=7))
    assert configurations_per_round(replace(world, subscribers=states)) < 2.1


@pytest.mark.parametrize("counter", [-HUGE, HUGE])
def test_swapped_entries_are_found_with_any_counters_of_the_digest(counter: int) -> None:
    world = legitimate_world(N, Random(1))
    swapped = list(world.supervisor.database)
    (low, one), (high, other) = swapped[20], swapped[30]
    swapped[20], swapped[30] = (low, other), (high, one)
    memory = SupervisorMemory(
        ticks=counter, calm_ticks=counter, mismatches=counter, refresh_ticks=counter
    )
    start = replace(
        world, supervisor=replace(world.supervisor, database=tuple(swapped), memory=memory)
    )
    running = World(start, seed=1, config=ProtocolConfig())
    run_rounds(running, RandomOrder(), 60)
    roster = running.roster
    labels = {node: seen.label for node, seen in running.subscribers.items()}
    assert labels == {node: roster.label_of(node) for node in roster.nodes}
