"""Rows of ``skipring bench sim``; speeds depend on the machine."""

import platform
from pathlib import Path
from typing import Any

import pytest

from skipring.lab.bench import sim
from skipring.lab.bench.sim import measure, measure_recovery
from skipring.lab.usage import peak_bytes, resident_bytes
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


def test_events_are_measured_several_times(rows: list[dict[str, Any]]) -> None:
    row = rows[2]
    assert row["repeats"] == sim.REPEATS
    assert 0 < row["events_per_s_min"] <= row["events_per_s"] <= row["events_per_s_max"]
    assert row["python"] == platform.python_version()


def test_healing_depends_on_the_seed_alone(
    rows: list[dict[str, Any]],
) -> None:
    again = measure(N, RING_N, RECOVERY_N, seed=1)
    healing = next(row for row in again if row["job"] == "healing")
    for name in ("rounds_strict", "events"):
        assert healing[name] == rows[1][name]


def test_memory_is_counted_in_bytes() -> None:
    assert 10**6 < resident_bytes() < 10**11
    assert 10**6 < peak_bytes() < 10**11


def test_memory_without_proc_is_the_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("skipring.lab.usage._PROC", tmp_path / "absent")
    before = peak_bytes()
    assert before <= resident_bytes() <= peak_bytes()


def test_recovery_has_a_row_for_each_adversary() -> None:
    rows = list(measure_recovery(5, seed=1))
    assert [row["adversary"] for row in rows] == list(ADVERSARIES)
    for row in rows:
        assert row["converged"] == row["seeds"] == sim.SEEDS
        assert 0 <= row["rounds_min"] <= row["rounds"]
