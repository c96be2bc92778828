"""Reading a topic from the command line: join in memory, hand over what comes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, Final

from skipring.core.peers import TopicId
from skipring.errors import UnreachableError
from skipring.runtime.client import Connection
from skipring.runtime.reading import Publication, Start
from skipring.runtime.subscription import Health, HealthState, Subscription

JOINING_S: Final = 5.0  # Our guess: then a person wonders why nothing comes.
JOINING_MAX: Final = 3  # times that; then somebody who wants to end gives up
SYNC_S: Final = 3600.0  # as long as somebody waits who wants to have everything

Emit = Callable[[Publication], None]


async def follow(
    connection: Connection,
    topic: TopicId,
    emit: Emit,
    *,
    start: Start,
    exit_when_synced: bool,
    complain: Callable[[str], object] = str,  # as good as nobody
) -> None:
    """Hand over every publication of a topic, for ever or until the neighbours have no more.

    Who waits for a place in the ring is told why; UnreachableError if there is none and it was only
    to be read until the end.
    """
    async with connection as node, node.subscribe(topic, start) as subscription:
        tasks = {asyncio.create_task(_read(subscription, emit))}
        tasks.add(asyncio.create_task(_watch(subscription, complain, gives_up=exit_when_synced)))
        if exit_when_synced:
            tasks.add(asyncio.create_task(subscription.synced(SYNC_S)))
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # raise what it has ended with
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for publication in await subscription.read_available():
            emit(publication)


async def _watch(
    subscription: Subscription, complain: Callable[[str], object], *, gives_up: bool
) -> None:
    """Say why nothing comes while we have no place in the ring; never end without an error."""
    reasons: tuple[str, ...] = ()
    waited = 0
    while True:
        await asyncio.sleep(JOINING_S)
        health = subscription.health()
        if health.state is not HealthState.JOINING:
            reasons, waited = (), 0
            continue
        waited += 1
        if gives_up and waited >= JOINING_MAX:
            raise UnreachableError(f"not in the ring of {subscription.topic!r}: {_why(health)}")
        if health.reasons != reasons:
            reasons = health.reasons
            complain(f"waiting: {_why(health)}")


def _why(health: Health) -> str:
    return "; ".join(health.reasons)


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
