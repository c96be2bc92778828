"""Waiting until other members have stored a publication durably (``publish(replicas=...)``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from skipring.core.effects import HeldBy
from skipring.core.events import Event, ReplicationRequested
from skipring.core.peers import NodeId, TopicId
from skipring.core.subscriber import Subscriber
from skipring.core.topics import SubscriberTopics
from skipring.errors import ReplicationError

REPLICAS_TIMEOUT_S: Final = 30.0  # As ``synced``.
FEW_TICKS: Final = 3  # Guess: a ring that is still forming has more members by then.

Give = Callable[[TopicId, Event], None]


class _Replicas:
    """The answers about one publication."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.durable: set[NodeId] = set()
        self.volatile: set[NodeId] = set()  # members that store in memory only
        self.changed = asyncio.Event()


class Replications:
    """The publications of one node that wait for other members."""

    def __init__(self, topics: SubscriberTopics, give: Give, tick_s: float) -> None:
        self._topics = topics
        self._give = give
        self._tick_s = tick_s
        self._waiting: dict[tuple[TopicId, bytes], _Replicas] = {}

    def on_held(self, topic: TopicId, effect: HeldBy) -> None:
        """Note that a member holds publications."""
        for key in effect.ids:
            replicas = self._waiting.get((topic, key))
            if replicas is not None:
                (replicas.durable if effect.durable else replicas.volatile).add(effect.node)
                replicas.changed.set()

    async def reached(self, topic: TopicId, key: bytes, count: int, timeout_s: float) -> None:
        """Wait until so many other members have stored a publication durably.

        ReplicationError, with the number of those that have, after the timeout, or if this node
        has had too few neighbours for FEW_TICKS ticks.
        """
        replicas = self._waiting[topic, key] = _Replicas(key)
        try:
            async with asyncio.timeout(timeout_s):
                why = await self._all(topic, replicas, count)
        except TimeoutError:
            why = f"the others did not answer within {timeout_s:g} s"
        finally:
            del self._waiting[topic, key]
        if why is not None:
            confirmed = len(replicas.durable)
            raise ReplicationError(
                f"{confirmed} of {count} other members have stored the publication durably: {why}; "
                "it is stored here",
                id=key,
                confirmed=confirmed,
            )

    async def _all(self, topic: TopicId, replicas: _Replicas, count: int) -> str | None:
        """Ask once a tick; return why there are too few members that could confirm."""
        few = extra = 0
        while len(replicas.durable) < count:
            machine = self._topics.machine(topic)
            if machine is None:
                return "the topic was left"
            usable = _usable(machine, replicas)
            few = few + 1 if machine.label is not None and len(usable) < count else 0
            if few > FEW_TICKS:
                return f"this node has {len(usable)} neighbours with a data directory"
            asked = [node for node in usable if node not in replicas.durable]
            nodes = tuple(asked[: count - len(replicas.durable) + extra])
            self._give(topic, ReplicationRequested((replicas.key,), nodes))
            extra += 1
            await self._answer(replicas, count)
        return None

    async def _answer(self, replicas: _Replicas, count: int) -> None:
        """Wait for enough answers, or for a tick; at once for one that asks for another member."""
        volatile = len(replicas.volatile)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._tick_s):
                while len(replicas.durable) < count and len(replicas.volatile) == volatile:
                    replicas.changed.clear()
                    await replicas.changed.wait()


def _usable(machine: Subscriber, replicas: _Replicas) -> list[NodeId]:
    return [node for node in machine.neighbours() if node not in replicas.volatile]
