"""Bronze: two streams as one, so that a micro-batch is one thing that happens or does not."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from skipring.spark.pipeline.tables import DATE, day_of

_PUBLICATION: Final = "publication"
_DELIVERY: Final = "delivery"


def together(publications: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Publications and deliveries in two columns, one of which is empty in each row."""
    one = publications.select(F.struct("*").alias(_PUBLICATION))
    other = deliveries.select(F.struct("*").alias(_DELIVERY))
    return one.unionByName(other, allowMissingColumns=True)


def counts(rows: DataFrame) -> tuple[int, int]:
    """How many publications and how many deliveries there are."""
    (found,) = rows.agg(F.count(_PUBLICATION), F.count(_DELIVERY)).collect()
    return int(found[0]), int(found[1])


def publications(rows: DataFrame) -> DataFrame:
    """The publications, with the date of the time that they carry."""
    found = rows.where(F.col(_PUBLICATION).isNotNull()).select(f"{_PUBLICATION}.*")
    return found.withColumn(DATE, day_of("timestamp"))


def deliveries(rows: DataFrame) -> DataFrame:
    """The deliveries, with the date of the arrival."""
    found = rows.where(F.col(_DELIVERY).isNotNull()).select(f"{_DELIVERY}.*")
    return found.withColumn(DATE, day_of("arrived"))
