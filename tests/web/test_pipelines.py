"""Lag of pipelines: read from their metrics pages, and served by the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from skipring.web.pipelines import lags
from skipring.web.server import Dashboard
from tests.web.asking import Visitor

UNUSED = "127.0.0.1:9"  # no process listens here


@contextmanager
def metrics_page(*, is_pipeline: bool = True, last: float | None = 1.0) -> Iterator[str]:
    """Serve metrics as a pipeline does; yield the address."""
    registry = CollectorRegistry()
    if is_pipeline:
        behind = Gauge("skipring_pipeline_behind", "Unread.", ["topic"], registry=registry)
        behind.labels("orders").set(7)
        name = "skipring_pipeline_last_batch_timestamp_seconds"
        ended = Gauge(name, "End.", registry=registry)
        ended.set(last or 0)
    with served(registry) as address:
        yield address


@contextmanager
def served(registry: CollectorRegistry) -> Iterator[str]:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_lag_and_age_are_read_from_the_metrics() -> None:
    with metrics_page() as address, metrics_page(last=None) as new:
        found, fresh = asyncio.run(lags([address, new]))
    assert found.behind == fresh.behind == {"orders": 7}
    assert found.age_s is not None
    assert found.age_s > 1e9
    assert fresh.age_s is None


def test_lag_of_streams_is_read_from_the_metrics() -> None:
    registry = CollectorRegistry()
    name = "skipring_stream_lag_publications"  # as skipring.spark.lag
    lag = Gauge(name, "Unread.", ["query", "topic"], registry=registry)
    lag.labels('my "rates"', "orders").set(15)
    with served(registry) as address, served(CollectorRegistry()) as other:
        found, silent = asyncio.run(lags([address, other]))
    assert found.is_stream
    assert found.behind == {'orders (my \\"rates\\")': 15}
    assert silent.behind is None


@pytest.mark.parametrize("is_pipeline", [True, False])
def test_page_without_a_pipeline_has_no_lag(is_pipeline: bool) -> None:
    with metrics_page(is_pipeline=False) as other:
        (found,) = asyncio.run(lags([UNUSED if is_pipeline else other]))
    assert (found.behind, found.age_s) == (None, None)


def test_dashboard_serves_the_lag() -> None:
    async def ask(address: str) -> list[dict[str, object]]:
        async with Dashboard([UNUSED], pipelines=[address, UNUSED]) as dashboard:
            visitor = Visitor(dashboard)
            await visitor.enter()
            settings = (await visitor.get("/api/settings")).value
            assert settings["pipelines"] == [address, UNUSED]
            found: list[dict[str, object]] = (await visitor.get("/api/pipelines")).value
            return found

    with metrics_page() as address:
        known, silent = asyncio.run(ask(address))
    assert (known["address"], known["behind"]) == (address, {"orders": 7})
    assert silent == {"address": UNUSED, "behind": None, "is_stream": False, "age_s": None}
