"""HTTP server of a process: ``/metrics``, ``/healthz``, ``/livez`` and ``/readyz``.

It runs in its own threads and asks the event loop for every value. So machines are read in their
own thread only, and a response proves that the loop is alive. Each connection gets one response in
bounded time, or is closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from skipring.errors import InputError
from skipring.net.addresses import join_address
from skipring.net.connection import classify_tls_error
from skipring.observability.logs import RateLimitedLogger, logger
from skipring.security.credentials import PeerCertificate
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # it reads certificates, which few processes need
    from skipring.security.credentials import Distrust

ANSWER_S: Final = 3.0  # Our guess: a loop that has not answered for so long is stuck, not busy.
REQUESTS_MAX: Final = 8  # Limit of ours: a few collectors and people; more at once are dropped.
SILENCE_S: Final = 2.0  # Our guess: who connects has something to ask.
REQUEST_S: Final = 10.0  # Our guess: longer than a loop may take to answer; then it is over.
POLL_S: Final = 0.05  # Guess: closing waits so long for the thread that accepts.
CLOSE_S: Final = 1.0  # Our guess: answers that are under way are not waited for much longer.

T = TypeVar("T")
TEXT: Final = "text/plain; charset=utf-8"
METRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"  # the form every collector reads

_LOG: Final = logger("telemetry")


class PageSource(Protocol):
    """What is shown; called in the thread of the event loop."""

    def metrics(self) -> Iterable[Metric]:
        """All metrics with their values."""

    def readiness(self) -> list[str]:
        """Why the process is not ready, in words; nothing if it is."""


class ServerCredentials(Protocol):
    """What a server shows, and which certificates it refuses."""

    def server_context(self) -> ssl.SSLContext:
        """For connections that others open."""

    def distrust(self, peer: PeerCertificate, now_s: float) -> Distrust | None:
        """Return why a certificate that was verified is refused now; None if it is not."""


class HttpPage(NamedTuple):
    """An answer."""

    status: HTTPStatus
    text: bytes
    kind: str = TEXT


class Telemetry:
    """Shows how a process is, over HTTP."""

    def __init__(
        self, source: PageSource, loop: asyncio.AbstractEventLoop, answer_s: float = ANSWER_S
    ) -> None:
        self._source = source
        self._loop = loop
        self._answer_s = answer_s
        self._questions: set[Future[Any]] = set()  # that the loop has not answered yet
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._registry = CollectorRegistry()
        self._registry.register(_Asking(self._metrics))
        ProcessCollector(registry=self._registry)  # memory, CPU and open files of the process

    def start(self, host: str, port: int, credentials: ServerCredentials | None = None) -> Address:
        """Answer from now on, under TLS with credentials; return where. Port 0: any free one.

        InputError if we cannot listen there.
        """
        host = host.strip("[]")
        try:
            self._server = _Server((host, port), self._page, credentials)
        except OSError as error:
            where, why = join_address(host, port), error.strerror or error
            raise InputError(f"cannot show metrics at {where}: {why}; take another one") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="telemetry", daemon=True
        )
        self._thread.start()
        return _shown_address(self._server.server_address)

    def close(self) -> None:
        """Answer no more; whoever waits for an answer is dropped. A second time does nothing."""
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        server.shutdown()
        for question in list(self._questions):
            question.cancel()  # the loop may be who calls us: it cannot answer now
        server.drop_all(time.monotonic() + CLOSE_S)
        server.server_close()
        self._thread.join(CLOSE_S)

    # -- in threads of the server ------------------------------------------------------------

    def _page(self, path: str) -> HttpPage | None:
        """What is to be seen under a path; None if nothing is."""
        pages = {
            "/metrics": self._on_metrics,
            "/healthz": self._on_health,
            "/livez": self._on_health,
            "/readyz": self._on_ready,
        }
        show = pages.get(path.partition("?")[0])
        if show is None:
            return None
        try:
            return show()
        except (TimeoutError, CancelledError):
            return HttpPage(HTTPStatus.SERVICE_UNAVAILABLE, b"the event loop does not answer\n")
        except Exception as error:  # noqa: BLE001  (a mistake of ours ends nothing but the answer)
            _LOG.error("page_failed", path=path, error=repr(error))
            return HttpPage(HTTPStatus.INTERNAL_SERVER_ERROR, b"this is a mistake in skipring\n")

    def _on_metrics(self) -> HttpPage:
        return HttpPage(HTTPStatus.OK, generate_latest(self._registry), METRICS_TEXT)

    def _on_health(self) -> HttpPage:
        self._ask(lambda: None)
        return HttpPage(HTTPStatus.OK, b"alive\n")

    def _on_ready(self) -> HttpPage:
        reasons = self._ask(self._source.readiness)
        if not reasons:
            return HttpPage(HTTPStatus.OK, b"ready\n")
        text = "".join(f"{reason}\n" for reason in reasons)
        return HttpPage(HTTPStatus.SERVICE_UNAVAILABLE, text.encode(errors="replace"))

    def _metrics(self) -> list[Metric]:
        return self._ask(lambda: list(self._source.metrics()))

    def _ask(self, question: Callable[[], T]) -> T:
        """Let the loop answer a question; TimeoutError if it does not."""
        answer: Future[T] = Future()
        self._questions.add(answer)
        if self._server is None:
            answer.cancel()  # closing has cancelled all others
        try:
            with suppress(RuntimeError):  # a closed loop does not answer either
                self._loop.call_soon_threadsafe(_answer, question, answer)
            return answer.result(self._answer_s)
        finally:
            answer.cancel()  # a loop that comes back has nothing to catch up on
            self._questions.discard(answer)


def _answer(question: Callable[[], T], answer: Future[T]) -> None:
    """Run in the loop's thread."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(question())
    except Exception as error:  # noqa: BLE001  (whoever has asked gets it)
        answer.set_exception(error)


