"""``skipring ring``, ``doctor`` and ``explain`` against a ring of real sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

import pytest
from rich.console import Console

from skipring.admin.inspector import Inspection
from skipring.cli.output.ring import RingWatch, changes
from skipring.core.events import Overwritten
from skipring.core.labels import Label
from skipring.core.peers import NodeId
from skipring.core.state import SubscriberState, SupervisorState, legitimate_state
from skipring.errors import InputError
from skipring.testing import Cluster
from skipring.view.panel import RingPanel
from skipring.view.text import ASCII, UNICODE
from skipring.wire.rpc import NodeStatus
from skipring.world.adversaries.builders import database_of
from skipring.world.format import parse_world
from skipring.world.legitimacy import publication_violations, violations
from skipring.world.snapshot import Snapshot
from tests.support.batches import payloads_of
from tests.support.commands import (
    DEADLINE_S,
    UNUSED_ADDRESS,
    invoked,
    on_terminal,
    outcome,
    unused_address,
)
from tests.support.rings import LiveRing, live_ring, until

TOPIC = "news"


T = TypeVar("T")


class Running(Generic[T]):
    """A ring in its own thread, so that commands can run beside it."""

    def __init__(self, ring: T, address: str) -> None:
        self.ring = ring
        self.address = address
        self.loop = asyncio.get_running_loop()

    def do(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run a coroutine in the thread of the ring."""

        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await work()

        asyncio.run_coroutine_threadsafe(bounded(), self.loop).result(2 * DEADLINE_S)


@contextmanager
def in_thread(opened: AbstractAsyncContextManager[Running[T]]) -> Iterator[Running[T]]:
    """Open a context in a thread with an event loop; close it in every case."""
    begun: Future[Running[T]] = Future()
    stop = asyncio.Event()

    async def scene() -> None:
        try:
            async with opened as ring:
                begun.set_result(ring)
                await stop.wait()
        except BaseException as error:
            if not begun.done():
                begun.set_exception(error)
            raise

    thread = Thread(target=lambda: asyncio.run(scene()))
    thread.start()
    ring = begun.result(DEADLINE_S)
    try:
        yield ring
    finally:
        ring.loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@asynccontextmanager
async def cluster_of(n: int, tick_s: float = 0.05) -> AsyncIterator[Running[Cluster]]:
    async with Cluster(n=n, tick_s=tick_s) as cluster:
        yield Running(cluster, cluster.url.removeprefix("skipring://"))


@pytest.fixture(scope="module")
def calm() -> Iterator[Running[Cluster]]:
    """Yield a healthy ring with some publications."""
    with in_thread(cluster_of(5)) as running:

        async def publish() -> None:
            for number in range(3):
                await running.ring.publish("n00", f"secret {number}".encode())
            await running.ring.wait_healthy()

        running.do(publish)
        yield running


# -- ring ------------------------------------------------------------------------------------


def test_world_file_of_healthy_ring_has_no_violations_and_needs_no_rounds(
    calm: Running[Cluster], tmp_path: Path
) -> None:
    status, out, _ = outcome("ring", TOPIC, "--supervisor", calm.address, "--json")
    assert status == 0
    world = parse_world(out)
    assert sorted(world.subscribers) == ["n00", "n01", "n02", "n03", "n04"]
    assert list(violations(world)) == list(publication_violations(world)) == []
    assert {len(state.publications) for state in world.subscribers.values()} == {3}
    file = tmp_path / "world.json"
    file.write_text(out, encoding="utf-8")
    result = invoked("simulate", "--load", str(file), "--json")
    assert result.return_value == 0
    report = json.loads(result.output)
    assert report["converged"]
    assert report["rounds_explicit"] == report["rounds_publications"] == 0


def test_world_file_contains_payloads_only_on_request(calm: Running[Cluster]) -> None:
    words = ("ring", TOPIC, "--supervisor", calm.address, "--json")
    bare, whole = invoked(*words), invoked(*words, "--payloads")
    for state in parse_world(bare.output).subscribers.values():
        assert payloads_of(state.publications) == []
    for state in parse_world(whole.output).subscribers.values():
        found = sorted(payloads_of(state.publications))
        assert found == [b"secret 0", b"secret 1", b"secret 2"]


