"""``skipring ring``, ``doctor`` and ``explain`` against a ring of real sockets."""

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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Generic, TypeVar

import pytest
from click.testing import CliRunner, Result

from skipring.cli import skipring
from skipring.core.labels import Label
from skipring.core.state import SubscriberState, SupervisorState
from skipring.core.topology import legitimate_state
from skipring.errors import InputError
from skipring.testing import Cluster
from skipring.world.adversaries.building import database_of
from skipring.world.file import parse_world
from skipring.world.legitimacy import publication_violations, violations
from tests.runtime.rings import LiveRing, live_ring, until

DEADLINE_S = 60.0
TOPIC = "news"


T = TypeVar("T")


class Running(Generic[T]):
    """A ring in a thread of its own, so that a command can be run beside it."""

    def __init__(self, ring: T, address: str) -> None:
        self.ring = ring
        self.address = address
        self.loop = asyncio.get_running_loop()

    def do(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Carry out something in the ring's thread."""

        async def bounded() -> None:
            async with asyncio.timeout(DEADLINE_S):
                await work()

        asyncio.run_coroutine_threadsafe(bounded(), self.loop).result(2 * DEADLINE_S)


@contextmanager
def in_thread(opened: AbstractAsyncContextManager[Running[T]]) -> Iterator[Running[T]]:
    """Open something in a thread with a loop; it is always closed."""
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


def invoked(*words: str) -> Result:
    return CliRunner().invoke(skipring, words, standalone_mode=False)


def status_of(*words: str) -> tuple[int, str, str]:
    """What a command exits with as a process of its own, and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "skipring", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def calm() -> Iterator[Running[Cluster]]:
    """A ring that is in order, with some publications."""
    with in_thread(cluster_of(5)) as running:

        async def publish() -> None:
            for number in range(3):
                await running.ring.publish("n00", f"secret {number}".encode())
            await running.ring.settle()

        running.do(publish)
        yield running


# -- ring ------------------------------------------------------------------------------------


def test_the_world_file_of_a_ring_has_no_violations_and_needs_no_rounds(
    calm: Running[Cluster], tmp_path: Path
) -> None:
    status, out, _ = status_of("ring", TOPIC, "--supervisor", calm.address, "--json")
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


def test_payloads_are_in_the_file_only_when_asked_for(calm: Running[Cluster]) -> None:
    words = ("ring", TOPIC, "--supervisor", calm.address, "--json")
    bare, whole = invoked(*words), invoked(*words, "--payloads")
    assert all(
        publication.payload is None
        for state in parse_world(bare.output).subscribers.values()
        for publication in state.publications
    )
    for state in parse_world(whole.output).subscribers.values():
        assert {publication.payload for publication in state.publications} == {
            b"secret 0",
            b"secret 1",
            b"secret 2",
        }


def test_on_a_pipe_the_ring_is_printed_once_with_or_without_watch(calm: Running[Cluster]) -> None:
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


def test_the_ring_of_an_unknown_topic_is_empty(calm: Running[Cluster]) -> None:
    words = ("ring", "unheard of", "--supervisor", calm.address)
    plain = invoked(*words)
    assert plain.output == "nobody subscribes to 'unheard of'\n"
    world = parse_world(invoked(*words, "--json").output)
    assert (world.topic, world.subscribers, world.supervisor) == (
        "unheard of",
        {},
        SupervisorState(),
    )


def test_a_watch_on_a_terminal_repaints_until_it_is_interrupted(calm: Running[Cluster]) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "skipring", "ring", TOPIC, "--watch"]
    watching = subprocess.Popen(
        [*words, "--supervisor", calm.address], stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    try:
        painted = b""
        while painted.count(b"5 members") < 2:
            came = _read(ours)
            assert came, "it is not painted again"
            painted += came
        watching.send_signal(signal.SIGINT)
        while _read(ours):
            pass
        assert watching.wait(timeout=DEADLINE_S) == 130
    finally:
        watching.kill()
        watching.wait(timeout=DEADLINE_S)
        os.close(ours)


def _read(terminal: int) -> bytes:
    """What comes from a terminal; nothing if it takes too long, or nobody holds its other end."""
    ready, _, _ = select.select([terminal], [], [], DEADLINE_S / 2)
    try:
        return os.read(terminal, 65536) if ready else b""
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--payloads"], "give --json as well"),
        (["--watch", "--json"], "leave out --json"),
        (["--supervisor", "nonsense"], "expected HOST:PORT"),
        (["--supervisor", "example.org:1"], "no certificates"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    words: list[str], sentence: str
) -> None:
    result = invoked("ring", TOPIC, "--supervisor", "127.0.0.1:1", *words)
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)


@pytest.mark.parametrize("topic", ["", "a\nb", "x" * 256])
def test_what_cannot_be_a_topic_is_refused(topic: str) -> None:
    for words in (["ring", topic], ["doctor", topic], ["explain", topic, "n00"]):
        result = invoked(*words, "--supervisor", "127.0.0.1:1")
        assert isinstance(result.exception, InputError)


@pytest.mark.heavy
def test_without_a_supervisor_the_exit_status_is_4_and_a_sentence_says_what_to_look_at() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        status, out, err = status_of("doctor", TOPIC, "--supervisor", address)
    assert (status, out) == (4, "")
    assert f"no supervisor answers at {address}; is it running" in err
    assert "Traceback" not in err


# -- doctor ----------------------------------------------------------------------------------


def test_a_ring_in_order_is_a_yes(calm: Running[Cluster]) -> None:
    status, out, _ = status_of("doctor", TOPIC, "--supervisor", calm.address)
    assert status == 0
    assert out == "'news' is in order: 5 members, 3 publications, all have all of them\n"
    result = invoked("doctor", TOPIC, "--supervisor", calm.address, "--json")
    said = json.loads(result.output)
    assert said == {
        "topic": TOPIC,
        "healthy": True,
        "legitimate": True,
        "all_publications": True,
        "members": 5,
        "publications": 3,
        "silent": [],
        "violations": [],
        "advice": [],
    }


def test_nobody_in_a_topic_is_a_no(calm: Running[Cluster]) -> None:
    status, out, _ = status_of("doctor", "unheard of", "--supervisor", calm.address)
    assert status == 1
    assert "Nobody subscribes to 'unheard of'" in out


@asynccontextmanager
async def ring_with_a_wrong_node() -> AsyncIterator[Running[LiveRing]]:
    """A ring in which no time passes, and one node's label and neighbours are wrong."""
    names = [f"n{number:02}" for number in range(4)]
    async with live_ring(*names, tick_s=36_000) as ring:
        book = ring.supervisor.links.book
        await until(lambda: len(book.hints(names)) == len(names))
        for index, name in enumerate(names):
            machine = ring.nodes[name].machine(TOPIC)
            assert machine is not None
            is_wrong = name == "n02"
            wrong = SubscriberState(label=Label.parse("0111"))
            machine.load(wrong if is_wrong else legitimate_state(index, names))
        ring.supervisor._topics.load(TOPIC, SupervisorState(database=database_of(names)))
        yield Running(ring, ring.supervisor.address)


@pytest.fixture(scope="module")
def broken() -> Iterator[Running[LiveRing]]:
    with in_thread(ring_with_a_wrong_node()) as running:
        yield running


def test_a_ring_that_is_not_in_order_is_a_no_with_the_reasons_by_layer(
    broken: Running[LiveRing],
) -> None:
    status, out, _ = status_of("doctor", TOPIC, "--supervisor", broken.address)
    assert status == 1
    assert out.startswith("'news' is not in order: 4 members")
    assert "L1, labels:\n  n02 has label 0111, should be 01\n" in out
    assert "L2, ring neighbours:\n  n02.left is none" in out
    assert "-> The ring heals by itself" in out
    result = invoked("doctor", TOPIC, "--supervisor", broken.address, "--json")
    said = json.loads(result.output)
    assert (said["healthy"], said["legitimate"], said["all_publications"]) == (False, False, True)
    assert {"layer": "L1", "text": "n02 has label 0111, should be 01"} in said["violations"]


@pytest.mark.heavy
def test_a_killed_node_is_named_with_what_to_do() -> None:
    with in_thread(cluster_of(3, tick_s=1.0)) as running:
        running.do(running.ring.settle)

        async def kill() -> None:
            running.ring.kill("n01")

        running.do(kill)
        result = invoked("doctor", TOPIC, "--supervisor", running.address)
    assert result.return_value == 1
    assert "-> n01: no answer." in result.output


# -- explain ---------------------------------------------------------------------------------


def test_a_node_in_order_is_explained_by_its_journal(calm: Running[Cluster]) -> None:
    status, out, _ = status_of("explain", TOPIC, "n03", "--supervisor", calm.address)
    assert status == 0
    label = calm.ring.snapshot().subscribers["n03"].label
    assert out.startswith(f"n03: a member under label {label}\n")
    assert "the supervisor has given us our label (SetData, Algorithm 4)" in out
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
        "why": "the application wants to be in the topic (section 4.1)",
    }


def test_of_a_node_that_is_wrong_it_is_said_what_will_mend_it(broken: Running[LiveRing]) -> None:
    status, out, _ = status_of("explain", TOPIC, "n02", "--supervisor", broken.address)
    assert status == 1
    assert "L1, labels:\n  n02 has label 0111, should be 01\n" in out
    assert "-> labels: the supervisor tells every member its place in turn" in out
    assert "n01" not in out.partition("wrong now")[2].partition("L2")[0]
    result = invoked("explain", TOPIC, "n02", "--supervisor", broken.address, "--json")
    said = json.loads(result.output)
    assert said["violations"][0]["text"] == "n02 has label 0111, should be 01"
    assert said["violations"][0]["repair"].startswith("the supervisor tells every member")
    assert invoked("explain", TOPIC, "n01", "--supervisor", broken.address).return_value == 0


def test_an_unknown_node_is_refused_with_those_who_are_there(calm: Running[Cluster]) -> None:
    status, out, err = status_of("explain", TOPIC, "n99", "--supervisor", calm.address)
    assert (status, out) == (2, "")
    assert err == (
        "Error: no node called 'n99' is known in 'news'; there are n00, n01, n02, n03, n04\n"
    )