class _Asking(Collector):
    """Gives a registry what the loop says at that moment."""

    def __init__(self, ask: Callable[[], list[Metric]]) -> None:
        self._ask = ask

    def collect(self) -> Iterable[Metric]:
        """All metrics with their values."""
        return self._ask()


class _Server(ThreadingTCPServer):
    """One thread for each of a few connections; each connection is over after some seconds."""

    allow_reuse_address = True
    request_queue_size = 2 * REQUESTS_MAX  # of the system: those who come at once are not lost
    daemon_threads = True
    block_on_close = False  # we wait ourselves, and not for ever

    def __init__(
        self,
        address: tuple[str, int],
        page: Callable[[str], HttpPage | None],
        credentials: ServerCredentials | None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.page = page
        self._credentials = credentials
        self._rarely = RateLimitedLogger(_LOG)
        self._ends: dict[socket.socket, float] = {}  # of connections
        self._changed = threading.Condition()
        super().__init__(address, _Request)

    # -- in the thread that accepts ------------------------------------------------------------

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401
        """False if too many are being answered."""
        with self._changed:
            if len(self._ends) >= REQUESTS_MAX:
                self._refuse("too many requests", client_address)
                return False
            self._ends[request] = time.monotonic() + REQUEST_S
        return True

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; nothing here waits for whoever has opened it."""
        accepted, address = super().get_request()
        accepted.settimeout(SILENCE_S)
        if self._credentials is None:
            return accepted, address
        try:
            secured = self._credentials.server_context().wrap_socket(
                accepted, server_side=True, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:  # whoever it was is gone again
            accepted.close()
            raise OSError(str(error)) from None
        return secured, address

    def service_actions(self) -> None:
        """Drop whoever takes too long, however busy it seems."""
        self._drop(lambda end: end < time.monotonic())

    # -- in the thread of a connection -----------------------------------------------------------

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Shake hands, where there is TLS, and answer."""
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
            if not self._is_trusted(request, client_address):
                return
        super().finish_request(request, client_address)

    def _is_trusted(self, request: ssl.SSLSocket, client_address: Any) -> bool:  # noqa: ANN401
        shown = request.getpeercert()
        if self._credentials is None or not shown:
            return True
        why = self._credentials.distrust(PeerCertificate.read(shown), time.time())
        if why is not None:
            self._refuse(why.reason, client_address, why.sentence)
        return why is None

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Close a connection."""
        super().shutdown_request(request)
        with self._changed:
            self._ends.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Say what went wrong with a connection, now and then."""
        del request
        error = sys.exception()
        assert isinstance(error, Exception)
        if isinstance(error, ConnectionError):
            return  # it has gone away, or we have dropped it
        reason, detail = classify_tls_error(error)
        self._refuse(reason or type(error).__name__, client_address, detail)

    def _refuse(self, reason: str, client_address: Any, detail: str = "") -> None:  # noqa: ANN401
        address = _shown_address(client_address)
        self._rarely.warn("request_refused", reason=reason, address=address, detail=detail)

    # -- the end -----------------------------------------------------------------------------

    def drop_all(self, until_s: float) -> None:
        """Drop all connections; wait until their threads have let go of them, but not for ever."""
        self._drop(lambda _: True)
        with self._changed:
            self._changed.wait_for(lambda: not self._ends, until_s - time.monotonic())

    def _drop(self, is_over: Callable[[float], bool]) -> None:
        """Wake whoever waits at a connection: there is nothing to read or write any more."""
        with self._changed:
            for connection, end in self._ends.items():
                if is_over(end):
                    _break(connection)


def _break(connection: socket.socket) -> None:
    with suppress(OSError):  # it may be closed already
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # not TLS's: another thread uses that


def _shown_address(address: Any) -> Address:  # noqa: ANN401  (sockets have many forms of them)
    return join_address(*address[:2])


class _Request(BaseHTTPRequestHandler):
    """Answers one request."""

    server_version = "skipring"
    sys_version = ""

    def do_GET(self) -> None:
        """Send a page."""
        self._send(self._find())

    def do_HEAD(self) -> None:
        """Send what is above a page."""
        self._send(self._find(), with_text=False)

    def _find(self) -> HttpPage:
        found = cast("_Server", self.server).page(self.path)
        return found if found is not None else HttpPage(HTTPStatus.NOT_FOUND, b"nothing is here\n")

    def _send(self, page: HttpPage, *, with_text: bool = True) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.text)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_text:
            self.wfile.write(page.text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
        """Nobody wants to read of every request."""
