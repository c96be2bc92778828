"""Publications of a row: publishers during a fault, and a history written before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self

from skipring.core.publications import Publication
from skipring.lab.bench.servers import write_store
from skipring.lab.faults.judge import Ledger
from skipring.lab.faults.requests import TOPIC, Place, publication, stranger
from skipring.rpc.client import RpcClient
from skipring.wire.rpc import Publish, PublishAck

WRITERS: Final = 4  # concurrent, so they share commits
PAUSE_S: Final = 0.02  # Guess: about 100 publications a second.
ANSWER_S: Final = 5.0  # Guess: after this, the same publication goes to the next member.


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
            payload, places = f"{self._run}.{self._made}".encode(), self._places()
            first = self._made % len(places) if places else 0
            turns = places[first:] + places[:first]
            await publish_tolerantly(client, turns, payload, self._ledger, self._answer_s)
            self.acknowledged = len(self._ledger.acknowledged)
            await asyncio.sleep(self._pause_s)


async def publish_tolerantly(
    client: RpcClient,
    places: list[Place],
    payload: bytes,
    ledger: Ledger,
    answer_s: float = ANSWER_S,
) -> bool:
    """Publish through the members in turn until one acknowledges; return False if none does."""
    made = publication(payload)
    ledger.attempt(payload)
    for name, address in places:
        client.book.learn({name: address})
        question = partial(Publish, publication=made)
        answer = await client.request(TOPIC, name, question, PublishAck, answer_s)
        if isinstance(answer, PublishAck):
            ledger.acknowledge(payload)
            return True
    return False


def publish_some(places: list[Place], payloads: list[bytes], ledger: Ledger) -> int:
    """Publish through members in turn, concurrently; return the number of acknowledgements."""

    async def scene() -> int:
        async with stranger() as client:
            firsts = (number % len(places) for number in range(len(payloads)))
            publishing = (
                publish_tolerantly(client, places[first:] + places[:first], payload, ledger)
                for first, payload in zip(firsts, payloads, strict=True)
            )
            return sum(await asyncio.gather(*publishing))

    return asyncio.run(scene())


# --- history ---------------------------------------------------------------------------


def fill_history(directory: Path, count: int, size: int = 64) -> list[bytes]:
    """Write a history into the data directory of a node that does not run; return its payloads."""
    payloads = [f"history.{number}".encode().ljust(size, b".") for number in range(count)]
    write_store(
        directory,
        TOPIC,
        (
            Publication(publisher=f"node{n % 5}", seq=n, payload=payload, time=1 + n)
            for n, payload in enumerate(payloads)
        ),
    )
    return payloads


def written_bytes(directory: Path) -> int:
    """Return the size of the files of a store."""
    return sum(path.stat().st_size for path in directory.glob("publications.*"))
