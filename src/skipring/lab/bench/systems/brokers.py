"""Brokers: NATS, Redis and mosquitto for fan-out, JetStream and Redis Streams for a history."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from skipring.lab.bench.run import TOPIC, BenchRun, topics_of
from skipring.lab.bench.worker import (
    Newcomer,
    PublisherEndpoint,
    Receive,
    Subscribers,
    history_payload,
)

# Limits that are large enough that the client drops nothing.
PENDING_MESSAGES: Final = 10**9
PENDING_BYTES: Final = 1 << 40
OUTGOING_BYTES: Final = 64 << 20
STREAM: Final = "BENCH"
FLUSHED_EACH: Final = 500  # Guess: a slow disk delays the publisher.
SEQUENCE_TOKEN: Final = 5  # place of the sequence number in the reply subject of a message
FILLED_AT_ONCE: Final = 1000
READ_AT_ONCE: Final = 5000  # Measured: larger parts are not faster.
FIELD: Final = b"p"
NUMBER_BITS: Final = 20  # Guess: fewer than a million entries per millisecond.

Handler = Callable[[Any], Awaitable[None]]
Entry = tuple[bytes, dict[bytes, bytes]]


# -- NATS ------------------------------------------------------------------------------------


class NatsPublisher(PublisherEndpoint):
    """Publisher with one connection."""

    async def connect(self) -> None:
        """Connect."""
        import nats

        self._topics = cycle(topics_of(self.run))
        self._client = await nats.connect(f"nats://{self.run.address}", pending_size=OUTGOING_BYTES)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish; the client writes the messages together."""
        for topic, payload in zip(self._topics, payloads, strict=False):
            await self._client.publish(topic, payload)


class NatsSubscribers(Subscribers):
    """Clients with callbacks, their fastest interface."""

    async def connect(self) -> None:
        """Connect and subscribe the clients one at a time."""
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


def _callback(receive: Receive) -> Handler:
    async def on_message(message: Any) -> None:
        receive(message.data)

    return on_message


# -- Redis Pub/Sub ---------------------------------------------------------------------------


class RedisPublisher(PublisherEndpoint):
    """Publisher with one connection and pipelines."""

    async def connect(self) -> None:
        """Connect."""
        self._client = _redis_client(self.run)

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish with one round trip."""
        if len(payloads) == 1:
            await self._client.publish(TOPIC, payloads[0])
            return
        pipeline = self._client.pipeline(transaction=False)
        for payload in payloads:
            pipeline.publish(TOPIC, payload)
        await pipeline.execute()


class RedisSubscribers(Subscribers):
    """Clients with one reading task each."""

    async def connect(self) -> None:
        """Connect and subscribe the clients one at a time."""
        self._tasks = []
        for receive in self.receivers:
            client = _redis_client(self.run)
            channel = client.pubsub(ignore_subscribe_messages=True)
            await channel.subscribe(TOPIC)
            self._tasks.append((client, asyncio.create_task(_read_redis(channel, receive))))


async def _read_redis(channel: Any, receive: Receive) -> None:
    async for message in channel.listen():
        receive(message["data"])


def _redis_client(run: BenchRun) -> Any:
    from redis.asyncio import Redis

    host, _, port = run.address.rpartition(":")
    return Redis(host=host, port=int(port))


# -- mosquitto, quality of service 0 ---------------------------------------------------------


class MosquittoPublisher(PublisherEndpoint):
    """Publisher with one connection."""

    async def connect(self) -> None:
        """Connect."""
        self._client = _mqtt_client(self.run, "publisher")
        await self._client.__aenter__()

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Publish one at a time."""
        for payload in payloads:
            await self._client.publish(TOPIC, payload, qos=0)


class MosquittoSubscribers(Subscribers):
    """Clients with one reading task each."""

    async def connect(self) -> None:
        """Connect and subscribe the clients one at a time."""
        self._tasks = []
        for number, receive in enumerate(self.receivers):
            client = _mqtt_client(self.run, f"subscriber-{number}")
            await client.__aenter__()
            await client.subscribe(TOPIC, qos=0)
            self._tasks.append(asyncio.create_task(_read_mqtt(client, receive)))


async def _read_mqtt(client: Any, receive: Receive) -> None:
    async for message in client.messages:
        receive(message.payload)


def _mqtt_client(run: BenchRun, name: str) -> Any:
    from aiomqtt import Client

    host, _, port = run.address.rpartition(":")
    return Client(
        host,
        int(port),
        identifier=name,
        max_queued_incoming_messages=0,  # no limit
        max_queued_outgoing_messages=0,
    )


# -- the store of a newcomer -----------------------------------------------------------------

STORE_FILE: Final = "newcomer.sqlite3"
STORED_AT_ONCE: Final = 5000  # messages per transaction: as many as one read of Redis
# Measured: CPU time for 100,000 rows of 128 bytes. Pages of 4 KiB 0.14 s, from 16 KiB on 0.12 s;
# the checkpoint interval changes little.
PAGE_BYTES: Final = 32768
# Measured: one row per statement 0.18 s, 20 rows 0.15 s, 50 rows 0.13 s, from 100 on 0.12 s.
ROWS_AT_ONCE: Final = 100
# Measured: an integer is the cheapest key; text without rowids costs 0.03 s more, no key 0.01 s.
_TABLE: Final = "CREATE TABLE messages(id INTEGER PRIMARY KEY, payload BLOB NOT NULL)"
_INSERT: Final = "INSERT INTO messages VALUES(?, ?)"
_INSERT_MANY: Final = _INSERT + ", (?, ?)" * (ROWS_AT_ONCE - 1)


