"""Failed dials: each kind of foreign server is recognised and named in a sentence."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from random import Random

import msgspec
import pytest

from skipring.api.connection import connect
from skipring.core.peers import SUPERVISOR
from skipring.errors import UnreachableError
from skipring.net import peer as peer_module
from skipring.net.addresses import supervisor_at
from skipring.net.dial_failure import Cause, DialFailure, failure_in, failure_of
from skipring.rpc.client import RpcClient
from skipring.testing import Cluster
from skipring.wire.framing import CONTROL, frame
from skipring.wire.handshake import VERSION, Role
from skipring.wire.rpc import FindMembers, MemberList
from tests.support.exchanges import (
    TransportHost,
    answering,
    greeting_of,
    logged,
    note,
    nowhere,
    running,
)
from tests.support.papers import Papers, node
from tests.support.rings import LOOPBACK, TOPIC, until

SUPERVISOR_SENTENCE = "is not a skipring supervisor: it answered with"
PATIENCE_S = 600.0  # longer than any test: a client that waits for its timeout fails

Server = Callable[[], AbstractAsyncContextManager[str]]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


# -- foreign servers -----------------------------------------------------------------------------


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{LOOPBACK}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def http(kind: type[HTTPServer]) -> Server:
    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        with serving(kind((LOOPBACK, 0), Page)) as address:
            yield address

    return serve


def saying(data: bytes) -> Server:
    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        async with answering(data) as (address, _):
            yield address

    return serve


def closing(*, resets: bool = False) -> Server:
    """Return a server that closes each connection immediately."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if resets:
            made = writer.get_extra_info("socket")
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        async with await asyncio.start_server(hang_up, LOOPBACK, 0) as server:
            yield f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"

    return serve


@asynccontextmanager
async def nothing() -> AsyncIterator[str]:
    yield nowhere()


def skipring(host: Callable[[], TransportHost]) -> Server:
    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        made = host()
        async with running(made):
            yield made.address

    return serve


def greeting_of_version(version: int) -> bytes:
    return frame(msgspec.msgpack.encode(["skipring", version, {"anything": 1}]), CONTROL)


FOREIGN = {
    "nothing": (nothing, "nothing listens on {}; start one with: skipring supervisor"),
    "http": (http(ThreadingHTTPServer), f"{{}} {SUPERVISOR_SENTENCE} HTTP"),
    "http, one at a time": (http(HTTPServer), f"{{}} {SUPERVISOR_SENTENCE} HTTP"),
    "ssh": (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), f"{{}} {SUPERVISOR_SENTENCE} SSH"),
    "mail": (saying(b"220 x ESMTP\r\n"), f"{{}} {SUPERVISOR_SENTENCE} '220 x ESMTP\\r\\n'"),
    "closes": (closing(), "{} closed the connection during the handshake"),
    "resets": (closing(resets=True), "{} closed the connection during the handshake"),
    "silent": (saying(b""), "{} accepts connections but has not answered as skipring"),
    "another version": (
        saying(greeting_of_version(VERSION + 1)),
        f"{{}} uses wire version {VERSION + 1}, this process uses {VERSION}",
    ),
    "node": (
        skipring(lambda: TransportHost("b")),
        "{} is not a skipring supervisor: it is the skipring node b",
    ),
}
of_every_foreign_server = pytest.mark.parametrize(
    ("server", "sentence"), FOREIGN.values(), ids=FOREIGN
)


@of_every_foreign_server
@pytest.mark.usefixtures("loop")
async def test_foreign_server_is_named(server: Server, sentence: str) -> None:
    a = TransportHost("a")
    async with server() as address, running(a):
        a.links.send_to_supervisor(address, note(1))
        name = supervisor_at(address)
        await until(lambda: a.links.why_unreachable(name) is not None)
        assert a.links.why_unreachable(name) == sentence.format(address)


@pytest.mark.parametrize(
    ("server", "sentence"),
    [pair for name, pair in FOREIGN.items() if name != "silent"],
    ids=[name for name in FOREIGN if name != "silent"],
)
async def test_client_fails_immediately_and_names_the_foreign_server(
    server: Server, sentence: str
) -> None:
    async with server() as address, RpcClient([address], rng=Random(1)) as outsider:
        with pytest.raises(UnreachableError) as caught:
            async with asyncio.timeout(PATIENCE_S):
                await outsider.locate(TOPIC)
        assert str(caught.value) == sentence.format(address)


async def test_client_reports_a_silent_listener_while_it_waits() -> None:
    async with (
        saying(b"")() as address,
        RpcClient([address], rng=Random(1)) as outsider,
        asyncio.TaskGroup() as tasks,
    ):
        asked = outsider.request_supervisor(
            address, lambda n: FindMembers(n, 1), MemberList, PATIENCE_S
        )
        asking = tasks.create_task(asked)
        expected = f"{address} accepts connections but has not answered as skipring"
        await until(lambda: outsider.no_supervisor_of(TOPIC) == expected)
        assert not asking.done()
        asking.cancel()


