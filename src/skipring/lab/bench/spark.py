"""Spark: reads of a topic against Parquet, and simulations as tasks (``skipring bench spark``).

A supervisor and members with all publications on disk run as processes. Both reads have a no-op
sink and run several times, alternately.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from skipring.lab.bench.report import Row, at_least, at_most
from skipring.lab.bench.run import TOPIC
from skipring.lab.bench.servers import RARE_PUBLISHER, BenchProcesses, fill_store
from skipring.lab.experiments.matrix import Matrix, Trial
from skipring.lab.experiments.runner import run_matrix, settings_for
from skipring.lab.experiments.trials import perform
from skipring.lab.usage import tree_cpu_s
from skipring.net.access import Access
from skipring.sim.runner import Simulation
from skipring.sim.scenario import make_scenario
from skipring.spark import register, session
from skipring.spark.ring_client import RingClient

RING: Final = "skipring"
PARQUET: Final = "parquet"
COLUMNS: Final = "skipring, id and timestamp"
FILTER: Final = "skipring, a publisher with 1 % of the rows"
PAYLOAD_BYTES: Final = 128  # as in the other benchmarks
MEMBERS: Final = 4
CORES: Final = 2
WARM_UPS: Final = 2  # the first reads of a session compile and fork
REPEATS: Final = 7
FORMING_S: Final = 60.0
POLL_S: Final = 0.1
READ_GOAL: Final = 0.35  # minimum share of Parquet's rows per second
COLUMNS_GOAL: Final = 2.0  # minimum of the speed of a full read
FILTER_GOAL: Final = 5.0
OVERHEAD_GOAL: Final = 0.3  # maximum with 1000 runs of LAB_N subscribers
LAB_N: Final = 16
LAB_REPEATS: Final = 3
ADVERSARIES: Final = ("A00", "A05", "A12", "A15")
TRIALS_AT_ONCE: Final = 10

Rows = Generator[Row, None, dict[str, float]]  # returns the ratios


def measure(rows: int, runs: int, *, repeats: int = REPEATS) -> Iterator[Row]:
    """Yield one row per measurement, the ratios last."""
    ratios = yield from _measured_reads(rows, repeats)
    master = f"local[{CORES}]"
    conf = settings_for(master)
    with session.opened(master=master, conf=conf, app="skipring bench") as spark:
        row = measure_lab(spark, runs=runs)
    yield row
    for what in ("cpu", "wall"):
        cost = 1 + row[f"overhead_{what}"]
        ratios |= at_most(f"lab_{what}_over_plain", cost, 1 + OVERHEAD_GOAL)
    yield {"ratios": ratios}


def _measured_reads(rows: int, repeats: int) -> Rows:
    """Yield a row for each source; return the ratios."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="skipring-bench-")))
        processes = stack.enter_context(BenchProcesses(directory))
        supervisor = processes.start_supervisor()
        for node in (f"n{number}" for number in range(MEMBERS)):
            fill_store(directory / node, rows, PAYLOAD_BYTES, has_keys=True)
            processes.start_node(node)
        pids = [process.pid for process in processes.running.values()]
        _wait_formed(supervisor, MEMBERS)
        master = f"local[{CORES}]"
        spark = stack.enter_context(session.opened(master=master, app="skipring bench"))
        register(spark)
        parquet = str(directory / "parquet")
        _table(spark, supervisor).write.parquet(parquet)
        reads: dict[str, Callable[[], DataFrame]] = {
            RING: lambda: _table(spark, supervisor),
            PARQUET: lambda: spark.read.parquet(parquet),
            COLUMNS: lambda: _table(spark, supervisor, schema="id binary, timestamp timestamp"),
            FILTER: lambda: _table(spark, supervisor).where(f"publisher = '{RARE_PUBLISHER}'"),
        }
        return (yield from _compared(reads, rows, repeats, pids))


def _compared(
    reads: dict[str, Callable[[], DataFrame]], rows: int, repeats: int, pids: list[int]
) -> Rows:
    found: dict[str, list[tuple[float, float]]] = {system: [] for system in reads}
    for turn in range(WARM_UPS + repeats):
        for system, read in reads.items():
            cost = _read_cost(read, pids)
            if turn >= WARM_UPS:
                found[system].append(cost)
    speeds = {}
    for system, times in found.items():
        walls = [wall for wall, _ in times]
        speeds[system] = rows / median(walls)
        yield {
            "job": "spark",
            "system": system,
            "rows": rows,
            "rows_per_s": round(speeds[system]),
            "rows_per_s_min": round(rows / max(walls)),
            "rows_per_s_max": round(rows / min(walls)),
            "cpu_us_per_row": round(median(cpu for _, cpu in times) / rows * 1e6, 2),
            "repeats": repeats,
        }
    full = speeds[RING]
    return (
        at_least("rows_per_s_over_parquet", full / speeds[PARQUET], READ_GOAL)
        | at_least("columns_over_full_read", speeds[COLUMNS] / full, COLUMNS_GOAL)
        | at_least("filter_over_full_read", speeds[FILTER] / full, FILTER_GOAL)
    )


