"""``skipring chaos``: effects, output and exit status against a ring of real sockets."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from click.testing import Result

from skipring.admin.chaos_client import ChaosClient, open_chaos_client
from skipring.errors import InputError, UnreachableError
from skipring.testing import Cluster
from tests.support.commands import DEADLINE_S, UNUSED_ADDRESS, invoked, outcome, process
from tests.support.scenes import inside

TOPIC = "news"
TICK = "0.05"
POLL_S = 0.05

Chaos = Callable[..., Awaitable[Result]]


@asynccontextmanager
async def healthy_ring(n: int = 6) -> AsyncIterator[tuple[Cluster, Chaos]]:
    """Yield a healthy ring, and a function that runs a command beside it."""
    async with Cluster(n=n) as cluster:
        await cluster.publish("n00", b"before")
        await cluster.wait_healthy()
        address = cluster.url.removeprefix("skipring://")

        async def chaos(name: str, *words: str) -> Result:
            given = (name, TOPIC, "--supervisor", address, *words)
            return await asyncio.to_thread(invoked, "chaos", *given)

        yield cluster, chaos


# -- damage ----------------------------------------------------------------------------------


@inside(healthy_ring)
async def test_adversary_hits_every_process_and_the_ring_heals(
    cluster: Cluster, chaos: Chaos, /
) -> None:
    result = await chaos("adversary", "A15", "--seed", "3", "--json")
    assert result.exception is None
    told = json.loads(result.output)
    assert told["topic"] == TOPIC
    assert set(told["damaged"]) == {"supervisor", *cluster.nodes}
    await cluster.wait_healthy()
    assert all(cluster.payloads(name) == [b"before"] for name in cluster.nodes)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("database", "--wipe"), "supervisor: database overwritten with 0 entries"),
        (("labels", "--seed", "1"), "n03: variables overwritten, label "),
        (("tries", "--share", "1"), "n03: up to 1 digests wrong, 1 publications lost"),
    ],
)
@inside(healthy_ring)
async def test_partial_damage_heals(
    cluster: Cluster, chaos: Chaos, /, words: tuple[str, ...], told: str
) -> None:
    result = await chaos(*words)
    assert result.exception is None
    assert told in result.output
    await cluster.wait_healthy()
    assert all(cluster.payloads(name) == [b"before"] for name in cluster.nodes)


@inside(healthy_ring)
async def test_partition_lasts_until_it_is_healed(cluster: Cluster, chaos: Chaos, /) -> None:
    groups = "n00,n01,n02/n03,n04,n05"
    result = await chaos("partition", "--groups", groups, "--ticks", "100000")
    assert "n00: cut off from n03, n04, n05 for 100000 ticks" in result.output
    await cluster.publish("n00", b"during")
    links = [cluster.node(name).links for name in cluster.nodes]
    await cluster.until(lambda: sum(each.counts["severed"] for each in links) > 50)
    assert not any(b"during" in cluster.payloads(name) for name in ("n03", "n04", "n05"))
    result = await chaos("heal")
    assert result.output.splitlines() == [f"{name}: healed" for name in cluster.nodes]
    await cluster.wait_healthy()


@inside(healthy_ring)
async def test_share_of_members_is_killed_and_the_others_close_the_gaps(
    cluster: Cluster, chaos: Chaos, /
) -> None:
    result = await chaos("kill", "--share", "0.3", "--json")
    killed = json.loads(result.output)["damaged"]
    assert len(killed) == 2
    assert killed.keys().isdisjoint(cluster.nodes)
    await cluster.wait_healthy()


# -- refusals --------------------------------------------------------------------------------


def refusal(*words: str) -> str:
    """Return the refusal of bad usage; it precedes any request, as no supervisor listens."""
    result = invoked("chaos", words[0], TOPIC, "--supervisor", UNUSED_ADDRESS, *words[1:])
    assert isinstance(result.exception, InputError), result.exception
    return str(result.exception)


def test_unknown_adversary_is_refused_and_known_ones_are_listed() -> None:
    assert refusal("adversary", "A99").startswith(
        "unknown adversary A99; the adversaries are A00, A01"
    )


@pytest.mark.parametrize("words", [(), ("n00", "--share", "0.5")])
def test_kill_accepts_either_names_or_a_share(words: tuple[str, ...]) -> None:
    assert "either names of nodes, or --share" in refusal("kill", *words)


@pytest.mark.parametrize("words", [("kill", "n07"), ("partition", "--groups", "n00/n07")])
@inside(healthy_ring, n=2)
async def test_unknown_node_is_refused(
    cluster: Cluster, chaos: Chaos, /, words: tuple[str, ...]
) -> None:
    result = await chaos(*words)
    assert isinstance(result.exception, InputError)
    assert "no live node n07" in str(result.exception)
    assert cluster.violations() == []


def test_missing_supervisor_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skipring.admin.inspector.SUPERVISOR_S", 0.2)
    result = invoked("chaos", "labels", TOPIC, "--supervisor", UNUSED_ADDRESS)
    assert isinstance(result.exception, UnreachableError)


# -- processes -------------------------------------------------------------------------------


def node_words(address: str, name: str) -> tuple[str, ...]:
    return (
        *("node", "--supervisor", address, "--topic", TOPIC, "--name", name),
        *("--listen", "127.0.0.1:0", "--tick", TICK),
    )


@pytest.mark.heavy
def test_process_is_killed_only_if_started_with_chaos() -> None:
    start = ("supervisor", "--listen", "127.0.0.1:0", "--tick", TICK)
    with process(*start, "--chaos") as (_, address):
        sound, willing = node_words(address, "sound"), (*node_words(address, "willing"), "--chaos")
        with process(*sound) as (spared, _), process(*willing) as (victim, _):
            on = ("--supervisor", address)
            wait_for_members(address, {"sound", "willing"})

            status, out, told = outcome("chaos", "kill", TOPIC, "willing", "sound", *on)
            assert (status, out) == (1, "")
            assert told.startswith("Error: sound was not started with chaos enabled, so nothing")
            assert victim.poll() is None

            assert outcome("chaos", "kill", TOPIC, "willing", *on) == (0, "willing: killed\n", "")
            assert victim.wait(DEADLINE_S) == -signal.SIGKILL
            assert spared.poll() is None


def wait_for_members(address: str, names: set[str]) -> None:
    """Wait until all nodes are recorded."""

    async def scene() -> None:
        async with asyncio.timeout(DEADLINE_S), open_chaos_client([address], TOPIC) as client:
            while await found_by(client) != names:  # noqa: ASYNC110  (no event announces it)
                await asyncio.sleep(POLL_S)

    asyncio.run(scene())


async def found_by(client: ChaosClient) -> set[str]:
    try:
        return set(await client.members())
    except UnreachableError:
        return set()  # not yet
