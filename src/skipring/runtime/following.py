"""Reading a topic from the command line: join in memory, hand over what comes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Final, Literal

from skipring.core.peers import TopicId
from skipring.runtime.client import connect
from skipring.runtime.subscription import Publication, Subscription

SYNC_S: Final = 3600.0  # as long as somebody waits who wants to have everything

Emit = Callable[[Publication], None]


async def follow(
    url: str,
    topic: TopicId,
    emit: Emit,
    *,
    start: Literal["all", "new"],
    tick_s: float,
    exit_when_synced: bool,
) -> None:
    """Hand over every publication of a topic, for ever or until the neighbours have no more."""
    async with connect(url, tick_s=tick_s) as node, node.subscribe(topic, start) as subscription:
        reading = asyncio.create_task(_read(subscription, emit))
        try:
            await (subscription.synced(SYNC_S) if exit_when_synced else reading)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        while subscription.lag:  # what has come and was not read yet
            emit(await anext(subscription))


async def _read(subscription: Subscription, emit: Emit) -> None:
    async for publication in subscription:
        emit(publication)


def as_json(topic: TopicId, publication: Publication) -> dict[str, Any]:
    """A publication as a line of JSON shows it; a payload that is no text is in base64."""
    fields: dict[str, Any] = {
        "id": publication.id.hex(),
        "topic": topic,
        "publisher": publication.publisher,
        "seq": publication.seq,
        "time": publication.time,
        "key": None if publication.key is None else base64.b64encode(publication.key).decode(),
        "headers": publication.headers,
        "replayed": publication.replayed,
        "hops": publication.hops,
    }
    try:
        return fields | {"payload": publication.payload.decode()}
    except UnicodeDecodeError:
        return fields | {"payload_base64": base64.b64encode(publication.payload).decode()}
