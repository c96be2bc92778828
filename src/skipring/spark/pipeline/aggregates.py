"""Aggregates of a lake that are small enough for the report; functions of tables."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from skipring.core.effects import Origin
from skipring.spark.pipeline.gold import MICROSECONDS, window_start

POINTS_MAX: Final = 200  # Guess: more points cannot be distinguished in a figure.
SAMPLES: Final = 10  # of rejected rows
PREVIEW_BYTES: Final = 120
PERCENTS: Final = (50, 95, 99)  # of the latency in tables and over time
# Steps of a distribution: percents, and closer steps at the end for slow deliveries.
SHARES: Final = (*(percent / 100 for percent in range(100)), 0.995, 0.999, 1.0)


def bucket_s(first_s: float, last_s: float, window_s: int) -> int:
    """Return the step of a figure: a multiple of the window that gives at most POINTS_MAX steps."""
    windows = max(1.0, last_s - first_s) / window_s
    return window_s * max(1, -int(-windows // POINTS_MAX))


def balance(bronze: DataFrame, silver: DataFrame, rejected: DataFrame) -> DataFrame:
    """Return one row of counts that shows if every id is once in silver or in rejected."""
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
    """Return one row: number of publications, first and last time."""
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
    """Return publications and bytes per second, by topic and step of time."""
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
    """Return percentiles of the broadcast latency and counts by origin, by step of time."""
    return (
        delivered.where(F.col("window_start").isNotNull())
        .groupBy(window_start(step_s).alias("at"))
        .agg(*_spread_percentiles(), _spread().alias("spread"), _repaired().alias("repaired"))
        .orderBy("at")
    )


def distribution(delivered: DataFrame) -> DataFrame:
    """Return the largest latency of each share of the deliveries, by origin."""
    return (
        delivered.where(F.col("window_start").isNotNull())
        .groupBy("origin")
        .agg(F.percentile("latency_ms", list(SHARES)).alias("latency_ms"))
        .orderBy(F.desc("origin"))
    )


def hops(delivered: DataFrame) -> DataFrame:
    """Return the number of deliveries by hops; only the broadcast counts hops."""
    spread = delivered.where(F.col("origin") == Origin.SPREAD.value)
    return spread.groupBy("hops").count().orderBy("hops")


def nodes(delivered: DataFrame) -> DataFrame:
    """Return the deliveries from others at each node, by origin."""
    return delivered.groupBy("node").agg(*_reception()).orderBy("node")


def publishers(published: DataFrame, delivered: DataFrame) -> DataFrame:
    """Return publications and deliveries by publisher, the busiest first."""
    keys = ["topic", "publisher"]
    sent = published.groupBy(*keys).agg(
        F.count("*").alias("publications"),
        F.coalesce(F.sum("value_bytes"), F.lit(0)).alias("value_bytes"),
        F.count_if("is_rejected").alias("rejected"),
    )
    got = delivered.groupBy(*keys).agg(*_reception())
    return sent.join(got, keys, "left").orderBy(F.desc("publications"), *keys)


def reasons(rejected: DataFrame) -> DataFrame:
    """Return the number of rejected rows by topic and reason."""
    return rejected.groupBy("topic", "reason").count().orderBy(F.desc("count"), "topic", "reason")


def samples(rejected: DataFrame) -> DataFrame:
    """Return some of the rejected rows, the latest first."""
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
    """Return percentiles of the broadcast latency, consistent with ``distribution``.

    Repairs do not count: a node that joins late receives publications that are old. Publications
    without a credible time do not count either.
    """
    is_timed = F.col("window_start").isNotNull()
    spread_ms = F.when(is_timed & (F.col("origin") == Origin.SPREAD.value), F.col("latency_ms"))
    return [F.percentile(spread_ms, percent / 100).alias(f"p{percent}") for percent in PERCENTS]


def _spread() -> Column:
    return F.count_if(F.col("origin") == Origin.SPREAD.value)


def _repaired() -> Column:
    return F.count_if(F.col("origin") == Origin.REPAIR.value)
