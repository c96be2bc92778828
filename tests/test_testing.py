"""The cluster for tests of users: it forms, is damaged in every way, heals and stops."""

from __future__ import annotations

import asyncio
import doctest
from collections.abc import Callable
from pathlib import Path

import pytest

from skipring import testing
from skipring.admin import local_cluster
from skipring.api.connection import Connection, connect
from skipring.core.batches import BatchRecord
from skipring.core.events import Overwritten
from skipring.core.peers import SUPERVISOR
from skipring.errors import InputError
from skipring.net.addresses import supervisor_of
from skipring.testing import Cluster
from tests.support.connections import inspected

TICK_S = 0.05
DEADLINE_S = 60.0  # for operations that take a second or two
TOPICS = [f"t{number:02d}" for number in range(50)]


def test_docstring_examples_pass() -> None:
    assert doctest.testmod(testing) == (0, 6)


def test_cluster_becomes_healthy_and_in_sync() -> None:
    async def scene() -> None:
        async with Cluster(n=8) as cluster:
            for name in cluster.nodes:
                await cluster.publish(name, name.encode())
            await cluster.wait_healthy()
            assert cluster.violations() == []
            sent = [name.encode() for name in cluster.nodes]
            assert all(sorted(cluster.payloads(name)) == sent for name in cluster.nodes)

    asyncio.run(scene())


def test_views_of_a_cluster_agree() -> None:
    async def scene() -> None:
        async with (
            Cluster(n=2) as cluster,
            cluster.keyvalue("settings") as one,
            cluster.keyvalue("settings") as two,
        ):
            await one.put("rate", b"10")
            await cluster.until(lambda: two.get("rate") == one.get("rate"), DEADLINE_S)

    asyncio.run(scene())


def test_survivors_still_exchange_publications_when_a_node_is_killed() -> None:
    async def scene() -> None:
        async with Cluster(n=5) as cluster:
            await cluster.wait_healthy()
            cluster.kill("n02")
            assert "n02" not in cluster.nodes
            assert any("n02" in text for text in cluster.violations())
            await cluster.publish("n00", b"after")
            await cluster.until(
                lambda: all(cluster.payloads(name) == [b"after"] for name in cluster.nodes)
            )

    asyncio.run(scene())


def test_new_node_gets_everything() -> None:
    async def scene() -> None:
        async with Cluster(n=3) as cluster:
            await cluster.publish("n00", b"before")
            assert await cluster.join() == "n03"
            assert await cluster.join("late") == "late"
            await cluster.wait_healthy()
            assert cluster.payloads("late") == [b"before"]

    asyncio.run(scene())


def test_timeout_names_the_violations() -> None:
    async def scene() -> None:
        async with Cluster(n=2, tick_s=60) as cluster:
            await cluster.publish("n00", b"alone")
            with pytest.raises(TimeoutError, match="PUB"):
                await cluster.until(lambda: False, timeout=0)

    asyncio.run(scene())


def test_invalid_names_are_refused() -> None:
    async def scene() -> None:
        async with Cluster(n=1) as cluster:
            with pytest.raises(InputError, match="no live node x"):
                cluster.kill("x")
            with pytest.raises(InputError, match="choose another name"):
                await cluster.join("n00")
            with pytest.raises(InputError, match="no killed node n00"):
                await cluster.restart("n00")
            with pytest.raises(InputError, match="no live node x"):
                cluster.partition(["x"], ["n00"])
            with pytest.raises(InputError, match="unknown adversary A99"):
                cluster.corrupt("A99")

    asyncio.run(scene())


def test_cluster_without_nodes_cannot_be_damaged() -> None:
    async def scene() -> None:
        async with Cluster(n=0) as cluster:
            for damage in (cluster.corrupt, cluster.spoil):
                with pytest.raises(InputError, match="no node can be damaged"):
                    damage()

    asyncio.run(scene())


# -- members in other processes --------------------------------------------------------------


def connected(cluster: Cluster) -> Connection:
    return connect(cluster.url, tick_s=TICK_S, drain_s=0)


