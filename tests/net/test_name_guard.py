"""One live process holds a name: its address belongs to its connection; a clone is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from skipring.admin.diagnosis import Diagnosis, diagnose, wait_healthy
from skipring.admin.inspector import Inspector, TopicContents, open_inspector
from skipring.net import name_guard
from skipring.node.host import NodeHost
from skipring.wire.handshake import Hello, Role, encode_greeting
from tests.support.exchanges import TransportHost, call, greeting_of, hosts, logged, note, running
from tests.support.papers import Papers
from tests.support.rings import DEADLINE_S, LOOPBACK, TOPIC, LiveRing, live_ring, until

ELSEWHERE = "127.0.0.1:9"
FORGOTTEN_S = 60.0  # deadline of 120 ticks, which take 3 s on an idle machine
ATTEMPTS = 20  # on a busy machine one of two nodes may connect before the other dials


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def start_clone(ring: LiveRing, name: str) -> NodeHost:
    node = NodeHost(name, ring.settings, rng=Random(99))
    await node.start(LOOPBACK, 0)
    node.subscribe(TOPIC)
    return node


async def test_handshake_under_the_name_of_a_live_member_keeps_its_address() -> None:
    async with live_ring("a", "b") as ring:
        await ring.wait_healthy()
        supervisor, b = ring.supervisor, ring.nodes["b"]
        intruder = TransportHost("b")
        async with running(intruder):
            intruder.links.send_to_supervisor(supervisor.address, note(1))
            await until(lambda: supervisor.links.counts["name in use"] > 0)
            assert supervisor.links.book.find("b") == b.address
            await ring.wait_healthy()
        async with open_inspector([supervisor.address], TOPIC) as inspector:
            inspection = await inspector.inspect(TopicContents.DIFFERENCES)
        assert "b" in inspection.statuses


async def test_refusal_of_a_clone_names_each_process_to_the_other_and_both_log_it() -> None:
    with logged() as lines:
        async with live_ring("a", "b") as ring:
            await ring.wait_healthy()
            original = ring.nodes["b"]
            clone = await start_clone(ring, "b")
            try:
                await until(lambda: TOPIC in clone.refusals)
                reason = clone.refusals[TOPIC]
                assert original.address in reason
                assert f"{original.links.incarnation:x}" in reason
                await until(lambda: len(conflicts(lines)) >= 3)
                said = {line["reason"] for line in conflicts(lines)}
                assert any(clone.address in each for each in said)
                assert any(original.address in each for each in said)
                await ring.publish("a", b"still delivered to the original")
                await until(lambda: ring.delivered["b"] == [b"still delivered to the original"])
                await ring.wait_healthy()
            finally:
                await clone.close()


def conflicts(lines: Callable[[], list[dict[str, str]]]) -> list[dict[str, str]]:
    return [line for line in lines() if line["event"] == "name_conflict"]


async def diagnosis_with_clones(inspector: Inspector) -> Diagnosis:
    """Diagnose until the supervisor reports a clone; a report expires after 120 ticks."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            diagnosis = diagnose(await inspector.inspect(TopicContents.DIFFERENCES))
            if diagnosis.clones:
                return diagnosis


async def test_doctor_reports_a_clone_until_some_time_after_it_ends() -> None:
    async with live_ring("a", "b", tick_s=0.02) as ring:
        await ring.wait_healthy()
        clone = await start_clone(ring, "b")
        async with open_inspector([ring.supervisor.address], TOPIC) as inspector:
            try:
                diagnosis = await diagnosis_with_clones(inspector)
                (conflict,) = diagnosis.clones
                assert conflict.name == "b"
                assert conflict.holder.address == ring.nodes["b"].address
                assert conflict.refused.address == clone.address
                assert not diagnosis.is_healthy
                assert any(clone.address in sentence for sentence in diagnosis.advice)
            finally:
                await clone.close()
            # The supervisor and the original forget the clone at different times.
            assert (await wait_healthy(inspector, FORGOTTEN_S)).is_healthy
        assert not ring.supervisor.links.conflicts()


async def test_doctor_reports_a_clone_that_only_a_member_has_refused() -> None:
    async with live_ring("a", "b", tick_s=0.02) as ring:
        await ring.wait_healthy()
        clone = TransportHost("b")
        async with running(clone), open_inspector([ring.supervisor.address], TOPIC) as inspector:
            clone.book.learn({"a": ring.nodes["a"].address})
            clone.links.send("a", note(1))
            await until(lambda: clone.links.is_name_refused("a"))
            await until(lambda: ring.nodes["b"].links.clones == (clone.address,))
            diagnosis = diagnose(await inspector.inspect(TopicContents.DIFFERENCES))
            assert diagnosis.clones == ()
            assert not diagnosis.is_healthy
            assert any(clone.address in each.text for each in diagnosis.violations)
        await until(lambda: not ring.nodes["b"].links.clones, deadline_s=FORGOTTEN_S)


