"""``skipring top``: tables, keys and exit."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

from skipring.cli.top_app import TopApp
from skipring.cli.top_rows import (
    TOPIC_COLUMNS,
    TopRow,
    in_order,
    overview_view,
    supervisor_rows,
    topic_rows,
)
from skipring.cli.top_screens import HelpScreen, NodeScreen, RingScreen
from skipring.cli.top_table import RowTable
from skipring.testing import Cluster
from skipring.view.overview import Observer, Overview, SupervisorRow, TopicRow
from skipring.view.text import ASCII, UNICODE

DEADLINE_S = 60.0
TICK_S = 0.05
SIZE = (80, 24)


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
    return {row.key: [cell.plain for cell in row.cells] for row in rows}


def test_topic_row_shows_members_differing_nodes_and_violations() -> None:
    assert texts(topic_rows(SEEN, UNICODE)) == {
        "orders": ["orders", "16", "1,203", "12.4", "0", "✓ equal", "✓ in order"],
        "news": ["news", "4", "10", "0.0", "3", "✗ n03, n04 +1", "✗ 12 wrong"],
        "audit": ["audit", "0", "0", "0.0", "0", "✓ equal", "- nobody"],
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
    number = [each.name for each in TOPIC_COLUMNS].index(column)
    assert [row.key for row in in_order(topic_rows(SEEN, UNICODE), number)] == keys


def test_ascii_output_suffices_for_a_narrow_encoding() -> None:
    printed = StringIO()
    Console(width=200, file=printed).print(overview_view(SEEN, ASCII))
    assert printed.getvalue().isascii()
    assert "X n03, n04 +1" in printed.getvalue()


# -- a real ring -----------------------------------------------------------------------------


def address_of(cluster: Cluster) -> str:
    return cluster.url.removeprefix("skipring://")


async def said_by(*words: str) -> tuple[int | None, str, str]:
    """Run a command as a process; return exit status, output and errors."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "skipring", *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(program.communicate(), DEADLINE_S)
    except BaseException:
        program.kill()
        raise
    return program.returncode, out.decode(), err.decode()


