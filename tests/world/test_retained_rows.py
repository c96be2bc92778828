"""Retained rows: every difference from the rows that the policy keeps is a violation."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from skipring.core.config import ProtocolConfig
from skipring.sim.engine import World
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import publication_violations


def faults(code: str) -> Iterator[str]:
    """Yield the faults of an adversary in the first rounds: no charter acts before a tick."""
    for seed in range(8):
        start = ADVERSARIES[code].build(5, Random(f"{code}/{seed}"))
        world = World(start, seed=seed, config=ProtocolConfig.live())
        for _ in range(5):
            yield from (each.text for each in publication_violations(world))
            run_rounds(world, RandomOrder(), 1)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("A52", " has another effective charter"),
        ("A50", " has other floors: "),
        ("A53", "n0000 lacks 30 of 120 publications"),
        ("A54", " publications that the policy does not keep"),
        ("A50", "has floors that its clock and rows do not justify"),
        ("A56", "quarantined publications that belong in the trie"),
    ],
)
def test_difference_from_what_the_policy_keeps_is_described(code: str, fault: str) -> None:
    assert any(fault in text for text in faults(code))
