"""Silver: kinds of values, and reasons of rejection, by format."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from skipring.spark.pipeline.microbatch import publications
from skipring.spark.pipeline.silver import (
    NOT_JSON,
    NOT_UTF8,
    PayloadFormat,
    accepted,
    decoded,
    rejected,
)
from tests.spark.pipeline.lakes import publication, rows

pytestmark = pytest.mark.heavy

BAD = b"\xff\xfe"
VALUES: list[bytes | None] = [
    b'{"a": 1}',
    b" [1, 2]\n",
    b"42",
    b"text",
    b'{"a": 1} {"b": 2}',
    b"1], [2",
    b'1, "b": 2',
    b'{"a": 1, "a": 2}',
    b"",
    BAD,
    None,
]
JSON = {b'{"a": 1}', b" [1, 2]\n", b"42"}


@pytest.fixture(scope="module")
def values(spark: SparkSession) -> DataFrame:
    made = [publication(number, value) for number, value in enumerate(VALUES)]
    return publications(rows(spark, made)).cache()


TEXTS = set(VALUES) - {BAD, None}


@pytest.mark.parametrize(
    ("chosen", "good", "bad"),
    [
        (
            PayloadFormat.AUTO,
            {value: "json" if value in JSON - {b"42"} else "text" for value in TEXTS},
            {BAD: NOT_UTF8},
        ),
        (
            PayloadFormat.JSON,
            dict.fromkeys(JSON, "json"),
            {BAD: NOT_UTF8, **dict.fromkeys(TEXTS - JSON, NOT_JSON)},
        ),
        (PayloadFormat.TEXT, dict.fromkeys(TEXTS, "text"), {BAD: NOT_UTF8}),
        (PayloadFormat.BINARY, dict.fromkeys({*TEXTS, BAD}, "binary"), {}),
    ],
)
def test_each_format_accepts_its_values_and_rejects_others_with_the_reason(
    values: DataFrame,
    chosen: PayloadFormat,
    good: dict[bytes, str],
    bad: dict[bytes, str],
) -> None:
    found = decoded(values, chosen)
    kept = accepted(found).collect()
    assert {VALUES[row.sequence]: row.kind for row in kept} == {**good, None: "none"}
    assert {VALUES[row.sequence]: row.reason for row in rejected(found).collect()} == bad
    if chosen is PayloadFormat.BINARY:
        assert all(row.value == VALUES[row.sequence] for row in kept)