def test_wait_healthy_waits_for_a_connection_that_is_a_member() -> None:
    async def scene() -> None:
        async with (
            Cluster(n=3) as cluster,
            connected(cluster) as node,
            node.subscribe(cluster.topic) as news,
        ):
            await news.publish_many([b"from", b"the connection"])
            await news.synced(DEADLINE_S)
            await cluster.wait_healthy(DEADLINE_S)
            assert node.name in recorded(cluster)
            assert cluster.violations() == []
            await cluster.publish("n01", b"from the cluster")
            await cluster.wait_healthy(DEADLINE_S)
            sent = [b"from", b"the connection", b"from the cluster"]
            assert [each.payload for each in await news.read_available()] == sent
            assert all(cluster.payloads(name) == sent for name in cluster.nodes)

    asyncio.run(scene())


def test_wait_healthy_judges_a_topic_with_connections_only() -> None:
    async def scene() -> None:
        async with (
            Cluster(n=0) as cluster,
            connected(cluster) as first,
            connected(cluster) as second,
            first.subscribe(cluster.topic) as writer,
            second.subscribe(cluster.topic, start="earliest") as reader,
        ):
            await cluster.until(lambda: recorded(cluster) == {first.name, second.name})
            await writer.publish(b"x")
            await cluster.wait_healthy(DEADLINE_S)
            assert [each.payload for each in await reader.read_available()] == [b"x"]

    asyncio.run(scene())


def test_wait_healthy_waits_until_a_crashed_connection_is_evicted() -> None:
    async def scene() -> None:
        async with (
            Cluster(n=3) as cluster,
            inspected(cluster.url, tick_s=TICK_S, drain_s=0) as node,
        ):
            await node.subscribe(cluster.topic).__aenter__()
            await cluster.until(lambda: node.name in recorded(cluster))
            await cluster.wait_healthy(DEADLINE_S)
            await node.session.host.close()  # as a crash: the supervisor is not notified
            await cluster.wait_healthy(DEADLINE_S)
            assert recorded(cluster) == set(cluster.nodes)

    asyncio.run(scene())


def test_cluster_with_a_connection_heals_from_damage() -> None:
    async def scene() -> None:
        async with (
            Cluster(n=4) as cluster,
            connected(cluster) as node,
            node.subscribe(cluster.topic) as news,
        ):
            await news.publish(b"x")
            await news.synced(DEADLINE_S)
            await cluster.wait_healthy(DEADLINE_S)
            cluster.corrupt()
            await cluster.wait_healthy(DEADLINE_S)
            await cluster.until(lambda: node.name in recorded(cluster), DEADLINE_S)
            await cluster.wait_healthy(DEADLINE_S)
            assert all(cluster.payloads(name) == [b"x"] for name in cluster.nodes)

    asyncio.run(scene())


# -- damage ----------------------------------------------------------------------------------


async def filled(cluster: Cluster) -> list[bytes]:
    """Publish from every node and wait until all are in sync."""
    sent = [f"{name}/{number}".encode() for name in cluster.nodes for number in range(5)]
    for payload in sent:
        await cluster.publish(payload[:3].decode(), payload)
    await cluster.wait_healthy()
    return sorted(sent)


def heals(damage: Callable[[Cluster], None], n: int = 8) -> None:
    """Assert that a damaged cluster becomes healthy and has each publication once."""

    async def scene() -> None:
        async with Cluster(n=n) as cluster:
            sent = await filled(cluster)
            damage(cluster)
            assert cluster.violations() != []
            await cluster.wait_healthy()
            assert all(sorted(cluster.payloads(name)) == sent for name in cluster.nodes)

    asyncio.run(scene())


# Some of each family: databases, rings, everything, departures, publications.
@pytest.mark.parametrize(
    "adversary",
    [*("A00", "A05", "A44"), *("A08", "A11"), *("A13", "A15", "A17"), *("A18", "A45"), "A47"],
)
def test_cluster_heals_from_any_state(adversary: str) -> None:
    heals(lambda cluster: cluster.corrupt(adversary))


def test_seed_determines_the_corrupted_state() -> None:
    async def scene() -> None:
        async with Cluster(n=4, tick_s=60) as cluster:
            states = []
            for seed in (1, 1, 2):
                cluster.corrupt(seed=seed)
                seen = cluster.snapshot()
                states.append((seen.subscribers, seen.supervisor.database))
            assert states[0] == states[1] != states[2]

    asyncio.run(scene())


