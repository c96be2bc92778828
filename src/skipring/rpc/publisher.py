"""Publisher of payloads from an input, through a member.

The publisher makes a batch of the payloads that are available. It sends the same batch until a
member has it, so a lost answer does not duplicate it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from queue import Empty, Queue
from threading import Thread
from typing import Final

from msgspec import Struct

from skipring.core.batches import (
    BATCH_BYTES_MAX,
    RECORDS_MAX,
    BatchRecord,
    RecordBatch,
    check_record,
)
from skipring.core.limits import PAYLOAD_BYTES_MAX
from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import RANDOM_BITS, OwnSequence, incarnation_at
from skipring.core.retention.charter import UNLIMITED
from skipring.errors import InputError, UnreachableError, VolatileMembersError
from skipring.net.access import Access
from skipring.observability.clock import publication_time_us
from skipring.rpc.client import RpcClient, WaitReport, locate_s, open_client, require
from skipring.rpc.log_reader import policy_of
from skipring.wire.rpc import PublishAck

CHUNK_BYTES: Final = 1 << 16
POLICY_S: Final = 10.0  # Guess: until then a change of the policy only costs space.
RETRY_S: Final = 0.1  # Guess: a ring that starts has a member within a few of these.


class PublishedRecord(Struct, frozen=True):
    """Record that is durable at a member."""

    id: bytes
    offset: int  # in the log of this member


Emit = Callable[[PublishedRecord], None]
Report = Callable[[str], None]


class PublishPlan(Struct, frozen=True, kw_only=True):
    """Options of publishing: key and headers of each payload, and the wait for a member."""

    topic: TopicId
    key: bytes | None = None
    headers: Mapping[str, str] = {}
    is_volatile: bool = False
    later_than: int = 0  # the time of a publication that the publisher has seen
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
        batches, policy = _ClientBatches(client.name, plan), _TopicPolicy(client, plan)
        inbox = _Inbox(payloads)
        while some := await inbox.next_payloads():
            made = batches.of(some, is_compact=await policy.is_compact(waiting))
            for batch, ack in zip(made, await _publish(client, plan, made, waiting), strict=True):
                for offset, key in enumerate(batch.record_ids(), ack.offset):
                    emit(PublishedRecord(key, offset))
            waiting.reset()


async def _publish(
    client: RpcClient, plan: PublishPlan, made: Sequence[RecordBatch], waiting: WaitReport
) -> list[PublishAck]:
    """Publish batches; retry until a member accepts them or ``wait_s`` has passed.

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


class _TopicPolicy:
    """Policy of the topic of one client, which members announce."""

    def __init__(self, client: RpcClient, plan: PublishPlan) -> None:
        self._client = client
        self._plan = plan
        self._policy = UNLIMITED
        self._known_s = -inf

    async def is_compact(self, waiting: WaitReport) -> bool:
        """Return True if the topic is compacted; ask a member if that was long ago.

        Wait for a member as ``_publish`` does, which then raises the error.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._plan.wait_s
        while clock() - self._known_s > POLICY_S:
            try:
                self._policy = await policy_of(self._client, self._plan.topic)
                self._known_s = clock()
            except UnreachableError as error:
                if clock() >= deadline:
                    break
                waiting(str(error))
                await asyncio.sleep(min(RETRY_S, max(deadline - clock(), 0)))
        return self._policy.compact


class _ClientBatches:
    """Batches of one client: their numbers belong to an incarnation of this process.

    A client whose certificate has a long name has the same name in every run.
    """

    def __init__(self, publisher: NodeId, plan: PublishPlan) -> None:
        incarnation = incarnation_at(publication_time_us(), secrets.randbits(RANDOM_BITS))
        self._own = OwnSequence(publisher, incarnation)
        self._newest: dict[int, int] = {}
        self._plan = plan

    def of(self, payloads: Sequence[bytes], *, is_compact: bool) -> list[RecordBatch]:
        """Return payloads as one batch, or as several if they are long or the topic is compacted.

        A batch is made once: if the policy changes, a retry still sends the same bytes.
        """
        plan = self._plan
        now = max(publication_time_us(), plan.later_than + 1)
        records = [BatchRecord(each, now, plan.key, dict(plan.headers)) for each in payloads]
        for record in records:
            require(check_record, record)
        first = self._own.issue(len(records), self._newest, now)
        publisher, topic = self._own.node, plan.topic
        if is_compact:  # each key is superseded alone
            return [
                RecordBatch.of([each], publisher=publisher, first=number, topic=topic)
                for number, each in enumerate(records, first)
            ]
        return list(RecordBatch.split(records, publisher=publisher, first=first, topic=topic))


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
        self._made: Queue[bytes | BaseException | _End] = Queue(2 * RECORDS_MAX)
        self._end: BaseException | _End | None = None
        self._arrived = asyncio.Event()
        # A daemon thread, so that an interrupted command does not wait for the end of its input.
        Thread(target=self._read, name="input", daemon=True).start()

    def _read(self) -> None:
        try:
            for payload in self._payloads:
                self._put(payload)
        except BaseException as error:  # noqa: BLE001  (raised in ``next_payloads``)
            self._put(error)
        else:
            self._put(_End())

    def _put(self, made: bytes | BaseException | _End) -> None:
        self._made.put(made)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def next_payloads(self) -> list[bytes]:
        """Wait for input; return the payloads read, up to a batch, or an empty list at the end."""
        found: list[bytes] = []
        size = 0
        while self._end is None and len(found) < RECORDS_MAX and size < BATCH_BYTES_MAX:
            try:
                made = self._made.get_nowait()
            except Empty:
                if found:
                    break
                self._arrived.clear()
                if self._made.empty():
                    await self._arrived.wait()
                continue
            if isinstance(made, bytes):
                found.append(made)
                size += len(made)
            else:
                self._end = made
        if not found and isinstance(self._end, BaseException):
            raise self._end  # only now: everything read before it is published
        return found