def bounded(scene: Callable[[], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(2 * DEADLINE_S):
            await scene()

    asyncio.run(run())


@pytest.mark.heavy
def test_json_and_plain_text_are_printed_once_on_a_pipe() -> None:
    async def scene() -> None:
        async with Cluster(n=4, tick_s=TICK_S) as cluster:
            await cluster.publish("n00", b"hello")
            await cluster.wait_healthy()
            words = ("top", "--supervisor", address_of(cluster), "--refresh", "0.1")
            status, out, _ = await said_by(*words, "--json")
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
            status, out, _ = await said_by(*words)
            assert (status, "\x1b" in out) == (0, False)
            assert ["news", "4", "1"] in [line.split()[:3] for line in out.splitlines()]
            assert any(line.startswith(address_of(cluster)) for line in out.splitlines())

    bounded(scene)


@pytest.mark.heavy
def test_missing_supervisor_exits_with_4_and_one_sentence() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        for more in ([], ["--json"]):
            words = [sys.executable, "-m", "skipring", "top", "--supervisor", address, *more]
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
            assert (done.returncode, done.stdout) == (4, "")
            assert done.stderr.startswith(f"Error: nothing listens at {address}")
            assert done.stderr.count("\n") == 1


# -- the application -------------------------------------------------------------------------

Scene = Callable[[Pilot[int], Cluster], Coroutine[None, None, None]]


@asynccontextmanager
async def watched(cluster: Cluster) -> AsyncIterator[Pilot[int]]:
    """Run the application over a ring without a terminal."""
    async with Observer([address_of(cluster)]) as observer:
        app = TopApp(observer, await observer.overview(), 0.1, "utf-8")
        async with app.run_test(size=SIZE) as pilot:
            yield pilot


def play(scene: Scene, n: int = 5) -> None:
    async def run() -> None:
        async with Cluster(n=n, tick_s=TICK_S) as cluster:
            cluster.node("n00").subscribe("audit")
            await cluster.publish("n01", b"hello")
            await cluster.wait_healthy()
            async with watched(cluster) as pilot:
                await scene(pilot, cluster)

    bounded(run)


async def until(pilot: Pilot[int], holds: Callable[[], bool]) -> None:
    """Run the application until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, painted(pilot)
        await pilot.pause(0.02)


def table(pilot: Pilot[int], name: str) -> RowTable:
    return pilot.app.screen_stack[0].query_one(f"#{name}", RowTable)


def cells(pilot: Pilot[int], name: str, key: str) -> list[str]:
    shown = table(pilot, name)
    return [cell.plain for cell in shown.get_row(key)] if key in shown.keys else []


def sorted_by(shown: RowTable) -> str:
    """Return the column with the sort mark."""
    (name,) = (
        str(each.label).removesuffix(" v")
        for each in shown.ordered_columns
        if str(each.label).endswith(" v")
    )
    return name


def kind_of_screen(pilot: Pilot[int]) -> type[Screen[Any]]:
    return type(pilot.app.screen)


def painted(pilot: Pilot[int]) -> str:
    """Return the text of the topmost screen."""
    width, height = pilot.app.size
    lines = pilot.app.screen._compositor.render_strips()
    assert (len(lines), {strip.cell_length for strip in lines}) == (height, {width})
    return "\n".join(strip.text for strip in lines)


@pytest.mark.heavy
def test_killed_node_is_shown_until_the_ring_has_healed() -> None:
    async def scene(pilot: Pilot[int], cluster: Cluster) -> None:
        await pilot.press("down")
        await until(pilot, lambda: table(pilot, "nodes").keys == list(cluster.nodes))
        assert cells(pilot, "topics", "news")[1:3] == ["5", "1"]
        assert cells(pilot, "nodes", "n03")[-1] == "● right"
        assert len(table(pilot, "supervisors").keys) == 1
        cluster.kill("n03")
        await until(pilot, lambda: "does not answer" in cells(pilot, "nodes", "n03")[-1:][0])
        await until(pilot, lambda: table(pilot, "nodes").keys == list(cluster.nodes))
        await until(pilot, lambda: cells(pilot, "topics", "news")[-1] == "✓ in order")
        assert cells(pilot, "topics", "news")[1] == "4"
        assert int(cells(pilot, "supervisors", address_of(cluster))[-1]) >= 1  # it was evicted

    play(scene)


@pytest.mark.heavy
def test_node_with_different_publications_is_named() -> None:
    async def scene(pilot: Pilot[int], cluster: Cluster) -> None:
        with cluster.partition(["n00"], ["n01", "n02", "n03", "n04"]):
            await cluster.publish("n01", b"not for everybody")
            await pilot.press("down")
            await until(pilot, lambda: cells(pilot, "topics", "news")[5] == "✗ n00")
            await until(pilot, lambda: cells(pilot, "nodes", "n00")[3:4] == ["1"])
            assert cells(pilot, "topics", "news")[4] == "1"
        await until(pilot, lambda: cells(pilot, "topics", "news")[4:6] == ["0", "✓ equal"])

    play(scene)


@pytest.mark.heavy
def test_keys_select_sort_open_and_go_back() -> None:
    async def scene(pilot: Pilot[int], _: Cluster) -> None:
        topics, nodes = table(pilot, "topics"), table(pilot, "nodes")
        assert (topics.keys, topics.chosen, sorted_by(topics)) == (
            ["audit", "news"],
            "audit",
            "topic",
        )
        await until(pilot, lambda: nodes.keys == ["n00"])
        await pilot.press("s")
        assert (topics.keys, topics.chosen, sorted_by(topics)) == (
            ["news", "audit"],
            "audit",  # the cursor follows its row
            "members",
        )
        await pilot.press("up")
        await until(pilot, lambda: len(nodes.keys) == 5)
        await pilot.press("enter")
        assert kind_of_screen(pilot) is RingScreen
        await until(pilot, lambda: "5 members, 5 recorded" in painted(pilot))
        assert "publications ✓ right" in painted(pilot)
        await pilot.press("escape", "tab", "down")
        assert (pilot.app.focused, nodes.chosen) == (nodes, "n01")
        await pilot.press("enter")
        assert kind_of_screen(pilot) is NodeScreen
        await until(pilot, lambda: "n01: a member under label" in painted(pilot))
        assert "which rule, and why" in painted(pilot)
        await pilot.press("escape", "question_mark")
        assert kind_of_screen(pilot) is HelpScreen
        assert "farthest behind" in painted(pilot)
        await pilot.press("escape", "q")
        await until(pilot, lambda: not pilot.app.is_running)
        assert pilot.app.return_value is None

    play(scene)


@pytest.mark.heavy
def test_missing_supervisor_is_shown_while_nodes_are_still_updated() -> None:
    async def scene(pilot: Pilot[int], cluster: Cluster) -> None:
        banner = pilot.app.query_one("#banner", Static)
        assert banner.display is False
        await pilot.press("down")
        await cluster.stop_supervisor()
        await until(pilot, lambda: banner.display)
        assert f"✗ {address_of(cluster)}: no answer" in painted(pilot)
        await cluster.publish("n02", b"without a supervisor")
        await until(pilot, lambda: cells(pilot, "topics", "news")[2] == "2")
        await pilot.press("enter")
        await until(pilot, lambda: "nothing listens at" in painted(pilot))
        await cluster.start_supervisor()
        await until(pilot, lambda: "nothing listens at" not in painted(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: not banner.display)

    play(scene)


# -- a terminal ------------------------------------------------------------------------------

# A child inherits an ignored SIGINT from the process that starts the tests.
PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from skipring.cli import main
sys.argv[0] = "skipring"
main()
"""
ALTERNATE, ORIGINAL = b"\x1b[?1049h", b"\x1b[?1049l"


@contextmanager
def on_terminal(*words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a command on an ASCII terminal; yield its screen and the program."""
    screen, inside = pty.openpty()
    env = {"TERM": "xterm", "PYTHONIOENCODING": "ascii", "COLUMNS": "80", "LINES": "24"}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env=os.environ | env,
    )
    os.close(inside)
    try:
        yield screen, program
    finally:
        program.kill()
        program.wait()
        os.close(screen)


def read_until(screen: int, text: bytes | None, shown: bytes = b"") -> bytes:
    """Return the output until a text appears; None: until the program has left the terminal."""
    deadline = time.monotonic() + DEADLINE_S
    while text is None or text not in shown:
        assert time.monotonic() < deadline, shown[-2000:]
        ready, _, _ = select.select([screen], [], [], 1.0)
        try:
            shown += os.read(screen, 65536) if ready else b""
        except OSError:  # Linux raises it when the last program has left the terminal
            break
    return shown


def used(address: str, key: bytes | signal.Signals) -> tuple[bytes, int]:
    """Return the output until a key or a signal ends the program, and the exit status."""
    with on_terminal("top", "--supervisor", address) as (screen, program):
        shown = read_until(screen, b"in order")
        if isinstance(key, bytes):
            os.write(screen, key)
        else:
            program.send_signal(key)
        return read_until(screen, None, shown), program.wait(DEADLINE_S)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"q", 0), (b"\x03", 130), (signal.SIGINT, 130), (signal.SIGTERM, 143)],
    ids=["q", "Ctrl-C", "interrupt", "terminate"],
)
def test_ascii_terminal_gets_ascii_and_is_restored(
    key: bytes | signal.Signals, expected: int
) -> None:
    async def scene() -> None:
        async with Cluster(n=3, tick_s=TICK_S) as cluster:
            await cluster.wait_healthy()
            shown, status = await asyncio.to_thread(used, address_of(cluster), key)
        assert status == expected
        assert shown.isascii()
        assert b"\\u" not in shown  # a stream writes characters that it cannot encode in this way
        assert shown.rindex(ORIGINAL) > shown.rindex(ALTERNATE)
        assert b"Traceback" not in shown

    bounded(scene)
