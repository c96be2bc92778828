"""JetStream, with the stream in files: an ordered push consumer, which is its quickest way."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from skipring.bench.peers.nats import PENDING_BYTES, PENDING_MESSAGES
from skipring.bench.peers.run import TOPIC, Newcomer, Run
from skipring.bench.tally import payload_at

STREAM: Final = "BENCH"
FLUSHED_EACH: Final = 500  # Our guess: so a slow disk holds the publisher up.


class JetStreamNewcomer(Newcomer):
    """A consumer that begins with the first message."""

    async def prepare(self) -> None:
        """Import what is needed."""
        import nats  # noqa: F401

    async def fetch(self) -> None:
        """Connect, and get all."""
        import nats

        done = asyncio.Event()

        async def take(_: Any) -> None:
            self.count += 1
            if self.count == self.run.count:
                done.set()

        client = await nats.connect(f"nats://{self.run.address}")
        await client.jetstream().subscribe(
            TOPIC,
            stream=STREAM,
            ordered_consumer=True,
            cb=take,
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )
        await asyncio.wait_for(done.wait(), self.run.deadline_s)


async def fill(run: Run) -> None:
    """Publish all, and wait until the stream has it."""
    import nats
    from nats.js.api import StorageType, StreamConfig

    client = await nats.connect(f"nats://{run.address}")
    stream = client.jetstream()
    config = StreamConfig(name=STREAM, subjects=[TOPIC], storage=StorageType.FILE)
    await stream.add_stream(config)
    for number in range(run.count):
        await client.publish(TOPIC, payload_at(number, run.size))
        if number % FLUSHED_EACH == 0:
            await client.flush()
    await client.flush()
    stored = 0

    async def count() -> None:
        nonlocal stored
        while stored < run.count:
            stored = (await stream.stream_info(STREAM)).state.messages

    await asyncio.wait_for(count(), run.deadline_s)


def newcomer(run: Run) -> Newcomer:
    """Who comes later."""
    return JetStreamNewcomer(run)
