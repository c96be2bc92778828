"""What it costs to run simulations as Spark tasks (``skipring bench spark``).

The same runs are done plainly and in Spark, in turns.

Plainly means two processes that do nothing but simulate: no samples, no rows, no files. In Spark
means all of ``run_matrix``: sampling after every round, balancing, Arrow, Parquet, fsync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import SparkSession

from skipring.lab.bench.processes import cpu_s
from skipring.lab.experiments.experiments import perform
from skipring.lab.experiments.matrix import Matrix, Trial
from skipring.lab.experiments.running import run_matrix
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario

OVERHEAD_WANTED: Final = 0.3  # at most, at RUNS runs of N subscribers on PROCESSES cores
RUNS: Final = 1000
N: Final = 16
ADVERSARIES: Final = ("A00", "A05", "A12", "A15")
PROCESSES: Final = 2
REPEATS: Final = 3
TURN: Final = 10  # runs that a process of the pool is given at a time


class Cost(Struct, frozen=True):
    """What some work has cost on this machine."""

    wall_s: float
    cpu_s: float  # of this process and all that descend from it


def measure(spark: SparkSession, *, runs: int = RUNS, repeats: int = REPEATS) -> dict[str, Any]:
    """Do the same runs plainly and in Spark, in turns; the first time of Spark counts apart."""
    chosen = _runs(runs)
    with (
        get_context("spawn").Pool(PROCESSES) as pool,
        TemporaryDirectory(prefix="skipring-lab-") as folder,
    ):
        pool.map(_simulate, chosen[: 2 * PROCESSES], chunksize=1)  # imports are no simulation
        cold = _cost(partial(_run_in_spark, spark, chosen, Path(folder) / "cold"))
        plain, sampled, in_spark = [], [], []
        for number in range(repeats):
            plain.append(_cost(partial(_run_plainly, pool, _simulate, chosen)))
            sampled.append(_cost(partial(_run_plainly, pool, _perform, chosen)))
            directory = Path(folder) / str(number)
            in_spark.append(_cost(partial(_run_in_spark, spark, chosen, directory)))
    return {
        "job": "lab",
        "runs": runs,
        "n": N,
        "repeats": repeats,
        **_figures("plain", plain),
        **_figures("sampled", sampled),
        **_figures("spark", in_spark),
        **_figures("spark_first", [cold]),
        "overhead_wall": _overhead(plain, in_spark, "wall_s"),
        "overhead_cpu": _overhead(plain, in_spark, "cpu_s"),
        "overhead_wall_first": _overhead(plain, [cold], "wall_s"),
        "overhead_wanted": OVERHEAD_WANTED,
    }


def _runs(count: int) -> list[Trial]:
    return [
        Trial(
            kind="converge",
            n=N,
            adversary=ADVERSARIES[number % len(ADVERSARIES)],
            seed=number // len(ADVERSARIES),
            max_rounds=2000,
            closure=20,
        )
        for number in range(count)
    ]


def _run_plainly(pool: Pool, work: Callable[[Trial], bool], runs: Sequence[Trial]) -> None:
    for converged in pool.imap_unordered(work, runs, chunksize=TURN):
        assert converged


def _simulate(run: Trial) -> bool:
    """Simulate and nothing else."""
    scenario = make_scenario({"n": run.n, "adversary": run.adversary, "seed": run.seed})
    return Simulation(scenario).run().is_good


def _perform(run: Trial) -> bool:
    """Do a run as the lab does, and forget its rows."""
    return bool(perform(run).row["converged"])


def _run_in_spark(spark: SparkSession, runs: Sequence[Trial], directory: Path) -> None:
    summary = run_matrix(spark, Matrix("overhead", "", tuple(runs)), directory)
    assert summary.done == len(runs)
    assert not summary.failed


def _figures(name: str, costs: Sequence[Cost]) -> dict[str, float]:
    return {
        f"{name}_wall_s": round(median(cost.wall_s for cost in costs), 2),
        f"{name}_cpu_s": round(median(cost.cpu_s for cost in costs), 2),
    }


def _overhead(plain: Sequence[Cost], other: Sequence[Cost], what: str) -> float:
    """What it costs on top, as a share of the plain cost."""
    spent, least = (
        median(float(getattr(cost, what)) for cost in costs) for costs in (other, plain)
    )
    return round(spent / least - 1, 3)


def _cost(work: Callable[[], None]) -> Cost:
    wall, cpu = perf_counter(), cpu_s()
    work()
    return Cost(perf_counter() - wall, cpu_s() - cpu)
