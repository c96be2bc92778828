"""``skipring topic`` against a ring in this process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess

from skipring.testing import Cluster
from tests.support.commands import COMMAND


async def topic(cluster: Cluster, *words: str, status: int = 0) -> str:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "topic",
        *words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"SKIPRING_SUPERVISOR": cluster.url},
    )
    out, errors = await process.communicate()
    assert process.returncode == status, errors
    return (out or errors).decode()


async def test_limits_are_set_shown_and_applied() -> None:
    async with Cluster(n=2, topic="t") as cluster:
        assert await topic(cluster, "show", "t") == "t: no limits\n"
        assert "max count 4" in await topic(cluster, "set", "t", "--max-count", "4")
        for number in range(9):
            await cluster.publish("n00", b"%d" % number)
        logs = [cluster.node(name).machine("t").replica.log for name in cluster.nodes]  # type: ignore[union-attr]
        await cluster.until(lambda: all(log.records == 5 for log in logs))  # and the charter
        assert await topic(cluster, "show", "t") == "t: max count 4\n"
        removed = await topic(cluster, "set", "t", "--max-count", "2", "--dry-run")
        assert len(removed.splitlines()) == 2
        assert await topic(cluster, "show", "t") == "t: max count 4\n"


async def test_all_limits_are_printed_as_text_and_json() -> None:
    async with Cluster(n=1, topic="t") as cluster:
        words = ("--max-age", "7d", "--max-bytes", "10G", "--compact", "--tombstones", "keep")
        await topic(cluster, "set", "t", *words)
        assert await topic(cluster, "show", "t") == (
            "t: max age 604800 s, max bytes 10737418240, compacted, deletions remembered always\n"
        )
        found = json.loads(await topic(cluster, "show", "t", "--json"))
        assert found["acting"] == found["newest"]
        assert found["acting"]["policy"]["tombstones_s"] is None
        assert "removed after some minutes" in await topic(cluster, "delete", "t")


async def test_wrong_size_and_topic_without_members_are_refused() -> None:
    async with Cluster(n=1, topic="t") as cluster:
        assert "not a size" in await topic(cluster, "set", "t", "--max-bytes", "x", status=2)
        assert "no member" in await topic(cluster, "show", "other", status=2)
