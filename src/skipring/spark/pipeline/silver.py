"""Silver: typed publications; rows that fail a condition get a reason instead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.errors import InputError
from skipring.spark.arrow import publication_schema, spark_schema
from skipring.spark.pipeline.project import PayloadFormat, SilverColumn, SilverSchema

PUBLICATION: Final = spark_schema(publication_schema("map"))
META: Final = "`id` binary, `topic` string, `publisher` string, `sequence` bigint, `timestamp` timestamp, `key` string"  # noqa: E501
META_NAMES: Final = ("id", "topic", "publisher", "sequence", "timestamp", "key")
RESERVED_NAMES: Final = (*META_NAMES, "value", "headers", "partition", "offset", "date", "reason")
FIELDS_MAX: Final = 200  # Limit: columns that payloads can add; a publisher may send any name.

NOT_UTF8: Final = "the value is not UTF-8"
NOT_JSON: Final = "the value is not a JSON object"

_CORRUPT: Final = "_corrupt"
# Types of new fields; a value of any other type is text, which contains its JSON. The first values
# of a field may be whole numbers by chance, so each number is a double.
_INFERRED: Final = {"BIGINT": "double", "DOUBLE": "double", "FLOAT": "double", "BOOLEAN": "boolean"}


class SilverTable:
    """Columns of silver, and the functions of rows that make it."""

    def __init__(self, schema: SilverSchema, added: Mapping[str, str]) -> None:
        self._schema = schema
        is_json = schema.format is PayloadFormat.JSON
        others = distinct(added, known=schema.columns) if is_json else []
        self._added = {name: added[name] for name in others}
        self._columns = schema.columns | {
            name: SilverColumn(kind) for name, kind in self._added.items()
        }

    @property
    def types(self) -> dict[str, str]:
        """Return the types of the columns of the payload."""
        return {name: column.type for name, column in self._columns.items()}

    @property
    def columns(self) -> str:
        """Return the columns in Spark's notation."""
        own = [f"{quoted(name)} {column.type}" for name, column in self._columns.items()]
        return ", ".join([META, *own])

    @property
    def time(self) -> str:
        """Return the column of the time by which the table is partitioned."""
        return self._schema.time

    def check(self, spark: SparkSession) -> None:
        """Raise InputError if a type, an expression or a condition is wrong."""
        usable = distinct(self._columns)
        for name in self._columns:
            if name not in usable or name.startswith("_"):
                raise InputError(f"the schema cannot have a column {name!r}; choose another name")
        try:
            empty = spark.createDataFrame([], PUBLICATION)
            types = dict(self.typed(empty).select("_silver.*").dtypes)
        except (AnalysisException, ParseException) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"the schema of silver is wrong: {reason}") from None
        if types.get(self.time) != "timestamp":
            raise InputError(f"the schema has no column {self.time!r} of type timestamp")

    def typed(self, rows: DataFrame) -> DataFrame:
        """Add the struct ``_silver``, its ``_reason`` and the names of new fields."""
        text = F.col("value").cast("string")
        fields = {
            column.field or name: column.type
            for name, column in self._schema.columns.items()
            if column.sql is None
        }
        ddl = _ddl(fields)
        corrupt = f"{ddl}, {_CORRUPT} string" if ddl else f"{_CORRUPT} string"
        parsed = F.from_json(text, corrupt, {"columnNameOfCorruptRecord": _CORRUPT})
        is_json = self._schema.format is PayloadFormat.JSON
        found = rows.select(F.struct("*").alias("_row"), "*")
        if is_json:
            found = found.withColumn("_parsed", parsed)
        if self._added:  # apart, because a value of another type is no reason for quarantine
            found = found.withColumn("_others", F.from_json(text, _ddl(self._added)))
        found = self._with_columns(found, text)
        names = [*META_NAMES, *self._columns]
        key = F.col("key").cast("string")
        silver = F.struct(
            *(
                F.when(F.is_valid_utf8(key), key).alias("key") if name == "key" else quoted(name)
                for name in names
            )
        )
        problem = self._problem(text, fields)
        failed = F.nullif(F.concat_ws("; ", *self._expectations()), F.lit(""))
        return found.select(
            "_row.*",
            silver.alias("_silver"),
            F.coalesce(problem, failed).alias("_reason"),
            (self._new_fields(text) if is_json else F.lit(None).cast("array<string>")).alias(
                "_fields"
            ),
        )

    def _with_columns(self, rows: DataFrame, text: Column) -> DataFrame:
        """Add the columns of the payload, fields first, then expressions in their order."""
        for name, column in self._columns.items():
            if column.sql is None:
                parsed = "_others" if name in self._added else "_parsed"
                rows = rows.withColumn(name, F.col(f"{parsed}.{quoted(column.field or name)}"))
        if self._schema.format is PayloadFormat.TEXT:
            rows = rows.withColumn("value", text)
        for name, column in self._columns.items():
            if column.sql is not None:
                rows = rows.withColumn(name, F.expr(column.sql).cast(column.type))
        return rows

    def _problem(self, text: Column, fields: Mapping[str, str]) -> Column:
        """Return the reason why a value cannot be parsed; null if it can, or is absent."""
        value = F.col("_row.value").cast("string")
        reason = F.when(value.isNull(), F.lit(None).cast("string"))
        if self._schema.format is PayloadFormat.BINARY:
            return F.lit(None).cast("string")
        reason = reason.when(~F.is_valid_utf8(value), NOT_UTF8)
        if self._schema.format is PayloadFormat.TEXT:
            return reason
        mismatches = (
            F.when(
                F.get_json_object(value, f"$['{name}']").isNotNull()
                & F.col(f"_parsed.{quoted(name)}").isNull(),
                f"the field {name} is no {kind}",
            )
            for name, kind in fields.items()
        )
        wrong = F.coalesce(
            F.nullif(F.concat_ws("; ", *mismatches), F.lit("")), F.lit("a field has another type")
        )
        reason = reason.when(~is_json_object(value), NOT_JSON)
        return reason.when(F.col(f"_parsed.{_CORRUPT}").isNotNull(), wrong)

    def _expectations(self) -> list[Column]:
        """Return the name of each condition that is false; as in SQL, null is not false."""
        return [
            F.when(~F.expr(f"({condition})"), name)
            for name, condition in self._schema.expect.items()
        ]

    def _new_fields(self, text: Column) -> Column:
        if self._schema.new_fields == "ignore":
            return F.lit(None).cast("array<string>")
        known = {column.field or name for name, column in self._columns.items()}
        names = F.json_object_keys(text)
        return F.array_except(names, F.array(*(F.lit(each) for each in sorted(known))))


