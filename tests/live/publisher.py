"""A program that publishes until it is killed; it prints attempts and acknowledgements.

Run as a program by ``test_durability.py``. Its arguments: the URL of the supervisor, the data
directory, a name for this run that is part of every payload, and the seconds by which each write to
the disk is delayed, so that a kill is between sending and storing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from itertools import count

import skipring
from skipring.api.subscription import Subscription
from skipring.node.group_commit import INLINE_WAIT_S_MAX
from skipring.storage.topic_log import SegmentLog

NAME = "publisher"
TICK_S = 0.1
WRITERS = 4  # in parallel: they share commits


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")  # unbuffered: a kill loses no line


async def write(news: Subscription, name: str) -> None:
    for number in count():
        payload = f"{name}.{number}"
        say(f"tries {payload}")
        key = await news.publish(payload.encode())
        say(f"published {payload} {key.hex()}")


def delay_commits(delay_s: float) -> None:
    """Delay the write of each commit; delay its sync, so that commits run in a thread."""
    write, sync = SegmentLog.write, SegmentLog.sync

    def delayed_write(log: SegmentLog) -> None:
        time.sleep(delay_s)
        write(log)

    def delayed_sync(log: SegmentLog) -> None:
        time.sleep(2 * INLINE_WAIT_S_MAX)
        sync(log)

    SegmentLog.write = delayed_write  # type: ignore[method-assign]
    SegmentLog.sync = delayed_sync  # type: ignore[method-assign]


async def main(url: str, directory: str, run: str, delay_s: str = "0") -> None:
    if float(delay_s):
        delay_commits(float(delay_s))
    async with (
        skipring.connect(url, data_dir=directory, name=NAME, tick_s=TICK_S) as node,
        node.subscribe("news", start="new") as news,
    ):
        await asyncio.gather(*(write(news, f"{run}.{writer}") for writer in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
