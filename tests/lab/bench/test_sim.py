"""Rows of ``skipring bench sim``; speeds depend on the machine."""

from typing import Any

import pytest

from skipring.lab.bench.sim import measure
from skipring.world.adversaries import ADVERSARIES

N, RING_N, RECOVERY_N = 6, 9, 4


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(measure(N, RING_N, RECOVERY_N, seed=1))


def test_each_measurement_is_a_row(rows: list[dict[str, Any]]) -> None:
    assert [(row["job"], row["system"], row["n"]) for row in rows] == [
        ("memory", "skipring", RING_N),
        ("healing", "skipring", RING_N),
        ("events", "skipring", N),
        *(("recovery", "skipring", RECOVERY_N) for _ in ADVERSARIES),
    ]


def test_healing_starts_in_an_arbitrary_state_and_converges(rows: list[dict[str, Any]]) -> None:
    healing = rows[1]
    assert healing["adversary"] == "A15"
    assert healing["converged"] is True
    assert healing["rounds_strict"] > 0
    assert healing["events"] > 0
