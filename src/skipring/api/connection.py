"""Connection to a cluster: connect to supervisors and subscribe to topics."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from skipring.api.charter import TopicCharter
from skipring.api.cursor import Start
from skipring.api.key_value_session import KeyValueSession
from skipring.api.keyvalue import BYTES, KeyValue
from skipring.api.ordered_reader import order_plan
from skipring.api.session import Session, new_session
from skipring.api.subscription import Subscription
from skipring.api.topic_session import TopicSession, checked_topic
from skipring.core.peers import NodeId, TopicId
from skipring.errors import SkipringError, UnconfirmedWarning
from skipring.node.drain import DRAIN_S
from skipring.node.settings import POLICY_DELAY_S


class Connection:
    """Node of this process in the rings of the subscribed topics; returned by ``connect``.

    >>> import asyncio, skipring
    >>> from skipring.testing import Cluster
    >>> async def scene() -> bytes:
    ...     async with (
    ...         Cluster(n=2) as cluster,
    ...         skipring.connect(cluster.url, tick_s=0.05) as node,
    ...         node.subscribe(cluster.topic) as news,
    ...     ):
    ...         await cluster.publish(cluster.nodes[0], b"hello")
    ...         async for publication in news:
    ...             return publication.payload
    >>> asyncio.run(scene())
    b'hello'
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def __await__(self) -> Generator[None, None, NoReturn]:
        """Refuse ``await``: only ``async with`` opens a connection."""
        raise SkipringError(
            "a connection cannot be awaited; open it with "
            "`async with skipring.connect(...) as node: ...`"
        )

    async def __aenter__(self) -> Self:
        await self._session.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
        if (doubt := self._session.doubt) is not None:
            warnings.warn(doubt, UnconfirmedWarning, stacklevel=2)

    @property
    def name(self) -> NodeId:
        """Return the name of the node; empty until connected if it is stored in the directory."""
        return self._session.name

    async def close(self) -> int:
        """Leave all topics and stop; return how many publications no other member has confirmed.

        Open subscriptions first hand over their publications, within ``drain_s``. A second call
        does nothing.
        """
        return await self._session.close()

    def subscribe(
        self,
        topic: TopicId,
        start: Start = "all",
        *,
        order: str = "arrival",
        wait: float | None = None,
        late: str = "mark",
    ) -> Subscription:
        """Return a subscription to a topic; its ``async with`` block joins and leaves the ring.

        ``start="all"`` reads everything, stored publications first; ``"new"`` reads publications
        from now on; a datetime reads publications since then; a cursor continues at its position.
        ``"earliest"`` and ``"latest"`` are synonyms of ``"all"`` and ``"new"``. Raise CursorError
        if a cursor does not point into the data directory of this connection.

        ``order="publisher"`` reads the publications of each publisher by their numbers and waits
        ``wait`` seconds (default: 8 ticks) for missing ones; ``"time"`` reads publications by time,
        ``wait`` seconds (default: 2) after they were published. Those that arrive after later ones
        have ``late`` set, or are omitted with ``late="drop"``.
        """
        plan = order_plan(order, wait_s=wait, late=late, tick_s=self._session.settings.tick_s)
        return Subscription(TopicSession(self._session, topic, start, plan))

    def charter(self, topic: TopicId) -> TopicCharter:
        """Return the charter of a topic: its limits by age, number and size, and compaction."""
        return TopicCharter(self._session, checked_topic(topic))

    def keyvalue(self, topic: TopicId) -> KeyValue[bytes]:
        """Return a key-value view of a topic; its ``async with`` block joins and leaves the ring.

        The values are bytes; ``.json`` of the view has JSON values.
        """
        return KeyValue(KeyValueSession(TopicSession(self._session, topic, "all")), BYTES)


def connect(  # noqa: PLR0913  (each is named, and all but the first are optional)
    url: str | None = None,
    *,
    data_dir: str | Path | None = None,
    name: str | None = None,
    tick_s: float = 1.0,
    listen: str | None = None,
    advertise: str | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    drain_s: float = DRAIN_S,
    policy_delay_s: float = POLICY_DELAY_S,
) -> Connection:
    """Return a connection to a cluster, for use in ``async with``.

    ``url`` lists the supervisors: ``skipring://host:port[,host:port...]``, ``host:port`` or a port
    on loopback. Without it the connection uses SKIPRING_SUPERVISOR, the selected context or
    127.0.0.1:7400. With a data directory the node stores its name and all publications there;
    without one they are in memory. ``ca``, ``cert`` and ``key`` are files of ``skipring certs``;
    without them the node is restricted to loopback. When a subscription ends it waits, at most
    ``drain_s``, until another member has its publications; 0 disables the wait. A policy of
    a topic that this node sets takes effect after ``policy_delay_s``. Raise InputError
    for an invalid argument; the error names it.
    """
    session = new_session(
        url,
        data_dir=data_dir,
        name=name,
        tick_s=tick_s,
        listen=listen,
        advertise=advertise,
        ca=ca,
        cert=cert,
        key=key,
        drain_s=drain_s,
        policy_delay_s=policy_delay_s,
    )
    return Connection(session)
