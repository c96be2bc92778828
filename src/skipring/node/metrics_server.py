"""HTTP server of a process: ``/metrics``, ``/healthz``, ``/livez`` and ``/readyz``.

It runs an event loop in its own thread and asks the loop of the machines for every value. So
machines are read in their own thread only, and a response proves that their loop is alive. Each
connection gets one response in bounded time, or is closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from skipring.errors import InputError
from skipring.net.addresses import join_address
from skipring.net.dial_failure import classify_tls_error
from skipring.observability.logs import RateLimitedLogger, logger
from skipring.observability.metrics import METRICS, HostReadings, MetricKind
from skipring.security.credentials import PeerCertificate
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.security.credentials import Distrust

ANSWER_S: Final = 3.0  # Guess: a loop that has not answered for this time is stuck, not busy.
REQUESTS_MAX: Final = 8  # Limit: a few collectors and people; more at once are refused.
HEAD_BYTES_MAX: Final = 16 << 10  # Limit: request line and headers, as of other HTTP servers.
SILENCE_S: Final = 2.0  # Guess: handshake and request head arrive within this time.
REQUEST_S: Final = 10.0  # Guess: longer than a loop may take to answer; then the connection ends.
ACCEPT_RETRY_S: Final = 0.05  # Guess: pause after the system has refused to accept.
CLOSE_S: Final = 1.0  # Guess: wait for the thread of the server when it closes.

T = TypeVar("T")
Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily
TEXT: Final = "text/plain; charset=utf-8"
METRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"  # every collector supports it

_LOG: Final = logger("telemetry")


class ServerCredentials(Protocol):
    """Credentials of the server, and the certificates that it refuses."""

    def server_context(self) -> ssl.SSLContext:
        """Return the context for a connection that a client opens."""

    def distrust(self, peer: PeerCertificate, now_s: float) -> Distrust | None:
        """Return why a verified certificate is refused now; None if it is not."""


class HttpPage(NamedTuple):
    """Response to one request."""

    status: HTTPStatus
    text: bytes
    kind: str = TEXT


class Telemetry(Collector):
    """HTTP server for the pages of one process."""

    def __init__(
        self,
        read: Callable[[], HostReadings],  # called in the thread of the machines
        loop: asyncio.AbstractEventLoop,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._read = read
        self._loop = loop
        self._answer_s = answer_s
        self._stop: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._limited = RateLimitedLogger(_LOG)
        self._last = HostReadings()  # readings at the last request for metrics
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)  # memory, CPU and open files of the process

    def start(self, host: str, port: int, credentials: ServerCredentials | None = None) -> Address:
        """Start serving, with TLS given credentials; return the address. Port 0 picks a port.

        Raise InputError if the address cannot be used.
        """
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=2 * REQUESTS_MAX)
        except OSError as error:
            where, why = join_address(host, port), error.strerror or error
            raise InputError(
                f"cannot serve metrics on {where}: {why}; use another address"
            ) from None
        listener.setblocking(False)
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listener, credentials, started), name="telemetry", daemon=True
        )
        self._thread.start()
        started.wait(CLOSE_S)
        return join_address(*listener.getsockname()[:2])

    def close(self) -> None:
        """Stop serving and drop all connections; a second call does nothing."""
        stop, self._stop = self._stop, None
        if stop is not None and self._thread is not None:
            stop()
            self._thread.join(CLOSE_S)

    def collect(self) -> Iterator[Family]:
        """Return the metrics of the last request for them."""
        return families(self._last)

    # -- in the thread of the server -----------------------------------------------------------

    def _run(
        self,
        listener: socket.socket,
        credentials: ServerCredentials | None,
        started: threading.Event,
    ) -> None:
        with suppress(asyncio.CancelledError), listener, asyncio.Runner() as runner:
            loop = runner.get_loop()
            serving = loop.create_task(self._serve(listener, credentials))
            self._stop = lambda: loop.call_soon_threadsafe(serving.cancel)
            started.set()
            runner.run(_completed(serving))

    async def _serve(self, listener: socket.socket, credentials: ServerCredentials | None) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as connections:
            running: set[asyncio.Task[None]] = set()
            while True:
                try:
                    accepted, address = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(ACCEPT_RETRY_S)
                    continue
                if len(running) >= REQUESTS_MAX:
                    self._refuse("too many requests", address)
                    accepted.close()
                    continue
                task = connections.create_task(self._connection(accepted, address, credentials))
                running.add(task)
                task.add_done_callback(running.discard)

    async def _connection(
        self,
        accepted: socket.socket,
        address: Any,  # noqa: ANN401
        credentials: ServerCredentials | None,
    ) -> None:
        """Serve one request, within REQUEST_S."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(HEAD_BYTES_MAX, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(REQUEST_S):
                context = credentials.server_context() if credentials is not None else None
                async with asyncio.timeout(SILENCE_S):
                    transport, _ = await loop.connect_accepted_socket(
                        lambda: protocol, accepted, ssl=context
                    )
                    if self._is_trusted(transport, address, credentials):
                        head = await reader.readuntil(b"\r\n\r\n")
                    else:
                        return
                assert isinstance(transport, asyncio.WriteTransport)
                writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                writer.write(await self._response(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, EOFError, asyncio.LimitOverrunError):
            pass  # the client is gone, silent, slow, or does not use HTTP
        except (OSError, ValueError) as error:
            reason, detail = classify_tls_error(error)
            self._refuse(reason or type(error).__name__, address, detail)
        finally:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                accepted.close()

    def _is_trusted(
        self,
        transport: asyncio.BaseTransport,
        address: Any,  # noqa: ANN401
        credentials: ServerCredentials | None,
    ) -> bool:
        shown = transport.get_extra_info("peercert")
        if credentials is None or not shown:
            return True
        why = credentials.distrust(PeerCertificate.read(shown), time.time())
        if why is not None:
            self._refuse(why.reason, address, why.sentence)
        return why is None

    def _refuse(self, reason: str, address: Any, detail: str = "") -> None:  # noqa: ANN401
        where = join_address(*address[:2])
        self._limited.warn("request_refused", reason=reason, address=where, detail=detail)

    # -- pages -----------------------------------------------------------------------------------

    async def _response(self, head: bytes) -> bytes:
        words = head.partition(b"\r\n")[0].decode("latin-1").split()
        if [word[:7] for word in words[2:]] != ["HTTP/1."]:
            page = HttpPage(HTTPStatus.BAD_REQUEST, b"this is not HTTP/1.1\n")
        elif words[0] not in {"GET", "HEAD"}:
            page = HttpPage(HTTPStatus.NOT_IMPLEMENTED, b"only GET and HEAD are served\n")
        else:
            page = await self._page(words[1].partition("?")[0])
        status, text, kind = page
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(text)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        body = b"" if words[:1] == ["HEAD"] else text
        return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body

    async def _page(self, path: str) -> HttpPage:
        pages = {
            "/metrics": self._on_metrics,
            "/healthz": self._on_health,
            "/livez": self._on_health,
            "/readyz": self._on_ready,
        }
        if path not in pages:
            return HttpPage(HTTPStatus.NOT_FOUND, b"nothing is here\n")
        try:
            return await pages[path]()
        except TimeoutError:
            return HttpPage(HTTPStatus.SERVICE_UNAVAILABLE, b"the event loop does not answer\n")
        except Exception as error:  # noqa: BLE001  (a bug affects this response only)
            _LOG.error("page_failed", path=path, error=repr(error))
            return HttpPage(HTTPStatus.INTERNAL_SERVER_ERROR, b"this is a mistake in skipring\n")

    async def _on_metrics(self) -> HttpPage:
        self._last = await self._ask(self._read)
        return HttpPage(HTTPStatus.OK, generate_latest(self._registry), METRICS_TEXT)

    async def _on_health(self) -> HttpPage:
        await self._ask(lambda: None)
        return HttpPage(HTTPStatus.OK, b"alive\n")

    async def _on_ready(self) -> HttpPage:
        reasons = (await self._ask(self._read)).unready
        if not reasons:
            return HttpPage(HTTPStatus.OK, b"ready\n")
        text = "".join(f"{reason}\n" for reason in reasons)
        return HttpPage(HTTPStatus.SERVICE_UNAVAILABLE, text.encode(errors="replace"))

    async def _ask(self, question: Callable[[], T]) -> T:
        """Run a question in the loop of the machines; raise TimeoutError if it does not answer."""
        answer: Future[T] = Future()  # cancelled on timeout: a late loop has nothing to catch up on
        with suppress(RuntimeError):  # a closed loop does not answer either
            self._loop.call_soon_threadsafe(_answer, question, answer)
        return await asyncio.wait_for(asyncio.wrap_future(answer), self._answer_s)


def families(readings: HostReadings) -> Iterator[Family]:
    """Yield the metrics of the table that have a reading, with their values."""
    for name, samples in readings.samples.items():
        metric = METRICS[name]
        kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
        family: Family = kind(name, metric.meaning, labels=metric.labels)
        for labels, value in samples.items():
            family.add_metric(labels, value)
        yield family


async def _completed(task: asyncio.Task[None]) -> None:
    await task


def _answer(question: Callable[[], T], answer: Future[T]) -> None:
    """Answer in the thread of the machines, unless the question was abandoned."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(question())
    except Exception as error:  # noqa: BLE001  (the request reports it)
        answer.set_exception(error)
