"""Cost and closure of a legitimate state (section 3.2.1 and its theorem)."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from random import Random
from statistics import NormalDist, stdev

import pytest
from msgspec import Struct

from skipring.core.config import ProtocolConfig
from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    CheckTrie,
    Digest,
    GetConfiguration,
    IntroduceShortcut,
    Message,
    SetConfiguration,
)
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import legitimate_world
from skipring.world.legitimacy import explicit_state

N = 256
REQUEST_BOUND = 0.912
PER_NODE_AND_ROUND = {CheckLabel: 2.0, IntroduceShortcut: 2.0, Digest: 1.0, CheckTrie: 1.0}


class Costs(Struct, frozen=True):
    """Costs of a legitimate state over some rounds."""

    changes: int  # of the explicit state
    requests: list[int]  # in each round
    sent: Mapping[type[Message], int]

    @property
    def requests_mean(self) -> float:
        """Return the mean number of requests per round."""
        return sum(self.requests) / len(self.requests)

    @property
    def requests_error(self) -> float:
        """Return the standard error of that mean."""
        return stdev(self.requests) / sqrt(len(self.requests))


def legitimate_costs(n: int, rounds: int, *, seed: int) -> Costs:
    """Run a legitimate ring for some rounds."""
    world = World(legitimate_world(n, Random(seed)), seed=seed, config=ProtocolConfig())
    scheduler, before = RandomOrder(), explicit_state(world)
    requests: list[int] = []
    changes = 0
    for _ in range(rounds):
        asked = world.sent[GetConfiguration]
        run_rounds(world, scheduler, 1)
        requests.append(world.sent[GetConfiguration] - asked)
        changes += explicit_state(world) != before
    return Costs(changes, requests, world.sent)


def expected_requests(n: int) -> float:
    """Return the requests per round: 1/2 by the minimal node, 1/(2^(k+1) k^2) by each other."""
    lengths = (Label.nth(index).length for index in range(1, n))
    return 0.5 + sum(1 / (2 ** (k + 1) * k * k) for k in lengths)


def test_expected_number_of_requests_stays_below_its_bound_at_any_size() -> None:
    assert expected_requests(256) < expected_requests(2**15) < REQUEST_BOUND


@pytest.mark.heavy
@pytest.mark.parametrize("rounds", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_legitimate_ring_of_256_does_not_change_at_constant_cost(rounds: int) -> None:
    costs = legitimate_costs(N, rounds, seed=1)
    assert costs.changes == 0
    assert abs(costs.requests_mean - expected_requests(N)) < margin(costs)
    for message, bound in PER_NODE_AND_ROUND.items():
        assert costs.sent[message] <= bound * N * rounds
    assert costs.sent[SetConfiguration] <= rounds + sum(costs.requests)
    assert set(costs.sent) == {*PER_NODE_AND_ROUND, GetConfiguration, SetConfiguration}


def margin(costs: Costs) -> float:
    """Return the deviation of a mean that is exceeded once in a thousand times."""
    return NormalDist().inv_cdf(0.999) * costs.requests_error
