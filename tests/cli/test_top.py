"""``skipring top`` and ``dashboard``: tables, keys, address and exit."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any, ClassVar, cast
from urllib.request import urlopen

import pytest
from msgspec.structs import replace
from rich.console import Console

from skipring.admin.inspector import Inspection
from skipring.cli.output.top import (
    TOPIC_COLUMNS,
    TopRow,
    TopScreen,
    in_order,
    overview_view,
    supervisor_rows,
    topic_rows,
)
from skipring.cli.top import parse_keys
from skipring.testing import Cluster
from skipring.view.overview import Observer, Overview, SupervisorRow, TopicRow
from skipring.view.panel import RingPanel
from skipring.view.text import ASCII, UNICODE
from tests.support.commands import (
    COMMAND,
    DEADLINE_S,
    UNUSED_ADDRESS,
    invoked,
    on_terminal,
    outcome,
    unused_address,
)
from tests.support.scenes import in_loop, inside

TICK_S = 0.05
COLUMNS, ROWS = 80, 24


# -- rows ------------------------------------------------------------------------------------


def topic(name: str, **changes: Any) -> TopicRow:  # noqa: ANN401
    fields: dict[str, Any] = {
        "topic": name,
        "members": 4,
        "publications": 10,
        "rate": 0.0,
        "lag": 0,
        "roots": 1,
        "differs": (),
        "wrong": 0,
    }
    return TopicRow(**fields | changes)


SEEN = Overview(
    topics=(
        topic("orders", members=16, publications=1203, rate=12.44),
        topic("news", lag=3, roots=3, differs=("n03", "n04", "n05"), wrong=12),
        topic("audit", members=0, publications=0),
    ),
    supervisors=(
        SupervisorRow(
            address="a:1", answers=True, topics=3, members=20, requests=3.0, requests_max=6.5
        ),
        SupervisorRow(
            address="b:2",
            answers=True,
            topics=1,
            requests=7.5,
            requests_max=3.5,
            suspects=2,
            evictions=1,
        ),
        SupervisorRow(address="c:3", answers=False),
    ),
)


def texts(rows: list[TopRow]) -> dict[str, list[str]]:
    return {row.key: [text for text, _ in row.cells] for row in rows}


def test_topic_row_shows_members_differing_nodes_and_violations() -> None:
    assert texts(topic_rows(SEEN, UNICODE)) == {
        "orders": ["orders", "16", "1,203", "12.4", "0", "✓ equal", "✓ healthy"],
        "news": ["news", "4", "10", "0.0", "3", "✗ n03, n04 and 1 more", "✗ degraded: 12"],
        "audit": ["audit", "0", "0", "0.0", "0", "✓ equal", "- no members"],
    }


def test_supervisor_row_warns_of_requests_only_beyond_chance() -> None:
    assert texts(supervisor_rows(SEEN, UNICODE)) == {
        "a:1": ["a:1", "3", "20", "✓ 3.00 (mean 2.74)", "0", "0"],
        "b:2": ["b:2", "1", "0", "▲ 7.50 (mean 0.91)", "2", "1"],
        "c:3": ["c:3", "-", "-", "† does not answer", "-", "-"],
    }


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        ("topic", ["audit", "news", "orders"]),
        ("members", ["orders", "news", "audit"]),
        ("stored", ["orders", "news", "audit"]),
        ("lag", ["news", "audit", "orders"]),
        ("state", ["news", "audit", "orders"]),
    ],
)
def test_rows_are_sorted_by_any_column_with_the_most_or_worst_first(
    column: str, keys: list[str]
) -> None:
    number = TOPIC_COLUMNS.index(column)
    assert [row.key for row in in_order(topic_rows(SEEN, UNICODE), number)] == keys


def test_ascii_output_suffices_for_a_narrow_encoding() -> None:
    printed = StringIO()
    Console(width=200, file=printed).print(overview_view(SEEN, ASCII))
    assert printed.getvalue().isascii()
    assert "X n03, n04 and 1 more" in printed.getvalue()


# -- a real ring -----------------------------------------------------------------------------


def address_of(cluster: Cluster) -> str:
    return cluster.url.removeprefix("skipring://")


@pytest.mark.heavy
@in_loop
async def test_json_and_plain_text_are_printed_once_on_a_pipe() -> None:
    async with Cluster(n=4, tick_s=TICK_S) as cluster:
        await cluster.publish("n00", b"hello")
        await cluster.wait_healthy()
        words = ("top", "--supervisor", address_of(cluster), "--refresh", "0.1")
        status, out, _ = await asyncio.to_thread(outcome, *words, "--json")
        assert status == 0
        said = json.loads(out)
        (found,) = said["topics"]
        assert found | {"rate": 0} == {
            "topic": "news",
            "members": 4,
            "publications": 1,
            "rate": 0,
            "lag": 0,
            "roots": 1,
            "differs": [],
            "wrong": 0,
            "legitimate": True,
        }
        (supervisor,) = said["supervisors"]
        assert (supervisor["address"], supervisor["answers"], supervisor["topics"]) == (
            address_of(cluster),
            True,
            1,
        )
        assert said["bound"] == 0.912
        status, out, _ = await asyncio.to_thread(outcome, *words)
        assert (status, "\x1b" in out) == (0, False)
        assert ["news", "4", "1"] in [line.split()[:3] for line in out.splitlines()]
        assert any(line.startswith(address_of(cluster)) for line in out.splitlines())


@pytest.mark.heavy
def test_missing_supervisor_exits_with_4_and_one_sentence() -> None:
    with unused_address() as address:
        for more in ([], ["--json"]):
            status, printed, said = outcome("top", "--supervisor", address, *more)
            assert (status, printed) == (4, "")
            assert said.startswith(f"Error: nothing listens on {address}")
            assert said.count("\n") == 1


# -- the screen ------------------------------------------------------------------------------


class Viewer:
    """User of the screen: presses keys and reads the text."""

    def __init__(self, screen: TopScreen) -> None:
        self.screen = screen

    def press(self, *keys: str) -> None:
        for key in keys:
            self.screen.press(key)

    @property
    def text(self) -> str:
        """Return the painted text; it fits into the terminal."""
        printed = StringIO()
        console = Console(width=COLUMNS, file=printed, color_system=None, highlight=False)
        console.print(self.screen.painted(RingPanel(COLUMNS, ROWS - 1, UNICODE)))
        return printed.getvalue()

    @property
    def highlighted(self) -> list[str]:
        """Return the first words of the highlighted rows."""
        console = Console(width=COLUMNS, file=StringIO(), color_system="standard")
        lines = console.render_lines(self.screen.painted(RingPanel(COLUMNS, ROWS - 1, UNICODE)))
        texts = ["".join(s.text for s in line if s.style and s.style.reverse) for line in lines]
        return [text.split()[0] for text in texts if text.strip()]

    def row(self, key: str) -> list[str]:
        """Return the words of the row that begins with a key; nothing if there is none."""
        found = [line.split() for line in self.text.splitlines() if line.startswith(f"{key} ")]
        return found[0] if found else []

    def rows(self, prefix: str) -> list[str]:
        """Return the keys of the rows that begin with a prefix."""
        return [
            line.split()[0]
            for line in self.text.splitlines()
            if line.strip() and line.startswith(prefix)
        ]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Refresh the screen until a condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, self.text
            await self.screen.refresh()
            await asyncio.sleep(0.02)


@asynccontextmanager
async def viewed() -> AsyncIterator[tuple[Viewer, Cluster]]:
    """Yield the screen of a healthy ring of five with two topics."""
    async with Cluster(n=5, tick_s=TICK_S) as cluster:
        cluster.node("n00").subscribe("audit")
        await cluster.publish("n01", b"hello")
        await cluster.wait_healthy()
        async with Observer([address_of(cluster)]) as observer:
            screen = TopScreen(observer, await observer.overview(), UNICODE)
            yield Viewer(screen), cluster


@pytest.mark.heavy
@inside(viewed)
async def test_killed_node_is_shown_until_the_ring_has_healed(
    viewer: Viewer, cluster: Cluster, /
) -> None:
    viewer.press("down")
    await viewer.until(lambda: viewer.rows("n0") == list(cluster.nodes))
    assert viewer.row("news")[1:3] == ["5", "1"]
    assert viewer.row("n03")[-2:] == ["●", "right"]
    cluster.kill("n03")
    await viewer.until(lambda: viewer.row("n03")[-3:] == ["does", "not", "answer"])
    await viewer.until(lambda: viewer.rows("n0") == list(cluster.nodes))
    await viewer.until(lambda: viewer.row("news")[-2:] == ["✓", "healthy"])
    await viewer.until(lambda: viewer.row("news")[1] == "4")
    await viewer.until(lambda: int(viewer.row(address_of(cluster))[-1]) >= 1)  # it was evicted


@pytest.mark.heavy
@inside(viewed)
async def test_node_with_different_publications_is_named(
    viewer: Viewer, cluster: Cluster, /
) -> None:
    with cluster.partition(["n00"], ["n01", "n02", "n03", "n04"]):
        await cluster.publish("n01", b"not for n00")
        viewer.press("down")
        await viewer.until(lambda: viewer.row("news")[5:7] == ["✗", "n00"])
        await viewer.until(lambda: viewer.row("n00")[3:4] == ["1"])
        assert viewer.row("news")[4] == "1"
    await viewer.until(lambda: viewer.row("news")[4:7] == ["0", "✓", "equal"])


@pytest.mark.heavy
@inside(viewed)
async def test_keys_select_sort_open_and_go_back(viewer: Viewer, cluster: Cluster, /) -> None:
    topics = ("audit", "news")
    assert [key for key in viewer.rows("") if key in topics] == ["audit", "news"]
    assert viewer.highlighted == ["audit"]
    assert "topic v  members" in viewer.text
    assert viewer.rows("n0") == ["n00"]
    viewer.press("s")
    assert [key for key in viewer.rows("") if key in topics] == ["news", "audit"]
    assert viewer.highlighted == ["audit"]  # the cursor follows its row
    assert "members v" in viewer.text
    viewer.press("up")
    assert viewer.rows("n0") == list(cluster.nodes)
    viewer.press("2")
    assert viewer.highlighted == ["audit"]
    viewer.press("1", "enter")
    assert viewer.screen.due.is_set()
    await viewer.until(lambda: "5 members, 5 recorded" in viewer.text)
    assert "publications ✓ right" in viewer.text
    viewer.press("escape", "tab", "down")
    assert viewer.highlighted == ["n01"]
    viewer.press("enter")
    await viewer.until(lambda: "n01: a member under label" in viewer.text)
    assert "which rule, and why" in viewer.text
    viewer.press("escape", "?")
    assert "the slowest member is missing" in viewer.text
    viewer.press("q")
    assert (viewer.screen.status, viewer.highlighted) == (None, ["n01"])
    viewer.press("q")
    assert viewer.screen.status == 0


@pytest.mark.heavy
@inside(viewed)
async def test_missing_supervisor_is_shown_while_nodes_are_still_updated(
    viewer: Viewer, cluster: Cluster, /
) -> None:
    assert "no answer" not in viewer.text
    viewer.press("down")
    await cluster.stop_supervisor()
    await viewer.until(lambda: f"✗ {address_of(cluster)}: no answer" in viewer.text)
    await cluster.publish("n02", b"without a supervisor")
    await viewer.until(lambda: viewer.row("news")[2] == "2")
    viewer.press("enter")
    await viewer.until(lambda: "nothing listens on" in viewer.text)
    await cluster.start_supervisor()
    await viewer.until(lambda: "nothing listens on" not in viewer.text)
    viewer.press("escape")
    await viewer.until(lambda: "no answer" not in viewer.text)


class Still:
    """Observer that has inspected nothing."""

    inspections: ClassVar[dict[str, Inspection]] = {}


@pytest.mark.parametrize("count", [0, 1, 40])
def test_screen_fits_into_the_terminal_and_follows_the_cursor(count: int) -> None:
    topics = tuple(topic(f"t{number:02}") for number in range(count))
    screen = TopScreen(cast("Observer", Still()), replace(SEEN, topics=topics), UNICODE)
    viewer = Viewer(screen)
    viewer.press(*["down"] * 30)
    assert viewer.highlighted == ([] if count == 0 else [f"t{min(count - 1, 30):02}"])
    assert len(viewer.text.splitlines()) < ROWS
    assert (f"of {count})" in viewer.text) == (count > 1)


def test_keys_are_parsed_from_the_input_of_a_terminal() -> None:
    assert parse_keys("\x1b[A\x1bOBs\t\r\x1b") == ["up", "down", "s", "tab", "enter", "escape"]
    assert parse_keys("\x1b[15~q\x03") == ["\x1b[15~", "q", "ctrl-c"]


# -- a terminal ------------------------------------------------------------------------------

ALTERNATE, ORIGINAL = "\x1b[?1049h", "\x1b[?1049l"


def used(address: str, key: bytes | signal.Signals) -> tuple[str, int]:
    """Return the output until a key or a signal ends the program, and the exit status."""
    with on_terminal("top", "--supervisor", address, PYTHONIOENCODING="ascii") as terminal:
        terminal.read_until("healthy")
        if isinstance(key, bytes):
            terminal.press(key)
        else:
            terminal.program.send_signal(key)
        status = terminal.read_all()
    return terminal.shown, status


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"q", 0), (b"\x03", 130), (signal.SIGTERM, 143)],
    ids=["q", "Ctrl-C", "terminate"],
)
@in_loop
async def test_ascii_terminal_gets_ascii_and_is_restored(
    key: bytes | signal.Signals, expected: int
) -> None:
    async with Cluster(n=3, tick_s=TICK_S) as cluster:
        await cluster.wait_healthy()
        shown, status = await asyncio.to_thread(used, address_of(cluster), key)
    assert status == expected
    assert shown.isascii()
    assert "\\u" not in shown  # a stream writes characters that it cannot encode in this way
    assert shown.rindex(ORIGINAL) > shown.rindex(ALTERNATE)
    assert "Traceback" not in shown


# -- dashboard --------------------------------------------------------------------------------


@pytest.mark.heavy
def test_first_line_of_dashboard_is_its_address_and_ctrl_c_ends_it() -> None:
    command = [*COMMAND, "dashboard", "--supervisor", UNUSED_ADDRESS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            first = process.stdout.readline()
            found = re.fullmatch(r"dashboard (http://127\.0\.0\.1:\d+/\?token=[\w-]{43})\n", first)
            assert found, first
            with pytest.raises(Exception, match="403"):  # the redirect carries no cookie
                urlopen(found[1], timeout=DEADLINE_S)
            second = process.stdout.readline()
            assert second.startswith("opened; for another browser: http://127.0.0.1:")
            assert found[1] not in second
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors.strip() == "interrupted"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--listen", "0.0.0.0:0"], "this machine only"),
        (["--listen", "nowhere"], "listen: expected HOST:PORT"),
        (["--supervisor", "example.org:1"], "certificate"),
    ],
)
def test_unusable_options_of_dashboard_are_refused(words: list[str], why: str) -> None:
    given = words if "--supervisor" in words else ["--supervisor", UNUSED_ADDRESS, *words]
    assert why in str(invoked("dashboard", *given).exception)
