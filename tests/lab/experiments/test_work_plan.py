"""How the lab's work is shared out."""

from __future__ import annotations

import pytest

from skipring.lab.experiments import runner
from skipring.lab.experiments.matrix import Trial
from skipring.lab.experiments.runner import chunks, estimated_s, partitions

SMALL = [
    Trial(kind="converge", n=16, adversary="A15", max_rounds=2000, seed=seed)
    for seed in range(3000)
]
HEAVY = [Trial(kind="steady", n=1024, rounds=200 + seed, seed=seed) for seed in range(5)]


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_every_run_is_in_one_chunk(cores: int) -> None:
    done = [run for chunk in chunks(SMALL + HEAVY, lambda: cores) for run in chunk]
    assert sorted(done, key=lambda run: run.run_id) == sorted(
        SMALL + HEAVY, key=lambda run: run.run_id
    )


def test_heavy_runs_come_first_the_heaviest_of_all() -> None:
    first = next(chunks(SMALL + HEAVY, lambda: 64))
    assert first[: len(HEAVY)] == HEAVY[::-1]


def test_the_order_of_the_others_is_no_accident() -> None:
    """Shuffled, and always in the same way."""
    assert list(chunks(SMALL, lambda: 2)) == list(chunks(SMALL, lambda: 2))
    assert next(chunks(SMALL, lambda: 2))[:100] != SMALL[:100]


def test_chunks_grow_with_the_cores_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK_S", 1.0)
    cores = iter([1, *[8] * 100])
    first, second, *_ = chunks(SMALL, lambda: next(cores))
    assert 7 * len(first) < len(second) < 9 * len(first)


def test_a_chunk_is_no_larger_than_the_driver_can_hold() -> None:
    many = SMALL * 4
    assert max(map(len, chunks(many, lambda: 10_000))) == runner.CHUNK_RUNS_MAX


@pytest.mark.parametrize("count", [None, 1, 7, 10_000])
def test_every_run_of_a_chunk_is_in_one_partition(count: int | None) -> None:
    parts = partitions(SMALL, count)
    assert all(parts)
    assert sorted(run.seed for part in parts for run in part) == list(range(3000))
    if count is not None:
        assert len(parts) == min(count, 3000)


def test_partitions_have_a_second_of_work_each_and_no_more_than_they_must() -> None:
    loads = [sum(map(estimated_s, part)) for part in partitions(SMALL[:1000])]
    assert min(loads) >= 1
    assert max(loads) - min(loads) <= 2 * estimated_s(SMALL[0])


def test_a_heavy_run_has_a_partition_of_its_own() -> None:
    parts = partitions(SMALL[:200] + HEAVY)
    alone = [part for part in parts if part[0].kind == "steady"]
    assert len(alone) == len(HEAVY)
    assert all(len(part) == 1 for part in alone)


def test_little_work_is_one_partition() -> None:
    assert len(partitions(SMALL[:10])) == 1


@pytest.mark.parametrize("kind", ["steady", "subscribe", "crash", "spread", "topology", "converge"])
def test_larger_rings_are_expected_to_take_longer(kind: str) -> None:
    seconds = [estimated_s(Trial(kind=kind, n=n, max_rounds=100, rounds=10)) for n in (1, 4, 64)]
    assert seconds == sorted(set(seconds))
    assert seconds[0] > 0
