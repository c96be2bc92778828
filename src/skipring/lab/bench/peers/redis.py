"""Redis Pub/Sub with redis.asyncio and hiredis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from skipring.lab.bench.peers.run import TOPIC, BenchRun, Publisher, Receive, Subscribers


class RedisPublisher(Publisher):
    """Publishes over one connection, several at once in a pipeline."""

    async def connect(self) -> None:
        """Connect."""
        self._client = client_of(self.run)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish these with one round trip."""
        if len(payloads) == 1:
            await self._client.publish(TOPIC, payloads[0])
            return
        pipeline = self._client.pipeline(transaction=False)
        for payload in payloads:
            pipeline.publish(TOPIC, payload)
        await pipeline.execute()


class RedisSubscribers(Subscribers):
    """Clients with a task each that listens."""

    async def connect(self) -> None:
        """Connect and subscribe, one after the other."""
        self._listening = []
        for receive in self.receivers:
            client = client_of(self.run)
            channel = client.pubsub(ignore_subscribe_messages=True)
            await channel.subscribe(TOPIC)
            self._listening.append((client, asyncio.create_task(_listen(channel, receive))))


async def _listen(channel: Any, receive: Receive) -> None:
    async for message in channel.listen():
        receive(message["data"])


def client_of(run: BenchRun) -> Any:
    """A client of the server of a run."""
    from redis.asyncio import Redis

    host, _, port = run.address.rpartition(":")
    return Redis(host=host, port=int(port))


def publisher(run: BenchRun) -> Publisher:
    """The process that publishes."""
    return RedisPublisher(run)


def subscribers(run: BenchRun, receivers: list[Receive]) -> Subscribers:
    """The process with all subscribers."""
    return RedisSubscribers(run, receivers)
