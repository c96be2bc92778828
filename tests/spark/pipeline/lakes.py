"""Projects and rows for a lake without a ring: rows as the streams return them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.spark.pipeline.lake import Lake
from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.microbatch import Microbatch, together
from skipring.spark.pipeline.project import read_project
from skipring.spark.pipeline.runner import prepare
from skipring.spark.pipeline.silver import PUBLICATION
from skipring.spark.pipeline.state import agreed
from skipring.spark.pipeline.upkeep import TRACE, Upkeep
from tests.spark.rings import TOPIC

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PIPELINE = f'topics = ["{TOPIC}"]\n'
SCHEMA = """\
[columns]
item = "string"
amount = "double"
net = { type = "double", sql = "amount / 2" }

[expect]
"amount is not negative" = "amount >= 0"
"""
ITEMS = "SELECT window_start, item, sum(amount) AS amount FROM silver GROUP BY window_start, item"
MINUTES = """\
-- window: 1m
SELECT window_start, count(*) AS orders FROM silver GROUP BY window_start
"""

Row = tuple[Any, ...]


def write_project(
    directory: Path,
    *,
    pipeline: str = PIPELINE,
    schema: str = SCHEMA,
    gold: dict[str, str] | None = None,
) -> Path:
    """Write the files of a project; return its directory."""
    tables = {"items": f"-- window: 1h\n{ITEMS}", "minutes": MINUTES} if gold is None else gold
    (directory / "gold").mkdir(parents=True, exist_ok=True)
    (directory / "pipeline.toml").write_text(pipeline)
    (directory / "schema.toml").write_text(schema)
    for name, sql in tables.items():
        (directory / "gold" / f"{name}.sql").write_text(sql)
    return directory


def opened(spark: SparkSession, directory: Path) -> Upkeep:
    """Open the lake of a project, as a run does."""
    prepare(spark)
    project = read_project(directory)
    files = LakeFiles(spark, project.lake)
    state = agreed(files, project)
    files.make_directory("checkpoint/offsets")  # Spark's
    upkeep = Upkeep(Lake(spark, files), project, state)
    upkeep.open()
    return upkeep


def microbatch(spark: SparkSession, directory: Path) -> Microbatch:
    """Return the runner of micro-batches of a project, as after a start."""
    return Microbatch(opened(spark, directory))


def id_of(number: int) -> bytes:
    return blake2b(number.to_bytes(4, "big"), digest_size=32).digest()


def publication(
    number: int, value: bytes | None, *, publisher: str = "ann", at_s: float | None = 0.0
) -> Row:
    """Return a row of the stream of publications; its time is in seconds after noon."""
    time = None if at_s is None else round(1_000_000 * (NOON.timestamp() + at_s))
    headers = {"source": b"test"}
    key = f"k{number}".encode()
    return (key, value, TOPIC, 0, number, time, publisher, number, id_of(number), headers)


def delivery(number: int, node: str, *, at_s: float, hops: int = 1, origin: str = "spread") -> Row:
    """Return a row of the stream of deliveries."""
    return (TOPIC, node, number, id_of(number), NOON + timedelta(seconds=at_s), hops, origin)


def rows(
    spark: SparkSession, publications: Sequence[Row], deliveries: Sequence[Row] | None = None
) -> DataFrame:
    """Return a micro-batch."""
    in_microseconds = PUBLICATION.replace("`timestamp` timestamp", "`timestamp` bigint")
    given = spark.createDataFrame(list(publications), in_microseconds)
    return together(
        given.withColumn("timestamp", F.timestamp_micros("timestamp")),
        None if deliveries is None else spark.createDataFrame(list(deliveries), TRACE),
    )


def files(lake: Path, name: str) -> list[Path]:
    """Return the files of a table."""
    return sorted((lake / name).rglob("*.parquet"))


def read(lake: Path, name: str) -> list[dict[str, Any]]:
    """Return a table as a reader of Parquet without Spark sees it."""
    found = []
    for path in files(lake, name):
        found += pq.read_table(path, partitioning=None).to_pylist()
    return found


def ids(lake: Path, name: str) -> list[bytes]:
    return sorted(row["id"] for row in read(lake, name))
