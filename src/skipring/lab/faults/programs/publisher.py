"""Publisher that joins; it prints each attempt and each return of ``publish``.

Arguments: ``--data DIR URL NAME RUN COUNT REPLICAS``. DIR "-" keeps publications in memory. RUN is
part of every payload. After COUNT publications the program leaves and ends; with COUNT 0 it
publishes until it is killed. It waits for REPLICAS other members.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count
from typing import Any, Final

import skipring
from skipring.api.subscription import Subscription
from skipring.errors import SkipringError

WRITERS: Final = 4  # at the same time: they share commits


def print_now(line: str) -> None:
    """Write a line in one system call: a kill loses none of it."""
    os.write(1, line.encode() + b"\n")


async def write(topic: Subscription, payload: str, replicas: int) -> None:
    """Publish one payload."""
    print_now(f"tries {payload}")
    more: dict[str, Any] = {"replicas": replicas} if replicas else {}
    await topic.publish(payload.encode(), **more)
    print_now(f"published {payload}")


async def write_all(topic: Subscription, run: str, wanted: int, replicas: int) -> None:
    """Publish several at a time."""
    numbers = iter(range(wanted) if wanted else count())

    async def writer() -> None:
        for number in numbers:
            await write(topic, f"{run}.{number}", replicas)

    await asyncio.gather(*(writer() for _ in range(WRITERS)))


async def main(*words: str) -> None:
    """Join, publish and leave."""
    directory, url, name, run, wanted, replicas = words
    data_dir = None if directory == "-" else directory
    try:
        async with (
            skipring.connect(url, data_dir=data_dir, name=name, tick_s=0.25) as node,
            node.subscribe("news", start="new") as topic,
        ):
            if int(replicas):
                await topic.synced()  # there are no replicas before it has joined
            await write_all(topic, run, int(wanted), int(replicas))
    except SkipringError as error:
        print_now(f"failed {error}")
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[2:]))
