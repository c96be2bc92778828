"""Redis Streams: XRANGE in large parts, which are only counted, or kept as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skipring.lab.bench.peers.catalogue import REDIS_STREAMS_STORED
from skipring.lab.bench.peers.redis import client_of
from skipring.lab.bench.peers.run import TOPIC, BenchRun, Newcomer
from skipring.lab.bench.peers.shelf import Keeper
from skipring.lab.bench.tally import payload_at

FILLED_AT_ONCE: Final = 1000
READ_AT_ONCE: Final = 5000  # Measured: larger parts are not quicker.
FIELD: Final = b"p"
NUMBER_BITS: Final = 20  # Our guess: nobody adds a million entries in one millisecond.

Entry = tuple[bytes, dict[bytes, bytes]]


class StreamNewcomer(Newcomer):
    """Reads the stream from its beginning."""

    async def prepare(self) -> None:
        """Import what is needed."""
        import redis.asyncio  # noqa: F401

    async def fetch(self) -> None:
        """Connect, and get all."""
        client, after = client_of(self.run), "-"
        while entries := await client.xrange(TOPIC, min=after, count=READ_AT_ONCE):
            self.note_first()
            self.take(entries)
            after = f"({entries[-1][0].decode()}"

    def take(self, entries: Sequence[Entry]) -> None:
        """Count these."""
        for _, fields in entries:
            self.count += FIELD in fields


class StreamKeeper(Keeper, StreamNewcomer):
    """Keeps what it reads."""

    def take(self, entries: Sequence[Entry]) -> None:
        """Keep these."""
        names = [place_of(name) for name, _ in entries]
        self.shelf.put(names, [fields[FIELD] for _, fields in entries])


def place_of(name: bytes) -> int:
    """The name of an entry, a time and a number, as one number in the same order."""
    time, _, number = name.partition(b"-")
    return int(time) << NUMBER_BITS | int(number)


async def fill(run: BenchRun) -> None:
    """Add all, many at once."""
    client = client_of(run)
    for start in range(0, run.count, FILLED_AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + FILLED_AT_ONCE, run.count)):
            pipeline.xadd(TOPIC, {FIELD: payload_at(number, run.size)})
        await pipeline.execute()


def newcomer(run: BenchRun) -> Newcomer:
    """Who comes later."""
    return (StreamKeeper if run.system == REDIS_STREAMS_STORED else StreamNewcomer)(run)
