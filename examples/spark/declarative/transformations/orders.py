"""Orders from a topic: as they were published, parsed, and summed up per minute."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

ORDER = "number INT, placed TIMESTAMP, item STRING, amount DOUBLE"


@dp.table
def orders_raw() -> DataFrame:
    """Every publication of the topic, once, as it came."""
    return (
        spark.readStream.format("skipring")  # at the supervisor of SKIPRING_SUPERVISOR
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )


@dp.table
def orders_parsed() -> DataFrame:
    """The orders in them; what is none is left out."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    parsed = spark.readStream.table("orders_raw").select("id", "publisher", order.alias("order"))
    return parsed.select("id", "publisher", "order.*").where("number IS NOT NULL")


@dp.materialized_view
def orders_per_minute() -> DataFrame:
    """How many orders, and for how much, in each minute."""
    minute = F.date_trunc("minute", "placed").alias("minute")
    orders = spark.read.table("orders_parsed").groupBy(minute)
    return orders.agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
