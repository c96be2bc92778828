"""Publishing from the command line: through a member, without joining the ring."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from queue import Empty, Queue
from random import Random
from threading import Thread
from time import time_ns
from typing import TYPE_CHECKING, Final

from skipring.core.peers import NodeId, TopicId
from skipring.core.publications import Publication
from skipring.errors import InputError, MessageError
from skipring.runtime.outsider import Outsider
from skipring.wire.runtime_messages import Address, Published
from skipring.wire.values import PAYLOAD_BYTES_MAX, check_publication, check_topic

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.runtime.credentials import Credentials

AT_ONCE: Final = 64  # Our guess: so many share one write to a member's disk.
BYTES_AT_ONCE: Final = 1 << 20  # Our guess: links hold four times as much for a peer.
CHUNK_BYTES: Final = 1 << 16

Emit = Callable[[Published], None]


async def publish_all(
    supervisors: tuple[Address, ...],
    topic: TopicId,
    payloads: Iterable[bytes],
    emit: Emit,
    *,
    credentials: Credentials | None = None,
    is_volatile: bool = False,
) -> None:
    """Publish in order through a member of a topic; each is handed over once it is durable.

    Payloads are taken as they come: whoever makes them slowly sees each published at once.
    """
    _check(lambda: check_topic(topic))
    client = Outsider(supervisors, rng=Random(), credentials=credentials, is_volatile=is_volatile)
    async with client as outsider:
        seqs = count()
        inbox = _Inbox(payloads)
        while batch := await inbox.take(AT_ONCE):
            made = [_publication(outsider.name, next(seqs), payload) for payload in batch]
            for published in await outsider.publish(topic, made):
                emit(published)


def _publication(publisher: NodeId, seq: int, payload: bytes) -> Publication:
    made = Publication(publisher=publisher, seq=seq, payload=payload, time=time_ns() // 1000)
    _check(lambda: check_publication(made))
    return made


def _check(check: Callable[[], None]) -> None:
    try:
        check()
    except MessageError as error:
        raise InputError(str(error)) from None


def lines_of(descriptor: int) -> Iterator[bytes]:
    """The lines that come from an open file, without their ends, each as soon as it is there.

    Read without Python's buffers: a thread that waits in them keeps a process from ending.
    """
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
        if len(rest) > PAYLOAD_BYTES_MAX:
            raise InputError(f"a line of more than {PAYLOAD_BYTES_MAX} bytes; nobody takes it")
    if rest:
        yield rest


class _End:
    """Nothing more comes."""


class _Inbox:
    """What may come slowly: made in a thread, and taken as much as there is."""

    def __init__(self, payloads: Iterable[bytes]) -> None:
        self._payloads = payloads
        self._loop = asyncio.get_running_loop()
        self._made: Queue[bytes | BaseException | _End] = Queue(2 * AT_ONCE)
        self._end: BaseException | _End | None = None
        self._came = asyncio.Event()
        # A daemon: whoever is interrupted does not wait for the end of the input.
        Thread(target=self._read, name="input", daemon=True).start()

    def _read(self) -> None:
        try:
            for payload in self._payloads:
                self._put(payload)
        except BaseException as error:  # noqa: BLE001  (told to whoever takes)
            self._put(error)
        else:
            self._put(_End())

    def _put(self, made: bytes | BaseException | _End) -> None:
        self._made.put(made)
        with suppress(RuntimeError):  # the loop is closed, nobody takes any more
            self._loop.call_soon_threadsafe(self._came.set)

    async def take(self, count_max: int) -> list[bytes]:
        """What has come, at least one; nothing at the end."""
        taken: list[bytes] = []
        size = 0
        while self._end is None and len(taken) < count_max and size < BYTES_AT_ONCE:
            try:
                made = self._made.get_nowait()
            except Empty:
                if taken:
                    break
                self._came.clear()
                if self._made.empty():
                    await self._came.wait()
                continue
            if isinstance(made, bytes):
                taken.append(made)
                size += len(made)
            else:
                self._end = made
        if not taken and isinstance(self._end, BaseException):
            raise self._end  # only now: what came before it is published
        return taken
