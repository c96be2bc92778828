"""nats-server with nats-py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from skipring.bench.peers.run import TOPIC, Publisher, Receive, Run, Subscribers

# Limits so large that nothing is dropped.
PENDING_MESSAGES: Final = 10**9
PENDING_BYTES: Final = 1 << 40
OUTGOING_BYTES: Final = 64 << 20


class NatsPublisher(Publisher):
    """Publishes over one connection."""

    async def connect(self) -> None:
        """Connect."""
        import nats

        self._client = await nats.connect(f"nats://{self.run.address}", pending_size=OUTGOING_BYTES)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these; the client writes them together."""
        for payload in payloads:
            await self._client.publish(TOPIC, payload)


class NatsSubscribers(Subscribers):
    """Clients with a callback each, which is their quickest way."""

    async def connect(self) -> None:
        """Connect and subscribe, one after the other."""
        import nats

        self._clients = []
        for receive in self.receivers:
            client = await nats.connect(f"nats://{self.run.address}")
            await client.subscribe(
                TOPIC,
                cb=_callback(receive),
                pending_msgs_limit=PENDING_MESSAGES,
                pending_bytes_limit=PENDING_BYTES,
            )
            await client.flush()
            self._clients.append(client)


def _callback(receive: Receive) -> Callable[[Any], Awaitable[None]]:
    async def take(message: Any) -> None:
        receive(message.data)

    return take


def publisher(run: Run) -> Publisher:
    """The process that publishes."""
    return NatsPublisher(run)


def subscribers(run: Run, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return NatsSubscribers(run, receivers)
