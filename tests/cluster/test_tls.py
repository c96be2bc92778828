"""TLS: accepted and refused certificates, and log entries about them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from random import Random

import pytest
from msgspec.structs import replace

from skipring.core.peers import SUPERVISOR
from skipring.net.addresses import supervisor_at
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.rpc.client import RpcClient
from skipring.security.credentials import PeerCertificate
from skipring.storage.store import LogStore
from skipring.wire.handshake import Role
from skipring.wire.rpc import FindMembers, MemberList
from tests.support.batches import batch
from tests.support.exchanges import (
    DEADLINE_S,
    HELLO,
    TransportHost,
    answering,
    call,
    greeting_of,
    logged,
    note,
    parcel,
    running,
    the_line,
)
from tests.support.papers import Papers, node
from tests.support.rings import LOOPBACK, TOPIC, LiveRing, until


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


# -- accepted peers --------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_peers_with_certificates_of_one_authority_connect(papers: Papers) -> None:
    a, b = node(papers, "a"), node(papers, "b")
    async with running(a, b):
        await a.reach(b, 1)
        b.links.send("a", note(2))
        await until(lambda: a.numbers("b") == [2])
        assert len(a.links.connections) == len(b.links.connections) == 1
        (link,) = a.links.connections
        assert link.transport is not None
        assert link.transport.get_extra_info("cipher")[1] == "TLSv1.3"
        assert a.counts == b.counts == {}


@pytest.mark.usefixtures("loop")
async def test_many_frames_of_all_sizes_arrive_in_order(papers: Papers) -> None:
    a, b = node(papers, "a"), node(papers, "b")
    sizes = [Random(1).choice([0, 10, 5_000, 300_000]) for _ in range(60)]
    async with running(a, b):
        a.knows(b)
        for number, size in enumerate(sizes):
            a.links.send("b", parcel(number, size))
            await until(lambda: a.links.peer("b").waiting_bytes < 1 << 21)
        await until(lambda: len(b.got) == len(sizes))
        got = [getattr(message, "publication") for _, message in b.got]  # noqa: B009
        assert [(p.first, len(p.records()[0].payload)) for p in got] == list(enumerate(sizes))


@pytest.mark.parametrize("certificate", [SUPERVISOR, f"{SUPERVISOR}.2"])
@pytest.mark.usefixtures("loop")
async def test_supervisor_uses_a_supervisor_certificate(papers: Papers, certificate: str) -> None:
    a = node(papers, "a")
    credentials = papers.of(certificate)
    supervisor = TransportHost(SUPERVISOR, Role.SUPERVISOR, credentials=credentials, dials=False)
    async with running(a, supervisor):
        a.links.send_to_supervisor(supervisor.address, note(1))
        await until(lambda: supervisor.numbers("a") == [1])
        supervisor.links.send("a", note(2))
        await until(lambda: a.numbers(supervisor_at(supervisor.address)) == [2])


async def test_certificate_covers_the_names_below_its_own(papers: Papers) -> None:
    a, below = node(papers, "a"), node(papers, "b.1", "b")
    async with running(a, below), call(a, papers.of("b").client_context()) as client:
        await a.reach(below, 1)
        client.write(greeting_of("b.client-1", Role.CLIENT))
        await until(lambda: a.links.is_linked("client/b.client-1#1"))


# -- refused peers ---------------------------------------------------------------------------

Showing = Callable[[Papers, int], ssl.SSLContext]
UNWELCOME: dict[str, tuple[Showing, str, str]] = {
    "no certificate": (Papers.none, "no certificate", "the peer has presented none"),
    "another authority": (Papers.of_another_authority, "bad certificate", "issuer certificate"),
    "expired": (Papers.expired, "bad certificate", "certificate has expired"),
}


@pytest.mark.parametrize(("showing", "reason", "detail"), UNWELCOME.values(), ids=UNWELCOME)
@pytest.mark.usefixtures("loop")
async def test_caller_without_valid_certificate_is_refused(
    papers: Papers, showing: Showing, reason: str, detail: str
) -> None:
    a = node(papers, "a")
    with logged() as lines:
        # TLS 1.3 lets a client believe that it is connected before its certificate is checked.
        async with running(a), call(a, showing(papers, ssl.PROTOCOL_TLS_CLIENT)) as caller:
            caller.write(HELLO + note(1))
            assert await caller.is_hung_up_on()
            await until(lambda: a.counts == {reason: 1})
            assert a.got == []
            assert not a.links.connections
            line = the_line(lines, "connection_refused")
            assert (line["reason"], line["address"]) == (reason, caller.address)
            assert detail in line["detail"]


@pytest.mark.parametrize("certificate", ["c", "bb", "b.1"])
@pytest.mark.usefixtures("loop")
async def test_caller_with_the_certificate_of_another_name_is_refused(
    papers: Papers, certificate: str
) -> None:
    a = node(papers, "a")
    with logged() as lines:
        async with running(a), call(a, papers.of(certificate).client_context()) as caller:
            caller.write(HELLO + note(1))
            assert await caller.is_hung_up_on()
            assert a.counts == {"name not in certificate": 1}
            assert a.got == []
            assert a.book.find("b") is None
            line = the_line(lines, "connection_refused")
            assert line["reason"] == "name not in certificate"
            assert line["address"] == caller.address
            assert line["detail"] == f"{certificate} as b"


@pytest.mark.parametrize(
    ("showing", "reason", "detail"), list(UNWELCOME.values())[1:], ids=list(UNWELCOME)[1:]
)
@pytest.mark.usefixtures("loop")
async def test_dialled_peer_without_valid_certificate_receives_nothing(
    papers: Papers, showing: Showing, reason: str, detail: str
) -> None:
    a = node(papers, "a")
    with logged() as lines:
        context = showing(papers, ssl.PROTOCOL_TLS_SERVER)
        async with running(a), answering(HELLO + note(1), context) as (address, came):
            a.book.learn({"b": address})
            a.links.send("b", note(1))
            await until(lambda: a.counts == {reason: 1, "cannot connect": 1})
            assert a.got == []
            assert came == []
            line = the_line(lines, "connect_failed")
            assert (line["reason"], line["address"]) == (reason, address)
            assert detail in line["detail"]


@pytest.mark.parametrize(
    ("called", "certificate"), [("b", "c"), (SUPERVISOR, "a"), (SUPERVISOR, "b")]
)
@pytest.mark.usefixtures("loop")
async def test_dialled_peer_with_the_certificate_of_another_receives_nothing(
    papers: Papers, called: str, certificate: str
) -> None:
    role = Role.SUPERVISOR if called == SUPERVISOR else Role.NODE
    a, other = node(papers, "a"), TransportHost(called, role, credentials=papers.of(certificate))
    with logged() as lines:
        async with running(a, other):
            if role is Role.SUPERVISOR:
                a.links.send_to_supervisor(other.address, note(1))
            else:
                a.knows(other)
                a.links.send("b", note(1))
            await until(lambda: a.counts == {"name not in certificate": 1, "cannot connect": 1})
            assert other.got == []
            line = the_line(lines, "connection_refused")
            assert line["detail"] == f"{certificate} as {called}"


@pytest.mark.usefixtures("loop")
async def test_refusal_of_the_own_certificate_is_logged_with_the_peer(papers: Papers) -> None:
    """Let the alert of the other side arrive after the local handshake has ended."""
    a = node(papers, "a")
    with logged() as lines, refusing(papers.of("b").server_context()) as address:
        async with running(a):
            a.links.credentials = _Showing(papers.none(ssl.PROTOCOL_TLS_CLIENT))  # type: ignore[assignment]
            a.book.learn({"b": address})
            a.links.send("b", note(1))
            await until(lambda: a.counts == {"handshake failed": 1, "cannot connect": 1})
            line = the_line(lines, "connection_refused")
            assert line["address"] == address
            assert "certificate required" in line["detail"]


@pytest.mark.usefixtures("loop")
async def test_connection_lost_during_the_handshake_is_logged_readably(papers: Papers) -> None:
    a = node(papers, "a")
    with logged() as lines:
        async with running(a):
            async with call(a) as caller:
                await until(lambda: len(a.links.listener) > 0)
            await until(lambda: a.counts == {"handshake failed": 1})
            line = the_line(lines, "connection_refused")
            assert line["address"] == caller.address
            assert line["detail"]


class _Showing:
    """Credentials with another certificate than the right one."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    def client_context(self) -> ssl.SSLContext:
        return self._context

    def refresh(self) -> None:
        """Reload nothing."""

    def distrust(self, peer: PeerCertificate, now_s: float) -> None:
        """Trust every certificate."""


