"""Requests to live processes, as ``skipring ring`` and ``skipring pub`` send them."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Iterable
from functools import partial
from itertools import count, cycle
from random import Random
from threading import Event, Thread
from time import time_ns
from types import TracebackType
from typing import Final, Self

from msgspec.structs import replace

from skipring.admin.inspector import TopicContents, open_inspector
from skipring.core.publications import Publication
from skipring.rpc.client import RpcClient
from skipring.wire.rpc import (
    FetchPublications,
    GetLogInfo,
    LogInfo,
    PublicationPage,
    Publish,
    PublishAck,
)
from skipring.world.snapshot import Snapshot

TOPIC: Final = "news"
PATIENCE_S: Final = 0.4  # a dead process does not answer; a slow one is asked again
ANSWER_S: Final = 30.0  # for requests that need an answer, on a machine that others use too
NO_SUPERVISOR: Final = "127.0.0.1:1"  # no process listens there
END: Final = (1 << 40) - 1  # above every offset

Place = tuple[str, str]  # a node and its address
_seqs = count()


def snapshot_of(supervisor: str) -> Snapshot:
    """Return the state of the topic; raise UnreachableError without a supervisor."""

    async def scene() -> Snapshot:
        async with open_inspector([supervisor], TOPIC, patience_s=PATIENCE_S) as inspector:
            return (await inspector.inspect(TopicContents.IDS)).snapshot

    return asyncio.run(scene())


def publish_through(place: Place, payloads: Iterable[bytes]) -> list[bytes]:
    """Publish through one member, all at once; return the ids once it has acknowledged all."""

    async def scene() -> list[bytes]:
        async with stranger() as outsider:
            made = [publication(payload) for payload in payloads]
            return await asyncio.gather(*(publish_one(outsider, place, each) for each in made))

    return asyncio.run(scene())


def stored_at(place: Place) -> set[bytes]:
    """Return the ids of all publications that a member holds."""

    async def scene() -> set[bytes]:
        async with stranger() as outsider:
            return {each.id async for each in _listed(outsider, place)}

    return asyncio.run(scene())


def payloads_at(place: Place) -> list[bytes]:
    """Return the payloads that a member holds, in its order; verify each against its id."""

    async def scene() -> list[bytes]:
        async with stranger() as outsider:
            found = [each async for each in _listed(outsider, place, payloads=True)]
        for each in found:
            bare = replace(each, id=b"")
            assert bare.with_id(TOPIC).id == each.id, f"{place[0]} has {each} under a wrong id"
        return [each.payload or b"" for each in found]

    return asyncio.run(scene())


def surveyed(place: Place) -> LogInfo:
    """Return the store of a member and its size."""
    name, address = place

    async def scene() -> LogInfo:
        async with stranger() as outsider:
            outsider.book.learn({name: address})
            question = partial(GetLogInfo, bits=None, offset=None)
            answer = await outsider.request(TOPIC, name, question, LogInfo, ANSWER_S)
        assert isinstance(answer, LogInfo), f"{name} answered {answer}"
        return answer

    return asyncio.run(scene())


def numbers_at(place: Place, publisher: str) -> list[int]:
    """Return the sequence numbers of all publications of a publisher that a member holds."""

    async def scene() -> list[int]:
        async with stranger() as outsider:
            found = [each async for each in _listed(outsider, place)]
        return [each.seq for each in found if each.publisher == publisher]

    return asyncio.run(scene())


async def _listed(
    outsider: RpcClient, place: Place, *, payloads: bool = False
) -> AsyncIterator[Publication]:
    name, address = place
    outsider.book.learn({name: address})
    start: int | None = 0
    while start is not None:
        question = partial(FetchPublications, start=start, end=END, payloads=payloads)
        page = await outsider.request(TOPIC, name, question, PublicationPage, ANSWER_S)
        assert isinstance(page, PublicationPage), f"{name} answered {page}"
        for each in page.publications:
            yield each
        start = page.next


def stranger() -> RpcClient:
    """Return a client without a supervisor; the caller gives it addresses of members."""
    return RpcClient([NO_SUPERVISOR], rng=Random())


def publication(payload: bytes) -> Publication:
    """Return a publication of a client, with its id."""
    made = Publication(publisher="client", seq=next(_seqs), payload=payload, time=time_ns() // 1000)
    return made.with_id(TOPIC)


async def publish_one(outsider: RpcClient, place: Place, given: Publication) -> bytes:
    """Publish through a member; return the id once it is acknowledged."""
    name, address = place
    outsider.book.learn({name: address})
    answer = await outsider.request(
        TOPIC, name, partial(Publish, publication=given), PublishAck, ANSWER_S
    )
    assert isinstance(answer, PublishAck), f"{name} answered {answer}"
    assert answer.id == given.id
    return answer.id


def metric(address: str, name: str) -> float:
    """Return the value of a metric without labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=ANSWER_S) as page:
        text = page.read().decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, f"no {name} at {address}"
    return float(found[1])


class PublishStream:
    """Publisher through some members in turn, in a thread, inside a ``with`` block."""

    PAUSE_S = 0.02  # between two publications

    def __init__(self, places: list[Place]) -> None:
        self.acknowledged: list[bytes] = []
        self._places = places
        self._is_over = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="publishing")

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

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:  # noqa: BLE001  (raised at the end of the block)
            self._error = error

    async def _publish(self) -> None:
        async with stranger() as outsider:
            for place in cycle(self._places):
                if self._is_over.is_set():
                    return
                payload = f"{len(self.acknowledged)} by {place[0]}".encode()
                self.acknowledged.append(await publish_one(outsider, place, publication(payload)))
                await asyncio.sleep(self.PAUSE_S)
