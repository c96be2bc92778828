"""A program that publishes until it is killed; it prints attempts and acknowledgements.

Run as a program by ``test_durability.py``. Its arguments: the URL of the supervisor, the data
directory, and a name for this run that is part of every payload.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count

import skipring
from skipring.api.subscription import Subscription

WRITERS = 4  # in parallel: they share commits


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")  # unbuffered: a kill loses no line


async def write(news: Subscription, name: str) -> None:
    for number in count():
        payload = f"{name}.{number}"
        say(f"tries {payload}")
        key = await news.publish(payload.encode())
        say(f"published {payload} {key.hex()}")


async def main(url: str, directory: str, run: str) -> None:
    async with (
        skipring.connect(url, data_dir=directory) as node,
        node.subscribe("news", start="new") as news,
    ):
        await asyncio.gather(*(write(news, f"{run}.{writer}") for writer in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
