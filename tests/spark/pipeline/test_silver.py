"""Typed rows: formats, types of fields, and the reasons of quarantine."""

from __future__ import annotations

import pytest
from msgspec import convert
from pyspark.sql import Row, SparkSession

from skipring.spark.pipeline.project import SilverSchema
from skipring.spark.pipeline.silver import (
    NOT_JSON,
    NOT_UTF8,
    PUBLICATION,
    SilverTable,
    distinct,
    inferred,
)
from tests.spark.pipeline.lakes import publication, rows

pytestmark = pytest.mark.heavy

FIELDS = {"n": {"type": "bigint"}, "at": {"type": "timestamp"}, "other": {"type": "string"}}


def typed(spark: SparkSession, value: bytes | None, **schema: object) -> Row:
    table = SilverTable(convert(schema, SilverSchema), {})
    given = rows(spark, [publication(1, value)]).select("publication.*")
    assert given.columns == spark.createDataFrame([], PUBLICATION).columns
    (row,) = table.typed(given).collect()
    return row


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"n": 1, "at": "2026-03-02T09:00:00Z", "other": "x"}', None),
        (b'{"n": 1, "at": "2026-03-02 09:00:00"}', None),
        (b' {"n": null} ', None),
        (b"{}", None),
        (None, None),
        (b'{"n": 1.5}', "the field n is no bigint"),
        (b'{"n": "1"}', "the field n is no bigint"),
        (b'{"n": 99999999999999999999}', "the field n is no bigint"),
        (b'{"n": "x", "at": "soon"}', "the field n is no bigint; the field at is no timestamp"),
        (b'{"n": 1} {"n": 2}', NOT_JSON),
        (b'{"n": 1}}', NOT_JSON),
        (b'{"n": 1, "n": 2}', NOT_JSON),
        (b'{"n": 1', NOT_JSON),
        (b"1", NOT_JSON),
        (b"", NOT_JSON),
        (b'{"n": "\xff"}', NOT_UTF8),
    ],
)
def test_value_has_the_types_of_the_schema_or_a_reason(
    spark: SparkSession, value: bytes | None, reason: str | None
) -> None:
    assert typed(spark, value, columns=FIELDS)["_reason"] == reason


@pytest.mark.parametrize(
    ("kind", "value", "size", "reason"),
    [
        ("text", "é".encode(), 1, None),
        ("text", b"\xff", None, NOT_UTF8),
        ("binary", b"\xff\xfe", 2, None),
        ("binary", None, None, None),
    ],
)
def test_other_formats_have_expressions(
    spark: SparkSession, kind: str, value: bytes | None, size: int | None, reason: str | None
) -> None:
    columns = {"size": {"type": "bigint", "sql": "length(value)"}}
    row = typed(spark, value, format=kind, columns=columns)
    assert row["_reason"] == reason
    if reason is None:
        assert row["_silver"]["size"] == size


def test_all_failed_conditions_are_named_and_null_is_not_false(spark: SparkSession) -> None:
    expect = {"n is positive": "n > 0", "n is even": "n % 2 = 0", "n is small": "n < 9"}
    row = typed(spark, b'{"n": -1}', columns=FIELDS, expect=expect)
    assert row["_reason"] == "n is positive; n is even"
    assert typed(spark, b"{}", columns=FIELDS, expect=expect)["_reason"] is None


def test_column_can_have_another_name_than_its_field(spark: SparkSession) -> None:
    columns = {"order_id": {"type": "bigint", "field": "id"}}
    row = typed(spark, b'{"id": 7}', columns=columns)
    assert (row["_silver"]["order_id"], row["_fields"]) == (7, [])


def test_types_of_new_fields_are_inferred_from_good_rows(spark: SparkSession) -> None:
    table = SilverTable(convert({"columns": FIELDS}, SilverSchema), {})
    values = [b'{"a": 1, "b": 1.5, "c": true, "d": [1], "x y": 1, "e": null}', b'{"a": 2, "b": 2}',
              b'{"n": "bad", "f": 1}']  # fmt: skip
    given = rows(spark, [publication(n, value) for n, value in enumerate(values)])
    found = table.typed(given.select("publication.*"))
    names = sorted({name for row in found.collect() for name in row["_fields"]})
    assert names == ["a", "b", "c", "d", "e", "f", "x y"]
    expected = {"a": "double", "b": "double", "c": "boolean", "d": "string"}
    assert inferred(found, names, known=FIELDS) == expected
    assert inferred(found, names, known=[str(number) for number in range(1000)]) == {}


def test_names_of_new_fields_differ_from_all_others_as_spark_compares_them() -> None:
    names = ["Item", "ID", "DATE", "a", "A", "Reason", "größe"]
    assert distinct(names, known=["item"]) == ["a", "größe"]


def test_value_of_another_type_in_a_field_that_is_not_declared_is_null(spark: SparkSession) -> None:
    table = SilverTable(convert({"columns": FIELDS}, SilverSchema), {"a": "bigint", "b": "double"})
    given = rows(spark, [publication(1, b'{"n": 1, "a": 1.5, "b": 2}')]).select("publication.*")
    (row,) = table.typed(given).collect()
    assert (row["_reason"], row["_silver"]["a"], row["_silver"]["b"]) == (None, None, 2.0)
