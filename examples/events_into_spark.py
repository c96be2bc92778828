"""Events into Spark: a topic as a table, and as a stream that goes on where it was.

    python examples/events_into_spark.py                               # with a ring of its own
    python examples/events_into_spark.py --supervisor 127.0.0.1:7400   # in a ring that runs

A shop publishes what its visitors do. Spark reads the whole topic as a table and counts, then
copies it into Parquet as a stream, in two runs between which more events come. Every event is in
the Parquet table exactly once. It needs `pip install 'skipring[spark]'`: no jar, and a Java is
brought along.
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
    """What some visitors do, as JSON."""
    kinds = islice(cycle(KINDS), numbers.start, numbers.stop)
    happened = zip(numbers, kinds, strict=True)
    return [
        json.dumps({"visitor": number % 50, "kind": kind}).encode() for number, kind in happened
    ]


def kinds_in(publications: DataFrame) -> dict[str, int]:
    """How many events of each kind there are."""
    parsed = publications.selectExpr(f"from_json(CAST(value AS STRING), '{FIELDS}') AS event")
    counted = parsed.groupBy("event.kind").count().orderBy("kind").collect()
    return {row["kind"]: row["count"] for row in counted}


def copy(spark: SparkSession, supervisor: str, place: Path) -> int:
    """Bring what is new into a Parquet table; return how many different events it has then."""
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


async def story(spark: SparkSession, supervisor: str, tick_s: float, place: Path) -> None:
    """Publish, read as a table, copy as a stream, publish more, copy on."""
    url = f"skipring://{supervisor}"
    # A data directory makes the shop a member from which streams can be read.
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
        print("and later: ", await asyncio.to_thread(copy, spark, supervisor, place))


async def run(spark: SparkSession, supervisor: str | None, place: Path) -> None:
    """Tell the story in the ring that is given, or in one of our own."""
    if supervisor is not None:
        await story(spark, supervisor, tick_s=1.0, place=place)
        return
    async with Cluster(n=3, topic=TOPIC, tick_s=0.1, data_dir=place / "ring") as ring:
        await story(spark, ring.url.removeprefix("skipring://"), tick_s=0.1, place=place)


def main() -> None:
    options = argparse.ArgumentParser(description="Events into Spark.")
    options.add_argument("--supervisor", metavar="HOST:PORT", help="a supervisor that runs")
    supervisor = options.parse_args().supervisor
    with TemporaryDirectory(prefix="skipring-") as place, session.opened(app="events") as spark:
        register(spark)
        asyncio.run(run(spark, supervisor, Path(place)))


if __name__ == "__main__":
    main()
