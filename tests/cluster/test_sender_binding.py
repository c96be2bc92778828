"""Sender binding: a message that names another sender than the peer is dropped."""

from __future__ import annotations

import asyncio

import pytest

from skipring.core.messages import (
    CLAIMS,
    ROUTINE_TYPES,
    CheckAndPublish,
    CheckLabel,
    ConfigurationAck,
    GetConfiguration,
    IHave,
    SetConfiguration,
    TrieEqual,
    Want,
    names_another,
)
from skipring.core.peers import EdgeKind
from skipring.core.prefix import ALL
from skipring.core.summaries import RangeSummary
from skipring.wire.bundle import SMALL_TYPES, Bundle, SmallMessage
from skipring.wire.codec import encode
from skipring.wire.handshake import Role
from skipring.wire.rpc import WireMessage
from tests.support.attacks import send_stream
from tests.support.connections import inspected
from tests.support.exchanges import greeting_of
from tests.support.machines import peer
from tests.support.rings import DEADLINE_S, TOPIC, LiveRing, live_ring, until
from tests.wire.samples import SAMPLES

REASON = "sender mismatch"
FORGED = [each for each in SAMPLES if names_another(each, "stranger")]
EVERYTHING = (RangeSummary.make(ALL),)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def forged(*messages: WireMessage) -> bytes:
    """Return the bytes of an outsider that acts for other nodes."""
    return greeting_of("stranger") + b"".join(encode(TOPIC, each) for each in messages)


def test_samples_cover_every_message_that_names_its_sender() -> None:
    assert {type(each) for each in FORGED} == set(CLAIMS)


@pytest.mark.parametrize("sample", FORGED, ids=lambda sample: type(sample).__name__)
async def test_message_that_names_another_sender_is_dropped_and_counted(
    sample: WireMessage,
) -> None:
    async with live_ring("n0", "n1") as ring:
        await ring.wait_healthy()
        hosts = (ring.nodes["n0"], ring.supervisor)
        for number, host in enumerate(hosts, start=1):
            await send_stream(port_of(host.address), forged(sample))
            await until(lambda: dropped(ring) == number)  # noqa: B023
        await ring.wait_healthy()


def bundled(*messages: SmallMessage) -> bytes:
    """Return the bytes of an outsider that sends messages in one frame."""
    bundle = Bundle()
    for message in messages:
        bundle.add(TOPIC, message)
    frames = [each for each in bundle.frames(lambda _: {}) if each is not None]
    return greeting_of("stranger") + b"".join(frames)


async def test_each_message_of_a_bundle_is_checked() -> None:
    """Forged messages and a configuration by a member are dropped; a message between is handled."""
    sound = CheckLabel(peer("1", "stranger"), None, EdgeKind.LINE)
    wrong = [each for each in FORGED if type(each) in SMALL_TYPES]
    configuration = SetConfiguration(None, None, None)
    async with live_ring("n0", "n1") as ring:
        await ring.wait_healthy()
        host = ring.nodes["n0"]
        sent = [*wrong, sound, configuration, *wrong]
        await send_stream(port_of(host.address), bundled(*sent))  # type: ignore[arg-type]
        await until(lambda: dropped(ring) == 2 * len(wrong))
        assert host.links.counts["not the supervisor"] == 1
        await ring.wait_healthy()


async def test_routine_messages_of_a_stranger_are_checked_together() -> None:
    forged = [each for each in FORGED if type(each) in ROUTINE_TYPES]
    async with live_ring("n0", "n1") as ring:
        await ring.wait_healthy()
        stream = bundled(*forged)  # type: ignore[arg-type]
        await send_stream(port_of(ring.nodes["n0"].address), stream)
        await until(lambda: dropped(ring) == len(forged))
        await ring.wait_healthy()


async def test_bundle_of_a_client_is_refused() -> None:
    async with live_ring("n0") as ring:
        host = ring.nodes["n0"]
        bundle = bundled(ConfigurationAck(), ConfigurationAck())
        frame = bundle.removeprefix(greeting_of("stranger"))
        await send_stream(port_of(host.address), greeting_of("c", Role.CLIENT) + frame)
        await until(lambda: host.links.counts["MessageError"] == 1)


def dropped(ring: LiveRing) -> int:
    return sum(each.links.counts[REASON] for each in (*ring.nodes.values(), ring.supervisor))


async def test_members_never_name_another_sender() -> None:
    async with live_ring("n0", "n1", "n2", "n3", "n4") as ring:
        for name in ring.nodes:
            await ring.publish(name, name.encode())
        await ring.wait_healthy()
        await ring.kill("n3")
        assert await ring.leave("n1")
        await ring.join("n5")
        await ring.wait_healthy()
        assert dropped(ring) == 0


async def test_forged_confirmation_does_not_make_synced_succeed() -> None:
    async with (
        live_ring("n0", "n1") as ring,
        inspected(f"skipring://{ring.supervisor.address}", tick_s=0.05, drain_s=0) as node,
        node.subscribe(TOPIC) as news,
    ):
        await news.synced(DEADLINE_S)
        ring.supervisor.ticker.stop()  # so no member is evicted
        neighbours = list(ring.nodes)
        for name in neighbours:
            await ring.kill(name)
        await news.publish(b"kept by no other member")
        machine = node.session.host.machine(TOPIC)
        assert machine is not None
        waiting = asyncio.create_task(news.synced(timeout=1.0))
        await asyncio.sleep(0)
        lies = [TrieEqual(name, machine.trie().root()) for name in neighbours]
        await send_stream(port_of(node.session.host.address), forged(*lies))
        with pytest.raises(TimeoutError):
            await waiting
        assert node.session.host.links.counts[REASON] == len(lies)


async def test_forged_request_sends_nothing_to_the_named_member() -> None:
    questions = [CheckAndPublish("n1", (), 7, EVERYTHING) for _ in range(50)]
    async with live_ring("n0", "n1", tick_s=0.2) as ring:
        for _ in range(16):
            await ring.publish("n0", bytes(64 * 1024))
        await ring.wait_healthy()
        links = ring.nodes["n0"].links
        before = links.traffic["bytes_sent"]
        await send_stream(port_of(ring.nodes["n0"].address), forged(*questions))
        await until(lambda: links.counts[REASON] == len(questions))
        assert links.traffic["bytes_sent"] - before < 64 * 1024


async def test_invented_senders_get_no_queue_and_no_credit() -> None:
    def questions(name: str) -> list[WireMessage]:
        return [
            CheckAndPublish(name, (), 7, EVERYTHING),
            IHave(name, bytes(8), bytes(1)),
            Want(name, bytes(8), bytes(1)),
        ]

    said = [message for number in range(200) for message in questions(f"ghost{number}")]
    async with live_ring("n0", "n1", tick_s=0.2) as ring:
        await ring.publish("n0", bytes(64 * 1024))
        await ring.wait_healthy()
        links = ring.nodes["n0"].links
        await send_stream(port_of(ring.nodes["n0"].address), forged(*said))
        await until(lambda: links.counts[REASON] == len(said))
        assert links.counts["no address"] == 0
        assert not any(name.startswith("ghost") for name in links.peers)


def test_configuration_may_be_requested_for_another_node() -> None:
    assert not names_another(GetConfiguration("n1"), "n0")
    assert names_another(GetConfiguration("n1", 5), "n0"), "a digest is the sender's own"
    assert not names_another(GetConfiguration("n1", 5), "n1")
