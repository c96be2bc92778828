"""Silver: decoded publications, each once; others are rejected with the reason."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


class PayloadFormat(StrEnum):
    """Format of values."""

    AUTO = "auto"  # text, which may be a JSON object or array
    JSON = "json"  # JSON of any kind
    TEXT = "text"  # text of any content
    BINARY = "binary"  # bytes of any content


NOT_UTF8: Final = "the value is not UTF-8"
NOT_JSON: Final = "the value is not JSON"

_DECODED: Final = (
    "id", "topic", "publisher", "sequence", "timestamp", "key", "key_text", "kind",
    "value_text", "value", "value_bytes", "headers", "date",
)  # fmt: skip


def fresh(publications: DataFrame, known: DataFrame) -> DataFrame:
    """Return each publication once, without those whose ids are known.

    The id depends on all fields of a publication, its time included. Publications with the same id
    have the same date, so ``known`` needs only the ids of these dates.
    """
    return publications.dropDuplicates(["id"]).join(known.select("id"), "id", "left_anti")


def decoded(publications: DataFrame, values: PayloadFormat) -> DataFrame:
    """Add the decoded columns; ``reason`` states why a publication is rejected."""
    text = F.col("value").cast("string")
    key_text = F.col("key").cast("string")
    return publications.select(
        "*",
        F.when(F.is_valid_utf8(key_text), key_text).alias("key_text"),
        _kind(values, text).alias("kind"),
        _reason(values, text).alias("reason"),
    )


def accepted(found: DataFrame) -> DataFrame:
    """Return the decoded publications with the columns of silver."""
    is_binary = F.col("kind") == "binary"
    shaped = found.where(F.col("reason").isNull()).select(
        "id", "topic", "publisher", "sequence", "timestamp", "key", "key_text", "kind", "date",
        F.when(~is_binary, F.col("value").cast("string")).alias("value_text"),
        F.when(is_binary, F.col("value")).alias("value"),
        F.coalesce(F.octet_length("value"), F.lit(0)).cast("bigint").alias("value_bytes"),
        F.transform_values("headers", lambda _, text: text.cast("string")).alias("headers"),
    )  # fmt: skip
    return shaped.select(*_DECODED)


def rejected(found: DataFrame) -> DataFrame:
    """Return the rejected publications with the columns of bronze, and the reason."""
    return found.where(F.col("reason").isNotNull()).drop("key_text", "kind")


def is_json(text: Column) -> Column:
    """Return a condition: the text is exactly one JSON value.

    Spark parses the first value and ignores the rest. Only white space can follow a value both
    inside an array and inside an object.
    """
    in_array = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]")))
    in_object = F.try_parse_json(F.concat(F.lit('{"":'), text, F.lit("}")))
    return in_array.isNotNull() & in_object.isNotNull()


def _kind(values: PayloadFormat, text: Column) -> Column:
    """Return the kind of a value: json, text, binary, or none without a value."""
    is_document = F.ltrim(text).substr(1, 1).isin("{", "[") & is_json(text)
    kinds = {
        PayloadFormat.AUTO: F.when(F.is_valid_utf8(text) & is_document, "json").otherwise("text"),
        PayloadFormat.JSON: F.lit("json"),
        PayloadFormat.TEXT: F.lit("text"),
        PayloadFormat.BINARY: F.lit("binary"),
    }
    return F.when(F.col("value").isNull(), "none").otherwise(kinds[values])


def _reason(values: PayloadFormat, text: Column) -> Column:
    """Return the reason why a value does not have the format; null if it has, or is absent."""
    nothing = F.lit(None).cast("string")
    if values is PayloadFormat.BINARY:
        return nothing
    reason = F.when(F.col("value").isNull(), nothing).when(~F.is_valid_utf8(text), NOT_UTF8)
    return reason.when(~is_json(text), NOT_JSON) if values is PayloadFormat.JSON else reason
