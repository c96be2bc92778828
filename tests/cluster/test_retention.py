"""Retention in live rings: disk space, a kill between trim and commit, members that return."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

import skipring
from skipring.admin.diagnosis import diagnose
from skipring.admin.inspector import TopicContents, open_inspector
from skipring.core.subscriber import Subscriber
from skipring.node.settings import NodeSettings
from skipring.testing import Cluster
from tests.support.connections import DEADLINE_S

TICK_S = 0.02
MIB = 1 << 20
LIMIT = 4 * MIB
HOUR_US = 3_600_000_000


def machine_of(cluster: Cluster, name: str) -> Subscriber:
    machine = cluster.node(name).machine("t")
    assert machine is not None
    return machine


def retained_bytes(cluster: Cluster, name: str) -> int:
    """Return the size of the batches that a member retains."""
    retention = machine_of(cluster, name).replica.retention
    assert retention is not None
    assert retention.rows is not None
    return retention.rows.stamps.size_bytes


def disk_bytes(directory: Path) -> int:
    """Return the size of the segments of all topics in a directory."""
    return sum(file.stat().st_size for file in directory.rglob("*.log"))


@pytest.mark.heavy
async def test_ten_times_the_limit_needs_little_more_disk_than_the_limit(tmp_path: Path) -> None:
    async with (
        Cluster(n=3, topic="t", data_dir=tmp_path / "ring") as cluster,
        skipring.connect(cluster.url, tick_s=0.05, data_dir=tmp_path / "app") as node,
        node.subscribe("t", start="new") as topic,
    ):
        directories = [tmp_path / "app", *(tmp_path / "ring" / name for name in cluster.nodes)]
        await node.charter("t").set(max_bytes=LIMIT)
        largest = 0
        for _ in range(80):
            await topic.publish_many([bytes(16384)] * 32)  # 512 KiB
            await topic.read_available()
            largest = max(largest, *map(disk_bytes, directories))
        await topic.synced(DEADLINE_S)
        assert largest <= 2.2 * LIMIT * 17 / 16
        assert all(retained_bytes(cluster, name) >= LIMIT * 0.9 for name in cluster.nodes)


KILLED = """
    import asyncio, os, signal, sys
    import skipring
    from skipring.core.effects import Drop
    from skipring.storage.segment_list import SegmentList
    from skipring.storage.topic_directory import TopicDirectory
    from pathlib import Path

    url, place, owner, name, calls, first = sys.argv[1:]
    kind = {"Drop": Drop, "List": SegmentList, "Directory": TopicDirectory, "Path": Path}[owner]
    inner, left = getattr(kind, name), int(calls)

    def call_and_die(*given, **named):
        global left
        found = inner(*given, **named)
        is_step = {
            "Drop": lambda: bool(found),  # some records
            "List": lambda: bool(found),  # some files
            "Directory": lambda: bool(given[1].low or given[1].dropped),
            "Path": lambda: given[0].suffix == ".log",
        }
        left -= is_step[owner]()
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    async def publish():
        async with (
            skipring.connect(url, data_dir=place, tick_s=0.05, policy_delay_s=0) as node,
            node.subscribe("t", start="new") as topic,
        ):
            if int(first) == 0:
                await node.charter("t").set(max_bytes=1 << 20)  # segments of 64 KiB
            setattr(kind, name, call_and_die)
            for number in range(int(first), int(first) + 10_000):
                await topic.publish(b"%08d" % number + bytes(8192))
                print(number, flush=True)

    asyncio.run(publish())
