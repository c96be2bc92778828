"""Connections with and without TLS, slow and many peers, and unusable listen addresses."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import struct
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EMFILE
from pathlib import Path
from typing import Any

import pytest

from skipring.net import connection as connection_module
from skipring.net import sockets as sockets_module
from skipring.net.handshake_limits import HandshakeLimits
from skipring.net.sockets import listening_process, why_not_listening
from tests.support.exchanges import (
    HELLO,
    Caller,
    LoopFactory,
    TransportHost,
    answering,
    call,
    hosts,
    logged,
    note,
    play,
    running,
    the_line,
    turns,
)
from tests.support.papers import Papers, node
from tests.support.rings import LOOPBACK, until

needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")

OTHER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


# -- with TLS and without --------------------------------------------------------------------


def test_plain_caller_at_a_tls_listener_is_refused(papers: Papers, loop: LoopFactory) -> None:
    a = node(papers, "a")

    async def scene() -> None:
        async with running(a), call(a) as caller:
            caller.write(HELLO + note(1))
            assert await caller.is_hung_up_on()
            await until(lambda: a.counts == {"handshake failed": 1})
            assert a.got == []
            line = the_line(lines, "connection_refused")
            assert (line["reason"], line["address"]) == ("handshake failed", caller.address)
            assert line["detail"]

    with logged() as lines:
        play(scene, loop)


def test_tls_caller_at_a_plain_listener_is_refused(papers: Papers, loop: LoopFactory) -> None:
    async def scene() -> None:
        async with hosts("a") as (a,):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                async with call(a, papers.of("b").client_context()):
                    pass
            await until(lambda: a.counts == {"FramingError": 1})
            await until(lambda: not a.links.connections)
            assert the_line(lines, "connection_refused")["reason"] == "FramingError"

    with logged() as lines:
        play(scene, loop)


@pytest.mark.parametrize("is_dialler_secured", [False, True])
@pytest.mark.usefixtures("loop")
async def test_peers_with_and_without_certificates_do_not_connect(
    papers: Papers, is_dialler_secured: bool
) -> None:
    plain, secured = TransportHost("p"), node(papers, "s")
    async with running(plain, secured):
        dialler, other = (secured, plain) if is_dialler_secured else (plain, secured)
        dialler.knows(other)
        dialler.links.send(other.name, note(1))
        await until(lambda: dialler.counts.get("cannot connect") == 1)
        await until(lambda: sum(other.counts.values()) == 1)
        assert plain.got == secured.got == []


# -- slow peers ------------------------------------------------------------------------------


@asynccontextmanager
async def silent(host: TransportHost, count: int) -> AsyncIterator[list[Caller]]:
    """Open connections that send nothing."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(call(host)) for _ in range(count)]


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["nothing", "a start"])
def test_endless_handshake_is_aborted(
    papers: Papers, loop: LoopFactory, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "HANDSHAKE_S", 0.05)
    a = node(papers, "a")

    async def scene() -> None:
        async with running(a), call(a) as caller:
            caller.write(said)
            assert await caller.is_hung_up_on()
            await until(lambda: a.counts == {"handshake failed": 1})
            line = the_line(lines, "connection_refused")
            assert line["address"] == caller.address
            assert "taking longer" in line["detail"]

    with logged() as lines:
        play(scene, loop)


