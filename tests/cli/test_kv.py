"""``skipring kv`` against a ring in this process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skipring.testing import Cluster
from tests.support.commands import COMMAND
from tests.support.connections import to
from tests.support.scenes import inside

DEADLINE_S = 60.0


class Ring:
    """A ring with a disk, and commands that run beside it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def environment(self) -> dict[str, str]:
        return os.environ | {"SKIPRING_SUPERVISOR": self.cluster.url}

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            "kv",
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
        )

    async def kv(self, *words: str, given: bytes = b"", status: int = 0) -> str:
        process = await self.start(*words)
        out, errors = await process.communicate(given)
        assert process.returncode == status, errors
        return (out or errors).decode()


@asynccontextmanager
async def running(tmp_path: Path, n: int = 2) -> AsyncIterator[Ring]:
    async with Cluster(n=n, topic="settings", data_dir=tmp_path) as cluster:
        yield Ring(cluster)


@inside(running)
async def test_value_is_written_read_listed_and_deleted(ring: Ring, /) -> None:
    await ring.kv("put", "settings", "rate", "10")
    await ring.kv("put", "settings", "shop/open", given=b"yes\nor no")
    await ring.kv("put", "settings", "rate", "11")
    assert await ring.kv("get", "settings", "rate") == "11\n"
    assert await ring.kv("get", "settings", "shop/open") == "yes\nor no\n"
    found = [json.loads(line) for line in (await ring.kv("list", "settings")).splitlines()]
    assert [(each["key"], each["value"]) for each in found] == [
        ("rate", "11"),
        ("shop/open", "yes\nor no"),
    ]
    (line,) = (await ring.kv("list", "settings", "--prefix", "shop/")).splitlines()
    assert json.loads(line)["key"] == "shop/open"
    await ring.kv("delete", "settings", "rate")
    error = await ring.kv("get", "settings", "rate", status=1)
    assert error == "settings has no value of 'rate'\n"


@inside(running)
async def test_write_has_seen_the_value_that_it_replaces(ring: Ring, /) -> None:
    await ring.kv("put", "settings", "rate", "10")
    await ring.kv("put", "settings", "rate", "11")
    watching = await ring.start("watch", "settings", "rate", "--count", "2")
    assert watching.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        first = json.loads(await watching.stdout.readline())
        await ring.kv("put", "settings", "rate", "12")
        second = json.loads(await watching.stdout.readline())
        assert await watching.wait() == 0
    assert (first["value"], first["snapshot"]) == ("11", True)
    assert (second["value"], second["snapshot"]) == ("12", False)
    assert not second["concurrent"]
    assert second["time"] > first["time"]


@inside(running)
async def test_invalid_words_are_refused(ring: Ring, /) -> None:
    assert "--prefix" in await ring.kv("watch", "settings", "k", "--prefix", "p", status=2)
    words = ("put", "settings", "", "v")
    assert await ring.kv(*words, status=2) == "Error: KEY: expected 1 to 1024 bytes, got 0\n"
    error = await ring.kv("put", "settings", "k", "v", "--tls-ca", "ca.pem", status=2)
    assert error == (
        "Error: --tls-cert: missing; the CA, the certificate and its key go together\n"
    )
    error = await ring.kv("put", "settings", "k", "{", "--json", status=2)
    assert "Invalid value for VALUE: not JSON: " in error


@inside(running)
async def test_json_words_print_the_id_of_the_write(ring: Ring, /) -> None:
    made = json.loads(await ring.kv("put", "settings", "limits", '{ "max": 1 }', "--json"))
    found = json.loads(await ring.kv("get", "settings", "limits", "--json"))
    assert made == {"topic": "settings", "key": "limits", "id": found["id"]}
    assert found["value"] == '{"max":1}'
    deleted = json.loads(await ring.kv("delete", "settings", "limits", "--json"))
    assert deleted == made | {"id": deleted["id"]}
    assert deleted["id"] != made["id"]


@inside(running)
async def test_first_write_compacts_the_topic(ring: Ring, /) -> None:
    assert await ring.kv("put", "settings", "rate", "10") == ""
    async with to(ring.cluster) as node, node.keyvalue("settings") as view:
        await view.ready(DEADLINE_S)
        assert [each.value for each in view.items()] == [b"10"]


@inside(running)
async def test_write_in_an_uncompacted_topic_warns_with_a_remedy(ring: Ring, /) -> None:
    await ring.cluster.publish("n00", b"news")
    assert await ring.kv("put", "settings", "rate", "10") == (
        "settings is not compacted, so old values of its keys stay, and views refuse it: "
        "run `skipring topic set settings --compact`\n"
    )
