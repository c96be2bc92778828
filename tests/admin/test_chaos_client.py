"""Chaos in a live topic: all targets consent first, all or none are damaged, the ring heals."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from skipring.admin import chaos_plans as plans
from skipring.admin.chaos_client import ChaosClient, apply_plan, open_chaos_client
from skipring.core.peers import SUPERVISOR
from skipring.errors import InputError, SkipringError, UnreachableError
from skipring.node.chaos_server import REFUSALS
from skipring.rpc.client import RpcClient
from skipring.testing import Cluster
from tests.support.connections import to
from tests.support.scenes import in_loop, inside

TOPIC = "news"


@asynccontextmanager
async def chaotic(n: int = 8) -> AsyncIterator[tuple[Cluster, ChaosClient]]:
    """Yield a healthy ring in which each node has published, and a client that damages it."""
    async with Cluster(n=n) as cluster:
        for name in cluster.nodes:
            await cluster.publish(name, name.encode())
        await cluster.wait_healthy()
        async with open_chaos_client(addresses_of(cluster), TOPIC) as client:
            yield cluster, client


def addresses_of(cluster: Cluster) -> tuple[str, ...]:
    return tuple(cluster.url.removeprefix("skipring://").split(","))


@asynccontextmanager
async def joined_without_chaos(cluster: Cluster, name: str) -> AsyncIterator[Counter[str]]:
    """Let a node without chaos enabled join; yield the counts of its transport."""
    async with to(cluster, name=name) as node, node.subscribe(TOPIC) as news:
        await news.synced(30)
        await cluster.wait_healthy()
        yield node.session.host.links.counts


# -- applied damage heals --------------------------------------------------------------------


@pytest.mark.parametrize("code", ["A05", "A09b", "A13", "A15", "A18", "A47"])
@inside(chaotic)
async def test_live_ring_heals_after_every_adversary(
    cluster: Cluster, client: ChaosClient, /, code: str
) -> None:
    members = await client.members()
    assert sorted(members) == list(cluster.nodes)
    await client.apply(plans.adversarial(code, TOPIC, members, seed=1))
    await cluster.wait_healthy()
    assert all(len(cluster.payloads(name)) == 8 for name in cluster.nodes)


@in_loop
async def test_applied_damage_equals_the_plan() -> None:
    async with Cluster(n=4, tick_s=36_000) as cluster:
        await cluster.until(lambda: len(cluster.snapshot().supervisor.database) == 4)
        done = await apply_plan(
            addresses_of(cluster), TOPIC, lambda members: plans.wrong_labels(members, seed=1)
        )
        planned = {name: damage.label for name, (damage,) in done.items()}  # type: ignore[union-attr]
        states = cluster.snapshot().subscribers
        assert {name: state.label for name, state in states.items()} == planned


@in_loop
async def test_damaged_nodes_receive_addresses_of_nodes_they_refer_to() -> None:
    async with Cluster(n=4, tick_s=36_000) as cluster:
        await cluster.until(lambda: len(cluster.snapshot().supervisor.database) == 4)
        await apply_plan(
            addresses_of(cluster),
            TOPIC,
            lambda members: plans.adversarial("A11", TOPIC, members, seed=0),
        )
        for name, state in cluster.snapshot().subscribers.items():
            book = cluster.node(name).links.book
            named = [peer.node for peer in (state.left, state.right, state.ring) if peer]
            assert named
            assert all(book.find(other) for other in named if other != name)


@inside(chaotic)
async def test_partition_blocks_messages_until_it_is_healed(
    cluster: Cluster, client: ChaosClient, /
) -> None:
    members = await client.members()
    sides = plans.parts_of(members, 2, seed=0)
    await client.apply(plans.partition(sides, 2**30))
    await cluster.publish(sides[0][0], b"here")
    links = [cluster.node(name).links for name in cluster.nodes]
    await cluster.until(lambda: sum(each.counts["severed"] for each in links) > 200)
    assert not any(b"here" in cluster.payloads(name) for name in sides[1])
    done = await client.apply_to_consenting(plans.healed(members))
    assert sorted(done) == list(cluster.nodes)
    await cluster.wait_healthy()
    assert all(b"here" in cluster.payloads(name) for name in cluster.nodes)


@inside(chaotic)
async def test_supervisor_can_be_killed(cluster: Cluster, client: ChaosClient, /) -> None:
    await client.apply(plans.killed([SUPERVISOR]))
    with pytest.raises(InputError, match="is stopped"):
        cluster.supervisor()
    await cluster.start_supervisor(lose_data=True)
    await cluster.wait_healthy()


# -- refusals --------------------------------------------------------------------------------


@inside(chaotic, n=3)
async def test_one_refusal_prevents_all_damage(cluster: Cluster, client: ChaosClient, /) -> None:
    async with joined_without_chaos(cluster, "sound") as counts:
        members = await client.members()
        why = r"^sound was not started with chaos enabled, so nothing was damaged"
        with pytest.raises(SkipringError, match=why):
            await client.apply(plans.adversarial("A15", TOPIC, members, seed=0))
        assert cluster.violations() == []
        assert counts[REFUSALS] == 1


@inside(chaotic, n=3)
async def test_refusing_nodes_do_not_prevent_healing_of_others(
    cluster: Cluster, client: ChaosClient, /
) -> None:
    async with joined_without_chaos(cluster, "sound"):
        members = await client.members()
        done = await client.apply_to_consenting(plans.healed(members))
    assert sorted(done) == ["n00", "n01", "n02"]


@inside(chaotic, n=4)
async def test_member_that_died_meanwhile_prevents_all_damage(
    cluster: Cluster, client: ChaosClient, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipring.admin.chaos_client.ANSWER_S", 0.5)
    members = await client.members()
    cluster.kill("n02")
    with pytest.raises(UnreachableError, match="n02 did not answer, so nothing was damaged"):
        await client.apply(plans.adversarial("A15", TOPIC, members, seed=0))
    await cluster.wait_healthy()


@inside(chaotic, n=3)
async def test_partly_applied_damage_is_reported(cluster: Cluster, client: ChaosClient, /) -> None:
    members = await client.members()
    damages = plans.wrong_labels(members, seed=0)
    await cluster.node("n01").unsubscribe(TOPIC, 10)
    with pytest.raises(SkipringError, match="the damage is incomplete: n01: not a member"):
        await client.apply(damages)


@in_loop
async def test_topic_without_supervisor_or_members_cannot_be_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skipring.admin.inspector.SUPERVISOR_S", 1.0)
    async with Cluster(n=1) as cluster:
        await cluster.wait_healthy()
        addresses = addresses_of(cluster)
        with pytest.raises(UnreachableError, match="'other' has no members"):
            await apply_plan(addresses, "other", plans.killed)
        await cluster.stop_supervisor()
        async with RpcClient(addresses, rng=Random(0)) as rpc:
            with pytest.raises(UnreachableError, match="nothing listens on"):
                await ChaosClient(rpc, TOPIC).members()
