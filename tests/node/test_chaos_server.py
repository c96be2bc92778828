"""Chaos requests: their effect on a process, and the consent that they need."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from faults.samples import BATCH
from skipring.core.batches import BatchRecord
from skipring.core.effects import Deliver
from skipring.core.events import Received
from skipring.core.log_messages import Refused
from skipring.core.messages import (
    Introduce,
    Ping,
    Pong,
    Publications,
    PublishMany,
    PublishNew,
    SetConfiguration,
    Subscribe,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId
from skipring.core.state import LivenessState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.net.addresses import supervisor_at
from skipring.node.chaos_server import DAMAGES, NO_CHAOS, NOT_FRAMES, NOT_HERE, REFUSALS
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.wire.chaos import (
    ChaosAck,
    ChaosPing,
    CorruptTrie,
    Crash,
    Damage,
    Forge,
    Isolate,
    Overwrite,
    OverwriteDatabase,
)
from skipring.wire.codec import Envelope, encode
from skipring.wire.framing import CONTROL, Frame
from tests.support.batches import batch
from tests.support.connections import healthy_cluster
from tests.support.machines import label, peer
from tests.wire.samples import SAMPLES

TOPIC = "news"
STILL_S = 36_000.0  # no tick happens
SAMPLE_DAMAGES = [each for each in SAMPLES if isinstance(each, DAMAGES)]


@asynccontextmanager
async def member(name: NodeId = "a", *, is_chaotic: bool = True) -> AsyncIterator[NodeHost]:
    """Yield a member of a topic that no other node knows."""
    settings = NodeSettings(tick_s=STILL_S, is_chaotic=is_chaotic)
    node = NodeHost(name, settings, rng=Random(0))
    node.subscribe(TOPIC)
    try:
        yield node
    finally:
        await node.close()


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


async def fill(node: NodeHost, count: int) -> None:
    for number in range(count):
        await node.publish(TOPIC, BatchRecord(b"%d" % number))


# -- consent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", SAMPLE_DAMAGES, ids=lambda damage: type(damage).__name__)
async def test_process_without_chaos_refuses_every_chaos_request(damage: Damage) -> None:
    async with member(is_chaotic=False) as node:
        before = machine_of(node).state()
        assert node.chaos.handle(TOPIC, damage) == Refused(damage.request, NO_CHAOS)
        assert machine_of(node).state() == before
        assert node.links.counts[REFUSALS] == 1
    server = SupervisorHost(NodeSettings(tick_s=STILL_S), rng=Random(0))
    assert server.chaos.handle(TOPIC, damage) == Refused(damage.request, NO_CHAOS)
    assert server.state(TOPIC) == SupervisorState()
    assert server.links.counts[REFUSALS] == 1


async def test_process_with_chaos_consents_without_a_change() -> None:
    async with member() as node:
        before = machine_of(node).state()
        assert node.chaos.handle(TOPIC, ChaosPing(5)) == ChaosAck(5)
        assert machine_of(node).state() == before
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        assert server.chaos.handle(TOPIC, ChaosPing(5)) == ChaosAck(5)


async def test_node_refuses_damage_to_a_database_and_supervisor_refuses_any_other() -> None:
    async with member() as node:
        assert node.chaos.handle(TOPIC, OverwriteDatabase(1, (), 0, ())) == Refused(1, NOT_HERE)
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        for damage in (CorruptTrie(1, 1, 1, 0), Isolate(1, ("a",), 1)):
            assert server.chaos.handle(TOPIC, damage) == Refused(1, NOT_HERE)


# -- variables and databases -----------------------------------------------------------------


async def test_overwrite_changes_all_variables_except_membership_and_publications() -> None:
    async with member() as node:
        await fill(node, 3)
        damage = Overwrite(
            request=1,
            label=label("01"),
            left=peer("0", "b"),
            right=peer("0", "ghost"),
            ring=peer("1", "a"),
            shortcuts=((label("1"), "c"), (label("011"), None)),
            silence={"b": LivenessState(1, -3, True)},
            digests={"d": 258},
        )
        assert node.chaos.handle(TOPIC, damage) == ChaosAck(1)
        state = machine_of(node).state()
        assert state.member
        assert (state.label, state.left, state.right) == (damage.label, damage.left, damage.right)
        assert state.ring == damage.ring
        assert tuple(sorted(state.shortcuts.items())) == tuple(sorted(damage.shortcuts))
        assert (state.silence, state.digests) == (damage.silence, damage.digests)
        assert len(state.publications) == len(machine_of(node).trie()) == 3


async def test_received_publications_are_delivered_once_across_an_overwrite() -> None:
    delivered: list[int] = []

    def deliver(delivery: Deliver) -> None:
        delivered.extend(each.first for each in delivery.batches)

    settings = NodeSettings(tick_s=STILL_S, flush_s=STILL_S, is_chaotic=True)
    assert settings.config.defers_indexing
    node = NodeHost("a", settings, rng=Random(0))
    try:
        node.subscribe(TOPIC)
        node.attach(TOPIC, deliver)
        made = [batch(b"x", publisher="z", first=first, topic=TOPIC) for first in range(3)]
        node.dispatch(TOPIC, Received(PublishMany((made[0], made[1]))))
        assert machine_of(node).replica.log.end == 2
        damage = Overwrite(1, None, None, None, None, (), {}, {})
        assert node.chaos.handle(TOPIC, damage) == ChaosAck(1)
        for each in (made[1], made[0], made[2]):
            node.dispatch(TOPIC, Received(PublishNew(each)))
        assert delivered == [0, 1, 2]
        assert machine_of(node).batches() == tuple(made)
    finally:
        await node.close()


# -- tries and publications ------------------------------------------------------------------


async def test_equal_seeds_give_equal_wrong_roots_and_different_losses() -> None:
    async with member("a") as one, member("b") as other:
        for number in range(64):
            made = batch(b"%d" % number, publisher="p", first=number, topic=TOPIC)
            for node in (one, other):
                await node.submit(TOPIC, made)
        right = machine_of(one).trie().root()
        for node in (one, other):
            assert node.chaos.handle(TOPIC, CorruptTrie(1, 3, 16, seed=9)) == ChaosAck(1)
        states = [machine_of(node).state() for node in (one, other)]
        assert all(len(machine_of(node).trie()) == 64 for node in (one, other))
        assert machine_of(one).trie().root() == machine_of(other).trie().root() != right
        assert all(len(state.hashes) == 3 for state in states)
        assert all(len(state.publications) == 48 for state in states)
        assert states[0].publications != states[1].publications


# -- forged messages -------------------------------------------------------------------------


async def test_forged_messages_are_handled_as_received() -> None:
    async with member() as node:
        frames = encode(TOPIC, SetConfiguration(peer("0", "b"), label("1"), None)) + encode(
            TOPIC, Introduce(peer("01", "c"), EdgeKind.LINE, first_hand=True)
        )
        assert node.chaos.handle(TOPIC, Forge(1, frames)) == ChaosAck(1)
        assert machine_of(node).label == label("1")
        assert machine_of(node).left == peer("01", "c")
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        assert server.chaos.handle(TOPIC, Forge(1, encode(TOPIC, Subscribe("x")))) == ChaosAck(1)
        assert server.state(TOPIC).database == (("0", "x"),)


async def test_forged_publications_and_other_topics_are_ignored() -> None:
    async with member() as node:
        node.subscribe("other")
        frames = b"".join(
            (
                encode(TOPIC, PublishNew(BATCH, 1)),
                encode(TOPIC, Publications((BATCH,), 1)),
                encode("other", SetConfiguration(None, label("0"), None)),
                encode(TOPIC, ChaosPing(1)),
            )
        )
        assert node.chaos.handle(TOPIC, Forge(1, frames)) == ChaosAck(1)
        other = node.machine("other")
        assert other is not None
        assert other.label is None
        assert machine_of(node).label is None
        assert len(machine_of(node).trie()) == 0


async def test_invalid_frames_are_refused_before_any_is_handled() -> None:
    async with member() as node:
        frames = encode(TOPIC, SetConfiguration(None, label("1"), None)) + bytes(20)
        assert node.chaos.handle(TOPIC, Forge(1, frames)) == Refused(1, NOT_FRAMES)
        assert machine_of(node).label is None


# -- isolation -------------------------------------------------------------------------------


async def test_isolated_node_exchanges_nothing_until_the_isolation_ends() -> None:
    async with healthy_cluster(n=3) as cluster:
        node = cluster.node("n00")
        assert node.chaos.handle(TOPIC, Isolate(1, ("n01", "n02"), 2**30)) == ChaosAck(1)
        await cluster.publish("n00", b"out")
        await cluster.publish("n01", b"in")
        await cluster.until(lambda: cluster.payloads("n02") == [b"in"])
        await cluster.until(lambda: node.links.counts["severed"] > 20)
        assert cluster.payloads("n00") == [b"out"]
        assert node.chaos.handle(TOPIC, Isolate(1, (), 0)) == ChaosAck(1)
        await cluster.wait_healthy()
        assert sorted(cluster.payloads("n02")) == [b"in", b"out"]


async def test_isolation_ends_by_itself_after_its_ticks() -> None:
    async with healthy_cluster(n=2) as cluster:
        assert cluster.node("n00").chaos.handle(TOPIC, Isolate(1, ("n01",), 5)) == ChaosAck(1)
        await cluster.publish("n00", b"out")
        assert cluster.payloads("n01") == []
        await cluster.wait_healthy()
        assert cluster.payloads("n01") == [b"out"]


async def test_node_can_be_isolated_from_the_supervisor() -> None:
    async with healthy_cluster(n=4) as cluster:
        cluster.node("n00").chaos.handle(TOPIC, Isolate(1, (SUPERVISOR,), 2**30))
        named = [name for _, name in cluster.snapshot().supervisor.database]
        assert "n00" in named
        others = tuple(name for name in cluster.nodes if name != "n00")
        cluster.node("n00").chaos.handle(TOPIC, Isolate(1, (SUPERVISOR, *others), 2**30))

        def is_evicted() -> bool:
            return "n00" not in {name for _, name in cluster.snapshot().supervisor.database}

        await cluster.until(is_evicted)
        cluster.node("n00").chaos.handle(TOPIC, Isolate(1, (), 0))
        await cluster.wait_healthy()
        assert not is_evicted()


async def test_isolated_supervisor_is_ignored_at_any_address() -> None:
    async with member() as node:
        assert node.chaos.handle(TOPIC, Isolate(1, (SUPERVISOR,), 5)) == ChaosAck(1)
        node.links.receive(
            supervisor_at("127.0.0.1:1"), Envelope(Ping(1), TOPIC), Frame(CONTROL, b"")
        )
        node.links.send(supervisor_at("127.0.0.1:1"), encode(TOPIC, Pong(1)))
        assert node.links.counts["severed"] == 2


# -- crashes and log lines -------------------------------------------------------------------


async def test_damage_is_logged_and_consent_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async with member() as node:
        node.chaos.handle(TOPIC, ChaosPing(1))
        node.chaos.handle(TOPIC, CorruptTrie(1, 0, 0, 0))
        (line,) = caplog.messages
        assert "chaos_applied" in line
        assert "CorruptTrie" in line


async def test_crash_calls_the_callback_of_its_process() -> None:
    calls: list[str] = []
    settings = NodeSettings(is_chaotic=True)
    node = NodeHost("a", settings, rng=Random(0), crash=lambda: calls.append("node"))
    node.chaos.handle(TOPIC, Crash(1))
    await node.close()
    server = SupervisorHost(settings, rng=Random(0), crash=lambda: calls.append("supervisor"))
    server.chaos.handle(TOPIC, Crash(1))
    await server.close()
    assert calls == ["node", "supervisor"]


def test_crash_ends_a_process_as_sigkill_does() -> None:
    program = (
        "import atexit; from skipring.node.chaos_server import kill_process; "
        "atexit.register(print, 'goodbye'); kill_process()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_samples_cover_every_damage() -> None:
    assert {type(damage) for damage in SAMPLE_DAMAGES} == set(DAMAGES)