def inferred(rows: DataFrame, names: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Return the types of new fields of good rows; skip those that are no names of columns."""
    usable = [
        name for name in distinct(names, known)
        if name.isidentifier() and not name.startswith("_")
    ][: max(0, FIELDS_MAX - len(known))]  # fmt: skip
    if not usable:
        return {}
    value = F.try_parse_json(F.col("value").cast("string"))
    types = rows.where("_reason IS NULL").agg(
        *(F.schema_of_variant_agg(F.try_variant_get(value, f"$.{name}", "variant")).alias(name)
          for name in usable)
    ).collect()[0]  # fmt: skip
    return {
        name: "double" if kind.startswith("DECIMAL") else _INFERRED.get(kind, "string")
        for name, kind in types.asDict().items()
        if kind not in {None, "VOID"}
    }


def is_json_object(text: Column) -> Column:
    """Return a condition: the text is exactly one JSON object.

    Spark parses the first value and ignores the rest. Only white space can follow a value both
    inside an array and inside an object.
    """
    in_array = F.try_parse_json(F.concat(F.lit("["), text, F.lit("]")))
    in_object = F.try_parse_json(F.concat(F.lit('{"":'), text, F.lit("}")))
    is_object = F.ltrim(text).startswith("{")
    return is_object & in_array.isNotNull() & in_object.isNotNull()


def distinct(names: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """Return the names that differ from each other, from known and from reserved names."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(folded(name), name)
    taken = {folded(name) for name in (*RESERVED_NAMES, *known)}
    return [name for key, name in first.items() if key not in taken]


def folded(name: str) -> str:
    """Return a text that is the same for names which Spark regards as equal.

    Spark ignores the case of columns, as Java does: it compares upper case, then lower case.
    """
    return name.upper().casefold()


def _ddl(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in fields.items())


def quoted(name: str) -> str:
    """Return a name of a column for Spark."""
    return f"`{name.replace('`', '``')}`"
