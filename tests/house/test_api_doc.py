"""Programs of docs/api.md, docs/key-value.md and docs/ordering.md: each prints its output."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import count
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from skipring.errors import SkipringError, StoreFullError
from skipring.testing import Cluster
from tests.support.disks import Disk

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "api.md"
KEY_VALUE_PAGE = DOCS / "key-value.md"
ORDER_PAGE = DOCS / "ordering.md"
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)
URL = '"skipring://127.0.0.1:7400"'
TICK_S = 0.05
DEADLINE_S = 60.0


def blocks(page: Path = PAGE) -> list[tuple[str, str]]:
    return [(each["code"], each["output"]) for each in BLOCK.finditer(page.read_text("utf-8"))]


@contextmanager
def ring() -> Iterator[Cluster]:
    """Run three nodes in the topic of the page, in their own thread."""
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


def printed(code: str, **names: object) -> str:
    """Return the output of a program that runs beside the ring of the page."""
    output = io.StringIO()
    with ring() as cluster, redirect_stdout(output):
        here = code.replace(URL, f'"{cluster.url}", tick_s={TICK_S}')
        exec(compile(here, str(PAGE), "exec"), {"__name__": "__main__", **names})
    return output.getvalue()


@pytest.mark.parametrize(
    ("code", "output"), [*blocks(), *blocks(KEY_VALUE_PAGE), *blocks(ORDER_PAGE)]
)
def test_every_program_prints_the_output_on_the_page(
    code: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert printed(code) == output


def test_every_program_of_the_page_is_found() -> None:
    assert len(blocks()) == PAGE.read_text("utf-8").count("```python") >= 8
    assert len(blocks(KEY_VALUE_PAGE)) == KEY_VALUE_PAGE.read_text("utf-8").count("```python") >= 3
    assert len(blocks(ORDER_PAGE)) == ORDER_PAGE.read_text("utf-8").count("```python") == 1


def test_program_that_retries_publishes_once_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((code, output),) = [block for block in blocks() if "orders.retry" in block[0]]
    code = code.replace("        made =", "        fill_disk()\n        made =")
    code = code.replace("asyncio.sleep(1)", "wait()")
    disk, waits = Disk(monkeypatch), count(1)

    def fill_disk() -> None:
        disk.error = StoreFullError("no space")

    async def wait() -> None:
        if next(waits) == 2:
            disk.error = None

    monkeypatch.chdir(tmp_path)

    assert printed(code, fill_disk=fill_disk, wait=wait) == output
    assert next(waits) == 3  # ``publish`` and the first ``retry`` have failed


def test_failing_program_raises_its_error() -> None:
    with pytest.raises(SkipringError):
        printed(f"import skipring\nskipring.blocking.connect({URL}).subscribe('orders').open()")
