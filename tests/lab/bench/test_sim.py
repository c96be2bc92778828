"""Rows of ``skipring bench sim``; speeds depend on the machine."""

import platform
from pathlib import Path
from typing import Any

import pytest

from skipring.core.messages import CheckLabel
from skipring.lab.bench import sim
from skipring.lab.bench.report import at_least, at_most
from skipring.lab.bench.sim import (
    MESSAGES_PER_TICK,
    measure,
    measure_recovery,
    recovery_ratios,
)
from skipring.lab.usage import peak_bytes, resident_bytes
from skipring.sim.schedulers import RandomOrder, run_rounds
from skipring.world.adversaries import ADVERSARIES

N, RING_N, RECOVERY_N = 6, 9, 4


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(measure(N, RING_N, RECOVERY_N, seed=1))


def test_each_measurement_is_a_row_and_the_ratios_are_last(rows: list[dict[str, Any]]) -> None:
    *measured, last = rows
    assert [(row["job"], row["system"], row["n"]) for row in measured] == [
        ("memory", "skipring", RING_N),
        ("healing", "skipring", RING_N),
        ("events", "skipring", N),
        ("events", "skeleton", N),
        *(("recovery", "skipring", RECOVERY_N) for _ in ADVERSARIES),
    ]
    assert list(last) == ["ratios"]


def test_healing_starts_in_an_arbitrary_state_and_converges(rows: list[dict[str, Any]]) -> None:
    healing = rows[1]
    assert healing["adversary"] == "A15"
    assert healing["converged"] is True
    assert healing["rounds_strict"] > 0
    assert healing["events"] > 0


def test_events_are_measured_several_times(rows: list[dict[str, Any]]) -> None:
    for row in rows[2:4]:
        assert row["repeats"] == sim.REPEATS
        assert 0 < row["events_per_s_min"] <= row["events_per_s"] <= row["events_per_s_max"]
        assert row["python"] == platform.python_version()


def test_ratios_compare_with_goals_and_with_the_skeleton(rows: list[dict[str, Any]]) -> None:
    memory, healing, real, skeleton, *recoveries, last = rows
    name, speed = "bytes_per_subscriber", real["events_per_s"]
    bound = sim.BYTES_PER_SUBSCRIBER
    assert last["ratios"] == pytest.approx(
        {
            **at_least("events_per_s", speed, sim.EVENTS_PER_S),
            "events_per_s_skipring_over_skeleton": speed / skeleton["events_per_s"],
            **at_most(name, memory[name], bound),
            **at_most(f"peak_{name}", healing[f"peak_{name}"], bound),
            **recovery_ratios(recoveries),
        },
        abs=0.01,
    )


def test_healing_depends_on_the_seed_alone(
    rows: list[dict[str, Any]],
) -> None:
    again = measure(N, RING_N, RECOVERY_N, seed=1)
    healing = next(row for row in again if row["job"] == "healing")
    for name in ("rounds_strict", "events"):
        assert healing[name] == rows[1][name]


def test_skeleton_sends_as_many_messages_as_a_subscriber() -> None:
    rounds, n = 3, 64
    skeleton, real = sim.skeleton_world(n, 1), sim.subscriber_world(n, 1)
    for world in (skeleton, real):
        run_rounds(world, RandomOrder(), sim.WARM_UP_ROUNDS)
        world.sent.clear()
        run_rounds(world, RandomOrder(), rounds)
    assert skeleton.sent[CheckLabel] == rounds * n * MESSAGES_PER_TICK
    assert real.messages / (rounds * n) == pytest.approx(MESSAGES_PER_TICK, abs=0.5)


def test_memory_is_counted_in_bytes() -> None:
    assert 10**6 < resident_bytes() < 10**11
    assert 10**6 < peak_bytes() < 10**11


def test_memory_without_proc_is_the_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("skipring.lab.usage._PROC", tmp_path / "absent")
    before = peak_bytes()
    assert before <= resident_bytes() <= peak_bytes()


def test_recovery_has_a_row_and_a_ratio_for_each_adversary() -> None:
    rows = list(measure_recovery(5, seed=1))
    assert [row["adversary"] for row in rows] == list(ADVERSARIES)
    for row in rows:
        assert row["converged"] == row["seeds"] == sim.SEEDS
        assert 0 <= row["rounds_min"] <= row["rounds"]
    found = recovery_ratios(rows)
    assert {name for name in found if name.endswith("_reached")} == {
        f"rounds_{adversary}_reached" for adversary in ADVERSARIES
    }


def test_recovery_goals_differ_by_adversary_and_no_convergence_misses() -> None:
    rounds = {"A05": 20, "A18b": 180, "A43": 25, "A15": None}
    rows = [{"adversary": adversary, "rounds": count} for adversary, count in rounds.items()]
    assert recovery_ratios(rows) == {
        "rounds_A05": 20,
        "rounds_A05_at_most": 30,
        "rounds_A05_reached": 1.5,
        "rounds_A18b": 180,
        "rounds_A18b_at_most": 90,
        "rounds_A18b_reached": 0.5,
        "rounds_A43": 25,
        "rounds_A43_at_most": 50,
        "rounds_A43_reached": 2.0,
        "rounds_A15_reached": 0.0,
    }
