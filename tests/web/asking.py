"""A browser limited to HTTP requests to a dashboard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection, HTTPMessage
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from skipring.web.server import Dashboard

PATIENCE_S = 30.0


class Answer(Struct):
    """An answer of a server."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def value(self) -> Any:  # noqa: ANN401  (JSON is anything)
        return json.loads(self.body)


class Visitor:
    """A client of a dashboard with its cookie."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.address = urlsplit(dashboard.url)
        self.cookie: str | None = None

    async def enter(self) -> Answer:
        """Open the one-time address and keep the cookie."""
        answer = await self.ask("GET", f"/?{self.address.query}")
        given = answer.headers.get("set-cookie")
        if given is not None:
            self.cookie = given.split(";")[0]
        return answer

    async def get(self, path: str, **headers: str) -> Answer:
        """Send a GET request."""
        return await self.ask("GET", path, headers=headers)

    async def post(self, path: str, value: object) -> Answer:
        """Send a POST request, as the page does."""
        origin = {"Origin": f"http://{self.address.netloc}"}
        return await self.ask("POST", path, json.dumps(value).encode(), origin)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request of any method."""
        shown = {"Cookie": self.cookie} if self.cookie is not None else {}
        return await asyncio.to_thread(self._ask, method, path, body, shown | (headers or {}))

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = HTTPConnection(self.address.netloc, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    @asynccontextmanager
    async def events(self, topic: str | None) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
        """Yield the events of a topic, or of all topics."""
        host, _, port = self.address.netloc.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        lines = [
            f"GET /api/events{'' if topic is None else f'?topic={topic}'} HTTP/1.1",
            f"Host: {self.address.netloc}",
            f"Cookie: {self.cookie}",
            "",
            "",
        ]
        writer.write("\r\n".join(lines).encode())
        try:
            yield _parsed(reader)
        finally:
            writer.close()


async def _parsed(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async with asyncio.timeout(PATIENCE_S):
        while line := await reader.readline():
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line.removeprefix(b"data: "))