async def test_supervisor_with_a_late_handshake_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_module, "SILENT_S", 0.01)
    a = TransportHost("a")
    async with answering(b"") as (address, came), running(a):
        a.links.send_to_supervisor(address, note(1))
        name = supervisor_at(address)
        await until(lambda: a.links.why_unreachable(name) is not None and len(came) > 0)
        came[0].write(greeting_of(SUPERVISOR, Role.SUPERVISOR))
        await until(lambda: a.links.is_linked(name))
        assert a.links.why_unreachable(name) is None
        assert len(came) == 1


async def test_sentence_about_a_node_names_the_node() -> None:
    a, c = TransportHost("a"), TransportHost("c")
    async with running(a, c):
        a.book.learn({"b": c.address, "d": nowhere()})
        a.links.send("b", note(1))
        a.links.send("d", note(1))
        await until(lambda: None not in map(a.links.why_unreachable, ("b", "d")))
        assert a.links.why_unreachable("b") == (
            f"{c.address} is not the skipring node b: it is the skipring node c"
        )
        assert a.links.why_unreachable("d") == f"nothing listens on {a.book.find('d')}"
        assert a.links.why_unreachable("never dialled") is None


# -- TLS -----------------------------------------------------------------------------------------


def secured_supervisor(papers: Papers) -> TransportHost:
    return TransportHost(SUPERVISOR, Role.SUPERVISOR, credentials=papers.of(SUPERVISOR))


@pytest.mark.usefixtures("loop")
async def test_plain_process_learns_that_the_supervisor_uses_tls(papers: Papers) -> None:
    a, supervisor = TransportHost("a"), secured_supervisor(papers)
    async with running(a, supervisor):
        name = supervisor_at(supervisor.address)
        a.links.send_to_supervisor(supervisor.address, note(1))
        await until(lambda: a.links.why_unreachable(name) is not None)
        assert a.links.why_unreachable(name) == (
            f"{supervisor.address} speaks TLS, and this process has no certificate; "
            "set the CA, the certificate and its key (`skipring certs` creates them)"
        )


async def test_closing_server_is_probed_for_tls_once(
    papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "BACK_OFF_S", 1e-6)
    a, supervisor = TransportHost("a"), secured_supervisor(papers)
    async with running(a, supervisor):
        for dials in range(1, 4):
            a.links.send_to_supervisor(supervisor.address, note(dials))
            await until(lambda: a.counts == {"cannot connect": dials})  # noqa: B023
            await until(lambda: sum(supervisor.counts.values()) == dials + 1)  # noqa: B023


async def test_known_supervisor_is_not_probed_for_tls() -> None:
    a, supervisor = TransportHost("a"), TransportHost(SUPERVISOR, Role.SUPERVISOR)
    async with running(a):
        await supervisor.start()
        name = supervisor_at(supervisor.address)
        a.links.send_to_supervisor(supervisor.address, note(1))
        await until(lambda: a.links.is_linked(name))
        await supervisor.links.close()
        await until(lambda: not a.links.is_linked(name))
        connections: list[object] = []

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            writer.close()

        async with await asyncio.start_server(hang_up, LOOPBACK, supervisor.port):
            a.links.send_to_supervisor(supervisor.address, note(2))
            await until(lambda: a.counts == {"cannot connect": 1})
        assert len(connections) == 1


WITH_TLS = {
    "nothing": (nothing, "nothing listens on {}; start one with: skipring supervisor"),
    "http": (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "{} does not speak TLS; "),
    "ssh": (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), "{} does not speak TLS; "),
    "plain supervisor": (
        skipring(lambda: TransportHost(SUPERVISOR, Role.SUPERVISOR)),
        "{} does not speak TLS; it is not a skipring supervisor, or it was started without",
    ),
    "closes": (closing(), "{} closed the connection during the handshake"),
    "silent": (saying(b""), "{} accepts connections but has not answered as skipring"),
}


@pytest.mark.parametrize(("server", "sentence"), WITH_TLS.values(), ids=WITH_TLS)
@pytest.mark.usefixtures("loop")
async def test_foreign_server_is_named_to_a_process_with_certificates(
    papers: Papers, server: Server, sentence: str
) -> None:
    a = node(papers, "a")
    async with server() as address, running(a):
        a.links.send_to_supervisor(address, note(1))
        name = supervisor_at(address)
        await until(lambda: a.links.why_unreachable(name) is not None)
        why = a.links.why_unreachable(name)
        assert why is not None
        assert why.startswith(sentence.format(address)), why


@pytest.mark.usefixtures("loop")
async def test_different_authorities_are_named(papers: Papers) -> None:
    a = node(papers, "a")
    context = papers.of_another_authority(ssl.PROTOCOL_TLS_SERVER)
    async with answering(b"", context) as (address, _), running(a):
        a.links.send_to_supervisor(address, note(1))
        name = supervisor_at(address)
        await until(lambda: a.links.why_unreachable(name) is not None)
        why = a.links.why_unreachable(name)
        assert why is not None
        assert why.startswith(
            f"{address} and this process do not accept each other's certificates (unable to"
        )


