"""nats-server with nats-py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Any, Final

from skipring.lab.bench.peers.run import BenchRun, Publisher, Receive, Subscribers, topics_of

# Limits so large that nothing is dropped.
PENDING_MESSAGES: Final = 10**9
PENDING_BYTES: Final = 1 << 40
OUTGOING_BYTES: Final = 64 << 20


class NatsPublisher(Publisher):
    """Publishes over one connection."""

    async def connect(self) -> None:
        """Connect."""
        import nats

        self._topics = cycle(topics_of(self.run))
        self._client = await nats.connect(f"nats://{self.run.address}", pending_size=OUTGOING_BYTES)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these; the client writes them together."""
        for topic, payload in zip(self._topics, payloads, strict=False):
            await self._client.publish(topic, payload)


class NatsSubscribers(Subscribers):
    """Clients with a callback each, which is their quickest way."""

    async def connect(self) -> None:
        """Connect and subscribe, one after the other."""
        import nats

        self._clients = []
        receivers, topics = iter(self.receivers), topics_of(self.run)
        for _ in range(self.run.n):
            client = await nats.connect(f"nats://{self.run.address}")
            for topic in topics:
                await client.subscribe(
                    topic,
                    cb=_callback(next(receivers)),
                    pending_msgs_limit=PENDING_MESSAGES,
                    pending_bytes_limit=PENDING_BYTES,
                )
            await client.flush()
            self._clients.append(client)


def _callback(receive: Receive) -> Callable[[Any], Awaitable[None]]:
    async def take(message: Any) -> None:
        receive(message.data)

    return take


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return NatsPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return NatsSubscribers(run, receivers)
