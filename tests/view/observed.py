"""Healthy rings with an observer or a monitor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skipring.testing import Cluster
from skipring.view.monitor import TopicMonitor
from skipring.view.overview import Observer

PATIENCE_S = 30.0


@asynccontextmanager
async def observed(n: int, supervisors: int = 1) -> AsyncIterator[tuple[Cluster, Observer]]:
    """Yield a healthy ring and its observer."""
    async with Cluster(n=n, supervisors=supervisors) as cluster:
        await cluster.wait_healthy(timeout=PATIENCE_S)
        async with Observer(cluster.url.removeprefix("skipring://").split(",")) as observer:
            yield cluster, observer


@asynccontextmanager
async def monitored(n: int) -> AsyncIterator[tuple[Cluster, TopicMonitor]]:
    """Yield a healthy ring and the monitor of its topic."""
    async with observed(n) as (cluster, observer):
        yield cluster, TopicMonitor(observer, cluster.topic)
