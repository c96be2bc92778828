"""``skipring pub`` and ``skipring sub`` against a ring in this process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from skipring.cli import skipring
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.core.events import Received
from skipring.core.messages import Publications
from skipring.testing import Cluster
from tests.support.commands import COMMAND, on_terminal
from tests.support.scenes import inside


class Ring:
    """A ring with a disk, and commands that run beside it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def run(self, *words: str, given: bytes = b"") -> tuple[int, str, str]:
        """Run a command to its end; return exit status, output and errors."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"SKIPRING_SUPERVISOR": self.cluster.url},
        )
        out, errors = await process.communicate(given)
        assert process.returncode is not None
        return process.returncode, out.decode(), errors.decode()

    async def pub(self, *words: str, given: bytes = b"") -> list[str]:
        status, out, errors = await self.run("pub", "news", *words, given=given)
        assert status == 0, errors
        return [json.loads(line)["id"] for line in out.splitlines()]

    async def sub(self, *words: str) -> list[dict[str, object]]:
        status, out, errors = await self.run("sub", "news", "--exit-when-synced", *words)
        assert status == 0, errors
        return [json.loads(line) for line in out.splitlines()]


@asynccontextmanager
async def running(tmp_path: Path, n: int = 2) -> AsyncIterator[Ring]:
    async with Cluster(n=n, topic="news", data_dir=tmp_path) as cluster:
        yield Ring(cluster)


@inside(running)
async def test_key_headers_and_count_reach_the_reader(ring: Ring, /) -> None:
    words = ["hello", "--key", "k", "--header", "a=1", "--header", "b=x=y", "--count", "3"]
    ids = await ring.pub(*words)
    lines = await ring.sub()
    assert sorted(str(line["id"]) for line in lines) == sorted(ids)
    assert {(line["key"], line["payload"]) for line in lines} == {("k", "hello")}
    assert [line["headers"] for line in lines] == 3 * [{"a": "1", "b": "x=y"}]
    assert len(ids) == 3


@inside(running)
async def test_file_is_published_as_one_publication(ring: Ring, /, tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"two\nlines\xff")
    await ring.pub("--from-file", str(file))
    (line,) = await ring.sub()
    assert line["payload_base64"] == "dHdvCmxpbmVz/w=="


@inside(running)
async def test_filters_select_by_key_publisher_and_time(ring: Ring, /) -> None:
    await ring.pub("one", "--key", "a")
    await ring.pub("two", "--key", "b")
    (one,) = await ring.sub("--key", "a")
    assert one["payload"] == "one"
    (same,) = await ring.sub("--publisher", str(one["publisher"]))
    assert same["id"] == one["id"]
    assert await ring.sub("--since", "2999-01-01T00:00Z") == []
    assert len(await ring.sub("--since", "1h")) == 2
    assert len(await ring.sub("--count", "1")) == 1


@inside(running)
async def test_orders_print_rising_numbers_and_times(ring: Ring, /) -> None:
    await ring.pub(given=b"".join(b"%d\n" % number for number in range(300)))
    for order in ("publisher", "time"):
        lines = await ring.sub("--order", order)
        assert [line["payload"] for line in lines] == [str(number) for number in range(300)]
        values = [line["seq" if order == "publisher" else "time"] for line in lines]
        assert values == sorted(values, key=int)
        assert not any("late" in line for line in lines)


@inside(running)
async def test_gap_is_reported_on_standard_error(ring: Ring, /) -> None:
    await ring.cluster.wait_healthy()
    batch = RecordBatch.of([BatchRecord(b"x", 1)], publisher="lost", first=7, topic="news")
    received = Received(Publications((batch,)), "lost")
    ring.cluster.node(ring.cluster.nodes[0]).dispatch("news", received)
    await ring.cluster.wait_healthy()
    status, out, errors = await ring.run("sub", "news", "--no-follow", "--order", "publisher")
    assert (status, json.loads(out)["seq"]) == (0, 7)
    assert errors == "gap: lost, incarnation 0: 7 missing, numbers 0 to 6 (absent)\n"


@inside(running)
async def test_format_replaces_tokens(ring: Ring, /) -> None:
    await ring.pub("hello", "--key", "k", "--header", "a=1")
    words = ["sub", "news", "--no-follow", "--format", r"%t %k %s %S %h 100%% \t%z\n"]
    status, out, _ = await ring.run(*words)
    assert (status, out) == (0, "news k hello 5 a=1 100% \t%z\n")


@inside(running)
async def test_reading_leaves_the_ring_healthy(ring: Ring, /) -> None:
    await ring.pub("hello")
    await ring.cluster.wait_healthy()
    await ring.sub()
    assert ring.cluster.violations() == []
    status, out, _ = await ring.run("doctor", "news")
    assert status == 0
    assert out == "news: healthy (2 members, 1 publication, all in sync)\n"


@inside(running)
async def test_reader_ends_when_its_pipe_is_closed(ring: Ring, /) -> None:
    await ring.pub("hello")
    shell = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m skipring sub news | head -1",
        stdout=subprocess.PIPE,
        env=os.environ | {"SKIPRING_SUPERVISOR": ring.cluster.url},
    )
    out, _ = await shell.communicate()  # ends although nothing more is published
    assert json.loads(out)["payload"] == "hello"


def shown_on_terminal(supervisor: str) -> str:
    words = ("sub", "news", "--no-follow")
    with on_terminal(*words, SKIPRING_SUPERVISOR=supervisor) as terminal:
        assert terminal.read_all() == 0
    return terminal.shown


@inside(running)
async def test_terminal_shows_time_publisher_and_key_and_escapes_control_characters(
    ring: Ring, /
) -> None:
    await ring.pub("a\x1b[31mred", "--key", "k")
    line = await asyncio.to_thread(shown_on_terminal, ring.cluster.url)
    assert re.fullmatch(r"\d\d:\d\d:\d\d  client-\w+  k  a\\x1b\[31mred\r\n", line), line


@inside(running)
async def test_topic_without_members_is_reported(ring: Ring, /) -> None:
    for command in (["sub", "other", "--no-follow"], ["pub", "other", "hello"]):
        status, out, errors = await ring.run(*command, "--wait", "300ms")
        assert (status, out) == (4, "")
        assert errors.splitlines()[-1].startswith("Error: 'other' has no members")


@inside(running, n=1)
async def test_publisher_waits_for_a_member(ring: Ring, /) -> None:
    name = ring.cluster.nodes[0]
    ring.cluster.kill(name)
    publishing = asyncio.create_task(ring.run("pub", "news", "hello", "--wait", "50s"))
    await ring.cluster.restart(name)
    status, _, errors = await publishing
    assert status == 0, errors


@inside(running)
async def test_topics_lists_members_and_publications(ring: Ring, /) -> None:
    await ring.pub("hello", "--count", "2")
    await ring.cluster.wait_healthy()
    _, out, _ = await ring.run("topics", "--json")
    fields = {"topic": "news", "members": 2, "publications": 2, "healthy": True}
    assert json.loads(out) == fields
    _, table, _ = await ring.run("topics")
    assert table.splitlines()[1].split() == ["news", "2", "2"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["pub", "t", "x", "--from-file", __file__], "not both"),
        (["pub", "t", "x", "--header", "a"], "not of the form K=V"),
        (["pub", "t", "--count", "2"], "--count repeats TEXT"),
        (["pub", "t", "x", "--wait", "soon"], "not a duration"),
        (["sub", "t", "--start", "new", "--since", "1h"], "not both"),
        (["sub", "t", "--since", "yesterday"], "neither a duration"),
        (["sub", "t", "--format", "%s", "--json"], "not both"),
    ],
)
def test_invalid_options_are_refused(words: list[str], reason: str) -> None:
    done = CliRunner().invoke(skipring, words)
    assert done.exit_code == 2
    assert reason in done.output
