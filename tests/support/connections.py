"""Clusters, and connections of applications whose internal session a test can read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from skipring.api.connection import Connection
from skipring.api.session import Session, new_session
from skipring.api.subscription import Subscription
from skipring.net.addresses import LOOPBACK
from skipring.node.drain import DRAIN_S
from skipring.testing import Cluster

TICK_S: Final = 0.05
DEADLINE_S: Final = 60.0  # for operations that take a second or two


class InspectedConnection(Connection):
    """Connection of an application, with its session."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.session = session


@asynccontextmanager
async def healthy_cluster(
    n: int, *, data_dir: Path | None = None, supervisors: int = 1, tick_s: float | None = None
) -> AsyncIterator[Cluster]:
    """Yield a cluster whose ring is healthy."""
    async with Cluster(n, data_dir=data_dir, supervisors=supervisors, tick_s=tick_s) as cluster:
        await cluster.wait_healthy()
        yield cluster


def inspected(
    url: str,
    *,
    tick_s: float = TICK_S,
    data_dir: str | Path | None = None,
    name: str | None = None,
    drain_s: float = DRAIN_S,
    **others: Any,  # noqa: ANN401  (settings of the node)
) -> InspectedConnection:
    """Return a connection as ``skipring.connect`` does, with other settings of its node."""
    session = new_session(url, tick_s=tick_s, data_dir=data_dir, name=name, drain_s=drain_s)
    if others:
        settings = replace(session.settings, **others)
        session = Session(settings, listen=(LOOPBACK, 0), data_dir=None, name=session.name)
    return InspectedConnection(session)


def to(
    cluster: Cluster, data_dir: str | Path | None = None, name: str | None = None
) -> InspectedConnection:
    """Return a connection to a cluster that hands nothing over when it closes."""
    return inspected(cluster.url, data_dir=data_dir, name=name, drain_s=0)


async def read_payloads(source: Subscription, count: int) -> list[bytes]:
    """Wait for the next publications; return their payloads."""
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(source)).payload for _ in range(count)]
