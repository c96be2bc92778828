"""Reader that joins; it prints payloads until it is stopped, and then the cursor after them.

Arguments: ``--data DIR URL NAME START``; START is "all" or a cursor. Payloads are printed in hex.
If the cursor is refused, the program prints the reason and ends with exit status 3.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Final

import skipring
from skipring.errors import CursorError

REFUSED: Final = "refused"
REFUSED_STATUS: Final = 3


def print_now(line: str) -> None:
    """Write a line in one system call: a kill loses none of it."""
    os.write(1, line.encode() + b"\n")


async def main(directory: str, url: str, name: str, start: str) -> None:
    """Read until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with skipring.connect(url, data_dir=directory, name=name, tick_s=0.25) as node:
        try:
            topic = node.subscribe("news", start)
        except CursorError as error:
            print_now(f"{REFUSED} {error}")
            sys.exit(REFUSED_STATUS)
        async with topic:
            while not stop.is_set():
                publication = await topic.read(timeout=0.1)
                if publication is not None:
                    print_now(publication.payload.hex())
    print_now(f"cursor {topic.cursor()}")  # everything read is on the disk now


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[2:]))
