"""Inbound handshakes: source addresses share slots and rates."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from random import Random

import pytest

from skipring.net import handshake_limits as handshake_limits_module
from skipring.net import sockets as sockets_module
from skipring.net.handshake_limits import (
    OLD_S,
    PLAIN,
    SECURED,
    SOURCES_MAX,
    HandshakeLimits,
    Handshakes,
    source_of,
)
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from tests.support.exchanges import LOOPS, LoopFactory, TransportHost, logged, note, play, running
from tests.support.papers import Papers, node
from tests.support.rings import LOOPBACK, TOPIC, until

A, B, C = "127.0.0.2", "127.0.0.3", "127.0.0.4"
FEW = HandshakeLimits(at_once=4, source_rate=10, total_rate=15, waiting=3, turn=9)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


# -- rates ---------------------------------------------------------------------------------------


def test_handshake_of_a_calm_source_begins_immediately() -> None:
    handshakes: Handshakes[str] = Handshakes(SECURED, 0.0)
    assert handshakes.add("a1", A, 0.0) is None
    assert handshakes.begin(0.0) == ["a1"]
    assert not handshakes.has_waiting
    assert len(handshakes) == 1
    handshakes.remove("a1")
    assert len(handshakes) == 0


def test_rate_limits_the_handshakes_of_a_source() -> None:
    handshakes: Handshakes[int] = Handshakes(SECURED, 0.0)
    begun = 0
    for number in range(30_000):  # 3,000 a second for 10 s
        now_s = number / 3000
        handshakes.add(number, A, now_s)
        for each in handshakes.begin(now_s):
            begun += 1
            handshakes.remove(each)
    assert begun <= SECURED.source_rate * (10 + handshake_limits_module.BURST_S) + 1


def test_total_rate_limits_the_handshakes_of_all_sources() -> None:
    handshakes: Handshakes[int] = Handshakes(SECURED, 0.0)
    begun: Counter[str] = Counter()
    for number in range(30_000):
        now_s, source = number / 3000, f"127.0.1.{number % 50}"
        handshakes.add(number, source, now_s)
        for each in handshakes.begin(now_s):
            begun[f"127.0.1.{each % 50}"] += 1
            handshakes.remove(each)
    assert begun.total() <= SECURED.total_rate * (10 + handshake_limits_module.BURST_S) + 1
    assert min(begun.values()) >= max(begun.values()) - 2, "sources have turns"


def test_waiting_source_gets_the_next_turn() -> None:
    handshakes: Handshakes[str] = Handshakes(SECURED, 0.0)
    for number in range(200):
        handshakes.add(f"a{number}", A, 0.0)
        handshakes.begin(0.0)
    handshakes.add("b", B, 0.0)
    assert handshakes.begin(0.0) == ["b"]


def test_connections_beyond_the_limit_of_a_waiting_source_are_refused() -> None:
    limits = HandshakeLimits(at_once=100, source_rate=1, total_rate=10, waiting=3, turn=9)
    handshakes: Handshakes[int] = Handshakes(limits, 0.0)
    refused = [handshakes.add(number, A, 0.0) for number in range(5)]
    assert refused == [None, None, None, 3, 4]
    assert handshakes.begin(0.0) == [0, 1], "a burst of two seconds"
    assert handshakes.begin(1.0) == [2]


# -- slots -----------------------------------------------------------------------------------------


def full_of(*sources: str) -> Handshakes[str]:
    """Return handshakes with all slots used at 0 s, in this order."""
    handshakes: Handshakes[str] = Handshakes(FEW, 0.0)
    for number, source in enumerate(sources):
        assert handshakes.add(f"{source}#{number}", source, 0.0) is None
        assert handshakes.begin(0.0)
    assert len(handshakes) == FEW.at_once
    return handshakes


def test_source_with_most_connections_gives_way_to_another_source() -> None:
    handshakes = full_of(B, A, A, A)
    assert handshakes.add("c", C, 0.0) == f"{A}#1", "the oldest of the source with most"
    assert len(handshakes) == FEW.at_once


def test_source_with_most_connections_gets_no_slot_of_another() -> None:
    handshakes = full_of(B, A, A, A)
    assert handshakes.add("more", A, 2 * OLD_S) == "more"


def test_old_connection_gives_way_if_all_sources_have_one() -> None:
    handshakes = full_of(*(f"127.0.0.{number}" for number in range(10, 14)))
    assert handshakes.add("new", A, OLD_S / 2) == "new"
    assert handshakes.add("new", A, 2 * OLD_S) == "127.0.0.10#0"


def test_memory_of_sources_is_bounded() -> None:
    handshakes: Handshakes[int] = Handshakes(PLAIN, 0.0)
    for number in range(5 * SOURCES_MAX):
        handshakes.add(number, f"10.0.{number >> 8}.{number & 255}", 0.0)
        handshakes.remove(number)
    assert len(handshakes.sources) <= SOURCES_MAX


def test_random_connections_leave_nothing_behind() -> None:
    rng = Random(17)
    handshakes: Handshakes[int] = Handshakes(FEW, 0.0)
    open_ones: set[int] = set()
    for number in range(5000):
        refused = handshakes.add(number, rng.choice((A, B, C)), number / 100)
        open_ones = (open_ones | {number}) - {refused}
        handshakes.begin(number / 100)
        if open_ones and rng.random() < 0.5:
            gone = rng.choice(sorted(open_ones))
            open_ones.discard(gone)
            handshakes.remove(gone)
        assert len(handshakes) == len(open_ones) <= FEW.at_once
    for gone in open_ones:
        handshakes.remove(gone)
    assert len(handshakes) == 0
    assert not handshakes.has_waiting


def test_ipv6_network_is_one_source() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:1")
    assert source_of("2001:db8::1") != source_of("2001:db8:0:1::1")
    assert source_of("fe80::1%eth0") == source_of("fe80::2")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1")


# -- sockets ---------------------------------------------------------------------------------------


@asynccontextmanager
async def silent_from(source: str, port: int, count: int) -> AsyncIterator[None]:
    """Open silent connections from a source address."""
    running_loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            made = stack.enter_context(socket.socket())
            made.setblocking(False)
            made.bind((source, 0))
            await running_loop.sock_connect(made, (LOOPBACK, port))
        yield


@pytest.mark.parametrize("is_secured", [True, False], ids=["secured", "plain"])
def test_peer_is_accepted_while_another_address_uses_all_slots(
    papers: Papers, loop: LoopFactory, monkeypatch: pytest.MonkeyPatch, is_secured: bool
) -> None:
    monkeypatch.setattr(sockets_module, "HANDSHAKE_S", 60.0)
    monkeypatch.setattr("skipring.net.connection.GREETING_S", 60.0)
    few = HandshakeLimits(at_once=8, source_rate=1000, total_rate=1000, waiting=100, turn=9)
    monkeypatch.setattr(sockets_module, "SECURED" if is_secured else "PLAIN", few)
    a, b = (node(papers, name) if is_secured else TransportHost(name) for name in "ab")

    async def scene() -> None:
        async with running(a, b), silent_from(A, a.port, 20):
            b.knows(a)
            b.links.send("a", note(1))
            await until(lambda: a.numbers("b") == [1])
            await until(lambda: a.links.counts["too many handshakes"] >= 12)
            assert b.counts == {}, "it was let in at its first attempt"
        refused = [each for each in lines() if each["event"] == "connection_refused"]
        line = next(each for each in refused if each["reason"] == "too many handshakes")
        assert line["address"].startswith(A)
        assert line["detail"]

    with logged() as lines:
        play(scene, loop)


def first_tls_message() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


@contextmanager
def flood_from(source: str, port: int, begins: bytes) -> Iterator[Counter[str]]:
    """Open connections in a thread as fast as possible; keep the last 500 open."""
    is_over, counts = threading.Event(), Counter[str]()

    def flood() -> None:
        kept: list[socket.socket] = []
        while not is_over.wait(0.01):
            for _ in range(30):  # at most 3,000 a second
                made = socket.socket()
                kept.append(made)
                with suppress(OSError):
                    made.bind((source, 0))
                    made.settimeout(1)
                    made.connect((LOOPBACK, port))
                    made.sendall(begins)
                    counts["begun"] += 1
            for made in kept[:-500]:
                made.close()
            del kept[:-500]
        for made in kept:
            made.close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        thread.join()


def test_node_joins_while_another_address_floods_the_supervisor_with_handshakes(
    papers: Papers,
) -> None:
    def settings(name: str, *supervisors: str) -> NodeSettings:
        credentials = papers.of(name)
        return NodeSettings(
            supervisors=supervisors, tick_s=0.1, answer_s=0.01, credentials=credentials
        )

    async def scene() -> None:
        server = SupervisorHost(settings("supervisor"), rng=Random(0))
        await server.start(LOOPBACK, 0)
        member = NodeHost("a", settings("a", server.address), rng=Random(1))
        try:
            await member.start(LOOPBACK, 0)
            port = int(server.address.rpartition(":")[2])
            with flood_from(A, port, first_tls_message()) as flood:
                await until(lambda: server.links.counts["too many handshakes"] > 300)
                member.subscribe(TOPIC)
                await until(lambda: member.states()[TOPIC].label is not None)
                assert flood["begun"] > 300
            assert server.ticker.calls > 0
        finally:
            await member.close()
            await server.close()

    play(scene, LOOPS["uvloop"])
