"""Orders of a topic: raw publications, parsed orders, totals per minute."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()

ORDER = "number INT, placed TIMESTAMP, item STRING, amount DOUBLE"


@dp.table
def orders_raw() -> DataFrame:
    """Return every publication of the topic once, unchanged."""
    return (
        spark.readStream.format("skipring")  # the supervisor in SKIPRING_SUPERVISOR
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )


@dp.table
def orders_parsed() -> DataFrame:
    """Return the orders in the publications; omit other payloads."""
    order = F.from_json(F.col("value").cast("string"), ORDER)
    parsed = spark.readStream.table("orders_raw").select("id", "publisher", order.alias("order"))
    return parsed.select("id", "publisher", "order.*").where("number IS NOT NULL")


@dp.materialized_view
def orders_per_minute() -> DataFrame:
    """Return number and amount of the orders of each minute."""
    minute = F.date_trunc("minute", "placed").alias("minute")
    orders = spark.read.table("orders_parsed").groupBy(minute)
    return orders.agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
