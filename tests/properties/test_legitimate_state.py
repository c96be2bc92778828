"""What a legitimate state costs, and that it stays (PROTOCOL 8; the communication theorems)."""

from __future__ import annotations

from math import sqrt
from random import Random
from statistics import NormalDist, stdev

import pytest

from skipring.core.config import ProtocolConfig
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    Digest,
    GetConfiguration,
    IntroduceShortcut,
    SetConfiguration,
)
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder
from skipring.world.adversaries import legitimate_world
from skipring.world.legitimacy import explicit_state

N, ROUNDS = 256, 3000
REQUEST_BOUND = 0.912
PER_NODE_AND_ROUND = {CheckLabel: 2.0, IntroduceShortcut: 2.0, Digest: 1.0}


def expected_requests(n: int) -> float:
    """Requests per round: one half by the minimal node, 1/(2^(k+1) k^2) by each other one."""
    lengths = (Label.nth(index).length for index in range(1, n))
    return 0.5 + sum(1 / (2 ** (k + 1) * k * k) for k in lengths)


def test_the_expected_number_of_requests_stays_below_its_bound_however_large_the_ring() -> None:
    assert expected_requests(256) < expected_requests(2**15) < REQUEST_BOUND


@pytest.mark.heavy
def test_a_legitimate_ring_of_256_stays_as_it_is_for_3000_rounds_at_constant_cost() -> None:
    world = World(legitimate_world(N, Random(1)), seed=1, config=ProtocolConfig())
    scheduler = RandomOrder()
    before = explicit_state(world)
    requests: list[int] = []
    for _ in range(ROUNDS):
        asked = world.sent[GetConfiguration]
        world.begin_round()
        scheduler.run_round(world)
        world.end_round()
        requests.append(world.sent[GetConfiguration] - asked)
        assert explicit_state(world) == before

    mean = sum(requests) / ROUNDS
    margin = NormalDist().inv_cdf(0.999) * stdev(requests) / sqrt(ROUNDS)
    assert mean < REQUEST_BOUND
    assert mean < expected_requests(N) + margin  # above it only once in a thousand seeds
    for message, bound in PER_NODE_AND_ROUND.items():
        assert world.sent[message] <= bound * N * ROUNDS
    assert world.sent[SetConfiguration] <= ROUNDS + sum(requests)
    assert set(world.sent) == {*PER_NODE_AND_ROUND, GetConfiguration, SetConfiguration}
