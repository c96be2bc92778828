"""Cost and closure of a legitimate state (section 3.2.1 and its theorem)."""

from __future__ import annotations

from statistics import NormalDist

import pytest

from skipring.core.labels import Label
from skipring.core.messages import (
    CheckLabel,
    CheckTrie,
    Digest,
    GetConfiguration,
    IntroduceShortcut,
    SetConfiguration,
)
from skipring.lab.bench.tables import Costs, legitimate_costs

N, ROUNDS = 256, 3000
REQUEST_BOUND = 0.912
PER_NODE_AND_ROUND = {CheckLabel: 2.0, IntroduceShortcut: 2.0, Digest: 1.0, CheckTrie: 1.0}


def expected_requests(n: int) -> float:
    """Return the requests per round: 1/2 by the minimal node, 1/(2^(k+1) k^2) by each other."""
    lengths = (Label.nth(index).length for index in range(1, n))
    return 0.5 + sum(1 / (2 ** (k + 1) * k * k) for k in lengths)


def test_expected_number_of_requests_stays_below_its_bound_at_any_size() -> None:
    assert expected_requests(256) < expected_requests(2**15) < REQUEST_BOUND


@pytest.mark.heavy
def test_legitimate_ring_of_256_does_not_change_in_3000_rounds_at_constant_cost() -> None:
    costs = legitimate_costs(N, ROUNDS, seed=1)
    assert costs.changes == 0
    assert abs(costs.requests_mean - expected_requests(N)) < margin(costs)
    for message, bound in PER_NODE_AND_ROUND.items():
        assert costs.sent[message] <= bound * N * ROUNDS
    assert costs.sent[SetConfiguration] <= ROUNDS + sum(costs.requests)
    assert set(costs.sent) == {*PER_NODE_AND_ROUND, GetConfiguration, SetConfiguration}


def test_measured_requests_are_significantly_below_the_bound_in_a_small_ring() -> None:
    """At n = 256 this would take some 20,000 rounds: the expected value is nearer to the bound."""
    costs = legitimate_costs(8, 6000, seed=1)
    assert costs.requests_mean + margin(costs) < REQUEST_BOUND


def margin(costs: Costs) -> float:
    """Return the deviation of a mean that is exceeded once in a thousand times."""
    return NormalDist().inv_cdf(0.999) * costs.requests_error