def test_ring_is_printed_once_on_a_pipe_with_or_without_watch(calm: Running[Cluster]) -> None:
    for more in ((), ("--watch",)):
        result = invoked("ring", TOPIC, "--supervisor", calm.address, *more)
        assert result.exception is None
        assert "5 members, 5 recorded" in result.output
        rows = {
            words[1]: words for line in result.output.splitlines() if (words := line.split())[1:]
        }
        for name, state in calm.ring.snapshot().subscribers.items():
            neighbours = [
                f"{each.label} {each.node}" if each is not None else "-"
                for each in (state.left, state.right, state.ring)
            ]
            assert " ".join(rows[name][1:]).startswith(
                f"{name} {state.label} {' '.join(neighbours)} "
            )


def test_ring_of_unknown_topic_is_empty(calm: Running[Cluster]) -> None:
    words = ("ring", "unheard of", "--supervisor", calm.address)
    plain = invoked(*words)
    assert plain.output == "'unheard of' has no members\n"
    world = parse_world(invoked(*words, "--json").output)
    assert (world.topic, world.subscribers, world.supervisor) == (
        "unheard of",
        {},
        SupervisorState(),
    )


@pytest.mark.heavy
def test_watch_repaints_in_any_size_and_restores_the_terminal_when_interrupted(
    calm: Running[Cluster],
) -> None:
    with on_terminal("ring", TOPIC, "--watch", "--supervisor", calm.address) as screen:
        screen.read_until("5 members", times=2)
        assert "stored  root" not in screen.text  # no room for the nodes
        screen.resize(120, 50)
        screen.read_until("stored  root")
        assert screen.interrupt() == 130
    assert screen.shown.rindex("\x1b[?1049l") > screen.shown.find("\x1b[?1049h")
    assert screen.shown.rindex("\x1b[?25h") > screen.shown.rfind("\x1b[?25l")
    assert "Traceback" not in screen.shown


@pytest.mark.heavy
def test_watch_continues_without_supervisor_and_reports_it() -> None:
    with in_thread(cluster_of(4)) as running:
        running.do(running.ring.wait_healthy)
        with on_terminal("ring", TOPIC, "--watch", "--supervisor", running.address) as screen:
            screen.read_until("4 members")
            running.do(running.ring.stop_supervisor)
            screen.read_until(f"nothing listens on {running.address}")

            async def publish() -> None:
                await running.ring.publish("n01", b"without a supervisor")

            running.do(publish)
            screen.read_until("stored")
            screen.read_until("1 stored")
            assert screen.interrupt() == 130


