"""Connections whose internal session a test can read."""

from __future__ import annotations

from pathlib import Path

from skipring.api.connection import Connection
from skipring.api.session import Session, new_session
from skipring.node.drain import DRAIN_S


class InspectedConnection(Connection):
    """Connection of an application, with its session."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.session = session


def inspected(
    url: str,
    *,
    tick_s: float,
    data_dir: str | Path | None = None,
    name: str | None = None,
    drain_s: float = DRAIN_S,
) -> InspectedConnection:
    """Return a connection as ``skipring.connect`` does."""
    session = new_session(url, tick_s=tick_s, data_dir=data_dir, name=name, drain_s=drain_s)
    return InspectedConnection(session)
