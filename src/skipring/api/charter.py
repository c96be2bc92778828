"""Charter of a topic: read and set its limits, as a member (docs/retention.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, Literal

from msgspec import ValidationError, convert

from skipring.api.session import Session
from skipring.api.topic_session import TopicSession, why_not_joined
from skipring.core.events import SyncRequested
from skipring.core.limits import shown
from skipring.core.peers import TopicId
from skipring.core.retention.charter import (
    RETAIN_NOTHING,
    Charter,
    Policy,
    charter_record,
    following_charter,
)
from skipring.core.subscriber import Subscriber
from skipring.errors import InputError
from skipring.observability.clock import time_us

JOIN_S: Final = 30.0  # as ``Subscription.synced``
BEGIN_TICKS: Final = 8  # Guess: a charter without a delay is in effect by then.
POLL_S: Final = 0.05  # Guess: a neighbour answers within a few of these.
TOMBSTONES: Final = timedelta(days=30)

Tombstones = timedelta | Literal["keep"]


class TopicCharter:
    """Charter of one topic; returned by ``Connection.charter``.

    A charter sets all limits of a topic; an omitted one does not exist. If this connection has not
    subscribed to the topic, each method joins it for the call.

    >>> import asyncio, skipring
    >>> from datetime import timedelta
    >>> from skipring.testing import Cluster
    >>> async def scene() -> int | None:
    ...     async with (
    ...         Cluster(n=2, topic="orders") as cluster,
    ...         skipring.connect(cluster.url, tick_s=0.05) as node,
    ...         node.subscribe("orders"),
    ...     ):
    ...         charter = await node.charter("orders").set(max_age=timedelta(days=7))
    ...         return charter.policy.max_age_s
    >>> asyncio.run(scene())
    604800
    """

    def __init__(self, session: Session, topic: TopicId) -> None:
        self._session = session
        self._topic = topic

    async def set(
        self,
        *,
        max_age: timedelta | None = None,
        max_count: int | None = None,
        max_bytes: int | None = None,
        compact: bool = False,
        tombstones: Tombstones = TOMBSTONES,
    ) -> Charter:
        """Set the limits of the topic; return the charter once it is stored here.

        Members drop what is older than ``max_age``, and the oldest beyond ``max_count`` records
        or ``max_bytes``. A compacted topic retains only the newest publication of each key, and
        forgets deletions after ``tombstones``. The charter takes effect at once in a topic without
        publications, otherwise after ``policy_delay_s`` of the connection. Raise InputError for an
        invalid limit, and TimeoutError if the neighbours do not answer.
        """
        policy = policy_of(
            max_age=max_age,
            max_count=max_count,
            max_bytes=max_bytes,
            compact=compact,
            tombstones=tombstones,
        )
        return await self._publish(policy)

    async def show(self) -> Charter | None:
        """Return the newest charter, or None; ``effective_from`` is when it begins."""
        async with self._joined() as machine:
            return newest_charter(machine)

    async def delete(self) -> Charter:
        """Remove the publications of the topic: members retain each for some minutes only.

        The delay and the errors are those of ``set``. Until ``effective_from``, another ``set``
        undoes the deletion.
        """
        return await self._publish(RETAIN_NOTHING)

    async def _publish(self, policy: Policy) -> Charter:
        async with self._joined() as machine:
            return await publish_policy(self._session, machine, policy)

    @asynccontextmanager
    async def _joined(self) -> AsyncIterator[Subscriber]:
        """Join the topic unless this connection has, and wait for the neighbours' charters."""
        host = self._session.host
        machine = host.machine(self._topic)
        if machine is not None:
            await wait_for_charter(self._session, machine)
            yield machine
            return
        joined = TopicSession(self._session, self._topic, "new")
        await joined.open()
        try:
            machine = host.machine(self._topic)
            assert machine is not None, "a node that has subscribed has a machine"
            await wait_for_charter(self._session, machine)
            yield machine
        finally:
            await joined.leave()


def newest_charter(machine: Subscriber) -> Charter | None:
    """Return the newest charter that a member has, or None."""
    retention = machine.replica.retention
    row = retention.newest_charter if retention is not None else None
    return row[0] if row is not None else None


async def wait_for_charter(
    session: Session, machine: Subscriber, *, is_enough_known: bool = False
) -> None:
    """Wait until the ring neighbours have confirmed that this node has their publications.

    With ``is_enough_known`` a known charter ends the wait. Raise TimeoutError, which states the
    reason, after 30 s.
    """
    topic, host = machine.replica.topic, session.host
    clock = asyncio.get_running_loop().time
    deadline = clock() + JOIN_S
    while not (is_enough_known and newest_charter(machine) is not None):
        if machine.label is not None:
            neighbours = machine.ring_neighbours()
            if machine.replication.in_sync.issuperset(neighbours):
                return
            host.dispatch(topic, SyncRequested())
        if clock() >= deadline:
            why = "the ring neighbours have not confirmed that they are in sync"
            why = why_not_joined(session, topic) if machine.label is None else why
            raise TimeoutError(
                f"no answer about the charter of {shown(topic)} in {JOIN_S:g} s: {why}"
            )
        await asyncio.sleep(min(POLL_S, session.settings.tick_s))


def publications(machine: Subscriber) -> int:
    """Return the number of stored records that are no charters."""
    retention = machine.replica.retention
    charters = len(retention.charters) if retention is not None else 0
    return max(machine.replica.log.records - charters, 0)


async def publish_policy(session: Session, machine: Subscriber, policy: Policy) -> Charter:
    """Publish a charter with a policy; return it once it is stored at this node."""
    retention = machine.replica.retention
    clock = retention.clock if retention is not None else None
    # One wrong clock of three does not shorten the delay.
    now = clock.topic if clock is not None and clock.is_known else time_us()
    delay_us = round(session.settings.policy_delay_s * 1_000_000) if publications(machine) else 0
    charter = following_charter(policy, newest_charter(machine), now, delay_us)
    await session.host.publish(machine.replica.topic, charter_record(charter))
    retention = machine.replica.retention
    for _ in range(0 if delay_us else BEGIN_TICKS):
        if retention is not None and charter.effective_from > retention.clock.earlier:
            await asyncio.sleep(session.settings.tick_s)
    return charter


def policy_of(
    *,
    max_age: timedelta | None,
    max_count: int | None,
    max_bytes: int | None,
    compact: bool,
    tombstones: Tombstones,
) -> Policy:
    """Return a policy; raise InputError for an invalid limit."""
    limits = {
        "max_age_s": None if max_age is None else _seconds(max_age, "max_age"),
        "max_count": max_count,
        "max_bytes": max_bytes,
        "compact": compact,
        "tombstones_s": None if tombstones == "keep" else _seconds(tombstones, "tombstones"),
    }
    try:
        return convert(limits, Policy)
    except ValidationError as error:
        text, _, where = str(error).partition(" - at `$.")
        raise InputError(text, parameter=where.rstrip("`").removesuffix("_s") or None) from None


def _seconds(age: object, parameter: str) -> int:
    if not isinstance(age, timedelta) or age < timedelta(seconds=1):
        raise InputError(
            f"expected a timedelta of a second or more, got {age!r}", parameter=parameter
        )
    return int(age.total_seconds())