@contextmanager
def refusing(context: ssl.SSLContext) -> Iterator[str]:
    """Run a server that refuses the certificate of its client with an alert."""
    with socket.create_server((LOOPBACK, 0)) as listening, ThreadPoolExecutor(1) as other:

        def serve() -> None:
            listening.settimeout(DEADLINE_S)
            came, _ = listening.accept()
            came.settimeout(DEADLINE_S)
            with came, pytest.raises(ssl.SSLError):
                context.wrap_socket(came, server_side=True)

        serving = other.submit(serve)
        yield f"{LOOPBACK}:{listening.getsockname()[1]}"
        serving.result()


# -- a whole ring ----------------------------------------------------------------------------

NAMES = ["n0", "n1", "n2", "n3", "n4"]


class SecuredRing(LiveRing):
    """A ring in which every process has a certificate."""

    def __init__(self, papers: Papers) -> None:
        self._papers = papers
        super().__init__(tick_s=0.05)

    def _new_supervisor(self) -> SupervisorHost:
        credentials = self._papers.of(SUPERVISOR)
        settings = NodeSettings(tick_s=self._tick_s, credentials=credentials)
        return SupervisorHost(settings, rng=Random(0))

    async def join(self, name: str, store: LogStore | None = None) -> NodeHost:
        self.settings = replace(self.settings, credentials=self._papers.of(name))
        return await super().join(name, store)