def _read_cost(read: Callable[[], DataFrame], pids: list[int]) -> tuple[float, float]:
    """Return wall and CPU time of a read, the processes of the ring included."""
    before, began = tree_cpu_s(pids), perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return perf_counter() - began, tree_cpu_s(pids) - before


def _table(spark: SparkSession, supervisor: str, schema: str | None = None) -> DataFrame:
    reader = spark.read.format("skipring").options(supervisor=supervisor, pushFilters="true")
    reader = reader if schema is None else reader.schema(schema)
    return reader.option("subscribe", TOPIC).load()


def _wait_formed(supervisor: str, members: int) -> None:
    deadline = monotonic() + FORMING_S
    with RingClient(Access(supervisors=(supervisor,))) as client:
        while len(client.located(TOPIC)) < members:
            if monotonic() > deadline:
                raise TimeoutError(f"no ring of {members} after {FORMING_S:.0f} s")
            sleep(POLL_S)


# -- the lab -----------------------------------------------------------------------------------


class WorkCost(Struct, frozen=True):
    """Wall and CPU time of some work."""

    wall_s: float
    cpu_s: float  # includes this process and its descendants


def measure_lab(spark: SparkSession, *, runs: int) -> Row:
    """Run the same simulations in a pool and in Spark alternately; the first Spark run is separate.

    ``plain`` only simulates; ``sampled`` also computes the rows of the lab; Spark adds balancing,
    Arrow, Parquet and fsync.
    """
    chosen = _trials(runs)
    with (
        get_context("spawn").Pool(CORES) as pool,
        TemporaryDirectory(prefix="skipring-lab-") as folder,
    ):
        pool.map(_simulate, chosen[: 2 * CORES], chunksize=1)  # imports are not measured
        cold = _cost(partial(_run_in_spark, spark, chosen, Path(folder) / "cold"))
        plain, sampled, in_spark = [], [], []
        for number in range(LAB_REPEATS):
            plain.append(_cost(partial(_run_in_pool, pool, _simulate, chosen)))
            sampled.append(_cost(partial(_run_in_pool, pool, _perform, chosen)))
            directory = Path(folder) / str(number)
            in_spark.append(_cost(partial(_run_in_spark, spark, chosen, directory)))
    return {
        "job": "lab",
        "runs": runs,
        "n": LAB_N,
        "repeats": LAB_REPEATS,
        **_figures("plain", plain),
        **_figures("sampled", sampled),
        **_figures("spark", in_spark),
        **_figures("spark_first", [cold]),
        "overhead_wall": _overhead(plain, in_spark, "wall_s"),
        "overhead_cpu": _overhead(plain, in_spark, "cpu_s"),
        "overhead_wall_first": _overhead(plain, [cold], "wall_s"),
        "overhead_wanted": OVERHEAD_GOAL,
    }


def _trials(count: int) -> list[Trial]:
    return [
        Trial(
            kind="converge",
            n=LAB_N,
            adversary=ADVERSARIES[number % len(ADVERSARIES)],
            seed=number // len(ADVERSARIES),
            max_rounds=2000,
            closure=20,
        )
        for number in range(count)
    ]


def _run_in_pool(pool: Pool, work: Callable[[Trial], bool], runs: Sequence[Trial]) -> None:
    for converged in pool.imap_unordered(work, runs, chunksize=TRIALS_AT_ONCE):
        assert converged


def _simulate(run: Trial) -> bool:
    """Simulate without sampling."""
    scenario = make_scenario({"n": run.n, "adversary": run.adversary, "seed": run.seed})
    return Simulation(scenario).run().is_good


def _perform(run: Trial) -> bool:
    """Run a trial as the lab does, and discard its rows."""
    return bool(perform(run).row["converged"])


def _run_in_spark(spark: SparkSession, runs: Sequence[Trial], directory: Path) -> None:
    summary = run_matrix(spark, Matrix("overhead", "", tuple(runs)), directory)
    assert summary.done == len(runs)
    assert not summary.failed


def _figures(name: str, costs: Sequence[WorkCost]) -> dict[str, float]:
    return {
        f"{name}_wall_s": round(median(cost.wall_s for cost in costs), 2),
        f"{name}_cpu_s": round(median(cost.cpu_s for cost in costs), 2),
    }


def _overhead(plain: Sequence[WorkCost], other: Sequence[WorkCost], what: str) -> float:
    """Return the additional cost as a share of the plain cost."""
    spent, least = (
        median(float(getattr(cost, what)) for cost in costs) for costs in (other, plain)
    )
    return round(spent / least - 1, 3)


def _cost(work: Callable[[], None]) -> WorkCost:
    wall, cpu = perf_counter(), tree_cpu_s()
    work()
    return WorkCost(perf_counter() - wall, tree_cpu_s() - cpu)