def test_corrupted_nodes_know_the_addresses_of_nodes_they_refer_to() -> None:
    async def scene() -> None:
        async with Cluster(n=8, tick_s=60) as cluster:
            cluster.corrupt("A11")
            for name, state in cluster.snapshot().subscribers.items():
                named = {peer.node for peer in (state.left, state.right, state.ring) if peer}
                assert named
                book = cluster.node(name).links.book
                assert all(book.find(other) for other in named - {name})

    asyncio.run(scene())


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_corrupt_tries_and_lost_publications_are_restored(share: float) -> None:
    heals(lambda cluster: cluster.spoil(share))


def test_undetected_loss_is_a_violation() -> None:
    async def scene() -> None:
        async with Cluster(n=2) as cluster:
            await filled(cluster)
            cluster.node("n01").logs.discard(cluster.topic, 3)
            assert cluster.violations() == [
                "PUB: n01 has lost 1 publications that its trie still has"
            ]
            await cluster.wait_healthy()

    asyncio.run(scene())


def test_partition_blocks_publications_until_its_block_ends() -> None:
    async def scene() -> None:
        async with Cluster(n=6) as cluster:
            await cluster.wait_healthy()
            here, there = cluster.nodes[:3], cluster.nodes[3:]
            with cluster.partition([*here, SUPERVISOR], there):
                await cluster.publish("n00", b"here")
                await cluster.publish("n05", b"there")
                # Nodes that cannot reach the supervisor are evicted; the others close the ring.
                await cluster.until(lambda: recorded(cluster) == set(here), timeout=60)
                await cluster.until(
                    lambda: all(cluster.payloads(name) == [b"here"] for name in here), timeout=60
                )
                assert not any(b"here" in cluster.payloads(name) for name in there)
            await cluster.wait_healthy(timeout=60)
            assert recorded(cluster) == set(cluster.nodes)
            assert sorted(cluster.payloads("n01")) == [b"here", b"there"]

    asyncio.run(scene())


def recorded(cluster: Cluster) -> set[str | None]:
    return {name for _, name in cluster.snapshot().supervisor.database}


def test_partition_without_groups_has_two_halves_and_can_be_healed_explicitly() -> None:
    async def scene() -> None:
        async with Cluster(n=4) as cluster:
            await cluster.wait_healthy()
            cluster.partition()
            await cluster.publish("n00", b"x")
            links = [cluster.node(name).links for name in cluster.nodes]
            await cluster.until(lambda: sum(each.counts["severed"] for each in links) > 50)
            assert not any(cluster.payloads(name) for name in ("n02", "n03"))
            cluster.heal()
            await cluster.wait_healthy()
            assert cluster.payloads("n03") == [b"x"]

    asyncio.run(scene())


# -- restarts --------------------------------------------------------------------------------


