"""Programs of the fault matrix: applications that rows start as processes.

Arguments: the name of a program, then its own. Each program prints one line per system call, so a
kill loses none.

- ``publisher --data DIR URL NAME RUN COUNT REPLICAS`` joins and publishes; it prints each attempt
  and each return of ``publish``. DIR "-" keeps publications in memory. RUN is part of every
  payload. After COUNT publications it leaves and ends; with COUNT 0 it publishes until it is
  killed. It waits for REPLICAS other members.
- ``reader --data DIR URL NAME START`` joins and prints payloads in hex until SIGTERM, then the
  cursor after them. START is "all" or a cursor; if it is refused, the exit status is 3.
- ``slow_source WORD...`` is ``skipring WORD...`` with a history in pages of one batch, one every
  two ticks (P6).
- ``spark_reader SUPERVISOR TABLE CHECKPOINT`` drains a topic into a table, from its checkpoint on,
  and prints the payloads in hex. If the query fails, the exit status is 3.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sys
from itertools import count
from typing import Any, Final

import skipring
from skipring.api.subscription import Subscription
from skipring.core import log_pages
from skipring.core.log_messages import LogPage
from skipring.core.peers import NodeId, TopicId
from skipring.errors import CursorError, SkipringError
from skipring.node.sender import Sender
from skipring.wire.rpc import RuntimeMessage

TOPIC: Final = "news"
TICK_S: Final = 0.25
WRITERS: Final = 4  # concurrent, so they share commits
REFUSED: Final = "refused "
CURSOR: Final = "cursor "
REFUSED_STATUS: Final = 3
SLOW_S: Final = 0.5  # two ticks
SMALL: Final = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}


def _print(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def publisher(_: str, directory: str, *words: str) -> None:
    """Join, publish and leave."""
    asyncio.run(_publish(None if directory == "-" else directory, *words))


async def _publish(
    data_dir: str | None, url: str, name: str, run: str, wanted: str, replicas: str
) -> None:
    numbers = iter(range(int(wanted)) if int(wanted) else count())
    more: dict[str, Any] = {"replicas": int(replicas)} if int(replicas) else {}

    async def write(topic: Subscription) -> None:
        for number in numbers:
            payload = f"{run}.{number}"
            _print(f"tries {payload}")
            await topic.publish(payload.encode(), **more)
            _print(f"published {payload}")

    try:
        async with (
            skipring.connect(url, data_dir=data_dir, name=name, tick_s=TICK_S) as node,
            node.subscribe(TOPIC, start="new") as topic,
        ):
            if more:
                await topic.synced()  # there are no replicas before it has joined
            await asyncio.gather(*(write(topic) for _ in range(WRITERS)))
    except SkipringError as error:
        _print(f"failed {error}")
        sys.exit(1)


def reader(_: str, *words: str) -> None:
    """Read until SIGTERM."""
    asyncio.run(_read(*words))


async def _read(directory: str, url: str, name: str, start: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with skipring.connect(url, data_dir=directory, name=name, tick_s=TICK_S) as node:
        try:
            topic = node.subscribe(TOPIC, start)
        except CursorError as error:
            _print(f"{REFUSED}{error}")
            sys.exit(REFUSED_STATUS)
        async with topic:
            while not stop.is_set():
                publication = await topic.read(timeout=0.1)
                if publication is not None:
                    _print(publication.payload.hex())
    _print(f"{CURSOR}{topic.cursor()}")  # everything read is on the disk now


def slow_source(*words: str) -> None:
    """Start a node that delays its log pages and sends one batch per page."""
    send = Sender.send_message

    def send_late(sender: Sender, topic: TopicId, to: NodeId, message: RuntimeMessage) -> None:
        if isinstance(message, LogPage):
            asyncio.get_running_loop().call_later(SLOW_S, send, sender, topic, to, message)
        else:
            send(sender, topic, to, message)

    small = log_pages.CONTENT_PAGE._replace(entries_max=1)
    setattr(log_pages, "CONTENT_PAGE", small)  # noqa: B010  (a constant for all other modules)
    setattr(Sender, "send_message", send_late)  # noqa: B010
    sys.argv = ["skipring", *words]
    runpy.run_module("skipring", run_name="__main__")


def spark_reader(supervisor: str, table: str, checkpoint: str) -> None:
    """Drain the topic once."""
    from skipring.spark import register, session  # noqa: PLC0415  (of the extra ``spark``)

    spark = session.start(master="local[1]", conf=SMALL)
    register(spark)
    query = (
        spark.readStream.format("skipring")
        .option("supervisor", supervisor)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .select("value")
        .writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    try:
        query.start().awaitTermination()
    except Exception as error:  # noqa: BLE001  (Spark raises many kinds; the row reads the text)
        _print(f"{REFUSED}{' '.join(str(error).split())}")
        sys.exit(REFUSED_STATUS)
    for row in spark.read.parquet(table).collect():
        _print(bytes(row.value).hex())
    _print("end")
    session.stop(spark)


PROGRAMS: Final = {each.__name__: each for each in (publisher, reader, slow_source, spark_reader)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
