"""Metrics over HTTP: contents, access, and limits for clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from skipring.errors import InputError
from skipring.node import metrics_server as metrics_server_module
from skipring.node.metrics_server import REQUESTS_MAX, ServerCredentials, Telemetry
from skipring.observability.metrics import HostReadings
from skipring.security.credentials import Distrust, PeerCertificate
from tests.support.rings import until

LOOPBACK = "127.0.0.1"
DEADLINE_S = 30.0
NEVER_S = 3600.0
NO_ANSWER = (OSError, HTTPException)


class Shown:
    """A source of readings whose values can be changed."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.value = 7.0

    def __call__(self) -> HostReadings:
        asyncio.get_running_loop()  # readings are only taken in the thread of the loop
        return HostReadings(tuple(self.reasons), {"skipring_links": {(): self.value}})


def get(
    address: str, path: str, method: str = "GET", context: ssl.SSLContext | None = None
) -> tuple[int, str]:
    """Return status and text of a page; the loop has to run meanwhile."""
    connection = (
        HTTPConnection(address, timeout=DEADLINE_S)
        if context is None
        else HTTPSConnection(address, timeout=DEADLINE_S, context=context)
    )
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def asked(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    return await asyncio.to_thread(get, address, path, method)


def connected(address: str) -> socket.socket:
    """Return a connected socket that sends nothing."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def is_dropped(client: socket.socket) -> bool:
    """Wait until the other side has closed a connection."""
    with suppress(ConnectionError):
        while client.recv(4096):
            pass  # an answer may have been in flight
    return True


@asynccontextmanager
async def showing(
    source: Shown, *, answer_s: float = DEADLINE_S, credentials: ServerCredentials | None = None
) -> AsyncIterator[str]:
    telemetry = Telemetry(source, asyncio.get_running_loop(), answer_s)
    try:
        yield telemetry.start(LOOPBACK, 0, credentials)
    finally:
        telemetry.close()


# --- pages -----------------------------------------------------------------------------


async def test_collector_reads_current_metrics() -> None:
    source = Shown()
    async with showing(source) as address:
        for value in (7.0, 8.0):
            source.value = value
            status, text = await asked(address, "/metrics")
            families = {each.name: each for each in text_string_to_metric_families(text)}
            assert status == 200
            assert families["skipring_links"].samples[0].value == value
            assert families["process_open_fds"].samples[0].value > 0


async def test_process_is_ready_without_reasons_against_it() -> None:
    source = Shown()
    source.reasons = ["no place in the ring of 'news'", "the disk is full"]
    async with showing(source) as address:
        unready = (503, "no place in the ring of 'news'\nthe disk is full\n")
        assert await asked(address, "/readyz") == unready
        assert await asked(address, "/healthz") == (200, "alive\n")
        source.reasons = []
        assert await asked(address, "/readyz") == (200, "ready\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_blocked_loop_is_reported_until_it_answers_again(path: str) -> None:
    async with showing(Shown(), answer_s=0.05) as address:
        # Called in the thread of the loop, which then cannot answer.
        assert get(address, path) == (503, "the event loop does not answer\n")
        await until_answered(lambda: get(address, path)[0] == 200)


async def test_other_paths_and_methods_are_refused() -> None:
    async with showing(Shown()) as address:
        for path in ("/", "/metrics/", "/metricsx", "/../metrics"):
            assert (await asked(address, path))[0] == 404
        assert (await asked(address, "/metrics?name[]=x"))[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await asked(address, "/metrics", method))[0] == 501
        assert await asked(address, "/healthz", "HEAD") == (200, "")


async def test_port_in_use_is_one_sentence() -> None:
    async with showing(Shown()) as address:
        second = Telemetry(Shown(), asyncio.get_running_loop())
        with pytest.raises(InputError, match=f"cannot serve metrics on {address}: .*in use"):
            second.start(LOOPBACK, int(address.rpartition(":")[2]))
        second.close()


# --- limits for clients ------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"])
async def test_hanging_clients_do_not_prevent_close(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server_module, "SILENCE_S", NEVER_S)
    monkeypatch.setattr(metrics_server_module, "REQUEST_S", NEVER_S)
    with ExitStack() as stack:
        async with showing(Shown()) as address:
            clients = [stack.enter_context(connected(address)) for _ in range(3)]
            for client in clients:
                client.sendall(said)
            assert (await asked(address, "/healthz"))[0] == 200  # the others were accepted
        assert all(map(is_dropped, clients))


@pytest.mark.parametrize(
    "head", [b"GET\r\n\r\n", b"GET / SMTP\r\n\r\n", b"\xff\x00\r\n\r\n", b"x" * (1 << 20)]
)
async def test_malformed_request_is_refused(head: bytes) -> None:
    async with showing(Shown()) as address:
        with connected(address) as client:
            with suppress(ConnectionError):
                client.sendall(head)
            assert await asyncio.to_thread(is_dropped, client)
        assert (await asked(address, "/healthz"))[0] == 200


@pytest.mark.parametrize("limit", ["SILENCE_S", "REQUEST_S"])
async def test_silent_client_is_dropped(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SILENCE_S", "REQUEST_S"):
        monkeypatch.setattr(metrics_server_module, name, 0.05 if name == limit else NEVER_S)
    async with showing(Shown()) as address:
        with connected(address) as client:
            client.sendall(b"GET /")
            assert await asyncio.to_thread(is_dropped, client)


async def test_excess_clients_are_dropped_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server_module, "SILENCE_S", NEVER_S)
    monkeypatch.setattr(metrics_server_module, "REQUEST_S", NEVER_S)
    async with showing(Shown()) as address:
        with ExitStack() as stack:
            for _ in range(REQUESTS_MAX):
                stack.enter_context(connected(address))
            with connected(address) as one_more:
                assert await asyncio.to_thread(is_dropped, one_more)
        await until_answered(lambda: get(address, "/healthz")[0] == 200)


async def until_answered(holds: Callable[[], bool]) -> None:
    """Wait until a page is available again."""

    def tried() -> bool:
        try:
            return holds()
        except NO_ANSWER:
            return False

    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(tried):  # noqa: ASYNC110  (no event announces it)
            await asyncio.sleep(0.01)


# --- under TLS -----------------------------------------------------------------------------


class Serving:
    """Credentials of an authority, with one denied certificate."""

    def __init__(self, authority: trustme.CA, denied: str = "") -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(self._context)
        authority.issue_cert(LOOPBACK).configure_cert(self._context)
        self._denied = denied

    def server_context(self) -> ssl.SSLContext:
        return self._context

    def distrust(self, peer: PeerCertificate, now_s: float) -> Distrust | None:
        assert now_s < peer.ends_s
        is_denied = peer.name == self._denied
        return Distrust("certificate denied", "it is denied") if is_denied else None


def client_of(authority: trustme.CA, certified_by: trustme.CA | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    if certified_by is not None:
        certified_by.issue_cert(common_name="client").configure_cert(context)
    return context


async def test_tls_requires_a_certificate_of_the_authority() -> None:
    ours, another = trustme.CA(), trustme.CA()
    async with showing(Shown(), credentials=Serving(ours)) as address:
        for certified_by in (None, another):
            stranger = client_of(ours, certified_by)
            with pytest.raises(NO_ANSWER):
                await asyncio.to_thread(get, address, "/healthz", "GET", stranger)
        with pytest.raises(NO_ANSWER):
            await asked(address, "/healthz")
        client = client_of(ours, ours)
        assert await asyncio.to_thread(get, address, "/healthz", "GET", client) == (200, "alive\n")


async def test_collector_with_a_denied_certificate_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours = trustme.CA()
    async with showing(Shown(), credentials=Serving(ours, denied="client")) as address:
        with pytest.raises(NO_ANSWER):
            await asyncio.to_thread(get, address, "/healthz", "GET", client_of(ours, ours))
        await until(lambda: "request_refused" in caplog.text, lambda: caplog.text)
        assert "reason='certificate denied'" in caplog.text


async def test_stalled_tls_handshake_does_not_block_other_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server_module, "SILENCE_S", NEVER_S)
    monkeypatch.setattr(metrics_server_module, "REQUEST_S", NEVER_S)
    ours = trustme.CA()
    client = client_of(ours, ours)
    with ExitStack() as stack:
        async with showing(Shown(), credentials=Serving(ours)) as address:
            silent = stack.enter_context(connected(address))
            status, _ = await asyncio.to_thread(get, address, "/healthz", "GET", client)
            assert status == 200
        assert is_dropped(silent)
