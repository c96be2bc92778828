"""Pipeline: CPU time of a micro-batch on a young and an old lake, and of a report.

The rows have the form of a stream's, so no ring takes part. The old lake gets its rows in large
micro-batches: its files depend on their size, not on the number of micro-batches. Its times end at
half past an hour, so that a window of an hour has the same rows at each run; 720 micro-batches are
in one or two dates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from tempfile import TemporaryDirectory
from time import time
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from skipring.lab.bench.report import Row
from skipring.lab.bench.run import TOPIC
from skipring.lab.usage import tree_cpu_s
from skipring.spark import session
from skipring.spark.pipeline.gold import HOUR_S
from skipring.spark.pipeline.lake import Lake
from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.microbatch import Microbatch, together
from skipring.spark.pipeline.project import read_project, write_template
from skipring.spark.pipeline.runner import CONF, prepare
from skipring.spark.pipeline.silver import PUBLICATION
from skipring.spark.pipeline.state import agreed
from skipring.spark.pipeline.upkeep import Upkeep

ROWS: Final = 500  # of a micro-batch
FILL_ROWS: Final = 10_000
TRIGGER_S: Final = 5.0  # time between two micro-batches of the old lake
ID_BYTES: Final = 30
MASTER: Final = "local[2]"
YOUNG, OLD = "young", "old"


def measure(batches: int, *, repeats: int) -> Iterator[Row]:
    """Yield a row for each lake and one for the report."""
    with TemporaryDirectory(prefix="skipring-bench-") as given:
        directory = Path(given)
        with session.opened(master=MASTER, conf=CONF, app="skipring bench") as spark:
            costs = _batch_costs(spark, directory, batches, repeats)
        for name, seconds in costs.items():
            rows = batches * ROWS if name == OLD else 0
            cpu_s = {"cpu_s": median(seconds), "cpu_s_max": max(seconds)}
            yield {"job": "batch", "lake": name, "rows": rows, **_rounded(cpu_s)}
        cost_s = _report_cost(directory / OLD)
    yield {"job": "report", "lake": OLD, "rows": batches * ROWS, **_rounded({"cpu_s": cost_s})}


def _batch_costs(
    spark: SparkSession, directory: Path, batches: int, repeats: int
) -> dict[str, list[float]]:
    """Return the CPU times of micro-batches on both lakes in turns, once they are warm."""
    prepare(spark)
    lakes = {name: _lake(spark, directory / name) for name in (YOUNG, OLD)}
    sequence = count()
    end_s = time() // HOUR_S * HOUR_S - HOUR_S / 2
    begin_s = end_s - batches * TRIGGER_S
    for first in range(0, batches * ROWS, FILL_ROWS):
        rows = min(FILL_ROWS, batches * ROWS - first)
        at_s = begin_s + first / ROWS * TRIGGER_S
        lakes[OLD].run(_rows(spark, sequence, rows, at_s, TRIGGER_S / ROWS), first)
    found: dict[str, list[float]] = {name: [] for name in lakes}
    for number in range(2 * repeats):
        for name, lake in lakes.items():
            rows_of_batch = _rows(spark, sequence, ROWS, end_s + number * TRIGGER_S, 1e-6)
            before = tree_cpu_s()
            lake.run(rows_of_batch, batches * ROWS + number)
            found[name].append(tree_cpu_s() - before)
    return {name: costs[repeats:] for name, costs in found.items()}


def _lake(spark: SparkSession, directory: Path) -> Microbatch:
    write_template("orders", directory, (TOPIC,))
    project = read_project(directory)
    files = LakeFiles(spark, project.lake)
    files.make_directory()
    upkeep = Upkeep(Lake(spark, files), project, agreed(files, project))
    upkeep.open()
    return Microbatch(upkeep)


def _rows(
    spark: SparkSession, sequence: Iterator[int], rows: int, at_s: float, step_s: float
) -> DataFrame:
    """Return publications of orders as the stream returns them."""
    found = []
    for place in range(rows):
        number = next(sequence)
        order = {"item": f"item {number % 20}", "amount": number % 100 - 1}  # some are negative
        at = datetime.fromtimestamp(at_s + place * step_s, UTC)
        value = json.dumps(order).encode()
        id_ = os.urandom(ID_BYTES)
        found.append((b"k", value, TOPIC, 0, number, at, "bench", number, id_, None))
    return together(spark.createDataFrame(found, PUBLICATION), None)


def _report_cost(directory: Path) -> float:
    """Return the CPU time of ``skipring pipeline report``, the start of Spark included."""
    before = getrusage(RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "skipring", "pipeline", "report", str(directory)]
    subprocess.run([*command, "--master", MASTER], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items()}
