"""docs/api.md: each program of it runs, and prints what the page says."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from skipring.errors import SkipringError
from skipring.testing import Cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)
URL = '"skipring://127.0.0.1:7400"'
TICK_S = 0.05
DEADLINE_S = 60.0


def blocks() -> list[tuple[str, str]]:
    return [(each["code"], each["output"]) for each in BLOCK.finditer(PAGE.read_text("utf-8"))]


@contextmanager
def ring() -> Iterator[Cluster]:
    """Three nodes in the topic of the page, in a thread of their own."""
    made: Queue[tuple[Cluster, asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def live() -> None:
        async with Cluster(n=3, tick_s=TICK_S, topic="orders") as cluster:
            over = asyncio.Event()
            made.put((cluster, asyncio.get_running_loop(), over))
            await over.wait()

    thread = Thread(target=lambda: asyncio.run(live()))
    thread.start()
    cluster, loop, over = made.get(timeout=DEADLINE_S)
    try:
        yield cluster
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(DEADLINE_S)


def printed(code: str) -> str:
    """What a program prints when the ring of the page is there."""
    output = io.StringIO()
    with ring() as cluster, redirect_stdout(output):
        here = code.replace(URL, f'"{cluster.url}", tick_s={TICK_S}')
        exec(compile(here, str(PAGE), "exec"), {"__name__": "__main__"})
    return output.getvalue()


@pytest.mark.parametrize(("code", "output"), blocks())
def test_every_program_prints_what_the_page_says(
    code: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed(code) == output


def test_no_program_of_the_page_is_overlooked() -> None:
    assert len(blocks()) == PAGE.read_text("utf-8").count("```python") >= 8


def test_a_program_that_fails_is_noticed() -> None:
    with pytest.raises(SkipringError):
        printed(f"import skipring\nskipring.blocking.connect({URL}).subscribe('orders').open()")
