"""Requests to live processes, as ``skipring ring`` and ``skipring pub`` send them."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from random import Random
from time import time_ns
from typing import Final
from urllib.error import HTTPError

from prometheus_client.parser import text_string_to_metric_families

from skipring.admin.inspector import TopicContents, open_inspector
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.log_messages import FetchLog, GetLogInfo, LogInfo, LogPage
from skipring.rpc.client import RpcClient, Wanted
from skipring.wire.rpc import Publish, PublishAck, WireMessage
from skipring.world.snapshot import Snapshot

TOPIC: Final = "news"
PATIENCE_S: Final = 0.4  # a dead process does not answer; a request to a slow one is repeated
ANSWER_S: Final = 30.0  # for requests that need an answer, on a busy machine
NO_SUPERVISOR: Final = "127.0.0.1:1"  # no process listens there
END: Final = (1 << 40) - 1  # above every offset

Place = tuple[str, str]  # a node and its address
_STEP: Final = 256  # between the first numbers of two batches: the largest batch
_firsts = count(0, _STEP)


def stranger() -> RpcClient:
    """Return a client without a supervisor; each request names the address of a member."""
    return RpcClient([NO_SUPERVISOR], rng=Random())


async def ask(
    client: RpcClient,
    place: Place,
    question: Callable[[int], WireMessage],
    kind: type[Wanted],
    answer_s: float = ANSWER_S,
) -> Wanted:
    """Send a request to a member; fail unless it answers with this type."""
    name, address = place
    client.book.learn({name: address})
    answer = await client.request(TOPIC, name, question, kind, answer_s)
    assert isinstance(answer, kind), f"{name} answered {answer}"
    return answer


def snapshot_of(supervisor: str) -> Snapshot:
    """Return the state of the topic; raise UnreachableError without a supervisor."""

    async def scene() -> Snapshot:
        async with open_inspector([supervisor], TOPIC, patience_s=PATIENCE_S) as inspector:
            return (await inspector.inspect(TopicContents.IDS)).snapshot

    return asyncio.run(scene())


# --- publishing ------------------------------------------------------------------------


def batch_of(*payloads: bytes) -> RecordBatch:
    """Return a batch of a client."""
    time = time_ns() // 1000
    records = [BatchRecord(payload, time) for payload in payloads]
    return RecordBatch.of(records, publisher="client", first=next(_firsts), topic=TOPIC)


async def publish_one(client: RpcClient, place: Place, batch: RecordBatch) -> list[bytes]:
    """Publish through a member; return the ids of the records once they are acknowledged."""
    answer = await ask(client, place, partial(Publish, batch=batch), PublishAck)
    assert answer.id == batch.id
    return batch.record_ids()


def publish_through(place: Place, payloads: Iterable[bytes]) -> list[bytes]:
    """Publish through one member, concurrently; return the ids once it has acknowledged all."""

    async def scene() -> list[bytes]:
        async with stranger() as client:
            made = [batch_of(payload) for payload in payloads]
            ids = await asyncio.gather(*(publish_one(client, place, each) for each in made))
            return [each for (each,) in ids]

    return asyncio.run(scene())


# --- stored publications ---------------------------------------------------------------


def fetch_all(start: int, *, contents: bool) -> Callable[[int], FetchLog]:
    """Return a request for a log of any store from an offset on."""
    return partial(
        FetchLog, store="", epoch=0, start=start, end=END, bits=0, prefix=0, contents=contents
    )


def batches_at(place: Place, *, contents: bool = False) -> list[RecordBatch]:
    """Return all batches that a member holds, in its order."""

    async def scene() -> list[RecordBatch]:
        found: list[RecordBatch] = []
        start: int | None = 0
        async with stranger() as client:
            while start is not None:
                page = await ask(client, place, fetch_all(start, contents=contents), LogPage)
                found += page.batches
                start = page.next
        return found

    return asyncio.run(scene())


def payloads_at(place: Place) -> list[bytes]:
    """Return the payloads that a member holds, in its order; verify each batch against its id."""
    found = batches_at(place, contents=True)
    for each in found:
        assert each.is_genuine(TOPIC), f"{place[0]} has {each} under a wrong id"
    return [record.payload for each in found for record in each.records()]


def surveyed(place: Place) -> LogInfo:
    """Return the store of a member and its size."""

    async def scene() -> LogInfo:
        async with stranger() as client:
            return await ask(client, place, partial(GetLogInfo, bits=None, offset=None), LogInfo)

    return asyncio.run(scene())


# --- metrics ---------------------------------------------------------------------------


def metric(address: str, name: str, **labels: str) -> float:
    """Return the value of a metric with these labels; 0 for labels that have not occurred yet."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=ANSWER_S) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = [each for family in families for each in family.samples if each.name == name]
    assert samples or labels, f"no {name} at {address}"
    return sum(each.value for each in samples if each.labels == labels)


def not_ready(address: str) -> str:
    """Return the reason why a process is not ready (``/readyz``); an empty text if it is ready."""
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=ANSWER_S):
            return ""
    except HTTPError as error:
        return error.read().decode()