@asynccontextmanager
async def secured_ring(papers: Papers) -> AsyncIterator[SecuredRing]:
    ring = SecuredRing(papers)
    await ring.start()
    try:
        for name in NAMES:
            await ring.join(name)
        await ring.wait_healthy()
        yield ring
    finally:
        await ring.stop()


@pytest.mark.usefixtures("loop")
async def test_tls_ring_is_legitimate_and_every_member_gets_all_publications(
    papers: Papers,
) -> None:
    async with secured_ring(papers) as ring:
        for name in NAMES:
            await ring.publish(name, name.encode())
        await ring.wait_healthy()
        sent = sorted(name.encode() for name in NAMES)
        assert all(sorted(got) == sent for got in ring.delivered.values())
        assert not any(node.links.counts["handshake failed"] for node in ring.nodes.values())


@pytest.mark.usefixtures("loop")
async def test_tls_ring_heals_after_a_crash_and_the_loss_of_its_supervisor(papers: Papers) -> None:
    async with secured_ring(papers) as ring:
        await ring.restart_supervisor()
        await ring.kill("n1")
        await ring.publish("n3", b"after")
        await ring.wait_healthy()
        assert all(ring.delivered[name] == [b"after"] for name in ring.nodes)


@pytest.mark.usefixtures("loop")
async def test_publishing_through_a_member_needs_a_certificate(papers: Papers) -> None:
    made = batch(b"from outside", publisher="p", topic=TOPIC)
    async with secured_ring(papers) as ring:
        where = [ring.supervisor.address]
        async with RpcClient(where, rng=Random(1)) as bare:
            asked = bare.request(
                TOPIC, SUPERVISOR, lambda n: FindMembers(n, 1), MemberList, timeout_s=0.2
            )
            assert await asked is None
        assert ring.supervisor.links.counts["handshake failed"] == 1
        async with RpcClient(
            where, rng=Random(1), credentials=papers.of("writer"), is_volatile=True
        ) as writer:
            await writer.publish(TOPIC, [made])
        await ring.wait_healthy()
        assert all(got == [b"from outside"] for got in ring.delivered.values())
