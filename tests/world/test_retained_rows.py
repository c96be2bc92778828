"""Retained rows: every difference from the rows that the policy keeps is a violation."""

from __future__ import annotations

from random import Random

import pytest

from skipring.world.adversaries import ADVERSARIES
from skipring.world.legitimacy import publication_violations


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("A52", "n0000 has another effective charter"),
        ("A50", "n0001 has other floors: "),
        ("A53", "n0000 lacks 30 of 120 publications"),
        ("A54", "n0000 retains 11 publications that the policy does not keep"),
        ("A50", "has floors that its clock and rows do not justify"),
        ("A56", "quarantined publications that belong in the trie"),
    ],
)
def test_difference_from_what_the_policy_keeps_is_described(code: str, fault: str) -> None:
    start = ADVERSARIES[code].build(5, Random(f"{code}/0"))
    assert any(fault in each.text for each in publication_violations(start))
