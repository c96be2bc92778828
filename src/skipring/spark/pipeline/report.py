"""Report on a lake: one page from its tables."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pandas as pd
from msgspec import Struct
from pyspark.sql import SparkSession

from skipring.core.effects import Origin
from skipring.report.page import HtmlReport, Section, render
from skipring.report.tables import Cell, Cells, Table, Tone, number, percent
from skipring.spark.errors import translate_spark_errors
from skipring.spark.pipeline import aggregates, figures, gold
from skipring.spark.pipeline.lake import Name, kept, table
from skipring.spark.pipeline.manifest import Manifest
from skipring.storage.data_dir import translate_os_errors

TOPICS_MAX: Final = 6  # Guess: more lines cannot be distinguished in a figure
ROWS_MAX: Final = 100  # Guess: of a table on the page; the lake has all of them
_NOTHING: Final = "No data yet."
_NONE: Final = "–"  # noqa: RUF001  (a dash for nothing)
_KIB: Final = 1024
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_CLOCKS: Final = (
    "Latency is the time of arrival by the clock of the node, minus the time of publication by the "
    "clock of the publisher. Clocks that differ distort it; it may be negative."
)
_SPREAD_ONLY: Final = "Latencies are those of the broadcast; repairs do not count."


class Found(Struct, frozen=True, kw_only=True):
    """Aggregates for the page, small enough for memory."""

    balance: Any
    extent: Any
    step_s: int
    rates: pd.DataFrame
    latencies: pd.DataFrame
    distribution: pd.DataFrame
    hops: pd.DataFrame
    nodes: pd.DataFrame
    publishers: pd.DataFrame
    reasons: pd.DataFrame
    samples: pd.DataFrame


def write_report(spark: SparkSession, lake: Path, about: Manifest, out: Path) -> None:
    """Write the report on a lake."""
    with translate_spark_errors():
        found = look(spark, lake, about)
    page = render(make_page(found, about, lake))
    with translate_os_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")


def look(spark: SparkSession, lake: Path, about: Manifest) -> Found:
    """Compute all aggregates."""
    tables = {name: table(spark, lake, name) for name in Name}
    bronze, silver, rejected = (tables[it] for it in (Name.BRONZE, Name.SILVER, Name.REJECTED))
    published = gold.published(silver, rejected, about.window_s)
    (balance,) = aggregates.balance(bronze, silver, rejected).collect()
    (extent,) = aggregates.extent(published).collect()
    step_s = aggregates.bucket_s(extent.first_s or 0.0, extent.last_s or 0.0, about.window_s)
    with kept(gold.delivered(published, tables[Name.DELIVERIES])) as delivered:
        return Found(
            balance=balance,
            extent=extent,
            step_s=step_s,
            rates=aggregates.rates(published, step_s).toPandas(),
            latencies=aggregates.latencies(delivered, step_s).toPandas(),
            distribution=aggregates.distribution(delivered).toPandas(),
            hops=aggregates.hops(delivered).toPandas(),
            nodes=aggregates.nodes(delivered).toPandas(),
            publishers=aggregates.publishers(published, delivered).limit(ROWS_MAX).toPandas(),
            reasons=aggregates.reasons(rejected).toPandas(),
            samples=aggregates.samples(rejected).toPandas(),
        )


# -- the page ----------------------------------------------------------------------------------


def make_page(found: Found, about: Manifest, lake: Path) -> HtmlReport:
    """Return the page of the aggregates."""
    extent = found.extent
    lead = (
        f"{number(extent.publications)} publications with {_size(extent.value_bytes)} of values "
        f"{_period(extent)}, in {_many(extent.topics, 'topic')} from "
        f"{_many(extent.publishers, 'publisher')}."
    )
    parts = (
        ("Traffic", (_rates(found), _bytes(found), _publishers(found))),
        ("Delivery", (_latencies(found), _distribution(found), _hops(found))),
        ("Spread or repaired", (_ways(found), _nodes(found))),
        ("The lake", (_balance(found), _rejected(found), _samples(found))),
    )
    return HtmlReport(
        f"skipring: {', '.join(about.topics)}", lead, _findings(found), parts, _made(about, lake)
    )


def _findings(found: Found) -> tuple[str, ...]:
    balance, nodes = found.balance, found.nodes
    said = [f"{_verdict(balance).signed}."]
    came = int(nodes.deliveries.sum()) if len(nodes) else 0
    if came:
        middle = found.distribution.set_index("origin").latency_ms
        if Origin.SPREAD.value in middle:
            said.append(
                f"Half of the broadcast deliveries arrived within {_ms(middle['spread'][50])}."
            )
        share = int(nodes.repaired.sum()) / came
        said.append(f"{percent(1 - share)} of the deliveries came by broadcast, "
                    f"{percent(share)} by repair.")  # fmt: skip
    if len(found.hops):
        last = int(found.hops.hops.max())
        said.append(f"The broadcast took at most {_many(last, 'hop')}.")
    if balance.rejected_rows:
        said.append(f"{_many(balance.rejected_rows, 'publication')} could not be decoded.")
    return tuple(said)


def _verdict(balance: Any) -> Cell:  # noqa: ANN401  (a row of Spark's)
    wrong = {
        "missing": balance.missing,
        "duplicated": balance.twice,
        "not in bronze": balance.invented,
    }
    if not any(wrong.values()):
        text = f"Exactly once: {number(balance.ids)} ids in bronze, each once in silver or rejected"
        return Cell(text, Tone.GOOD)
    return Cell("; ".join(f"{number(n)} {what}" for what, n in wrong.items() if n), Tone.BAD)


def _made(about: Manifest, lake: Path) -> tuple[tuple[str, str], ...]:
    return (
        ("skipring", version("skipring")),
        ("lake", str(lake)),
        ("topics", ", ".join(about.topics)),
        ("supervisors", ", ".join(about.supervisors)),
        ("values", about.values),
        ("windows of gold", f"{about.window_s} s"),
        ("written", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"),
    )


# -- traffic -----------------------------------------------------------------------------------


def _rates(found: Found) -> Section:
    title, key = "Publications over time", "rates"
    if found.rates.empty:
        return Section(key, title, _NOTHING)
    reading = f"Publications per second by the time they carry, in steps of {_time(found.step_s)}."
    lines = _lines(found, "per_s")
    notes: tuple[str, ...] = ()
    if found.extent.without_time:
        notes = (f"Without a plausible time: {_many(found.extent.without_time, 'publication')}.",)
    return Section(key, title, reading, figures.times_figure(lines, "publications/s"), notes=notes)


def _bytes(found: Found) -> Section:
    title, key = "Bytes over time", "bytes"
    if found.rates.empty:
        return Section(key, title, _NOTHING)
    reading = f"Bytes of values per second, in steps of {_time(found.step_s)}."
    return Section(
        key, title, reading, figures.times_figure(_lines(found, "bytes_per_s"), "bytes/s")
    )


def _lines(found: Found, column: str) -> dict[str, Any]:
    """Return a line for each of the busiest topics; steps without publications are zero."""
    rates = found.rates
    busiest = rates.groupby("topic")[column].sum().nlargest(TOPICS_MAX).index
    steps = pd.date_range(rates["at"].min(), rates["at"].max(), freq=f"{found.step_s}s")
    lines = {topic: rates[rates.topic == topic].set_index("at")[column] for topic in busiest}
    return {
        topic: (steps.tolist(), lines[topic].reindex(steps, fill_value=0).tolist())
        for topic in sorted(lines)
    }


def _publishers(found: Found) -> Section:
    rows = found.publishers.itertuples()
    cells: list[Cells] = [
        (row.topic, row.publisher, number(row.publications), _size(row.value_bytes),
         number(row.rejected), *_received(row))
        for row in rows
    ]  # fmt: skip
    headings = ("topic", "publisher", "publications", "values", "rejected", *_RECEIVED)
    told = Table(headings, tuple(cells), frozenset(headings[2:]))
    reading = f"Publishers, the busiest first, and the deliveries at other nodes. {_SPREAD_ONLY}"
    return Section(
        "publishers", "Publishers", reading if cells else _NOTHING,
        table=told if cells else None, fold_table=False,
    )  # fmt: skip


_RECEIVED: Final = (
    "deliveries", *(f"spread p{percent} in ms" for percent in aggregates.PERCENTS), "repaired",
)  # fmt: skip


def _received(row: Any) -> Cells:  # noqa: ANN401  (a row of pandas')
    if not row.deliveries > 0:  # none, or NaN
        return ("0", *[_NONE] * (len(_RECEIVED) - 1))
    latencies = (_figure(each) for each in (row.p50, row.p95, row.p99))
    return (number(row.deliveries), *latencies, percent(row.repaired / row.deliveries))


# -- delivery ----------------------------------------------------------------------------------


def _latencies(found: Found) -> Section:
    title, key, rows = "Latency over time", "latency", found.latencies.dropna(subset="p50")
    if rows.empty:
        return Section(key, title, _NOTHING)
    names = {"p50": "half within", "p95": "95 % within", "p99": "99 % within"}
    lines = {name: (rows["at"].tolist(), rows[key].tolist()) for key, name in names.items()}
    step = _time(found.step_s)
    reading = f"Latency of the broadcast to other nodes, in steps of {step}. {_SPREAD_ONLY}"
    is_log = bool((rows[list(names)] > 0).all(axis=None))
    figure = figures.times_figure(lines, "ms", is_log=is_log)
    return Section(key, title, reading, figure, notes=(_CLOCKS,))


def _distribution(found: Found) -> Section:
    title, key = "Distribution of the latency", "distribution"
    if found.distribution.empty:
        return Section(key, title, _NOTHING)
    curves = {row.origin: list(row.latency_ms) for row in found.distribution.itertuples()}
    read = [f"{way}: half within {_ms(values[50])}, 99 % within {_ms(values[99])}"
            for way, values in curves.items()]  # fmt: skip
    figure = figures.distribution_figure(curves, aggregates.SHARES)
    return Section(key, title, f"By origin. {'; '.join(read)}.", figure)


def _hops(found: Found) -> Section:
    title, key, rows = "Hops", "hops", found.hops
    if rows.empty:
        return Section(key, title, _NOTHING)
    mean = float((rows.hops * rows["count"]).sum() / rows["count"].sum())
    reading = f"Hops of the broadcast: {number(round(mean, 2))} on average."
    figure = figures.hops_figure(rows.hops.tolist(), rows["count"].tolist())
    return Section(key, title, reading, figure)


def _ways(found: Found) -> Section:
    title, key, rows = "Spread or repaired, over time", "ways", found.latencies
    if rows.empty:
        return Section(key, title, _NOTHING)
    counts = {"spread": rows.spread.tolist(), "repair": rows.repaired.tolist()}
    reading = (
        "New publications are broadcast over the ring and its shortcuts. A node that missed some "
        "receives them by repair, when neighbours compare their publications."
    )
    return Section(key, title, reading, figures.shares_over_time(rows["at"].tolist(), counts))


def _nodes(found: Found) -> Section:
    title, key, rows = "Nodes", "nodes", found.nodes.head(ROWS_MAX)
    if rows.empty:
        return Section(key, title, _NOTHING)
    counts = {"spread": rows.spread.tolist(), "repair": rows.repaired.tolist()}
    headings = ("node", *_RECEIVED)
    cells = tuple((row.node, *_received(row)) for row in rows.itertuples())
    return Section(
        key, title, f"Deliveries at each node from other nodes. {_SPREAD_ONLY}",
        figures.nodes_figure(rows.node.tolist(), counts),
        Table(headings, cells, frozenset(_RECEIVED)), fold_table=False,
    )  # fmt: skip


# -- the lake ----------------------------------------------------------------------------------


def _balance(found: Found) -> Section:
    balance = found.balance
    rows = (
        ("rows in bronze", number(balance.bronze_rows)),
        ("ids in bronze", number(balance.ids - balance.invented)),
        ("duplicates removed", number(balance.bronze_rows - balance.ids + balance.invented)),
        ("rows in silver", number(balance.silver_rows)),
        ("rows in rejected", number(balance.rejected_rows)),
        ("exactly once", _verdict(balance)),
    )
    reading = "Every id of bronze is either once in silver or once in rejected."
    return Section(
        "balance", "Nothing lost, nothing twice", reading,
        table=Table(("what", "count"), rows, frozenset({"count"})), fold_table=False,
    )  # fmt: skip


def _rejected(found: Found) -> Section:
    rows = tuple(
        (row.topic, row.reason, number(row.count)) for row in found.reasons.itertuples(index=False)
    )
    told = Table(("topic", "reason", "publications"), rows, frozenset({"publications"}))
    reading = "Reasons of rejection; the table rejected has the publications unchanged."
    return Section(
        "rejected", "Rejected", reading if rows else "Nothing was rejected.",
        table=told if rows else None, fold_table=False,
    )  # fmt: skip


def _samples(found: Found) -> Section:
    rows = tuple(
        (row.time or _NONE, row.topic, row.publisher, str(row.sequence), row.reason,
         _preview(row.start, row.size))
        for row in found.samples.itertuples()
    )  # fmt: skip
    headings = ("time", "topic", "publisher", "sequence", "reason", "start of the value")
    reading = "The latest rejected publications." if rows else "Nothing was rejected."
    told = Table(headings, rows, frozenset({"sequence"})) if rows else None
    return Section("samples", "Rejected publications", reading, table=told, fold_table=False)


# -- formats -------------------------------------------------------------------------------------


def _preview(start: bytes | bytearray | None, size: int) -> str:
    """Return the start of a value as a Python literal."""
    text = ascii(bytes(start or b""))[1:]
    return text if size <= aggregates.PREVIEW_BYTES else f"{text} … of {_size(size)}"


def _period(extent: Any) -> str:  # noqa: ANN401  (a row of Spark's)
    if extent.first_s is None:
        return "at unknown times"
    first, last = (datetime.fromtimestamp(it, UTC) for it in (extent.first_s, extent.last_s))
    return f"from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC"


def _many(count: int, what: str) -> str:
    return f"{number(count)} {what}{'' if count == 1 else 's'}"


def _size(size_bytes: float) -> str:
    unit = 0
    while size_bytes >= _KIB and unit + 1 < len(_UNITS):
        size_bytes, unit = size_bytes / _KIB, unit + 1
    return f"{number(size_bytes)} {_UNITS[unit]}"


def _ms(value: float | None) -> str:
    return f"{_figure(value)} ms"


def _figure(value: float | None) -> str:
    return _NONE if value is None or pd.isna(value) else number(value)


def _time(seconds: int) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
