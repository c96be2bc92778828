"""Redis Streams: XRANGE in large parts."""

from __future__ import annotations

from typing import Final

from skipring.bench.peers.redis import client_of
from skipring.bench.peers.run import TOPIC, Newcomer, Run
from skipring.bench.tally import payload_at

FILLED_AT_ONCE: Final = 1000
READ_AT_ONCE: Final = 5000  # Measured: larger parts are not quicker.
FIELD: Final = b"p"


class StreamNewcomer(Newcomer):
    """Reads the stream from its beginning."""

    async def prepare(self) -> None:
        """Import what is needed."""
        import redis.asyncio  # noqa: F401

    async def fetch(self) -> None:
        """Connect, and get all."""
        client, after = client_of(self.run), "-"
        while entries := await client.xrange(TOPIC, min=after, count=READ_AT_ONCE):
            for _, fields in entries:
                self.count += FIELD in fields
            after = f"({entries[-1][0].decode()}"


async def fill(run: Run) -> None:
    """Add all, many at once."""
    client = client_of(run)
    for start in range(0, run.count, FILLED_AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + FILLED_AT_ONCE, run.count)):
            pipeline.xadd(TOPIC, {FIELD: payload_at(number, run.size)})
        await pipeline.execute()


def newcomer(run: Run) -> Newcomer:
    """Who comes later."""
    return StreamNewcomer(run)
