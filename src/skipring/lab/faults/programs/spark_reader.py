"""Spark query that drains a topic into a table, from its checkpoint on, and prints the payloads.

Arguments: SUPERVISOR TABLE CHECKPOINT. If the query fails, the program prints the reason and ends
with exit status 3.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from skipring.spark import register, session

REFUSED: Final = "refused"
REFUSED_STATUS: Final = 3
SMALL: Final = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}


def print_now(line: str) -> None:
    """Write a line in one system call."""
    os.write(1, line.encode() + b"\n")


def main(supervisor: str, table: str, checkpoint: str) -> None:
    """Drain once."""
    spark = session.start(master="local[1]", conf=SMALL)
    register(spark)
    query = (
        spark.readStream.format("skipring")
        .option("supervisor", supervisor)
        .option("subscribe", "news")
        .option("startingOffsets", "earliest")
        .load()
        .select("value")
        .writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    try:
        query.start().awaitTermination()
    except Exception as error:  # noqa: BLE001  (of Spark, in many kinds; the harness reads it)
        print_now(f"{REFUSED} {' '.join(str(error).split())}")
        sys.exit(REFUSED_STATUS)
    for row in spark.read.parquet(table).collect():
        print_now(bytes(row.value).hex())
    print_now("end")
    session.stop(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