@pytest.mark.heavy
def test_ascii_terminal_without_colours_gets_plain_ascii(broken: Running[LiveRing]) -> None:
    for words in (("ring", TOPIC), ("explain", TOPIC, "n02"), ("doctor", TOPIC)):
        env = {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
        with on_terminal(*words, "--supervisor", broken.address, **env) as screen:
            screen.read_all()
        assert screen.shown.isascii()
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", screen.shown)
        assert "n02" in screen.shown


# -- changes between two inspections ---------------------------------------------------------


def seen(labels: dict[NodeId, str | None], count: int = 0, **more: Any) -> Inspection:  # noqa: ANN401
    """Return an inspection of some nodes, each with a label."""
    statuses = {
        node: NodeStatus(
            request=0,
            member=True,
            label=Label.parse(bits) if bits is not None else None,
            left=None,
            right=None,
            ring=None,
            shortcuts=(),
            silence={},
            digests={},
            count=count,
            end=count,
            root=bytes([count]) * 32,
        )
        for node, bits in labels.items()
    }
    subscribers = {
        node: SubscriberState(label=status.label) for node, status in statuses.items()
    } | more.pop("outside", {})
    database = tuple((Label.nth(index).bits, node) for index, node in enumerate(sorted(labels)))
    return Inspection(
        snapshot=Snapshot(
            topic=TOPIC,
            supervisor=SupervisorState(database=database),
            subscribers=subscribers,
            **more,
        ),
        statuses=statuses,
    )


def listed_changes(before: Inspection, after: Inspection) -> list[tuple[str, str, str, str]]:
    return [
        (" ".join(each.nodes), each.field, each.before, each.after)
        for each in changes(before, after)
    ]


def test_change_of_several_nodes_is_listed_once() -> None:
    before, after = seen({"a": "0", "b": "1", "c": None}), seen({"a": "0", "b": "01", "c": "1"}, 2)
    assert listed_changes(before, before) == []
    assert listed_changes(before, after) == [
        ("a b c", "stored", "0", "2"),
        ("b", "label", "1", "01"),
        ("c", "label", "-", "1"),
    ]


def test_joining_and_leaving_nodes_are_listed() -> None:
    before = seen({"a": "0", "b": "1"})
    after = seen({"a": "0", "c": "01"}, crashed=("b",))
    assert listed_changes(before, after) == [
        ("b", "standing", "member", "does not answer"),
        ("c", "standing", "unknown", "member"),
    ]
    gone = seen({"a": "0"}, outside={"c": SubscriberState(member=False)})
    assert listed_changes(after, gone) == [
        ("b", "standing", "does not answer", "unknown"),
        ("c", "standing", "member", "not in the topic"),
    ]


@pytest.mark.parametrize("size", [(80, 24), (40, 14), (100, 18), (200, 70)])
@pytest.mark.parametrize("n", [1, 2, 16, 100])
def test_watched_ring_fits_into_the_terminal(size: tuple[int, int], n: int) -> None:
    columns, rows = size
    watch = RingWatch()
    names = [f"n{number:03}" for number in range(n)]
    watch.record(seen(dict.fromkeys(names, "0")))
    labels: dict[NodeId, str | None] = {
        name: Label.nth(number).bits for number, name in enumerate(names)
    }
    watch.record(seen(labels, 3, crashed=("gone",)), trouble="no supervisor answers")
    for glyphs in (UNICODE, ASCII):
        printed = StringIO()
        console = Console(width=columns, file=printed, color_system=None)
        console.print(watch.painted(RingPanel(columns, rows - 1, glyphs)))
        lines = printed.getvalue().splitlines()
        assert len(lines) < rows
        assert max(len(line.rstrip()) for line in lines) <= columns
        assert any("no supervisor answers" in line for line in lines)
        assert any("database" in line for line in lines)
        assert glyphs is UNICODE or printed.getvalue().isascii()


def test_changes_since_the_last_inspection_are_highlighted_and_listed() -> None:
    watch = RingWatch()
    watch.record(seen({"a": "0", "b": "01"}))
    watch.record(seen({"a": "0", "b": "1"}))
    page = RingPanel(100, 49, UNICODE)

    def highlighted() -> list[str]:
        console = Console(width=100, file=StringIO(), color_system="standard", force_terminal=True)
        segments = console.render(watch.painted(page))
        return [each.text.strip() for each in segments if each.style and each.style.reverse]

    assert highlighted() == ["b", "01 → 1", "1"]
    watch.record(seen({"a": "0", "b": "1"}))
    assert highlighted() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--payloads"], "needs --json"),
        (["--watch", "--json"], "cannot be combined with --json"),
        (["--supervisor", "nonsense"], "expected HOST:PORT"),
        (["--supervisor", "example.org:1"], "no certificates"),
    ],
)
def test_contradictory_options_are_refused_before_any_request(
    words: list[str], sentence: str
) -> None:
    result = invoked("ring", TOPIC, "--supervisor", UNUSED_ADDRESS, *words)
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)


@pytest.mark.parametrize("topic", ["", "a\nb", "x" * 256])
def test_invalid_topic_is_refused(topic: str) -> None:
    for words in (["ring", topic], ["doctor", topic], ["explain", topic, "n00"]):
        result = invoked(*words, "--supervisor", UNUSED_ADDRESS)
        assert isinstance(result.exception, InputError)


@pytest.mark.heavy
def test_missing_supervisor_exits_with_4_and_advice() -> None:
    with unused_address() as address:
        status, out, err = outcome("doctor", TOPIC, "--supervisor", address)
    assert (status, out) == (4, "")
    assert f"nothing listens on {address}; start one with: skipring supervisor" in err


# -- doctor ----------------------------------------------------------------------------------


def test_doctor_exits_with_0_for_healthy_ring(calm: Running[Cluster]) -> None:
    status, out, _ = outcome("doctor", TOPIC, "--supervisor", calm.address)
    assert status == 0
    assert out == "news: healthy (5 members, 3 publications, all in sync)\n"
    result = invoked("doctor", TOPIC, "--supervisor", calm.address, "--json")
    said = json.loads(result.output)
    assert said == {
        "topic": TOPIC,
        "healthy": True,
        "legitimate": True,
        "linked": True,
        "all_publications": True,
        "members": 5,
        "publications": 3,
        "silent": [],
        "violations": [],
        "advice": [],
        "warnings": [],
        "clones": [],
    }