def test_excess_handshakes_are_refused_until_others_end(
    papers: Papers, loop: LoopFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = HandshakeLimits(at_once=3, source_rate=1000, total_rate=1000, waiting=100, turn=9)
    monkeypatch.setattr(sockets_module, "SECURED", few)
    a, b = node(papers, "a"), node(papers, "b")

    async def scene() -> None:
        async with running(a, b):
            b.knows(a)
            async with silent(a, 3):
                await until(lambda: len(a.links.listener) == 3)
                async with call(a) as fourth:
                    assert await fourth.is_hung_up_on()
                    line = the_line(lines, "connection_refused")
                    assert line["reason"] == "too many handshakes"
                    assert line["address"] == fourth.address
                assert a.counts == {"too many handshakes": 1}
            await until(lambda: len(a.links.listener) == 0)
            b.links.send("a", note(1))
            await until(lambda: a.numbers("b") == [1])

    with logged() as lines:
        play(scene, loop)


@pytest.mark.usefixtures("loop")
async def test_connection_that_waits_for_a_greeting_occupies_no_task() -> None:
    a = TransportHost("a")
    async with running(a):
        before = len(asyncio.all_tasks())
        async with call(a) as caller:
            await until(lambda: len(a.links.connections) == 1)
            await until(lambda: len(asyncio.all_tasks()) == before)
            assert len(a.links.listener) == 1
            caller.write(HELLO)
            await until(lambda: len(a.links.listener) == 0)
            assert len(a.links.connections) == 1


@pytest.mark.usefixtures("loop")
async def test_dialled_peer_without_tls_handshake_is_abandoned(
    papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "DIAL_S", 0.05)
    a = node(papers, "a")
    async with running(a), answering(b"") as (address, _):
        a.book.learn({"b": address})
        a.links.send("b", note(1))
        await until(lambda: a.counts == {"cannot connect": 1})


@pytest.mark.usefixtures("loop")
async def test_tls_peer_without_greeting_is_dropped(
    papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "GREETING_S", 0.05)
    a = node(papers, "a")
    async with running(a), call(a, papers.of("b").client_context()) as caller:
        assert await caller.is_hung_up_on()
        assert a.counts == {"no greeting": 1}


@pytest.mark.usefixtures("loop")
async def test_close_during_handshakes_leaves_nothing_behind(papers: Papers) -> None:
    a = node(papers, "a")
    await a.start()
    async with silent(a, 20) as callers:
        await until(lambda: len(a.links.listener) == 20)
        await a.links.close()
        for caller in callers:
            assert await caller.is_hung_up_on()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.heavy
@pytest.mark.parametrize("first", ["dialler", "dialled", "both"])
def test_close_during_dialling_leaves_no_socket_open(
    papers: Papers, loop: LoopFactory, first: str
) -> None:
    """Close at 240 moments; an open socket warns when it is collected and fails the test."""

    async def scene() -> None:
        for turn in range(240):
            a, b = node(papers, "a"), node(papers, "b")
            await a.start()
            await b.start()
            a.knows(b)
            a.links.send("b", note(1))
            await turns(turn % 20)
            await asyncio.sleep(turn % 60 / 60 * 0.005)  # not a wait: moments of a handshake
            closing = [a.links.close(), b.links.close()]
            if first == "dialled":
                closing.reverse()
            if first == "both":
                await asyncio.gather(*closing)
            else:
                for each in closing:
                    await each

    play(scene, loop)
    gc.collect()


def resetting(one: socket.socket) -> socket.socket:
    """Return the socket, set to be reset when it is closed."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return one


@pytest.mark.heavy
def test_immediate_resets_leave_no_socket_open(loop: LoopFactory) -> None:
    async def scene(turn: int) -> None:
        a, running_loop = TransportHost("a"), asyncio.get_running_loop()
        await a.start()
        with socket.create_server((LOOPBACK, 0)) as others:
            others.setblocking(False)
            running_loop.add_reader(others, lambda: resetting(others.accept()[0]).close())
            for number in range(8):
                a.book.learn({f"x{number}": f"{LOOPBACK}:{others.getsockname()[1]}"})
                a.links.send(f"x{number}", note(1))
                resetting(socket.create_connection((LOOPBACK, a.port))).close()
                await turns((turn + number) % 3)
            await turns(turn % 30)
            running_loop.remove_reader(others)
        await a.links.close()

    for turn in range(60):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(scene(turn))
    gc.collect()  # once: it takes 0.2 s with all tests in memory


def test_connection_during_close_is_closed(loop: LoopFactory) -> None:
    async def scene() -> None:
        async with hosts("a") as (a,):
            await turns()
            with socket.create_connection((LOOPBACK, a.port)):  # the system accepts it
                for _ in range(1000):
                    await turns(1)
                    if len(a.links.listener):
                        break
                await a.links.close()

    with warnings.catch_warnings(record=True, action="always") as unclosed:
        play(scene, loop)
        gc.collect()
    assert [str(each.message) for each in unclosed] == []


# -- listeners -------------------------------------------------------------------------------


class Failing(socket.socket):
    """A socket that cannot accept for a while."""

    failures = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        return super().accept()


@pytest.mark.usefixtures("loop")
async def test_listener_accepts_again_after_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets_module, "ACCEPT_AGAIN_S", 0.01)
    create = socket.create_server

    def failing(*args: Any, **named: Any) -> socket.socket:  # noqa: ANN401  (as it is given)
        return Failing(fileno=create(*args, **named).detach())

    async with hosts("b") as (b,):
        with monkeypatch.context() as patched:
            patched.setattr(socket, "create_server", failing)
            a = TransportHost("a")
            await a.start()
        try:
            b.knows(a)
            b.links.send("a", note(1))
            await until(lambda: a.numbers("b") == [1])
            assert a.counts == {"cannot accept": 3}
        finally:
            await a.links.close()


@pytest.mark.usefixtures("loop")
async def test_idle_connections_use_keepalive_and_user_timeout() -> None:
    async with hosts("a", "b") as (a, b):
        a.knows(b)
        a.links.send("b", note(1))
        await until(lambda: b.numbers("a") == [1])
        for host in (a, b):
            (link,) = host.links.connections
            assert link.transport is not None
            made = link.transport.get_extra_info("socket")
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


# -- listen addresses in use ------------------------------------------------------------------


@contextmanager
def another_listener() -> Iterator[tuple[int, int]]:
    """Run another listening process; yield its id and its port."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@needs_proc
def test_listening_process_is_found() -> None:
    with another_listener() as (pid, port):
        assert listening_process(port) == pid
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening_process(server.getsockname()[1]) == os.getpid()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@needs_proc
def test_port_in_use_names_the_process(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with server:
        address = f"[{host}]:{server.getsockname()[1]}"
        text = why_not_listening(address, OSError(EADDRINUSE, "Address already in use"))
    assert text.startswith(f"cannot listen on {address}: process {os.getpid()} (")
    assert text.endswith(" listens there; stop it, or choose another port")
    assert text.isprintable()


def test_port_in_use_by_an_unknown_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets_module, "listening_process", lambda _: None)
    text = why_not_listening("127.0.0.1:7400", OSError(EADDRINUSE, "Address already in use"))
    assert text == (
        "cannot listen on 127.0.0.1:7400: another process listens there; "
        "stop it, or choose another port"
    )


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (EACCES, "choose a port above 1023"),
        (EADDRNOTAVAIL, "this machine does not have that address; choose another"),
        (EMFILE, "choose another address"),
    ],
)
def test_every_reason_has_a_remedy(number: int, remedy: str) -> None:
    error = OSError(number, os.strerror(number))
    expected = f"cannot listen on 127.0.0.1:80: {os.strerror(number).lower()}; {remedy}"
    assert why_not_listening("127.0.0.1:80", error) == expected
