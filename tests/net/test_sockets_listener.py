"""Unusable listen addresses: the message names the process and the remedy."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EMFILE
from pathlib import Path

import pytest

from skipring.errors import InputError
from skipring.net import sockets as listener
from skipring.net.sockets import listening_process, why_not_listening
from skipring.node.process import ProcessPaths, serve_node, serve_supervisor
from skipring.node.settings import NodeSettings
from tests.support.exchanges import nowhere

needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")

OTHER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


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


def test_unused_port_has_no_listening_process() -> None:
    assert listening_process(int(nowhere().rpartition(":")[2])) is None


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
    monkeypatch.setattr(listener, "listening_process", lambda _: None)
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


@needs_proc
def test_supervisor_and_node_name_the_process_at_their_port() -> None:
    async def start_both(place: ProcessPaths) -> None:
        with pytest.raises(InputError, match=rf"process {os.getpid()} .* port$"):
            await serve_supervisor(NodeSettings(), place, print)
        settings = NodeSettings(supervisors=(nowhere(),))
        with pytest.raises(InputError, match=rf"process {os.getpid()} .* port$"):
            await serve_node(settings, place, ("news",), name=None, announce=print)

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        asyncio.run(start_both(ProcessPaths(listen=address)))
