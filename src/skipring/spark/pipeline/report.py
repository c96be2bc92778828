"""Report on a lake: one page with traffic, gold tables, quarantine and the balance of ids."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pandas as pd
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from skipring.errors import InputError
from skipring.report.page import HtmlReport, Section, render
from skipring.report.tables import Cell, Table, Tone, number
from skipring.spark.errors import translate_spark_errors
from skipring.spark.pipeline.figures import times_figure
from skipring.spark.pipeline.gold import WINDOW
from skipring.spark.pipeline.lake import DATE, TIMELESS, Lake
from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.project import SILVER, Project
from skipring.spark.pipeline.runner import prepare
from skipring.spark.pipeline.state import read_state
from skipring.spark.pipeline.times import DAY_S, date_of, window_start
from skipring.spark.pipeline.upkeep import BRONZE, QUARANTINE
from skipring.storage.data_dir import translate_os_errors

# Measured: a report runs each of its queries once, so compiling them costs more than it saves.
CONF: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
LINES_MAX: Final = 6  # Guess: more lines cannot be distinguished in a figure
COLUMNS_MAX: Final = 4  # Guess: figures of a gold table
ROWS_MAX: Final = 20  # Guess: of a table on the page; the lake has all of them
GOLD_ROWS_MAX: Final = 100_000  # Limit: of a gold table in memory, the latest windows
STEPS_S: Final = ((2, 60), (60, 3600))  # up to this number of days, a step of this length
_NOTHING: Final = "No data yet."
_PREVIEW_BYTES: Final = 80
_COPIES: Final = 1 << 20  # Limit: rows of a table with one id


class Balance(Struct, frozen=True, kw_only=True):
    """Numbers of ids, and of rows in bronze, silver and quarantine."""

    ids: int
    b: int
    s: int
    q: int
    missing: int  # ids of bronze that no other table has
    expired: int = 0  # of these, if the retention of silver depends on another time
    twice: int
    invented: int  # ids that bronze does not have


class ReportFigures(Struct, frozen=True, kw_only=True):
    """Aggregates for the page, small enough for memory."""

    balance: Balance
    step_s: int
    rates: pd.DataFrame
    reasons: pd.DataFrame
    samples: pd.DataFrame
    gold: dict[str, pd.DataFrame]


def write_report(spark: SparkSession, project: Project, out: Path) -> None:
    """Write the report on the lake of a project."""
    prepare(spark)
    with translate_spark_errors():
        files = LakeFiles(spark, project.lake)
        if read_state(files) is None:
            raise InputError(f"{files.uri()} is no lake yet; 'skipring pipeline run' makes one")
        found = read_figures(spark, Lake(spark, files), project)
    page = render(make_page(found, project))
    with translate_os_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")


def read_figures(spark: SparkSession, lake: Lake, project: Project) -> ReportFigures:
    """Compute all aggregates."""
    bronze, silver, bad = (_table(spark, lake, it) for it in (BRONZE, SILVER, QUARANTINE))
    days = len(lake.dates(BRONZE) - {TIMELESS})
    step_s = next((step for most, step in STEPS_S if days <= most), DAY_S)
    at = window_start(F.col("timestamp"), step_s).alias("at")
    size = F.substring("value", 1, _PREVIEW_BYTES).alias("value")
    latest = bad.orderBy(F.desc_nulls_last("timestamp")).limit(ROWS_MAX)
    has_own_time = project.silver.time != "timestamp"
    return ReportFigures(
        balance=_balance(
            (_retained(table, project) for table in (bronze, silver, bad)),
            can_expire=has_own_time and project.retention_days is not None,
        ),
        step_s=step_s,
        rates=bronze.groupBy("topic", at).count().toPandas(),
        reasons=bad.groupBy("topic", "reason").count().toPandas(),
        samples=latest.select("timestamp", "topic", "publisher", "reason", size).toPandas(),
        gold={
            table.name: _table(spark, lake, table.name)
            .orderBy(F.desc_nulls_last(WINDOW)).limit(GOLD_ROWS_MAX).drop(DATE).toPandas()
            for table in project.gold
        },
    )  # fmt: skip


def _table(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    return spark.read.parquet(lake.files.uri(name))


def _retained(table: DataFrame, project: Project) -> DataFrame:
    """Return the rows whose publications bronze retains; others may have expired in one table."""
    days = project.retention_days
    if days is None:
        return table
    return table.where(date_of(F.col("timestamp")) >= datetime.now(UTC).date() - timedelta(days))


def _balance(tables: Iterable[DataFrame], *, can_expire: bool) -> Balance:
    """Count the ids by their numbers of rows in bronze, silver and quarantine.

    One sum has all three numbers as its digits: three sums cost twice as much.
    """
    rows = [table.select("id", F.lit(_COPIES**n).alias("n")) for n, table in enumerate(tables)]
    copies = reduce(DataFrame.union, rows).groupBy("id").agg(F.sum("n").alias("n"))
    found = [(row["n"], row["count"]) for row in copies.groupBy("n").count().collect()]
    ids = [(n % _COPIES, n // _COPIES % _COPIES, n // _COPIES**2, count) for n, count in found]
    missing = sum(count for b, s, q, count in ids if b and not s + q)
    return Balance(
        ids=sum(count for *_, count in ids),
        b=sum(b * count for b, _, _, count in ids),
        s=sum(s * count for _, s, _, count in ids),
        q=sum(q * count for *_, q, count in ids),
        missing=0 if can_expire else missing,
        expired=missing if can_expire else 0,
        twice=sum(count for b, s, q, count in ids if b > 1 or s + q > 1),
        invented=sum(count for b, _, _, count in ids if not b),
    )


# -- the page ----------------------------------------------------------------------------------


def make_page(found: ReportFigures, project: Project) -> HtmlReport:
    """Return the page of the aggregates."""
    topics = ", ".join(project.settings.topics)
    lead = f"{number(found.balance.b)} publications of {topics}{_period(found.rates)}."
    parts = (
        ("Traffic", (_rates(found),)),
        ("Gold", tuple(part for name, rows in found.gold.items() for part in _gold(name, rows))),
        ("The lake", (_balance_section(found), _reasons(found), _samples(found))),
    )
    return HtmlReport(f"skipring: {topics}", lead, _findings(found), parts, _made(project))


def _findings(found: ReportFigures) -> tuple[str, ...]:
    share = f"{number(found.balance.q)} publications are in quarantine."
    return (f"{_verdict(found.balance).signed}.", *([share] if found.balance.q else []))


def _verdict(balance: Balance) -> Cell:
    wrong = {
        "missing": balance.missing,
        "duplicated": balance.twice,
        "not in bronze": balance.invented,
    }
    if not any(wrong.values()):
        text = f"Exactly once: {number(balance.ids)} ids, each once in silver or in quarantine"
        if balance.expired:
            text += f", except {number(balance.expired)} whose time in silver may have expired"
        return Cell(text, Tone.GOOD)
    return Cell("; ".join(f"{number(n)} {what}" for what, n in wrong.items() if n), Tone.BAD)


def _made(project: Project) -> tuple[tuple[str, str], ...]:
    return (
        ("skipring", version("skipring")),
        ("lake", project.lake),
        ("topics", ", ".join(project.settings.topics)),
        ("gold tables", ", ".join(table.name for table in project.gold)),
        ("written", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"),
    )


def _period(rates: pd.DataFrame) -> str:
    times = rates["at"].dropna()
    if times.empty:
        return ""
    return f" from {times.min():%Y-%m-%d %H:%M} to {times.max():%Y-%m-%d %H:%M} UTC"


# -- traffic and gold --------------------------------------------------------------------------


def _rates(found: ReportFigures) -> Section:
    title, key, rows = "Publications over time", "rates", found.rates.dropna(subset="at")
    if rows.empty:
        return Section(key, title, _NOTHING)
    per_s = rows.assign(per_s=rows["count"] / found.step_s).rename(columns={"at": WINDOW})
    reading = f"Publications per second by the time they carry, in steps of {found.step_s} s."
    return Section(
        key, title, reading, times_figure(lines(per_s, ["topic"], "per_s"), "publications/s")
    )


def _gold(name: str, rows: pd.DataFrame) -> list[Section]:
    """Return figures of the numbers of a gold table over time, and its latest rows."""
    numbers = list(rows.select_dtypes("number").columns)
    groups = [it for it in rows.columns if it not in numbers and not _is_time(rows[it])]
    timed = rows.dropna(subset=WINDOW)
    if timed.empty:
        return [Section(name, name, _NOTHING)]
    figures = [
        Section(f"{name}-{column}", f"{name}: {column}", f"By window and {', '.join(groups)}.",
                times_figure(lines(timed, groups, column), column))
        for column in numbers[:COLUMNS_MAX]
    ]  # fmt: skip
    return [*figures, _latest(name, rows)]


def _latest(name: str, rows: pd.DataFrame) -> Section:
    cells = tuple(tuple(_text(each) for each in row) for row in rows.head(ROWS_MAX).to_numpy())
    table = Table(tuple(rows.columns), cells, frozenset(rows.select_dtypes("number").columns))
    return Section(f"{name}-rows", f"{name}: latest rows", "The latest windows.", table=table)


def lines(rows: pd.DataFrame, groups: list[str], column: str) -> dict[str, Any]:
    """Return a line over time for each of the largest groups."""
    names = rows[groups].astype(str).agg(" ".join, axis=1) if groups else column
    named = rows.assign(_line=names)
    largest = named.groupby("_line")[column].sum().nlargest(LINES_MAX).index
    found = {}
    for name in sorted(largest):
        line = named[named["_line"] == name].groupby(WINDOW)[column].sum().sort_index()
        found[name] = (line.index.to_list(), line.to_list())
    return found


def _is_time(column: pd.Series[Any]) -> bool:
    return bool(pd.api.types.is_datetime64_any_dtype(column))


# -- the lake ----------------------------------------------------------------------------------


def _balance_section(found: ReportFigures) -> Section:
    balance = found.balance
    rows = (
        ("rows in bronze", number(balance.b)),
        ("rows in silver", number(balance.s)),
        ("rows in quarantine", number(balance.q)),
        ("exactly once", _verdict(balance)),
    )
    reading = "Every id of bronze is either once in silver or once in quarantine."
    table = Table(("what", "count"), rows, frozenset({"count"}))
    return Section("balance", "Nothing lost, nothing twice", reading, table=table, fold_table=False)


def _reasons(found: ReportFigures) -> Section:
    rows = tuple(
        (row.topic, row.reason, number(row.count)) for row in found.reasons.itertuples(index=False)
    )
    table = Table(("topic", "reason", "publications"), rows, frozenset({"publications"}))
    reading = "Conditions that failed; the table quarantine has the publications unchanged."
    return Section(
        "quarantine", "Quarantine", reading if rows else "All rows passed.",
        table=table if rows else None, fold_table=False,
    )  # fmt: skip


def _samples(found: ReportFigures) -> Section:
    rows = tuple(tuple(_text(each) for each in row) for row in found.samples.to_numpy())
    headings = ("time", "topic", "publisher", "reason", "start of the value")
    reading = "The latest publications in quarantine." if rows else "All rows passed."
    return Section(
        "samples", "Publications in quarantine", reading,
        table=Table(headings, rows) if rows else None, fold_table=False,
    )  # fmt: skip


def _text(value: Any) -> str:  # noqa: ANN401  (a cell of any type)
    if isinstance(value, bytes | bytearray):
        return ascii(bytes(value))[1:]
    if isinstance(value, float):
        return number(value) if value == value else ""  # noqa: PLR0124  (NaN)
    return "" if value is None or value is pd.NaT else str(value)
