"""Quotas of a supervisor: no name uses up its topics or its memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from skipring.core import topics
from skipring.core.log_messages import Refused
from skipring.core.messages import (
    UNRECORDED,
    CheckLabel,
    GetConfiguration,
    Subscribe,
    Unsubscribe,
)
from skipring.core.peers import EdgeKind
from skipring.node.host import NodeHost
from skipring.node.settings import NodeSettings
from skipring.node.supervisor_host import SupervisorHost
from skipring.wire.bundle import MESSAGES_MAX, Bundle
from skipring.wire.codec import decode, encode
from skipring.wire.framing import FrameReader
from tests.cluster.test_sender_binding import port_of
from tests.support.attacks import send_stream
from tests.support.exchanges import TransportHost, greeting_of, running
from tests.support.machines import peer
from tests.support.papers import Papers
from tests.support.rings import LOOPBACK, TOPIC, live_ring, until


async def test_one_member_cannot_use_up_the_topics_of_a_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "TOPICS_PER_NAME_MAX", 5)
    monkeypatch.setattr(topics, "TOPICS_MAX", 20)
    async with live_ring("n0") as ring:
        await ring.wait_healthy()
        greedy = NodeHost("greedy", ring.settings, rng=Random(1))
        await greedy.start(LOOPBACK, 0)
        try:
            for number in range(20):
                greedy.subscribe(f"topic{number}")
            await until(lambda: len(greedy.refusals) == 15)
            reason = next(iter(greedy.refusals.values()))
            assert reason.startswith("greedy has 5 topics at this supervisor")
            ring.nodes["n0"].subscribe("another")
            await until(lambda: ring.supervisor.members().get("another") == 1)
        finally:
            await greedy.close()


async def test_member_cannot_use_up_the_topics_of_a_supervisor_through_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each message in a topic that a node is not in makes the node ask to be unsubscribed (S2)."""
    monkeypatch.setattr(topics, "TOPICS_PER_NAME_MAX", 5)
    monkeypatch.setattr(topics, "TOPICS_MAX", 20)
    bundle = Bundle()
    for number in range(MESSAGES_MAX):
        edge = CheckLabel(peer("1", "stranger"), None, EdgeKind.LINE)
        bundle.add(f"invented{number}", edge)
    (frame,) = bundle.frames(lambda _: {})
    async with live_ring("n0", "n1") as ring:
        await ring.wait_healthy()
        supervisor = ring.supervisor
        asked = supervisor.counts["Unsubscribe"]
        for node in ring.nodes.values():
            await send_stream(port_of(node.address), greeting_of("stranger") + (frame or b""))
        await until(lambda: supervisor.counts["Unsubscribe"] == asked + 2 * MESSAGES_MAX)
        ring.nodes["n0"].subscribe("another")
        await until(lambda: supervisor.members().get("another") == 1)
        assert supervisor.links.counts["too many topics"] == 0
        assert supervisor.members().keys() == {TOPIC, "another"}


async def test_node_is_released_from_a_topic_that_the_supervisor_does_not_know() -> None:
    async with live_ring("n0") as ring:
        await ring.wait_healthy()
        said = [encode("unknown", Unsubscribe(name)) for name in ("m", "n0", None)]
        replies = await exchange(port_of(ring.supervisor.address), greeting_of("m"), said)
        assert replies == [UNRECORDED]
        assert ring.supervisor.links.counts["sender mismatch"] == 2


async def test_left_topic_can_be_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS_PER_NAME_MAX", 2)
    async with live_ring("n0") as ring:
        node = ring.nodes["n0"]
        node.subscribe("second")
        await until(lambda: len(ring.supervisor.members()) == 2)
        node.subscribe("third")
        await until(lambda: "third" in node.refusals)
        assert await node.unsubscribe("second", 20.0)
        await until(lambda: "third" in ring.supervisor.members())
        await until(lambda: "third" not in node.refusals)


async def test_names_below_one_certificate_share_its_quota(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    server, member = (
        TransportHost("m", credentials=papers.of("m")),
        TransportHost("a.1", credentials=papers.of("a")),
    )
    async with running(server, member):
        await member.reach(server, 1)
        assert server.links.account_of("a.1") == "a"
        assert server.links.account_of("unknown") == "unknown"


async def test_topics_stay_charged_to_a_certificate_after_its_connections_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPICS_PER_NAME_MAX", 5)
    papers = Papers(tmp_path)
    settings = NodeSettings(tick_s=0.02, credentials=papers.of("supervisor"))
    supervisor = await SupervisorHost(settings, rng=Random(1)).start(LOOPBACK, 0)
    try:
        for number in range(3):
            member = TransportHost(f"a.{number}", credentials=papers.of("a"))
            async with running(member):
                for topic in range(4):
                    asked = encode(f"topic{number}.{topic}", Subscribe(member.name))
                    member.links.send_to_supervisor(supervisor.address, asked)
                heard = 4 * (number + 1)
                await until(lambda heard=heard: supervisor.counts["Subscribe"] == heard)
            await until(lambda: not supervisor.links.connections)
            ticks = supervisor.ticker.calls
            await until(lambda ticks=ticks: supervisor.ticker.calls > ticks + 2)
        assert len(supervisor.members()) == 5
        assert supervisor.links.counts["too many topics"] == 7
    finally:
        await supervisor.close()


async def test_invented_names_wait_within_a_quota_and_release_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "SUBJECTS_PER_NAME_MAX", 1_000)
    said = [encode(TOPIC, GetConfiguration(f"invented{number}")) for number in range(20_000)]
    async with live_ring("n0", tick_s=0.2) as ring:
        await ring.wait_healthy()
        supervisor = ring.supervisor
        answers = await exchange(port_of(supervisor.address), greeting_of("m"), said)
        assert supervisor.links.counts["too many subjects"] > 0
        reasons = {each.reason for each in answers if isinstance(each, Refused)}
        assert any(reason.startswith("m has asked about 1000") for reason in reasons)
        waiting = sum(each.startswith("invented") for each in supervisor.state(TOPIC).queue)
        assert waiting <= 20_000 - supervisor.links.counts["too many subjects"]
        await until(lambda: not supervisor.state(TOPIC).queue)
        await ring.wait_healthy()


async def exchange(port: int, greeting: bytes, frames: list[bytes]) -> list[object]:
    """Send frames; return the replies until the other side has read all frames."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(greeting + b"".join(frames))
        writer.write_eof()
        async with asyncio.timeout(20.0):
            came = await reader.read()
    finally:
        writer.transport.abort()
    return [decode(frame).message for frame in FrameReader().feed(came)[1:]]
