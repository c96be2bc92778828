"""Publications of a row: publishers during a fault, and a history written before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

from faults.judge import Ledger
from faults.requests import TOPIC, Place, batch_of, stranger
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.rpc.client import RpcClient
from skipring.storage.segment import SUFFIX
from skipring.storage.store import TOPICS, LogStore
from skipring.wire.rpc import Publish, PublishAck

WRITERS: Final = 4  # concurrent, so they share commits
PAUSE_S: Final = 0.02  # Guess: about 100 publications a second.
ANSWER_S: Final = 5.0  # Guess: after this, the same batch goes to the next member.
SIZES: Final = (1, 1, 1, 3)  # records of the batches of a writer, in turn


class Load:
    """Publishers through the members in turn, in a thread, inside a ``with`` block."""

    def __init__(
        self,
        places: Callable[[], list[Place]],
        ledger: Ledger,
        run: str,
        pause_s: float = PAUSE_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._places = places
        self._ledger = ledger
        self._run = run
        self._pause_s = pause_s  # pause of each writer after a publication
        self._answer_s = answer_s
        self._made = 0
        self._is_over = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._publish_all, name="load")
        self.acknowledged = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _publish_all(self) -> None:
        try:
            asyncio.run(self._write_all())
        except BaseException as error:  # noqa: BLE001  (raised at the end of the block)
            self._error = error

    async def _write_all(self) -> None:
        async with stranger() as client:
            await asyncio.gather(*(self._write(client) for _ in range(WRITERS)))

    async def _write(self, client: RpcClient) -> None:
        while not self._is_over.is_set():
            self._made += 1
            made, places = self._made, self._places()
            size = SIZES[made % len(SIZES)]
            payloads = [f"{self._run}.{made}.{number}".encode() for number in range(size)]
            first = made % len(places) if places else 0
            turns = places[first:] + places[:first]
            await publish_tolerantly(client, turns, payloads, self._ledger, self._answer_s)
            self.acknowledged = len(self._ledger.acknowledged)
            await asyncio.sleep(self._pause_s)


async def publish_tolerantly(
    client: RpcClient,
    places: list[Place],
    payloads: list[bytes],
    ledger: Ledger,
    answer_s: float = ANSWER_S,
) -> bool:
    """Publish one batch through the members in turn until one acknowledges it; False if none."""
    batch = batch_of(*payloads)
    for payload in payloads:
        ledger.attempt(payload)
    for name, address in places:
        client.book.learn({name: address})
        question = partial(Publish, batch=batch)
        answer = await client.request(TOPIC, name, question, PublishAck, answer_s)
        if isinstance(answer, PublishAck):
            ledger.acknowledge_all(payloads)
            return True
    return False


def publish_some(places: list[Place], payloads: list[bytes], ledger: Ledger) -> int:
    """Publish through members in turn, concurrently; return the number of acknowledgements."""

    async def scene() -> int:
        async with stranger() as client:
            firsts = (number % len(places) for number in range(len(payloads)))
            publishing = (
                publish_tolerantly(client, places[first:] + places[:first], [payload], ledger)
                for first, payload in zip(firsts, payloads, strict=True)
            )
            return sum(await asyncio.gather(*publishing))

    return asyncio.run(scene())


# --- history ---------------------------------------------------------------------------

PUBLISHERS: Final = 5
COMMIT_BATCHES: Final = 1_000
SEGMENT_BYTES: Final = 64 * 1024  # a thousandth of the default, so a history has some segments


def fill_history(directory: Path, count: int, size: int = 64, records: int = 1) -> list[bytes]:
    """Write a history into the data directory of a node that does not run; return its payloads.

    Its batches have ``records`` records, and its segments are small.
    """
    payloads = [f"history.{number}".encode().ljust(size, b".") for number in range(count)]
    with LogStore.open(directory, segment_bytes_max=SEGMENT_BYTES) as store:
        log = store.log(TOPIC)
        for number, batch in enumerate(_history_batches(payloads, records), start=1):
            log.append(batch)
            if number % COMMIT_BATCHES == 0:
                store.commit()
        store.commit()
    return payloads


def _history_batches(payloads: list[bytes], records: int) -> Iterator[RecordBatch]:
    for first in range(0, len(payloads), records):
        part = payloads[first : first + records]
        made = [BatchRecord(payload, 1 + first + place) for place, payload in enumerate(part)]
        publisher = f"node{first // records % PUBLISHERS}"
        yield RecordBatch.of(made, publisher=publisher, first=first, topic=TOPIC)


def written_bytes(directory: Path) -> int:
    """Return the size of the segments of a store."""
    return sum(path.stat().st_size for path in segments_of(directory))


def segments_of(directory: Path) -> list[Path]:
    """Return the segment files in a data directory, each topic in the order of its offsets."""
    return sorted(directory.glob(f"{TOPICS}/*/*{SUFFIX}"))