@asynccontextmanager
async def ring_with_a_wrong_node() -> AsyncIterator[Running[LiveRing]]:
    """Yield a ring without ticks in which one node has a wrong label and wrong neighbours."""
    names = [f"n{number:02}" for number in range(4)]
    async with live_ring(*names, tick_s=36_000) as ring:
        book = ring.supervisor.links.book
        await until(lambda: len(book.hints(names)) == len(names))
        for index, name in enumerate(names):
            machine = ring.nodes[name].machine(TOPIC)
            assert machine is not None
            is_wrong = name == "n02"
            wrong = SubscriberState(label=Label.parse("0111"))
            machine.handle(Overwritten(wrong if is_wrong else legitimate_state(index, names)))
        ring.supervisor.dispatch(TOPIC, Overwritten(SupervisorState(database=database_of(names))))
        yield Running(ring, ring.supervisor.address)


@pytest.fixture(scope="module")
def broken() -> Iterator[Running[LiveRing]]:
    with in_thread(ring_with_a_wrong_node()) as running:
        yield running


def test_doctor_exits_with_1_for_broken_ring_and_lists_violations_by_layer(
    broken: Running[LiveRing],
) -> None:
    status, out, _ = outcome("doctor", TOPIC, "--supervisor", broken.address)
    assert status == 1
    assert out.startswith("news: degraded (4 members")
    assert "labels:\n  n02 has label 0111, should be 01\n" in out
    assert "\nneighbours:\n  n02.left is none" in out
    assert "-> The ring is degraded and heals by itself" in out
    result = invoked("doctor", TOPIC, "--supervisor", broken.address, "--json")
    said = json.loads(result.output)
    assert (said["healthy"], said["legitimate"], said["all_publications"]) == (False, False, True)
    assert {"layer": "L1", "text": "n02 has label 0111, should be 01"} in said["violations"]


@pytest.mark.heavy
def test_doctor_names_killed_node_with_advice() -> None:
    with in_thread(cluster_of(3, tick_s=1.0)) as running:
        running.do(running.ring.wait_healthy)

        async def kill() -> None:
            running.ring.kill("n01")

        running.do(kill)
        result = invoked("doctor", TOPIC, "--supervisor", running.address)
    assert result.return_value == 1
    assert "-> n01: no answer." in result.output


# -- explain ---------------------------------------------------------------------------------


def test_explain_shows_the_change_log_of_a_healthy_node(calm: Running[Cluster]) -> None:
    status, out, _ = outcome("explain", TOPIC, "n03", "--supervisor", calm.address)
    assert status == 0
    label = calm.ring.snapshot().subscribers["n03"].label
    assert out.startswith(f"n03: a member under label {label}\n")
    assert "the supervisor assigned a label (SetData, Algorithm 4)" in out
    assert "nothing is wrong with it" in out
    result = invoked("explain", TOPIC, "n03", "--supervisor", calm.address, "--json")
    said = json.loads(result.output)
    assert (said["topic"], said["node"], said["violations"]) == (TOPIC, "n03", [])
    assert said["journal"][0] | {"time": 0, "tick": 0} == {
        "tick": 0,
        "time": 0,
        "cause": "SubscribeRequested",
        "sender": None,
        "field": "member",
        "before": "no",
        "after": "yes",
        "why": "the application subscribes to the topic (section 4.1)",
    }


def test_explain_names_the_repair_of_each_violation(broken: Running[LiveRing]) -> None:
    status, out, _ = outcome("explain", TOPIC, "n02", "--supervisor", broken.address)
    assert status == 1
    assert "labels:\n  n02 has label 0111, should be 01\n" in out
    assert "-> labels: the supervisor sends every member its configuration in turn" in out
    assert "n01" not in out.partition("wrong now")[2].partition("\nneighbours:")[0]
    result = invoked("explain", TOPIC, "n02", "--supervisor", broken.address, "--json")
    said = json.loads(result.output)
    assert said["violations"][0]["text"] == "n02 has label 0111, should be 01"
    assert said["violations"][0]["repair"].startswith("the supervisor sends every member")
    result = invoked("explain", TOPIC, "n01", "--supervisor", broken.address, "--json")
    assert {each["layer"] for each in json.loads(result.output)["violations"]} <= {"LINK", "NODE"}


def test_explain_refuses_unknown_node_with_the_known_names(calm: Running[Cluster]) -> None:
    status, out, err = outcome("explain", TOPIC, "n99", "--supervisor", calm.address)
    assert (status, out) == (2, "")
    assert err == (
        "Error: no node 'n99' is known in 'news'; its nodes are n00, n01, n02, n03, n04\n"
    )
