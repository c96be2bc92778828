"""JetStream, with the stream in files: an ordered push consumer, which is its quickest way.

What it gets is only counted, or kept as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from skipring.lab.bench.peers.catalogue import JETSTREAM_STORED
from skipring.lab.bench.peers.nats import PENDING_BYTES, PENDING_MESSAGES
from skipring.lab.bench.peers.run import TOPIC, BenchRun, Newcomer
from skipring.lab.bench.peers.shelf import GROUP, Keeper
from skipring.lab.bench.tally import payload_at

STREAM: Final = "BENCH"
FLUSHED_EACH: Final = 500  # Our guess: so a slow disk holds the publisher up.
SEQUENCE_TOKEN: Final = 5  # of the subject at which a message is acknowledged

Take = Callable[[Any], Awaitable[None]]


class JetStreamNewcomer(Newcomer):
    """A consumer that begins with the first message."""

    async def prepare(self) -> None:
        """Import what is needed."""
        import nats  # noqa: F401

    async def fetch(self) -> None:
        """Connect, and get all."""
        import nats

        done = asyncio.Event()
        client = await nats.connect(f"nats://{self.run.address}")
        await client.jetstream().subscribe(
            TOPIC,
            stream=STREAM,
            ordered_consumer=True,
            cb=self.taker(done),
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )
        await asyncio.wait_for(done.wait(), self.run.deadline_s)

    def taker(self, done: asyncio.Event) -> Take:
        """Who is to be called with each message: it counts them."""
        expected = self.run.count

        async def take(_: Any) -> None:
            if not self.count:
                self.note_first()
            self.count += 1
            if self.count == expected:
                done.set()

        return take


class JetStreamKeeper(Keeper, JetStreamNewcomer):
    """Keeps what it gets, in groups."""

    def taker(self, done: asyncio.Event) -> Take:
        """Who is to be called with each message: it keeps them."""
        replies, payloads = list[str](), list[bytes]()
        missing = self.run.count
        due = min(GROUP, missing)

        async def take(message: Any) -> None:
            nonlocal missing, due
            if not replies:
                self.note_first()
            replies.append(message.reply)
            payloads.append(message.data)
            if len(replies) < due:
                return
            self.shelf.put([sequence_of(reply) for reply in replies], payloads)
            replies.clear()
            payloads.clear()
            missing -= due
            due = min(GROUP, missing)
            if not missing:
                done.set()

        return take


def sequence_of(reply: str) -> int:
    """The place of a message in its stream, from the subject at which it is acknowledged."""
    return int(reply.split(".", SEQUENCE_TOKEN + 1)[SEQUENCE_TOKEN])


async def fill(run: BenchRun) -> None:
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


def newcomer(run: BenchRun) -> Newcomer:
    """Who comes later."""
    return (JetStreamKeeper if run.system == JETSTREAM_STORED else JetStreamNewcomer)(run)
