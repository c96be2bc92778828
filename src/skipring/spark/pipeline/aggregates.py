"""What a lake says in figures small enough to be drawn; functions from tables to tables."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from skipring.core.effects import Origin
from skipring.spark.pipeline.gold import MICROSECONDS, window_start

POINTS_MAX: Final = 200  # Our guess: more points of time cannot be told apart in a figure.
SAMPLES: Final = 10  # of rejected rows
PREVIEW_BYTES: Final = 120
PERCENTS: Final = (50, 95, 99)  # of the latency in tables and over time
# Steps of a distribution: percents, and closer together at the end where the slow ones are.
SHARES: Final = (*(percent / 100 for percent in range(100)), 0.995, 0.999, 1.0)


def bucket_s(first_s: float, last_s: float, window_s: int) -> int:
    """How long the steps of a figure are: whole windows, so many that not too many steps result."""
    windows = max(1.0, last_s - first_s) / window_s
    return window_s * max(1, -int(-windows // POINTS_MAX))


def balance(bronze: DataFrame, silver: DataFrame, rejected: DataFrame) -> DataFrame:
    """One row that says whether every id of bronze is once in silver or in rejected."""
    seen = (
        table.select("id", *(F.lit(int(name == own)).alias(name) for name in ("b", "s", "r")))
        for own, table in (("b", bronze), ("s", silver), ("r", rejected))
    )
    first, second, third = seen
    ids = first.union(second).union(third).groupBy("id").agg(
        F.sum("b").alias("b"), F.sum("s").alias("s"), F.sum("r").alias("r")
    )  # fmt: skip
    taken = F.col("s") + F.col("r")
    return ids.agg(
        F.coalesce(F.sum("b"), F.lit(0)).alias("bronze_rows"),
        F.count("*").alias("ids"),
        F.coalesce(F.sum("s"), F.lit(0)).alias("silver_rows"),
        F.coalesce(F.sum("r"), F.lit(0)).alias("rejected_rows"),
        F.count_if((F.col("b") > 0) & (taken == 0)).alias("missing"),
        F.count_if(taken > 1).alias("twice"),
        F.count_if(F.col("b") == 0).alias("invented"),
    )


def extent(published: DataFrame) -> DataFrame:
    """One row: how many publications there are, and from when to when."""
    has_time = F.col("window_start").isNotNull()
    seconds = F.unix_micros("timestamp") / MICROSECONDS
    return published.agg(
        F.count("*").alias("publications"),
        F.coalesce(F.sum("value_bytes"), F.lit(0)).alias("value_bytes"),
        F.countDistinct("topic").alias("topics"),
        F.countDistinct("publisher").alias("publishers"),
        F.count_if(~has_time).alias("without_time"),
        F.min(F.when(has_time, seconds)).alias("first_s"),
        F.max(F.when(has_time, seconds)).alias("last_s"),
    )


def rates(published: DataFrame, step_s: int) -> DataFrame:
    """Publications and bytes per second, by topic and step of time."""
    return (
        published.where(F.col("window_start").isNotNull())
        .groupBy("topic", window_start(step_s).alias("at"))
        .agg(
            (F.count("*") / step_s).alias("per_s"),
            (F.coalesce(F.sum("value_bytes"), F.lit(0)) / step_s).alias("bytes_per_s"),
        )
        .orderBy("topic", "at")
    )


def latencies(delivered: DataFrame, step_s: int) -> DataFrame:
    """Percentiles of the latency of spreading, and how many came in which way, by step of time."""
    return (
        delivered.where(F.col("window_start").isNotNull())
        .groupBy(window_start(step_s).alias("at"))
        .agg(*_spread_percentiles(), _spread().alias("spread"), _repaired().alias("repaired"))
        .orderBy("at")
    )


def distribution(delivered: DataFrame) -> DataFrame:
    """The latency that each share of the deliveries has at most, by the way they came."""
    return (
        delivered.where(F.col("window_start").isNotNull())
        .groupBy("origin")
        .agg(F.percentile("latency_ms", list(SHARES)).alias("latency_ms"))
        .orderBy(F.desc("origin"))
    )


def hops(delivered: DataFrame) -> DataFrame:
    """How many deliveries took how many hops; known only of what was spread."""
    spread = delivered.where(F.col("origin") == Origin.SPREAD.value)
    return spread.groupBy("hops").count().orderBy("hops")


def nodes(delivered: DataFrame) -> DataFrame:
    """What came to each node from others, and how."""
    return delivered.groupBy("node").agg(*_reception()).orderBy("node")


def publishers(published: DataFrame, delivered: DataFrame) -> DataFrame:
    """What each publisher sent, and how it came to the others; the busiest first."""
    keys = ["topic", "publisher"]
    sent = published.groupBy(*keys).agg(
        F.count("*").alias("publications"),
        F.coalesce(F.sum("value_bytes"), F.lit(0)).alias("value_bytes"),
        F.count_if("is_rejected").alias("rejected"),
    )
    got = delivered.groupBy(*keys).agg(*_reception())
    return sent.join(got, keys, "left").orderBy(F.desc("publications"), *keys)


def reasons(rejected: DataFrame) -> DataFrame:
    """Why rows were rejected, by topic."""
    return rejected.groupBy("topic", "reason").count().orderBy(F.desc("count"), "topic", "reason")


def samples(rejected: DataFrame) -> DataFrame:
    """Some of the rejected rows, the latest first."""
    start = F.substring("value", 1, PREVIEW_BYTES).alias("start")
    size = F.octet_length("value").alias("size")
    time = F.date_format("timestamp", "yyyy-MM-dd HH:mm:ss").alias("time")
    columns = (time, "topic", "publisher", "sequence", "reason", start, size)
    latest = rejected.orderBy(F.desc_nulls_last("timestamp"), F.desc("sequence"), "id")
    return latest.limit(SAMPLES).select(*columns)


def _reception() -> list[Column]:
    return [
        F.count("*").alias("deliveries"),
        *_spread_percentiles(),
        _spread().alias("spread"),
        _repaired().alias("repaired"),
    ]


def _spread_percentiles() -> list[Column]:
    """The latency of what was spread, as ``distribution`` has it, at the shares of the tables.

    Repair is left out: to a node that joins late it brings what was published long before. So are
    publications without a credible time.
    """
    is_timed = F.col("window_start").isNotNull()
    spread_ms = F.when(is_timed & (F.col("origin") == Origin.SPREAD.value), F.col("latency_ms"))
    return [F.percentile(spread_ms, percent / 100).alias(f"p{percent}") for percent in PERCENTS]


def _spread() -> Column:
    return F.count_if(F.col("origin") == Origin.SPREAD.value)


def _repaired() -> Column:
    return F.count_if(F.col("origin") == Origin.REPAIR.value)