async def test_certificate_without_supervisor_name_is_named(papers: Papers) -> None:
    a = node(papers, "a")
    other = TransportHost(SUPERVISOR, Role.SUPERVISOR, credentials=papers.of("b"))
    async with running(a, other):
        name = supervisor_at(other.address)
        a.links.send_to_supervisor(other.address, note(1))
        await until(lambda: a.links.why_unreachable(name) is not None)
        assert "certificates (b as supervisor)" in str(a.links.why_unreachable(name))


# -- joining processes ---------------------------------------------------------------------------


@of_every_foreign_server
async def test_joining_connection_reports_the_foreign_server(server: Server, sentence: str) -> None:
    async with (
        server() as address,
        connect(f"skipring://{address}", tick_s=0.05) as connection,
        connection.subscribe(TOPIC) as topic,
    ):
        expected = (sentence.format(address),)
        await until(lambda: topic.health().reasons == expected)


def test_node_logs_each_reason_once_and_the_reconnection() -> None:
    async def scene() -> None:
        async with Cluster(n=1) as cluster:
            await cluster.wait_healthy()
            address = cluster.supervisor().address
            await cluster.stop_supervisor()
            node = cluster.node("n00")
            ticks = node.ticker.calls + 20
            await until(lambda: node.ticker.calls > ticks)
            await cluster.start_supervisor()
            await until(lambda: "supervisor_connected" in [each["event"] for each in lines()])
            lost = [each for each in lines() if each["event"] == "supervisor_unreachable"]
            reasons = [each["reason"] for each in lost]
            assert len(reasons) == len(set(reasons))  # a broken connection may yield another reason
            assert f"nothing listens on {address}; start one with: skipring supervisor" in reasons
            assert {each["address"] for each in lost} == {address}

    with logged() as lines:
        asyncio.run(scene())


def test_leaving_node_does_not_log_a_lost_supervisor() -> None:
    async def scene() -> None:
        async with Cluster(n=1) as cluster:
            await cluster.wait_healthy()
            leaving = asyncio.create_task(cluster.leave("n00"))
            await asyncio.sleep(0)
            await cluster.stop_supervisor()
            await leaving
        assert [each["event"] for each in lines() if each["level"] == "warning"] == []

    with logged() as lines:
        asyncio.run(scene())


# -- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "cause", "detail"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", Cause.FOREIGN, "HTTP"),
        (b"<!DOCTYPE HTML>\n<html>", Cause.FOREIGN, "HTTP"),
        (b"SSH-2.0-x", Cause.FOREIGN, "SSH"),
        (b"\x15\x03\x03\x00\x02\x02\x46", Cause.SECURED, ""),
        (b"\x16\x03", Cause.SECURED, ""),
        (b"\x16", Cause.FOREIGN, r"'\x16'"),
        (b"-ERR unknown command\r\n", Cause.FOREIGN, r"'-ERR unknown command\r\n'"),
        (b"\x1b[2J" * 100, Cause.FOREIGN, repr("\x1b[2J" * 10) + "..."),
        (greeting_of_version(VERSION + 1), Cause.VERSION, str(VERSION + 1)),
        (greeting_of_version(VERSION + 1)[:9], Cause.FOREIGN, r"'\x00\x00\x00\x17\x00\x93\xa8sk'"),
    ],
)
def test_first_bytes_of_a_server_are_recognised(first: bytes, cause: Cause, detail: str) -> None:
    assert failure_in(first) == DialFailure(cause, detail)


@pytest.mark.parametrize(
    ("error", "cause", "detail"),
    [
        (ConnectionRefusedError(), Cause.REFUSED, ""),
        (ConnectionResetError(), Cause.CLOSED, ""),
        (ssl.SSLEOFError(), Cause.CLOSED, ""),
        (ConnectionAbortedError(), Cause.SILENT, ""),
        (TimeoutError(), Cause.UNREACHABLE, "no answer"),
        (OSError(113, "No route to host"), Cause.UNREACHABLE, "no route to host"),
        (socket.gaierror(-2, "Name or service not known"), Cause.UNREACHABLE, "name or service"),
        (UnicodeError("label too long"), Cause.UNREACHABLE, "not a host name"),
    ],
    ids=repr,
)
def test_errors_of_connections_are_recognised(error: Exception, cause: Cause, detail: str) -> None:
    failure = failure_of(error)
    assert failure.cause is cause
    assert failure.detail.startswith(detail)


def test_every_cause_has_a_sentence_on_one_line() -> None:
    for cause in Cause:
        for name in (None, "b"):
            sentence = DialFailure(cause, "detail").sentence("127.0.0.1:7400", name)
            assert sentence.isprintable()
            assert "127.0.0.1:7400" in sentence
            assert "--" not in sentence
