"""Program that follows a topic into a Parquet table; test_kills.py kills it.

With "drain" it reads the available publications, prints the ids of the table and ends.
"""

from __future__ import annotations

import sys

from skipring.spark import register
from skipring.spark.session import builder as session
from tests.support.spark_session import SMALL

SUPERVISOR, TOPIC, TABLE, CHECKPOINT, TRIGGER = sys.argv[1:]

spark = session.start(master="local[2]", conf=SMALL)
register(spark)
writer = (
    spark.readStream.format("skipring")
    .option("supervisor", SUPERVISOR)
    .option("subscribe", TOPIC)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "500")
    .load()
    .select("id", "offset")
    .writeStream.format("parquet")
    .option("path", TABLE)
    .option("checkpointLocation", CHECKPOINT)
)
if TRIGGER == "drain":
    writer.trigger(availableNow=True).start().awaitTermination()
    for row in spark.read.parquet(TABLE).select("id").collect():
        sys.stdout.write(f"{row.id.hex()}\n")
else:
    writer.trigger(processingTime="0 seconds").start().awaitTermination()
session.stop(spark)
