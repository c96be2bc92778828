"""Publishers during a fault; they try every member, and record acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from skipring.lab.faults.judge import Ledger
from skipring.lab.faults.requests import TOPIC, Place, publication, stranger
from skipring.rpc.client import RpcClient
from skipring.wire.rpc import Publish, PublishAck

WRITERS: Final = 4  # at the same time: they share commits
PAUSE_S: Final = 0.02  # Guess: about 100 publications a second.
ANSWER_S: Final = 5.0  # Guess: then the same publication is sent to the next member.


class Load:
    """Publishers through the members in turn, in a thread, inside a ``with`` block."""

    def __init__(
        self,
        places: Callable[[], list[Place]],
        ledger: Ledger,
        run: str,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._places = places
        self._ledger = ledger
        self._run = run
        self._pause_s = pause_s  # of each writer, after a publication
        self._made = 0
        self._is_over = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._publish_all, name="load")
        self.acknowledged = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        async with stranger() as outsider:
            await asyncio.gather(*(self._write(outsider) for _ in range(WRITERS)))

    async def _write(self, outsider: RpcClient) -> None:
        while not self._is_over.is_set():
            self._made += 1
            payload = f"{self._run}.{self._made}".encode()
            await publish_tolerantly(outsider, self._places(), payload, self._ledger, self._made)
            self.acknowledged = len(self._ledger.acknowledged)
            await asyncio.sleep(self._pause_s)


async def publish_tolerantly(
    outsider: RpcClient, places: list[Place], payload: bytes, ledger: Ledger, first: int = 0
) -> bool:
    """Publish through one member, else through the next; return True if one acknowledges."""
    made = publication(payload)
    ledger.attempt(payload)
    for step in range(len(places)):
        name, address = places[(first + step) % len(places)]
        outsider.book.learn({name: address})
        question = partial(Publish, publication=made)
        answer = await outsider.request(TOPIC, name, question, PublishAck, ANSWER_S)
        if isinstance(answer, PublishAck):
            ledger.acknowledge(payload)
            return True
    return False


def publish_some(places: list[Place], payloads: list[bytes], ledger: Ledger) -> int:
    """Publish through members in turn, all at once; return how many were acknowledged."""

    async def scene() -> int:
        async with stranger() as outsider:
            done = await asyncio.gather(
                *(
                    publish_tolerantly(outsider, places, payload, ledger, number)
                    for number, payload in enumerate(payloads)
                )
            )
        return sum(done)

    return asyncio.run(scene())