"""
RETAINED = 110  # publications of 8 KiB, at least: the limit less what the header and one batch take


@pytest.mark.heavy
async def test_kills_between_trim_and_commit_lose_nothing_and_trim_again(tmp_path: Path) -> None:
    steps = [
        ("Drop", "apply", 1),  # in memory only
        ("Directory", "write_record", 1),  # of what was dropped
        ("Path", "unlink", 1),  # of the first segment
        ("List", "reclaim", 2),
        ("Path", "unlink", 3),
        ("Drop", "apply", 20),
    ]
    acknowledged, first = list[int](), 0
    async with Cluster(n=0) as cluster:
        for owner, name, calls in steps:
            words = [sys.executable, "-c", dedent(KILLED), cluster.url, str(tmp_path)]
            words += [owner, name, str(calls), str(first)]
            process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
            out, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
            assert process.returncode == -signal.SIGKILL, (owner, name, calls)
            acknowledged += map(int, out.split())
            assert len(acknowledged) > RETAINED, "nothing was trimmed"
            async with (
                skipring.connect(cluster.url, data_dir=tmp_path, tick_s=TICK_S, drain_s=0) as node,
                node.subscribe("t") as topic,
            ):
                found = [int(each.payload[:8]) for each in await topic.read_available()]
            assert set(acknowledged[-RETAINED:]) <= set(found), (owner, name)
            assert len(found) == len(set(found))
            first = acknowledged[-1] + 2  # the next number may be stored
        assert disk_bytes(tmp_path) <= 2.2 * MIB * 17 / 16


@pytest.mark.heavy
async def test_member_away_for_longer_than_the_grace_resurrects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset_us = 0

    def clocks(_: NodeSettings) -> tuple[int, int]:
        return time.time_ns() // 1000 + offset_us, time.monotonic_ns() // 1000

    def is_confirmed(name: str) -> bool:
        retention = machine_of(cluster, name).replica.retention
        since = time.time_ns() // 1000 + offset_us - HOUR_US
        return retention is not None and retention.last_confirmed > since

    def returning() -> skipring.Connection:  # type: ignore[name-defined]
        data_dir = tmp_path / "returning"
        return skipring.connect(cluster.url, tick_s=0.05, drain_s=0, data_dir=data_dir)

    monkeypatch.setattr(NodeSettings, "clocks", clocks)
    async with (
        Cluster(n=7, topic="t", data_dir=tmp_path) as cluster,
        skipring.connect(cluster.url, tick_s=0.05, drain_s=0) as node,
        node.keyvalue("t") as view,
    ):
        await view.put_many({f"k{number}": b"old" for number in range(12)})
        await view.ready()
        async with returning() as member, member.keyvalue("t") as before:
            await before.ready()
            assert before.keys() == view.keys()
        logs = {name: machine_of(cluster, name).replica.log for name in cluster.nodes}
        await cluster.until(lambda: all(log.records == 13 for log in logs.values()))
        away = cluster.nodes[3]
        cluster.kill(away)
        del logs[away]
        for number in range(6):
            await view.delete(f"k{number}")
        await cluster.until(lambda: all(log.records == 13 for log in logs.values()))
        for days in (10, 20, 30, 40):  # deletions are remembered for 30 days
            offset_us = days * 86_400 * 1_000_000
            await cluster.until(lambda: all(map(is_confirmed, logs)), DEADLINE_S)
        await cluster.until(lambda: all(log.records == 7 for log in logs.values()), DEADLINE_S)
        await cluster.restart(away)
        returned = machine_of(cluster, away).replica
        await cluster.until(lambda: len(returned.trie()) == 7, DEADLINE_S)
        retention = returned.retention
        assert retention is not None
        await cluster.until(lambda: not retention.is_stale, DEADLINE_S)
        assert all(log.records == 7 for log in logs.values())
        assert view.keys() == [f"k{number}" for number in (10, 11, 6, 7, 8, 9)]
        async with returning() as member, member.keyvalue("t") as after:
            await cluster.until(lambda: after.keys() == view.keys(), DEADLINE_S)
        assert all(log.records == 7 for log in logs.values())


async def test_clock_step_and_a_kill_of_all_members_lose_no_acknowledged_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset_us = HOUR_US

    def clocks(_: NodeSettings) -> tuple[int, int]:
        return time.time_ns() // 1000 + offset_us, time.monotonic_ns() // 1000

    def hidden(name: str) -> int:
        retention = machine_of(cluster, name).replica.retention
        return len(retention.quarantine.early) if retention is not None else 0

    monkeypatch.setattr(NodeSettings, "clocks", clocks)
    async with Cluster(n=3, topic="t", data_dir=tmp_path / "ring") as cluster:
        async with (
            skipring.connect(cluster.url, tick_s=TICK_S, drain_s=0) as node,
            node.subscribe("t", start="new") as topic,
        ):
            await node.charter("t").set(max_bytes=MIB)
            logs = [machine_of(cluster, name).replica.log for name in cluster.nodes]
            for payload in (b"first", b"second"):
                await topic.publish(payload, replicas=2, timeout=DEADLINE_S)
            await cluster.until(lambda: all(log.records == 3 for log in logs), DEADLINE_S)
        offset_us = 0  # all clocks are set back
        everything = [2, 2, 2]  # without the charter, which has the time of the machine
        await cluster.until(lambda: [*map(hidden, cluster.nodes)] == everything, DEADLINE_S)
        assert all(log.records == 3 for log in logs)
        async with open_inspector([cluster.supervisor().address], "t") as inspector:
            found = diagnose(await inspector.inspect(TopicContents.DIFFERENCES))
            assert not found.is_healthy
            assert any("times in the future" in each.text for each in found.violations)
        departure = await cluster.node("n00").departures.drain("t", DEADLINE_S)
        assert (departure.receiver is None, departure.unconfirmed) == (False, 2)
        for name in list(cluster.nodes):
            cluster.kill(name)
            await cluster.restart(name)
        offset_us = 2 * HOUR_US
        async with (
            skipring.connect(cluster.url, tick_s=TICK_S, drain_s=0) as node,
            node.subscribe("t") as topic,
        ):
            await cluster.until(lambda: machine_of(cluster, "n00").count == 3, DEADLINE_S)
            await topic.synced(DEADLINE_S)
            payloads = [each.payload for each in await topic.read_available()]
            assert sorted(payloads) == [b"first", b"second"]