async def test_killed_and_immediately_restarted_member_is_not_refused() -> None:
    async with live_ring("a", "b", "c") as ring:
        await ring.wait_healthy()
        for _ in range(3):
            await ring.kill("b")
            again = await ring.join("b")
            await ring.wait_healthy()
            assert not again.refusals
        assert not ring.supervisor.links.conflicts()


async def test_silent_process_loses_its_name_to_a_restarted_one() -> None:
    async with hosts("m") as (m,), call(m) as silent:
        silent.write(greeting_of("b") + note(1))
        await until(lambda: m.numbers("b") == [1])
        again = TransportHost("b")
        async with running(again):
            again.knows(m)
            again.links.send("m", note(2))
            await until(lambda: m.numbers("b") == [1, 2])
            assert await silent.is_hung_up_on()
            assert m.book.find("b") == again.address
            assert not m.links.conflicts()


async def test_messages_of_a_process_waiting_for_its_name_arrive_after_admission() -> None:
    async with hosts("m") as (m,), call(m) as silent, call(m) as waiting:
        silent.write(greeting_of("b") + note(1))
        await until(lambda: m.numbers("b") == [1])
        later = Hello(node="b", address=ELSEWHERE, role=Role.NODE, incarnation=7)
        waiting.write(encode_greeting(later) + note(2))
        waiting.write(note(3))
        await waiting.read()
        assert m.numbers("b") == [1]
        await until(lambda: m.numbers("b") == [1, 2, 3])


async def test_many_claims_of_one_name_do_not_displace_its_holder() -> None:
    assert name_guard.PING_S <= 2.0, "a restarted process is not refused for long"
    async with hosts("m", "b") as (m, b):
        await b.reach(m, 1)
        for _ in range(3):
            async with call(m) as caller:
                claim = Hello(node="b", address=ELSEWHERE, role=Role.NODE, incarnation=7)
                caller.write(encode_greeting(claim) + note(2))
                assert await caller.is_hung_up_on()
        assert m.numbers("b") == [1]


async def test_process_that_repeats_the_handshake_of_the_holder_is_refused_and_reported() -> None:
    async with hosts("m", "b") as (m, b):
        await b.reach(m, 1)
        async with call(b) as caller, call(m) as intruder:
            intruder.write(await caller.read() + note(2))
            assert await intruder.is_hung_up_on()
        assert m.numbers("b") == [1]
        assert [each.name for each in m.links.conflicts()] == ["b"]
        m.links.send("b", note(3))
        await until(lambda: b.numbers("m") == [3])


async def test_process_between_two_nodes_cannot_act_as_each_of_them_to_the_other() -> None:
    async with hosts("m", "b") as (m, b):
        await b.reach(m, 1)
        async with call(m) as to_m, call(b) as to_b:
            of_m, of_b = await to_m.read(), await to_b.read()
            to_m.write(of_b + note(2))
            to_b.write(of_m + note(2))
            assert await to_m.is_hung_up_on()
            assert await to_b.is_hung_up_on()
        assert m.numbers("b") == [1]
        assert b.numbers("m") == []


async def test_certificate_of_a_group_of_names_does_not_allow_a_repeated_handshake(
    tmp_path: Path,
) -> None:
    papers = Papers(tmp_path)
    m, b = (TransportHost(name, credentials=papers.of(name)) for name in ("m", "b.x"))
    async with running(m, b):
        await b.reach(m, 1)
        stolen = papers.of("b").client_context()
        async with call(b, stolen) as caller:
            repeated = await caller.read()
            async with call(m, stolen) as intruder:
                intruder.write(repeated + note(2))
                assert await intruder.is_hung_up_on()
        assert m.numbers("b.x") == [1]
        assert m.links.conflicts()


async def test_nodes_that_dial_each_other_do_not_wait_for_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(name_guard, "PING_S", 600.0)
    for _ in range(ATTEMPTS):
        async with hosts("m", "b") as (m, b):
            m.knows(b)
            b.knows(m)
            m.links.send("b", note(1))
            b.links.send("m", note(2))
            await until(lambda: (m.numbers("b"), b.numbers("m")) == ([2], [1]))
            both = m.links.connections | b.links.connections
            await until(lambda: all(link.is_greeted for link in both))  # noqa: B023
            assert not m.links.conflicts()
            assert not b.links.conflicts()
        if len(both) == 4:  # both have dialled
            return
    pytest.fail("one node was always faster")


async def test_clone_with_the_same_certificate_is_refused(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    m, original, clone = (
        TransportHost(name, credentials=papers.of(name)) for name in ("m", "b", "b")
    )
    async with running(m, original, clone):
        for host in (original, clone):
            host.knows(m)
        original.links.send("m", note(1))
        await until(lambda: m.numbers("b") == [1])
        clone.links.send("m", note(2))
        await until(lambda: clone.links.is_name_refused("m"))
        assert original.address in (clone.links.why_unreachable("m") or "")
        m.links.send("b", note(3))
        await until(lambda: original.numbers("m") == [3])
        assert m.numbers("b") == [1]
        assert m.book.find("b") == original.address
