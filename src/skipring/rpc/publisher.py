"""Publisher of payloads from an input, through a member."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty, Queue
from threading import Thread
from typing import Final

from msgspec import Struct

from skipring.core.limits import PAYLOAD_BYTES_MAX, check_publication
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.errors import InputError, UnreachableError, VolatileMembersError
from skipring.net.access import Access
from skipring.observability.clock import publication_time_us
from skipring.rpc.client import RpcClient, WaitReport, locate_s, open_client, require
from skipring.wire.rpc import PublishAck

AT_ONCE: Final = 64  # Guess: publications that share one commit of the member.
BYTES_AT_ONCE: Final = 1 << 20  # Guess: a quarter of what a connection queues for a peer.
CHUNK_BYTES: Final = 1 << 16
RETRY_S: Final = 0.1  # Guess: a ring that starts has a member within a few of these.

Emit = Callable[[PublishAck], None]
Report = Callable[[str], None]


class PublishPlan(Struct, frozen=True, kw_only=True):
    """Options of publishing: key and headers of each payload, and the wait for a member."""

    topic: TopicId
    key: bytes | None = None
    headers: Mapping[str, str] = {}
    is_volatile: bool = False
    wait_s: float = 0.0


async def publish_all(
    access: Access, plan: PublishPlan, payloads: Iterable[bytes], emit: Emit, report: Report
) -> None:
    """Publish payloads in order through a member; call ``emit`` for each once it is durable.

    Payloads are published as they arrive. While no member accepts them, ``report`` receives the
    reason. Raise UnreachableError after ``wait_s`` without a member.
    """
    waiting = WaitReport(report if plan.wait_s > 0 else lambda _: None)
    async with open_client(
        access.supervisors,
        plan.topic,
        credentials=access.credentials(),
        is_volatile=plan.is_volatile,
        locate_s=locate_s(plan.wait_s),
        report=waiting,
    ) as client:
        seqs = count()
        inbox = _Inbox(payloads)
        while batch := await inbox.next_batch(AT_ONCE):
            made = [_publication(client.name, next(seqs), each, plan) for each in batch]
            for published in await _publish(client, plan, made, waiting):
                emit(published)
            waiting.reset()


async def _publish(
    client: RpcClient, plan: PublishPlan, made: Sequence[Publication], waiting: WaitReport
) -> list[PublishAck]:
    """Publish a batch; retry until a member accepts it or ``wait_s`` has passed.

    The id follows from the fields, so a batch that is sent twice is published once.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + plan.wait_s
    while True:
        try:
            return await client.publish(plan.topic, made)
        except VolatileMembersError:
            raise
        except UnreachableError as error:
            if clock() >= deadline:
                raise
            waiting(str(error))
        await asyncio.sleep(min(RETRY_S, max(deadline - clock(), 0)))


def _publication(publisher: NodeId, seq: int, payload: bytes, plan: PublishPlan) -> Publication:
    made = Publication(
        publisher=publisher,
        seq=seq,
        payload=payload,
        time=publication_time_us(),
        key=plan.key,
        headers=dict(plan.headers),
    )
    require(check_publication, made)
    return made


def lines_of(descriptor: int) -> Iterator[bytes]:
    """Yield the lines of an open file without their ends, each as soon as it arrives.

    Read without Python's buffers: a thread that waits in them keeps a process from ending.
    """
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
        if len(rest) > PAYLOAD_BYTES_MAX:
            raise InputError(
                f"a line has more than {PAYLOAD_BYTES_MAX} bytes, the limit of a payload"
            )
    if rest:
        yield rest


class _End:
    """End of the input."""


class _Inbox:
    """Queue between an input, which a thread reads, and the event loop."""

    def __init__(self, payloads: Iterable[bytes]) -> None:
        self._payloads = payloads
        self._loop = asyncio.get_running_loop()
        self._made: Queue[bytes | BaseException | _End] = Queue(2 * AT_ONCE)
        self._end: BaseException | _End | None = None
        self._arrived = asyncio.Event()
        # A daemon thread, so that an interrupted command does not wait for the end of its input.
        Thread(target=self._read, name="input", daemon=True).start()

    def _read(self) -> None:
        try:
            for payload in self._payloads:
                self._put(payload)
        except BaseException as error:  # noqa: BLE001  (raised in ``next_batch``)
            self._put(error)
        else:
            self._put(_End())

    def _put(self, made: bytes | BaseException | _End) -> None:
        self._made.put(made)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def next_batch(self, count_max: int) -> list[bytes]:
        """Wait for input; return the payloads read, or an empty list at the end."""
        batch: list[bytes] = []
        size = 0
        while self._end is None and len(batch) < count_max and size < BYTES_AT_ONCE:
            try:
                made = self._made.get_nowait()
            except Empty:
                if batch:
                    break
                self._arrived.clear()
                if self._made.empty():
                    await self._arrived.wait()
                continue
            if isinstance(made, bytes):
                batch.append(made)
                size += len(made)
            else:
                self._end = made
        if not batch and isinstance(self._end, BaseException):
            raise self._end  # only now: everything read before it is published
        return batch
