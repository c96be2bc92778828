"""mosquitto with aiomqtt, at quality of service 0."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from skipring.lab.bench.peers.run import TOPIC, BenchRun, Publisher, Receive, Subscribers


class MosquittoPublisher(Publisher):
    """Publishes over one connection."""

    async def connect(self) -> None:
        """Connect."""
        self._client = _client(self.run, "publisher")
        await self._client.__aenter__()

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these."""
        for payload in payloads:
            await self._client.publish(TOPIC, payload, qos=0)


class MosquittoSubscribers(Subscribers):
    """Clients with a task each that reads."""

    async def connect(self) -> None:
        """Connect and subscribe, one after the other."""
        self._reading = []
        for number, receive in enumerate(self.receivers):
            client = _client(self.run, f"subscriber-{number}")
            await client.__aenter__()
            await client.subscribe(TOPIC, qos=0)
            self._reading.append(asyncio.create_task(_read(client, receive)))


async def _read(client: Any, receive: Receive) -> None:
    async for message in client.messages:
        receive(message.payload)


def _client(run: BenchRun, name: str) -> Any:
    from aiomqtt import Client

    host, _, port = run.address.rpartition(":")
    return Client(
        host,
        int(port),
        identifier=name,
        max_queued_incoming_messages=0,  # as many as come
        max_queued_outgoing_messages=0,
    )


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return MosquittoPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return MosquittoSubscribers(run, receivers)