def test_killed_node_restarts_with_its_disk(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Cluster(n=3, data_dir=tmp_path) as cluster:
            sent = await filled(cluster)
            cluster.kill("n01")
            await cluster.restart("n01")
            assert sorted(cluster.payloads("n01")) == sent
            await cluster.publish("n00", b"z")
            await cluster.wait_healthy()
            assert b"z" in cluster.payloads("n01")

    asyncio.run(scene())


def test_killed_node_without_a_disk_restarts_empty_and_recovers() -> None:
    async def scene() -> None:
        async with Cluster(n=3) as cluster:
            sent = await filled(cluster)
            cluster.kill("n01")
            await cluster.restart("n01")
            assert cluster.payloads("n01") == []
            await cluster.wait_healthy()
            assert sorted(cluster.payloads("n01")) == sent

    asyncio.run(scene())


@pytest.mark.parametrize("has_disk", [True, False])
@pytest.mark.parametrize("lose_data", [True, False])
def test_supervisor_restarts_with_or_without_its_database(
    tmp_path: Path, lose_data: bool, has_disk: bool
) -> None:
    async def scene() -> None:
        async with Cluster(n=4, data_dir=tmp_path if has_disk else None) as cluster:
            await cluster.wait_healthy()
            before = cluster.snapshot().supervisor.database
            await cluster.until(lambda: cluster.supervisor().ticker.calls > 3)  # it is on the disk
            await cluster.stop_supervisor()
            with pytest.raises(InputError, match="supervisor 0 is stopped"):
                cluster.supervisor()
            await cluster.publish("n00", b"alone")
            await cluster.until(lambda: cluster.payloads("n03") == [b"alone"])
            await cluster.start_supervisor(lose_data=lose_data)
            assert cluster.snapshot().supervisor.database == (() if lose_data else before)
            await cluster.wait_healthy()
            with pytest.raises(InputError, match="is running"):
                await cluster.start_supervisor()

    asyncio.run(scene())


# -- several supervisors ---------------------------------------------------------------------


async def sharing(cluster: Cluster) -> list[str]:
    """Let all nodes subscribe to many topics; return those of the second supervisor."""
    for name in cluster.nodes:
        for topic in TOPICS:
            cluster.node(name).subscribe(topic)
    for topic in TOPICS:
        await cluster.node("n00").publish(topic, BatchRecord(topic.encode()))
    await cluster.until(lambda: not wrong_topics(cluster), timeout=60)
    supervisors = cluster.url.removeprefix("skipring://").split(",")
    moved = [topic for topic in TOPICS if supervisor_of(topic, supervisors) == supervisors[1]]
    assert 10 < len(moved) < 40
    assert set(moved) <= cluster.supervisor(1).members().keys()
    return moved


def wrong_topics(cluster: Cluster) -> list[str]:
    return [topic for topic in TOPICS if cluster.violations(topic)]


@pytest.mark.heavy
def test_topics_of_a_removed_supervisor_heal_at_the_other() -> None:
    async def scene() -> None:
        async with Cluster(n=4, tick_s=0.3, supervisors=2) as cluster:
            moved = await sharing(cluster)
            await cluster.stop_supervisor(1)
            cluster.use_supervisors(0)
            assert set(wrong_topics(cluster)) >= set(moved)
            await cluster.until(lambda: not wrong_topics(cluster), timeout=60)
            assert set(cluster.supervisor(0).members()) == {cluster.topic, *TOPICS}

    asyncio.run(scene())


@pytest.mark.heavy
def test_topics_of_a_removed_supervisor_heal_while_it_still_runs() -> None:
    async def scene() -> None:
        async with Cluster(n=4, tick_s=0.3, supervisors=2) as cluster:
            moved = await sharing(cluster)
            old = {topic: cluster.supervisor(1).state(topic) for topic in moved}
            cluster.use_supervisors(0)
            # Its database is restored after they left, so it sends to former members again.
            await cluster.until(lambda: not cluster.supervisor(1).members(), timeout=60)
            for topic, state in old.items():
                cluster.supervisor(1).dispatch(topic, Overwritten(state))
            assert set(cluster.supervisor(1).members()) == set(moved)
            await cluster.until(lambda: not wrong_topics(cluster), timeout=60)
            await cluster.until(lambda: not cluster.supervisor(1).members(), timeout=60)
            ignored = "not the topic's supervisor"
            assert any(cluster.node(name).links.counts[ignored] for name in cluster.nodes)
            await cluster.until(lambda: not wrong_topics(cluster), timeout=60)

    asyncio.run(scene())


# -- many nodes ------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("n", [64, *(pytest.param(n, marks=pytest.mark.slow) for n in (200, 1000))])
def test_many_nodes_in_one_process_form_a_ring_and_heal(n: int) -> None:
    async def scene() -> None:
        async with Cluster(n=n) as cluster:
            await cluster.wait_healthy(timeout=600)
            await cluster.publish("n07", b"to all")
            await cluster.wait_healthy(timeout=600)
            if n < 1000:  # the repair of larger rings takes many minutes
                cluster.corrupt()
                await cluster.wait_healthy(timeout=600)
            assert all(cluster.payloads(name) == [b"to all"] for name in cluster.nodes)

    asyncio.run(scene())


def test_cluster_beyond_the_file_limit_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_cluster, "allow_files", lambda _: 300)

    async def scene() -> None:
        async with Cluster(n=100):
            pass

    with pytest.raises(InputError, match="opens about 1056 files, and 300 are allowed; raise"):
        asyncio.run(scene())
