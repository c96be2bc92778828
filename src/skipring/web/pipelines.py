"""Lag of pipelines and of Spark streams, from the metrics pages of their processes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from skipring.wire.rpc import Address

ANSWER_S: Final = 2.0  # Guess: a process on this machine answers within milliseconds.
PAGE_BYTES_MAX: Final = 1 << 20  # Limit: a page has some kilobytes.
_BEHIND: Final = re.compile(rb'^skipring_pipeline_behind\{topic="([^"]*)"\} (\S+)$', re.MULTILINE)
_STREAM: Final = re.compile(
    rb'^skipring_stream_lag_publications\{query="((?:[^"\\]|\\.)*)",topic="([^"]*)"\} (\S+)$',
    re.MULTILINE,
)
_LAST: Final = re.compile(rb"^skipring_pipeline_last_batch_timestamp_seconds (\S+)$", re.MULTILINE)


class PipelineLag(Struct, frozen=True):
    """Unread publications of a pipeline by topic; None if its process does not answer.

    A process with Spark streams has them by topic and query.
    """

    address: Address
    behind: dict[str, int] | None = None
    is_stream: bool = False
    age_s: float | None = None  # since the end of the last micro-batch; None before the first


async def lags(addresses: Sequence[Address]) -> list[PipelineLag]:
    """Return the lag of the pipeline or streams at each address."""
    return list(await asyncio.gather(*(_lag(address) for address in addresses)))


async def _lag(address: Address) -> PipelineLag:
    page = b""
    with suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(ANSWER_S):
            page = await _page(address)
    if b"skipring_stream_lag_" in page:
        streams = {
            f"{topic.decode()} ({query.decode()})": round(float(count))
            for query, topic, count in _STREAM.findall(page)
        }
        return PipelineLag(address, streams, is_stream=True)
    if b"skipring_pipeline_" not in page:
        return PipelineLag(address)
    last = _LAST.search(page)
    ended = float(last[1]) if last is not None else 0.0
    behind = {topic.decode(): round(float(count)) for topic, count in _BEHIND.findall(page)}
    age_s = max(0.0, time.time() - ended) if ended else None
    return PipelineLag(address, behind, age_s=age_s)


async def _page(address: Address) -> bytes:
    """Return the metrics page of a process."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
        await writer.drain()
        page = bytearray()
        while len(page) < PAGE_BYTES_MAX and (part := await reader.read(1 << 16)):
            page += part
        return bytes(page)
    finally:
        writer.close()
