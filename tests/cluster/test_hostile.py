"""Hostile input over sockets: nothing crashes or grows, and the ring is healthy afterwards."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from faults.frames import mutated
from skipring.core.labels import Label
from skipring.core.log_messages import LogPage, Refused
from skipring.core.messages import UNRECORDED, CheckLabel, Ping, ReportUnresponsive, Unsubscribe
from skipring.core.peers import SUPERVISOR, EdgeKind, Peer
from skipring.errors import WireError
from skipring.net import connection as connection_module
from skipring.net.transport import Transport
from skipring.storage.store import LogStore
from skipring.storage.topic_log import SegmentLog
from skipring.testing import Cluster
from skipring.wire.bundle import unbundle
from skipring.wire.chaos import Crash
from skipring.wire.codec import decode, encode
from skipring.wire.framing import BUNDLE, FrameReader
from skipring.wire.handshake import Role
from skipring.wire.rpc import (
    RUNTIME_TYPES,
    ChangePage,
    DatabasePage,
    MemberList,
    NodeStatus,
    PublishAck,
)
from skipring.world.legitimacy import explicit_state
from tests.support.attacks import Liar, malformed, resident_bytes, send_stream, send_streams
from tests.support.exchanges import LOOPS, greeting_of, nowhere
from tests.support.rings import TOPIC, LiveRing, live_ring, until
from tests.wire.samples import SAMPLES

NAMES = ["n0", "n1", "n2", "n3"]
REFUSALS = (
    "FramingError",
    "HandshakeError",
    "MessageError",
    "name not in certificate",
    "not for clients",
    "supervisors do not dial",
)
GROWTH_BYTES_MAX = 16 << 20  # memory kept for 10^4 connections would exceed it

streams = pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
in_uvloop = pytest.mark.parametrize(
    "loop",
    [
        pytest.param(LOOPS["uvloop"], id="uvloop"),
        pytest.param(LOOPS["asyncio"], id="asyncio", marks=pytest.mark.slow),
    ],
    indirect=True,
)


def ports(ring: LiveRing) -> list[int]:
    """Return the ports of a node and the supervisor."""
    addresses = (ring.nodes["n0"].address, ring.supervisor.address)
    return [int(address.rpartition(":")[2]) for address in addresses]


def links(ring: LiveRing) -> list[Transport]:
    return [ring.nodes["n0"].links, ring.supervisor.links]


def refusals(ring: LiveRing) -> Counter[str]:
    """Return the reasons for which the two have dropped connections."""
    counts = sum((each.counts for each in links(ring)), Counter())
    return Counter({reason: counts[reason] for reason in REFUSALS if counts[reason]})


@asynccontextmanager
async def attacked_ring() -> AsyncIterator[LiveRing]:
    """Yield a healthy ring; assert that it is healthy again afterwards."""
    async with live_ring(*NAMES) as ring:
        await ring.publish("n1", b"before")
        await ring.wait_healthy()
        yield ring
        await until(lambda: not any(link.sender is None for link in open_links(ring)))
        await ring.publish("n2", b"after")
        await ring.wait_healthy()
        assert all({b"before", b"after"} <= set(got) for got in ring.delivered.values())
        gc.collect()  # the loop reports unretrieved exceptions now
        await asyncio.sleep(0)


def open_links(ring: LiveRing) -> list[connection_module.PeerConnection]:
    return [link for each in links(ring) for link in each.connections]


# -- malformed frames ------------------------------------------------------------------------


@pytest.mark.heavy
@streams
@in_uvloop
@pytest.mark.usefixtures("loop")
async def test_malformed_frames_leave_nothing_behind(count: int) -> None:
    frames = malformed(Random(1), count)
    async with attacked_ring() as ring:
        await send_streams(ports(ring), frames[: count // 4])
        before = resident_bytes()
        await send_streams(ports(ring), frames[count // 4 :])
        assert resident_bytes() - before < GROWTH_BYTES_MAX
        assert refusals(ring).total() == len(frames)
        await assert_nothing_is_kept(ring)


async def assert_nothing_is_kept(ring: LiveRing) -> None:
    """Assert that no link and no queue of an attacker is left."""
    expected = {*NAMES, f"{SUPERVISOR}@{ring.supervisor.address}"}
    await until(lambda: all(set(each.peers) <= expected for each in links(ring)))
    await until(lambda: all(len(each.connections) <= 2 * len(NAMES) for each in links(ring)))


# -- mutations -------------------------------------------------------------------------------


@pytest.mark.heavy
def test_each_of_100000_mutations_is_a_message_or_a_wire_error() -> None:
    rng = Random(2)
    outcomes: Counter[str] = Counter()
    for _ in range(100_000):
        made = mutated(rng)
        try:
            for frame in FrameReader().feed(made):
                unbundle(frame) if frame.kind is BUNDLE else decode(frame)
                outcomes["read"] += 1
        except WireError as error:
            outcomes[type(error).__name__] += 1
    assert outcomes["read"] > 5000
    assert outcomes["MessageError"] > 10_000
    assert outcomes["FramingError"] > 1000


@pytest.mark.heavy
@streams
@in_uvloop
@pytest.mark.usefixtures("loop")
async def test_mutations_over_sockets_do_no_harm(count: int) -> None:
    rng = Random(3)
    frames = [greeting_of(f"stranger{rng.randrange(50)}") + mutated(rng) for _ in range(count)]
    async with attacked_ring() as ring:
        await send_streams(ports(ring), frames[: count // 4])
        before = resident_bytes()
        await send_streams(ports(ring), frames[count // 4 :])
        assert resident_bytes() - before < GROWTH_BYTES_MAX
        assert refusals(ring)["MessageError"] > count // 10


# -- lies ------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["stranger", "n3"], ids=["of a stranger", "of an impostor"])
@in_uvloop
@pytest.mark.usefixtures("loop")
async def test_false_claims_do_no_lasting_harm(name: str) -> None:
    liar = Liar(Random(4), [*NAMES, SUPERVISOR])
    topics = [TOPIC] * 9 + ["unknown"]
    async with attacked_ring() as ring:
        for number in range(100):
            lies = [encode(topics[lie % 10], liar.message()) for lie in range(100)]
            await send_stream(ports(ring)[number % 2], greeting_of(name) + b"".join(lies))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "role"),
    [("stranger", Role.NODE), ("n1", Role.CLIENT), ("stranger", Role.CLIENT)],
    ids=["a stranger", "a client with the name of a member", "a client"],
)
async def test_non_member_cannot_cause_an_eviction(name: str, role: Role) -> None:
    async with attacked_ring() as ring:
        said = b"".join(encode(TOPIC, ReportUnresponsive(node)) for node in NAMES)
        end = ring.supervisor.ticker.calls + 40  # twice the ticks that one accuser needs
        while ring.supervisor.ticker.calls < end:
            await send_stream(ports(ring)[1], greeting_of(name, role) + said)
            assert ring.supervisor.suspects == 0
        assert ring.supervisor.counts["evictions"] == 0
        # A client sends requests only: its connection is closed at a message of the protocol.
        is_read = ring.supervisor.counts["ReportUnresponsive"] > 100
        assert is_read == (role is Role.NODE)


async def test_client_may_only_send_requests() -> None:
    """Send every message as a client: a message for nodes only closes the connection."""
    async with live_ring("n0", "n1") as ring:
        await ring.wait_healthy()
        for sample in SAMPLES:
            before = refusals(ring)
            said = greeting_of("n1", Role.CLIENT) + encode("other", sample)
            await send_streams(ports(ring), [said, said])
            expected = {"not for clients": 2} if type(sample) not in RUNTIME_TYPES else {}
            assert refusals(ring) - before == Counter(expected), sample
        assert "other" not in ring.supervisor.members()
        assert ring.nodes["n0"].topics == [TOPIC]


ANSWERS = (MemberList, PublishAck, Refused, NodeStatus, DatabasePage, LogPage, ChangePage)


async def test_unrequested_answers_change_nothing() -> None:
    said = b"".join(encode(TOPIC, each) for each in SAMPLES if isinstance(each, ANSWERS))
    async with attacked_ring() as ring:
        before = explicit_state(ring.snapshot())
        for role in (Role.NODE, Role.CLIENT):
            await send_streams(ports(ring), [greeting_of("stranger", role) + said] * 2)
        assert ring.nodes["n0"].refusals == {}
        assert ring.nodes["n0"].links.book.find("a") is None, "what Members says"
        assert explicit_state(ring.snapshot()) == before
        assert refusals(ring) == Counter()


async def test_no_message_changes_an_epoch_or_the_log_before_a_position(tmp_path: Path) -> None:
    """Send every message, also damage to a node with chaos enabled."""
    messages = [each for each in SAMPLES if not isinstance(each, Crash)]
    async with Cluster(n=1, topic=TOPIC, data_dir=tmp_path) as cluster:
        for number in range(3):
            await cluster.publish("n00", b"%d" % number)
        node = cluster.node("n00")
        machine = node.machine(TOPIC)
        assert machine is not None
        log = machine.replica.log
        assert isinstance(log, SegmentLog)
        epoch, chain = log.epoch, log.chain_at(3)
        port = int(node.address.rpartition(":")[2])
        for role in (Role.NODE, Role.CLIENT):
            for message in messages:
                await send_stream(port, greeting_of("stranger", role) + encode(TOPIC, message))
        await cluster.publish("n00", b"after")  # the node runs and commits
        assert (log.epoch, log.chain_at(3)) == (epoch, chain)
    with LogStore.open(tmp_path / "n00") as store:
        log = store.log(TOPIC)
        assert (log.epoch, log.chain_at(3)) == (epoch, chain)


async def test_only_the_supervisor_gets_a_reply_to_a_probe() -> None:
    """Send a ping as an outsider; the node replies only to the supervisor of the topic."""
    async with attacked_ring() as ring:
        replies = ring.supervisor.counts["Pong"]
        said = greeting_of("stranger") + encode(TOPIC, Ping(1))
        await send_stream(ports(ring)[0], said)
        await ring.publish("n0", b"meanwhile")
        await ring.wait_healthy()
        assert ring.supervisor.counts["Pong"] == replies


async def test_only_the_supervisor_sets_a_configuration() -> None:
    async with live_ring(*NAMES) as ring:
        await ring.wait_healthy()
        for node in ring.nodes.values():
            node.ticker.stop()
        ring.supervisor.ticker.stop()
        label = ring.nodes["n0"].states()[TOPIC].label
        await send_stream(ports(ring)[0], greeting_of("stranger") + encode(TOPIC, UNRECORDED))
        await until(lambda: ring.nodes["n0"].links.is_linked("stranger") is False)
        assert ring.nodes["n0"].states()[TOPIC].label == label


async def test_member_is_not_unsubscribed_by_others() -> None:
    async with live_ring(*NAMES) as ring:
        await ring.wait_healthy()
        for node in ring.nodes.values():
            node.ticker.stop()
        said = greeting_of("stranger") + encode(TOPIC, Unsubscribe("n1"))
        await send_stream(ports(ring)[1], said)
        assert ring.supervisor.counts["Unsubscribe"] == 1
        assert ring.supervisor.members() == {TOPIC: len(NAMES)}


DIALLED_AT_ONCE_MAX = 1024  # many processes may not open more files


async def test_message_that_names_thousands_of_nodes_does_not_cause_as_many_dials() -> None:
    gone = nowhere()
    names = [f"ghost{number}" for number in range(2 * DIALLED_AT_ONCE_MAX)]
    said = [
        encode(TOPIC, CheckLabel(Peer(Label.nth(number), name), None, EdgeKind.LINE), {name: gone})
        for number, name in enumerate(names)
    ]
    most = 0
    async with live_ring("n0") as ring:
        peers = ring.nodes["n0"].links.peers
        sending = asyncio.create_task(
            send_stream(ports(ring)[0], greeting_of("stranger") + b"".join(said))
        )
        while not sending.done():
            most = max(most, sum(peer.is_dialling for peer in peers.values()))
            await asyncio.sleep(0)
    assert most <= DIALLED_AT_ONCE_MAX
