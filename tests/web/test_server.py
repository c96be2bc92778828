"""The dashboard as a server: it closes requests that do not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from skipring.net.addresses import LOOPBACK
from skipring.web import server as server_module
from skipring.web.server import Dashboard
from tests.support.scenes import inside

DEADLINE_S = 20.0
HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UNUSED_ADDRESS = "127.0.0.1:9"


@asynccontextmanager
async def dashboard_port() -> AsyncIterator[int]:
    async with asyncio.timeout(DEADLINE_S), Dashboard([UNUSED_ADDRESS]) as dashboard:
        yield int(dashboard.url.partition("/?")[0].rpartition(":")[2])


async def rest_of(port: int, said: bytes, more: bytes = b"") -> bytes:
    """Send bytes, then single bytes now and then; return the answer until the server closes."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(said)
    came = b""
    try:
        with suppress(ConnectionError):
            while True:
                with suppress(TimeoutError):
                    part = await asyncio.wait_for(reader.read(1 << 16), 0.02)
                    if not part:
                        break
                    came += part
                writer.write(more)
    finally:
        writer.transport.abort()
    return came


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_S", 0.3)


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("said", "more"),
    [
        (b"", b""),
        (HEAD, b""),
        (HEAD, b"X"),
        (b"POST /api/publish HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b"X"),
    ],
    ids=["nothing", "half a head", "a head without end", "half a body"],
)
@inside(dashboard_port)
async def test_incomplete_request_is_closed_after_a_while(
    port: int, /, said: bytes, more: bytes
) -> None:
    await asyncio.gather(*(rest_of(port, said, more) for _ in range(20)))


@pytest.mark.usefixtures("_quick")
@inside(dashboard_port)
async def test_partial_request_after_a_complete_one_is_closed(port: int, /) -> None:
    came = await rest_of(port, HEAD + b"\r\n" + HEAD)
    assert came.count(b"HTTP/1.1 ") == 1
