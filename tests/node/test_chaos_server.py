"""Suffering damage: what a request does to a process, and that only a willing one suffers it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from skipring.core.effects import Deliver
from skipring.core.events import PublishRequested
from skipring.core.messages import (
    Introduce,
    Publications,
    PublishMany,
    PublishNew,
    SetConfiguration,
    Subscribe,
)
from skipring.core.peers import SUPERVISOR, EdgeKind, NodeId, TopicId
from skipring.core.publications import Publication
from skipring.core.state import LivenessState, SupervisorState
from skipring.core.subscriber import Subscriber
from skipring.core.summaries import EMPTY_ROOT
from skipring.net.addresses import supervisor_at
from skipring.node.chaos_server import (
    DAMAGES,
    NO_CHAOS,
    NOT_FRAMES,
    NOT_HERE,
    REFUSALS,
    damage_node,
    damage_supervisor,
)
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.status_server import NOT_A_MEMBER
from skipring.node.supervisor_host import SupervisorHost
from skipring.testing import Cluster
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
from skipring.wire.rpc import Ping, Pong, Refused
from tests.support.machines import label, peer
from tests.wire.samples import PUBLICATION, SAMPLES

TOPIC = "news"
STILL_S = 36_000.0  # a tick that never comes
SAMPLE_DAMAGES = [each for each in SAMPLES if isinstance(each, DAMAGES)]
DATABASE = SupervisorState(database=(("0", "a"), ("10", None)), next=7, queue=("b",))


def ignore(topic: TopicId, delivery: Deliver) -> None:
    """There is no application."""


@asynccontextmanager
async def member(name: NodeId = "a", *, is_chaotic: bool = True) -> AsyncIterator[NodeHost]:
    """A node in a topic, of which nobody knows."""
    settings = NodeSettings(tick_s=STILL_S, is_chaotic=is_chaotic)
    node = NodeHost(name, settings, rng=Random(0), deliver=ignore)
    node.subscribe(TOPIC)
    try:
        yield node
    finally:
        await node.close()


def machine_of(node: NodeHost) -> Subscriber:
    machine = node.machine(TOPIC)
    assert machine is not None
    return machine


def with_a_member(scene: Callable[[NodeHost], Awaitable[None]]) -> None:
    async def run() -> None:
        async with member() as node:
            await scene(node)

    asyncio.run(run())


async def fill(node: NodeHost, count: int) -> None:
    for number in range(count):
        await node.publish(TOPIC, PublishRequested(payload=b"%d" % number))


# -- who is willing --------------------------------------------------------------------------


@pytest.mark.parametrize("damage", SAMPLE_DAMAGES, ids=lambda damage: type(damage).__name__)
def test_a_process_that_was_started_without_chaos_refuses_everything(damage: Damage) -> None:
    async def scene() -> None:
        async with member(is_chaotic=False) as node:
            before = machine_of(node).state()
            assert damage_node(node, TOPIC, damage) == Refused(damage.request, NO_CHAOS)
            assert machine_of(node).state() == before
            assert node.links.counts[REFUSALS] == 1
        server = SupervisorHost(NodeSettings(tick_s=STILL_S), rng=Random(0))
        assert damage_supervisor(server, TOPIC, damage) == Refused(damage.request, NO_CHAOS)
        assert server.state(TOPIC) == SupervisorState()
        assert server.links.counts[REFUSALS] == 1

    asyncio.run(scene())


def test_one_that_was_started_with_it_consents_and_is_not_changed_by_that() -> None:
    async def scene(node: NodeHost) -> None:
        before = machine_of(node).state()
        assert damage_node(node, TOPIC, ChaosPing(5)) == ChaosAck(5)
        assert machine_of(node).state() == before
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        assert damage_supervisor(server, TOPIC, ChaosPing(5)) == ChaosAck(5)

    with_a_member(scene)


@pytest.mark.parametrize(
    "damage", [Overwrite(1, None, None, None, None, (), {}, {}), CorruptTrie(1, 1, 1, 0)]
)
def test_a_node_that_is_not_in_the_topic_has_nothing_to_damage(damage: Damage) -> None:
    async def scene(node: NodeHost) -> None:
        assert damage_node(node, "other", damage) == Refused(1, NOT_A_MEMBER)

    with_a_member(scene)


def test_a_node_has_no_database_and_a_supervisor_nothing_else() -> None:
    async def scene(node: NodeHost) -> None:
        assert damage_node(node, TOPIC, OverwriteDatabase(1, (), 0, ())) == Refused(1, NOT_HERE)
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        for damage in (CorruptTrie(1, 1, 1, 0), Isolate(1, ("a",), 1)):
            assert damage_supervisor(server, TOPIC, damage) == Refused(1, NOT_HERE)

    with_a_member(scene)


# -- variables and databases -----------------------------------------------------------------


def test_variables_are_overwritten_all_at_once_but_not_what_is_wanted_or_stored() -> None:
    async def scene(node: NodeHost) -> None:
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
        assert damage_node(node, TOPIC, damage) == ChaosAck(1)
        state = machine_of(node).state()
        assert state.member
        assert (state.label, state.left, state.right) == (damage.label, damage.left, damage.right)
        assert state.ring == damage.ring
        assert tuple(sorted(state.shortcuts.items())) == tuple(sorted(damage.shortcuts))
        assert (state.silence, state.digests) == (damage.silence, damage.digests)
        assert len(state.publications) == len(machine_of(node).trie) == 3

    with_a_member(scene)


def test_what_has_arrived_is_kept_before_anything_is_overwritten_and_delivered_once() -> None:
    delivered: list[int] = []

    def deliver(topic: TopicId, delivery: Deliver) -> None:
        del topic
        delivered.extend(each.seq for each in delivery.publications)

    async def scene() -> None:
        settings = NodeSettings(tick_s=STILL_S, flush_s=STILL_S, is_chaotic=True)
        assert settings.config.defers_storage
        node = NodeHost("a", settings, rng=Random(0), deliver=deliver)
        try:
            node.subscribe(TOPIC)
            made = [Publication(publisher="z", seq=seq, payload=b"x") for seq in range(3)]
            node.forge(TOPIC, PublishMany((made[0], made[1])))
            assert machine_of(node).archive.end == 0  # they have arrived, and are not kept
            damage = Overwrite(1, None, None, None, None, (), {}, {})
            assert damage_node(node, TOPIC, damage) == ChaosAck(1)
            assert machine_of(node).archive.end == 2
            for each in (made[1], made[0], made[2]):
                node.forge(TOPIC, PublishNew(each))
            node.settle(TOPIC)
            assert delivered == [0, 1, 2]
            stored = machine_of(node).archive.publications()
            assert [each.seq for each in stored] == [0, 1, 2]
        finally:
            await node.close()

    asyncio.run(scene())


def test_a_database_is_overwritten_with_whatever_it_is() -> None:
    async def scene() -> None:
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        damage = OverwriteDatabase(1, DATABASE.database, DATABASE.next, DATABASE.queue)
        assert damage_supervisor(server, TOPIC, damage) == ChaosAck(1)
        assert server.state(TOPIC) == DATABASE

    asyncio.run(scene())


# -- tries and publications ------------------------------------------------------------------


def test_equal_seeds_give_equal_wrong_roots_and_different_losses() -> None:
    async def scene() -> None:
        async with member("a") as one, member("b") as other:
            for number in range(64):
                event = PublishRequested(payload=b"%d" % number, publisher="p", seq=number)
                for node in (one, other):
                    await node.publish(TOPIC, event)
            right = machine_of(one).trie.root
            for node in (one, other):
                assert damage_node(node, TOPIC, CorruptTrie(1, 3, 16, seed=9)) == ChaosAck(1)
            states = [machine_of(node).state() for node in (one, other)]
            assert all(len(machine_of(node).trie) == 64 for node in (one, other))
            assert machine_of(one).trie.root == machine_of(other).trie.root != right
            assert all(len(state.hashes) == 3 for state in states)
            assert all(len(state.publications) == 48 for state in states)
            assert states[0].publications != states[1].publications

    asyncio.run(scene())


def test_more_than_there_is_cannot_be_spoilt() -> None:
    async def scene(node: NodeHost) -> None:
        await fill(node, 2)
        assert damage_node(node, TOPIC, CorruptTrie(1, 2**62, 2**62, 0)) == ChaosAck(1)
        state = machine_of(node).state()
        assert len(state.hashes) == 1  # two ids lie in one bucket
        assert state.publications == ()

    with_a_member(scene)


def test_to_spoil_nothing_spoils_nothing() -> None:
    async def scene(node: NodeHost) -> None:
        await fill(node, 40)
        before = machine_of(node).state()
        assert damage_node(node, TOPIC, CorruptTrie(1, 0, 0, 0)) == ChaosAck(1)
        assert machine_of(node).state() == before

    with_a_member(scene)


def test_the_tries_of_others_in_the_same_process_are_not_touched() -> None:
    async def scene(node: NodeHost) -> None:
        async with member("other") as other:
            assert damage_node(node, TOPIC, CorruptTrie(1, 1, 1, 0)) == ChaosAck(1)
            assert machine_of(node).trie.root != EMPTY_ROOT
            assert machine_of(other).trie.root == EMPTY_ROOT

    with_a_member(scene)


# -- forged messages -------------------------------------------------------------------------


def test_forged_messages_are_taken_for_ones_that_have_come() -> None:
    async def scene(node: NodeHost) -> None:
        frames = encode(TOPIC, SetConfiguration(peer("0", "b"), label("1"), None)) + encode(
            TOPIC, Introduce(peer("01", "c"), EdgeKind.LINE, first_hand=True)
        )
        assert damage_node(node, TOPIC, Forge(1, frames)) == ChaosAck(1)
        assert machine_of(node).label == label("1")
        assert machine_of(node).left == peer("01", "c")
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        assert damage_supervisor(
            server, TOPIC, Forge(1, encode(TOPIC, Subscribe("x")))
        ) == ChaosAck(1)
        assert server.state(TOPIC).database == (("0", "x"),)

    with_a_member(scene)


def test_no_publication_is_brought_in_and_no_other_topic_is_spoken_of() -> None:
    async def scene(node: NodeHost) -> None:
        node.subscribe("other")
        frames = b"".join(
            (
                encode(TOPIC, PublishNew(PUBLICATION, 1)),
                encode(TOPIC, Publications((PUBLICATION,), 1)),
                encode("other", SetConfiguration(None, label("0"), None)),
                encode(TOPIC, ChaosPing(1)),
            )
        )
        assert damage_node(node, TOPIC, Forge(1, frames)) == ChaosAck(1)
        other = node.machine("other")
        assert other is not None
        assert other.label is None
        assert machine_of(node).label is None
        assert len(machine_of(node).trie) == 0

    with_a_member(scene)


def test_bytes_that_are_no_messages_are_refused_and_nothing_before_them_is_taken() -> None:
    async def scene(node: NodeHost) -> None:
        frames = encode(TOPIC, SetConfiguration(None, label("1"), None)) + bytes(20)
        assert damage_node(node, TOPIC, Forge(1, frames)) == Refused(1, NOT_FRAMES)
        assert machine_of(node).label is None

    with_a_member(scene)


# -- being cut off ---------------------------------------------------------------------------


def test_one_that_is_cut_off_hears_nothing_and_is_not_heard_until_that_is_over() -> None:
    async def scene() -> None:
        async with Cluster(n=3) as cluster:
            await cluster.wait_healthy()
            node = cluster.node("n00")
            assert damage_node(node, TOPIC, Isolate(1, ("n01", "n02"), 2**30)) == ChaosAck(1)
            await cluster.publish("n00", b"out")
            await cluster.publish("n01", b"in")
            await cluster.until(lambda: cluster.payloads("n02") == [b"in"])
            await cluster.until(lambda: node.links.counts["severed"] > 20)
            assert cluster.payloads("n00") == [b"out"]
            assert damage_node(node, TOPIC, Isolate(1, (), 0)) == ChaosAck(1)
            await cluster.wait_healthy()
            assert sorted(cluster.payloads("n02")) == [b"in", b"out"]

    asyncio.run(scene())


def test_it_is_over_by_itself_after_so_many_ticks() -> None:
    async def scene() -> None:
        async with Cluster(n=2) as cluster:
            await cluster.wait_healthy()
            assert damage_node(cluster.node("n00"), TOPIC, Isolate(1, ("n01",), 5)) == ChaosAck(1)
            await cluster.publish("n00", b"out")
            assert cluster.payloads("n01") == []
            await cluster.wait_healthy()
            assert cluster.payloads("n01") == [b"out"]

    asyncio.run(scene())


def test_one_can_be_cut_off_from_the_supervisor_too() -> None:
    async def scene() -> None:
        async with Cluster(n=4) as cluster:
            await cluster.wait_healthy()
            damage_node(cluster.node("n00"), TOPIC, Isolate(1, (SUPERVISOR,), 2**30))
            named = [name for _, name in cluster.snapshot().supervisor.database]
            assert "n00" in named
            others = tuple(name for name in cluster.nodes if name != "n00")
            damage_node(cluster.node("n00"), TOPIC, Isolate(1, (SUPERVISOR, *others), 2**30))

            def is_evicted() -> bool:
                return "n00" not in {name for _, name in cluster.snapshot().supervisor.database}

            await cluster.until(is_evicted)
            damage_node(cluster.node("n00"), TOPIC, Isolate(1, (), 0))
            await cluster.wait_healthy()
            assert not is_evicted()

    asyncio.run(scene())


def test_whatever_the_address_of_a_supervisor_is_it_is_not_heard() -> None:
    async def scene(node: NodeHost) -> None:
        assert damage_node(node, TOPIC, Isolate(1, (SUPERVISOR,), 5)) == ChaosAck(1)
        node.links.receive(
            supervisor_at("127.0.0.1:1"), Envelope(Ping(1), TOPIC), Frame(CONTROL, b"")
        )
        node.links.send(supervisor_at("127.0.0.1:1"), encode(TOPIC, Pong(1)))
        assert node.links.counts["severed"] == 2

    with_a_member(scene)


# -- crashes and traces ----------------------------------------------------------------------


def test_damage_leaves_a_line_in_the_log_and_a_question_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(node: NodeHost) -> None:
        damage_node(node, TOPIC, ChaosPing(1))
        damage_node(node, TOPIC, CorruptTrie(1, 0, 0, 0))
        (line,) = caplog.messages
        assert "damaged on purpose" in line
        assert "CorruptTrie" in line

    with_a_member(scene)


def test_a_crash_is_told_to_whom_it_concerns() -> None:
    async def scene(node: NodeHost) -> None:
        told: list[str] = []
        node.on_crash = lambda: told.append("node")
        damage_node(node, TOPIC, Crash(1))
        server = SupervisorHost(NodeSettings(is_chaotic=True), rng=Random(0))
        server.on_crash = lambda: told.append("supervisor")
        damage_supervisor(server, TOPIC, Crash(1))
        assert told == ["node", "supervisor"]

    with_a_member(scene)


def test_a_process_that_is_told_to_crash_ends_as_if_it_were_killed() -> None:
    program = (
        "import atexit; from skipring.node.chaos_server import kill_process; "
        "atexit.register(print, 'goodbye'); kill_process()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_every_damage_is_sampled() -> None:
    assert {type(damage) for damage in SAMPLE_DAMAGES} == set(DAMAGES)
