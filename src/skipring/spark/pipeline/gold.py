"""Gold: figures per window of time, topic and publisher, from publications and deliveries.

The figures of a window depend only on its rows in the lake, not on their order of arrival. New rows
recompute the whole window: a late repair changes it, and a second computation changes nothing.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from skipring.core.effects import Origin
from skipring.spark.pipeline.lake import BATCH, DATE, TIME_END_US

MICROSECONDS: Final = 1_000_000
_PERCENTILES: Final = (0.5, 0.95, 0.99)


def window_start(width_s: int) -> Column:
    """Return the start of the window of a publication's time; null without a time."""
    time = F.unix_micros("timestamp")
    start = time - F.pmod(time, F.lit(width_s * MICROSECONDS))
    return F.when(time < TIME_END_US, F.timestamp_micros(start))


def published(silver: DataFrame, rejected: DataFrame, width_s: int) -> DataFrame:
    """Return all publications, each once, with their windows."""
    good = silver.select(
        "topic", "publisher", "id", "timestamp", BATCH, DATE, "value_bytes",
        F.lit(False).alias("is_rejected"),
    )  # fmt: skip
    size = F.octet_length("value").cast("bigint")
    bad = rejected.select(
        "topic", "publisher", "id", "timestamp", BATCH, DATE, size.alias("value_bytes"),
        F.lit(True).alias("is_rejected"),
    )  # fmt: skip
    return good.unionByName(bad).withColumn("window_start", window_start(width_s))


def arrivals(deliveries: DataFrame) -> DataFrame:
    """Return the first arrival of each publication at each node; a node may report several."""
    first = F.min(F.struct("arrived", "hops", "origin")).alias("first")
    return deliveries.groupBy("topic", "node", "id").agg(first).select(
        "topic", "node", "id", "first.*"
    )  # fmt: skip


def about(deliveries: DataFrame, publications: DataFrame) -> DataFrame:
    """Return the deliveries of these publications only."""
    return deliveries.join(publications.select("topic", "id"), ["topic", "id"], "left_semi")


def delivered(publications: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the deliveries from other nodes: publication, node, latency, hops and origin."""
    came = arrivals(deliveries).where(F.col("origin") != Origin.OWN.value)
    took = (F.unix_micros("arrived") - F.unix_micros("timestamp")) / 1000
    return publications.join(came, ["topic", "id"]).withColumn("latency_ms", took)


def touched(new: DataFrame, told: DataFrame, publications: DataFrame) -> DataFrame:
    """Return the windows of new publications and of the publications of new deliveries."""
    ids = told.select("topic", "id").distinct()
    late = publications.join(ids, ["topic", "id"], "left_semi")
    return new.select("window_start").union(late.select("window_start")).distinct()


def within(rows: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the rows of these windows."""
    return rows.join(windows, rows.window_start.eqNullSafe(windows.window_start), "left_semi")


def without(rows: DataFrame, windows: DataFrame) -> DataFrame:
    """Return the rows of other windows."""
    return rows.join(windows, rows.window_start.eqNullSafe(windows.window_start), "left_anti")


def figures(publications: DataFrame, deliveries: DataFrame, width_s: int) -> DataFrame:
    """Return the rows of gold for these publications."""
    keys = ("topic", "publisher", "window_start")
    came = delivered(publications, deliveries)
    sent, got = _sent(publications.groupBy(*keys)), _got(came.groupBy(*keys))
    is_same = [F.col(f"sent.{key}").eqNullSafe(F.col(f"got.{key}")) for key in keys]
    joined = sent.alias("sent").join(got.alias("got"), is_same, "left")
    has_time = F.col("sent.window_start").isNotNull()
    end = F.timestamp_micros(F.unix_micros("sent.window_start") + width_s * MICROSECONDS)
    return joined.select(
        *(F.col(f"sent.{key}") for key in keys),
        end.alias("window_end"),
        "publications", "rejected", "value_bytes",
        F.when(has_time, F.col("publications") / width_s).alias("publications_per_s"),
        F.when(has_time, F.col("value_bytes") / width_s).alias("bytes_per_s"),
        F.coalesce("deliveries", F.lit(0)).alias("deliveries"),
        F.coalesce("nodes", F.lit(0)).alias("nodes"),
        *(
            F.col("percentiles")[place].alias(f"latency_p{round(100 * share)}_ms")
            for place, share in enumerate(_PERCENTILES)
        ),
        "latency_max_ms", "hops_mean", "hops_max", "spread_share", "repair_share",
        F.to_date("sent.window_start").alias(DATE),
    )  # fmt: skip


def _sent(groups: GroupedData) -> DataFrame:
    return groups.agg(
        F.count("*").alias("publications"),
        F.count_if("is_rejected").alias("rejected"),
        F.coalesce(F.sum("value_bytes"), F.lit(0)).alias("value_bytes"),
    )


def _got(groups: GroupedData) -> DataFrame:
    """Aggregate the deliveries of each group; only the broadcast counts hops."""
    is_spread = F.col("origin") == Origin.SPREAD.value
    hops = F.when(is_spread, F.col("hops"))
    return groups.agg(
        F.count("*").alias("deliveries"),
        F.countDistinct("node").alias("nodes"),
        F.percentile("latency_ms", list(_PERCENTILES)).alias("percentiles"),
        F.max("latency_ms").alias("latency_max_ms"),
        F.avg(hops).alias("hops_mean"),
        F.max(hops).alias("hops_max"),
        (F.count_if(is_spread) / F.count("*")).alias("spread_share"),
        (F.count_if(~is_spread) / F.count("*")).alias("repair_share"),
    )