class MessageStore:
    """SQLite table of messages by sequence number; skipring stores them by id."""

    def __init__(self, directory: Path) -> None:
        self._db = db = sqlite3.connect(directory / STORE_FILE, isolation_level=None)
        db.execute(f"PRAGMA page_size={PAGE_BYTES}")
        db.execute("PRAGMA journal_mode=WAL").fetchall()
        db.execute("PRAGMA synchronous=FULL")
        db.execute(_TABLE)

    def add(self, ids: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Add messages in one transaction; they are on disk when it returns."""
        values: list[int | bytes] = [0] * (2 * len(ids))
        values[::2], values[1::2] = ids, payloads
        many = 2 * ROWS_AT_ONCE
        rest = len(values) - len(values) % many
        self._db.execute("BEGIN")
        self._db.executemany(_INSERT_MANY, (values[at : at + many] for at in range(0, rest, many)))
        self._db.executemany(_INSERT, (values[at : at + 2] for at in range(rest, len(values), 2)))
        self._db.execute("COMMIT")

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return int(self._db.execute("SELECT count(*) FROM messages").fetchone()[0])

    def close(self) -> None:
        """Close the database."""
        self._db.close()


class StoredNewcomer(Newcomer):
    """Newcomer that stores the fetched messages."""

    async def fetch(self) -> None:
        """Fetch and store in one thread. Measured: a second thread costs more."""
        self.store = MessageStore(self.run.directory)
        await super().fetch()

    async def leave(self) -> None:
        """Count the stored messages."""
        self.count = self.store.count
        self.store.close()


# -- JetStream -------------------------------------------------------------------------------


class JetStreamNewcomer(Newcomer):
    """Ordered push consumer, the fastest interface, of a stream in files."""

    async def fill(self) -> None:
        """Publish the history; wait until the stream has stored it."""
        import nats
        from nats.js.api import StorageType, StreamConfig

        run = self.run
        client = await nats.connect(f"nats://{run.address}")
        stream = client.jetstream()
        config = StreamConfig(name=STREAM, subjects=[TOPIC], storage=StorageType.FILE)
        await stream.add_stream(config)
        for number in range(run.count):
            await client.publish(TOPIC, history_payload(number, run.size))
            if number % FLUSHED_EACH == 0:
                await client.flush()
        await client.flush()
        async with asyncio.timeout(run.deadline_s):
            while (await stream.stream_info(STREAM)).state.messages < run.count:
                pass

    async def prepare(self) -> None:
        """Import the client."""
        import nats  # noqa: F401

    async def fetch(self) -> None:
        """Connect and receive all messages."""
        import nats

        done = asyncio.Event()
        client = await nats.connect(f"nats://{self.run.address}")
        await client.jetstream().subscribe(
            TOPIC,
            stream=STREAM,
            ordered_consumer=True,
            cb=self.handler(done),
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )
        await asyncio.wait_for(done.wait(), self.run.deadline_s)

    def handler(self, done: asyncio.Event) -> Handler:
        """Return a handler that counts messages."""
        expected = self.run.count

        async def on_message(_: Any) -> None:
            if not self.count:
                self.record_first()
            self.count += 1
            if self.count == expected:
                done.set()

        return on_message


class JetStreamStoredNewcomer(StoredNewcomer, JetStreamNewcomer):
    """Ordered push consumer that stores messages in groups."""

    def handler(self, done: asyncio.Event) -> Handler:
        """Return a handler that stores messages."""
        replies, payloads = list[str](), list[bytes]()
        missing = self.run.count
        due = min(STORED_AT_ONCE, missing)

        async def on_message(message: Any) -> None:
            nonlocal missing, due
            if not replies:
                self.record_first()
            replies.append(message.reply)
            payloads.append(message.data)
            if len(replies) < due:
                return
            self.store.add([stream_sequence(reply) for reply in replies], payloads)
            replies.clear()
            payloads.clear()
            missing -= due
            due = min(STORED_AT_ONCE, missing)
            if not missing:
                done.set()

        return on_message


def stream_sequence(reply: str) -> int:
    """Return the sequence number of a message from the subject that acknowledges it."""
    return int(reply.split(".", SEQUENCE_TOKEN + 1)[SEQUENCE_TOKEN])


# -- Redis Streams ---------------------------------------------------------------------------


class RedisStreamsNewcomer(Newcomer):
    """Reader that fetches the stream with XRANGE in large parts."""

    async def fill(self) -> None:
        """Add the history in pipelines."""
        run, client = self.run, _redis_client(self.run)
        for start in range(0, run.count, FILLED_AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for number in range(start, min(start + FILLED_AT_ONCE, run.count)):
                pipeline.xadd(TOPIC, {FIELD: history_payload(number, run.size)})
            await pipeline.execute()

    async def prepare(self) -> None:
        """Import the client."""
        import redis.asyncio  # noqa: F401

    async def fetch(self) -> None:
        """Connect and read all entries."""
        client, after = _redis_client(self.run), "-"
        while entries := await client.xrange(TOPIC, min=after, count=READ_AT_ONCE):
            self.record_first()
            self.add(entries)
            after = f"({entries[-1][0].decode()}"

    def add(self, entries: Sequence[Entry]) -> None:
        """Count entries."""
        for _, fields in entries:
            self.count += FIELD in fields


class RedisStreamsStoredNewcomer(StoredNewcomer, RedisStreamsNewcomer):
    """Reader that stores the fetched entries."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Store entries."""
        ids = [entry_number(name) for name, _ in entries]
        self.store.add(ids, [fields[FIELD] for _, fields in entries])


def entry_number(name: bytes) -> int:
    """Return the name of an entry, time and number, as one integer in the same order."""
    time, _, number = name.partition(b"-")
    return int(time) << NUMBER_BITS | int(number)
