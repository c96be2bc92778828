"""Lag of streams: the unread publications of each topic, as a metric for Prometheus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from skipring.core.peers import TopicId
from skipring.errors import InputError
from skipring.net.addresses import LOOPBACK
from skipring.spark.offsets import from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import SourceProgress

METRIC: Final = "skipring_stream_lag_publications"


def lag_of(end: str | None, latest: str | None) -> dict[TopicId, int]:
    """Return the unread publications between two offsets in JSON, as a query reports them.

    A topic whose positions are in different stores is omitted: their offsets differ.
    """
    try:
        before, after = (from_json(json.loads(text or "{}") or {}) for text in (end, latest))
    except (ValueError, AttributeError, InputError):
        return {}  # the source is another one
    return {
        topic: max(0, last.offset - before[topic].offset)
        for topic, last in after.items()
        if topic in before and last.is_in_log_of(before[topic])
    }


class LagListener(StreamingQueryListener):
    """Listener that keeps the lag of all queries of a session in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = Gauge(
            METRIC,
            "Publications that a streaming query has not read yet",
            ["query", "topic"],
            registry=registry,
        )
        self._seen: dict[str, set[tuple[str, TopicId]]] = {}  # by id of the query's run

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the first progress has the first lag."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Record the lag after a micro-batch."""
        progress = event.progress
        for source in progress.sources:
            self.record(str(progress.runId), progress.name or str(progress.id), source)

    def record(self, run: str, query: str, source: SourceProgress) -> None:
        """Record the lag of one source of a query."""
        for topic, lag in lag_of(source.endOffset, source.latestOffset).items():
            self._lag.labels(query, topic).set(lag)
            self._seen.setdefault(run, set()).add((query, topic))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has read everything."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the lag of a query that has ended."""
        for labels in self._seen.pop(str(event.runId), ()):
            self._lag.remove(*labels)


def serve_lag(spark: SparkSession, port: int, host: str = LOOPBACK) -> LagListener:
    """Serve the lag of the session's streaming queries at ``http://host:port/metrics``."""
    registry = CollectorRegistry()
    listener = LagListener(registry)
    spark.streams.addListener(listener)
    start_http_server(port, addr=host, registry=registry)
    return listener
