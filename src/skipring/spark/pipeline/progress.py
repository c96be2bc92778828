"""Progress of a pipeline: on the terminal, as JSON, and as Prometheus metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct
from msgspec.json import encode
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from rich.console import Console
from rich.live import Live
from rich.table import Table

from skipring.errors import InputError
from skipring.net.addresses import split_address
from skipring.spark.pipeline.microbatch import BatchFigures

QUARANTINE: Final = "quarantine"


class PipelineProgress(Struct, frozen=True, kw_only=True):
    """Progress of a pipeline after a micro-batch."""

    figures: BatchFigures
    totals: Mapping[str, int]  # new rows of each table since the start of the process
    per_s: float  # publications since the previous micro-batch
    behind: Mapping[str, int] | None  # unread publications by topic; None if unknown

    @property
    def read(self) -> int:
        """Return the number of publications in the micro-batch."""
        return self.figures.rows["bronze"] + self.figures.duplicates


Report = Callable[[PipelineProgress], None]


def behind(progress: Any) -> dict[str, int] | None:  # noqa: ANN401  (Spark's own)
    """Return the number of unread publications of each topic; None if the stores differ."""
    source = progress["sources"][0]
    read, there = _parsed(source["endOffset"]), _parsed(source["latestOffset"])
    if not read or not there:
        return None  # Spark does not report it for a micro-batch that runs again
    found = {}
    for topic, position in there.items():
        known = read.get(topic)
        if known is None or any(known[key] != position[key] for key in ("store", "epoch")):
            return None
        found[topic] = max(0, position["offset"] - known["offset"])
    return found


def _parsed(offset: Any) -> dict[str, Any] | None:  # noqa: ANN401  (Spark's own)
    found: dict[str, Any] | None = json.loads(offset) if isinstance(offset, str) else offset
    return found


# -- terminal ----------------------------------------------------------------------------------


@contextmanager
def live_progress(console: Console, title: str) -> Iterator[Report]:
    """Show progress during the block: a table on a terminal, a line per micro-batch elsewhere."""
    if not console.is_terminal:
        yield lambda progress: console.print(as_line(progress), highlight=False, soft_wrap=True)
        return
    waiting = Table(title=title)
    waiting.add_column("table")
    waiting.add_row("Spark is starting, or there are no publications yet")
    with Live(waiting, console=console, auto_refresh=False) as live:
        live.refresh()
        yield lambda progress: live.update(as_table(title, progress), refresh=True)


def as_json(progress: PipelineProgress) -> str:
    """Return progress as one line of JSON."""
    new = progress.figures
    found = {
        "batch": new.batch,
        "read": progress.read,
        "rows": new.rows,
        "duplicates": new.duplicates,
        "seconds": new.seconds,
        "per_s": progress.per_s,
        "behind": progress.behind,
        "totals": progress.totals,
    }
    return encode(found).decode()


def as_line(progress: PipelineProgress) -> str:
    """Return progress as one line of text."""
    new = progress.figures
    parts = [
        f"batch {new.batch}: {progress.read:,} publications ({progress.per_s:,.0f}/s)",
        *(f"{rows:,} {name}" for name, rows in new.rows.items()),
        f"{new.duplicates:,} duplicate{'s' if new.duplicates != 1 else ''}",
        f"{_behind(progress)} behind",
        f"{new.seconds:.1f} s",
    ]
    return ", ".join(parts)


def as_table(title: str, progress: PipelineProgress) -> Table:
    """Return progress as a table for a terminal."""
    new = progress.figures
    grid = Table(title=title)
    for name in ("table", "rows", "last batch"):
        grid.add_column(name, justify="left" if name == "table" else "right")
    for name, rows in new.rows.items():
        style = "red" if name == QUARANTINE and progress.totals[name] else None
        grid.add_row(name, f"{progress.totals[name]:,}", f"{rows:,}", style=style)
    grid.add_section()
    grid.add_row("rate", f"{progress.per_s:,.1f}/s", "")
    grid.add_row("behind the ring", _behind(progress), "")
    grid.add_row("duplicates removed", "", f"{new.duplicates:,}")
    grid.add_row("batch", f"{new.batch}", f"{new.seconds:.1f} s")
    return grid


def _behind(progress: PipelineProgress) -> str:
    return "?" if progress.behind is None else f"{sum(progress.behind.values()):,}"


# -- metrics -----------------------------------------------------------------------------------


class PipelineMetrics:
    """Metrics of a pipeline for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        given: dict[str, Any] = {"registry": self.registry}
        name = "skipring_pipeline"
        self._rows = Counter(f"{name}_rows", "New rows of a table.", ["table"], **given)
        self._duplicates = Counter(f"{name}_duplicates", "Duplicates removed.", **given)
        self._batches = Counter(f"{name}_batches", "Completed micro-batches.", **given)
        self._seconds = Gauge(f"{name}_batch_seconds", "Time of the last micro-batch.", **given)
        self._last = Gauge(
            f"{name}_last_batch_timestamp_seconds", "End of the last micro-batch.", **given
        )
        self._behind = Gauge(f"{name}_behind", "Unread publications.", ["topic"], **given)

    def record(self, progress: PipelineProgress) -> None:
        """Record a micro-batch."""
        for table, rows in progress.figures.rows.items():
            self._rows.labels(table).inc(rows)
        self._duplicates.inc(progress.figures.duplicates)
        self._batches.inc()
        self._seconds.set(progress.figures.seconds)
        self._last.set_to_current_time()
        for topic, count in (progress.behind or {}).items():
            self._behind.labels(topic).set(count)

    @contextmanager
    def served(self, address: str | None) -> Iterator[int | None]:
        """Serve ``/metrics`` during the block; yield the port."""
        if address is None:
            yield None
            return
        host, port = split_address(address, "metrics", is_secured=False)
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            reason = f"cannot listen on {address}: {error.strerror}"
            raise InputError(reason, parameter="metrics") from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
