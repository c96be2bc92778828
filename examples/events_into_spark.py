"""Events into Spark: a topic as a table, and as a stream that resumes at its position.

    python examples/events_into_spark.py                               # starts a ring
    python examples/events_into_spark.py --supervisor 127.0.0.1:7400   # joins a running ring

A shop publishes the actions of its visitors. Spark reads the topic as a table and counts them, then
copies the topic to Parquet as a stream, in two runs; the shop publishes more events in between.
Every event is in the Parquet table exactly once. The example needs
`pip install 'skipring[spark]'`, which includes a Java runtime; no jar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

import skipring
from skipring.spark import register, session
from skipring.testing import Cluster

TOPIC = "events"
KINDS = ["look", "look", "look", "basket", "look", "buy"]
FIELDS = "visitor INT, kind STRING"


def events(numbers: range) -> list[bytes]:
    """Return events of visitors, as JSON."""
    kinds = islice(cycle(KINDS), numbers.start, numbers.stop)
    happened = zip(numbers, kinds, strict=True)
    return [
        json.dumps({"visitor": number % 50, "kind": kind}).encode() for number, kind in happened
    ]


def kinds_in(publications: DataFrame) -> dict[str, int]:
    """Return the number of events of each kind."""
    parsed = publications.selectExpr(f"from_json(CAST(value AS STRING), '{FIELDS}') AS event")
    counted = parsed.groupBy("event.kind").count().orderBy("kind").collect()
    return {row["kind"]: row["count"] for row in counted}


def copy(spark: SparkSession, supervisor: str, place: Path) -> int:
    """Append new events to a Parquet table; return its number of distinct events."""
    stream = (
        spark.readStream.format("skipring")
        .option("supervisor", supervisor)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = stream.writeStream.option("checkpointLocation", str(place / "checkpoint"))
    table = str(place / "table")
    writer.trigger(availableNow=True).start(path=table, format="parquet").awaitTermination()
    rows = spark.read.parquet(table)
    count = rows.select("id").distinct().count()
    assert count == rows.count(), "an event is in the table twice"
    return count


async def run_example(spark: SparkSession, supervisor: str, tick_s: float, place: Path) -> None:
    """Publish, read as a table, copy as a stream, publish more, copy again."""
    url = f"skipring://{supervisor}"
    # Streams read only from members with a data directory.
    async with (
        skipring.connect(url, tick_s=tick_s, name="shop", data_dir=place / "shop") as node,
        node.subscribe(TOPIC) as shop,
    ):
        await shop.publish_many(events(range(3000)))
        await shop.synced(timeout=60)
        source = spark.read.format("skipring").option("supervisor", supervisor)
        topic = source.option("subscribe", TOPIC)
        print("as a table:", await asyncio.to_thread(lambda: kinds_in(topic.load())))
        print("in Parquet:", await asyncio.to_thread(copy, spark, supervisor, place))
        await shop.publish_many(events(range(3000, 4000)))
        await shop.synced(timeout=60)
        print("after more:", await asyncio.to_thread(copy, spark, supervisor, place))


async def run(spark: SparkSession, supervisor: str | None, place: Path) -> None:
    """Run the example in a running ring, or start a ring for it."""
    if supervisor is not None:
        await run_example(spark, supervisor, tick_s=1.0, place=place)
        return
    async with Cluster(n=3, topic=TOPIC, tick_s=0.1, data_dir=place / "ring") as ring:
        await run_example(spark, ring.url.removeprefix("skipring://"), tick_s=0.1, place=place)


def main() -> None:
    options = argparse.ArgumentParser(description="Events into Spark.")
    options.add_argument("--supervisor", metavar="HOST:PORT", help="a running supervisor")
    supervisor = options.parse_args().supervisor
    with TemporaryDirectory(prefix="skipring-") as place, session.opened(app="events") as spark:
        register(spark)
        asyncio.run(run(spark, supervisor, Path(place)))


if __name__ == "__main__":
    main()
