"""The API without asyncio: it blocks, ends, can be interrupted and never hangs."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest

import skipring
from skipring import blocking
from skipring.api.reader import Reader
from skipring.api.topic_session import HealthState
from skipring.blocking.connection import Connection, Subscription
from skipring.errors import (
    InputError,
    SkipringError,
    StorageError,
    StoreBusyError,
)
from skipring.testing import Cluster

TICK_S = 0.05
DEADLINE_S = 60.0  # for operations that take a second or two
UNUSED_URL = "skipring://127.0.0.1:9"  # no supervisor listens here


@contextmanager
def ring(n: int = 0) -> Iterator[Cluster]:
    """Run a cluster in its own thread."""
    made: Queue[tuple[Cluster, asyncio.AbstractEventLoop, asyncio.Event]] = Queue()

    async def live() -> None:
        async with Cluster(n=n) as cluster:
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


def to(cluster: Cluster, data_dir: Path | None = None) -> Connection:
    return skipring.blocking.connect(cluster.url, tick_s=TICK_S, data_dir=data_dir, drain_s=0)


@contextmanager
def topic_of(data_dir: Path | None = None) -> Iterator[Subscription]:
    with ring() as cluster, to(cluster, data_dir) as node, node.subscribe("orders") as orders:
        yield orders


def in_thread(work: Callable[[], object]) -> Queue[object]:
    """Run a function in a thread; return a queue for its result or exception."""
    results: Queue[object] = Queue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:  # noqa: BLE001  (it is the result)
            results.put(error)

    Thread(target=run, daemon=True).start()
    return results


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Queue[asyncio.AbstractEventLoop]:
    """Return a queue that gets the event loop of each read that waits."""
    loops: Queue[asyncio.AbstractEventLoop] = Queue()
    arrival = Reader.arrival

    async def record(reader: Reader, deadline: float | None = None) -> bool:
        loops.put(asyncio.get_running_loop())
        return await arrival(reader, deadline)

    monkeypatch.setattr(Reader, "arrival", record)
    return loops


def until(holds: Callable[[], object]) -> None:
    deadline = monotonic() + DEADLINE_S
    while not holds():
        assert monotonic() < deadline, "it does not come to hold"
        sleep(0.001)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "skipring"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    assert threads() == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait of a leaving node for a missing supervisor."""
    monkeypatch.setattr("skipring.api.topic_session.LEAVE_S", 0.05)


# -- behaviour -------------------------------------------------------------------------------


def test_published_records_are_read() -> None:
    with ring(n=2) as cluster, to(cluster) as node, node.subscribe("news") as news:
        made = [news.publish(b"%d" % number, key=b"k", headers={"a": "b"}) for number in range(50)]
        news.synced(timeout=DEADLINE_S)
        assert (news.lag, news.health().lag) == (50, 50)
        assert news.health().state is HealthState.STABLE
        first = news.read(timeout=DEADLINE_S)
        assert first is not None
        assert (first.id, first.publisher, first.key) == (made[0], node.name, b"k")
        assert news.lag == 49
        found = []
        for publication in news:
            found.append(publication.id)
            if len(found) == 9:
                break
        found += [publication.id for publication in news.read_available(limit=20)]
        found += [publication.id for publication in news.read_available()]
        assert [first.id, *found] == made
        assert news.read(timeout=0.01) is None
        assert news.read_available() == []


def test_blocking_connect_has_the_parameters_of_connect() -> None:
    own = inspect.signature(blocking.connect).parameters
    assert list(own) == list(inspect.signature(skipring.connect).parameters)


def test_connection_works_inside_a_running_event_loop() -> None:
    async def notebook() -> bytes:
        with topic_of() as orders:
            orders.publish(b"one")
            publication = orders.read()
            assert publication is not None
            return publication.payload

    assert asyncio.run(notebook()) == b"one"


def test_open_and_close_equal_the_block() -> None:
    with ring() as cluster:
        node = to(cluster).open()
        orders = node.subscribe("orders").open()
        orders.publish(b"one")
        node.close()
        node.close()
        orders.close()


def test_cursor_follows_the_returned_publications(tmp_path: Path) -> None:
    with ring() as cluster:
        with to(cluster, tmp_path) as node, node.subscribe("orders") as orders:
            orders.publish_many([b"%d" % number for number in range(200)])
            assert orders.cursor().offset == 0
            orders.read()
            assert orders.cursor().offset == 1
            found = [publication.payload for publication in orders.read_available(limit=2)]
        kept = str(orders.cursor())
        with to(cluster, tmp_path) as node, node.subscribe("orders", start=kept) as orders:
            assert found == [b"1", b"2"]
            publication = orders.read()
            assert publication is not None
            assert (publication.payload, publication.replayed) == (b"3", True)


def test_threads_share_publications_and_all_end() -> None:
    many = 300
    with topic_of() as orders:
        readers = [in_thread(lambda: [each.id for each in orders]) for _ in range(3)]
        writers = [
            in_thread(lambda: [orders.publish(b"x") for _ in range(many // 3)]) for _ in range(3)
        ]
        made = [key for writer in writers for key in writer.get(timeout=DEADLINE_S)]  # type: ignore[attr-defined]
        until(lambda: orders.lag == 0)
    found = [key for reader in readers for key in reader.get(timeout=DEADLINE_S)]  # type: ignore[attr-defined]
    assert sorted(found) == sorted(made)


# -- errors ----------------------------------------------------------------------------------


def test_errors_keep_their_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="supervisor: expected HOST:PORT"):
        skipring.blocking.connect("nowhere")
    with topic_of(tmp_path) as orders:
        with pytest.raises(InputError, match="payload: expected bytes"):
            orders.publish("text")  # type: ignore[arg-type]
        with pytest.raises(StoreBusyError):
            skipring.blocking.connect(UNUSED_URL, data_dir=tmp_path).open()


@pytest.mark.usefixtures("impatient")
def test_timeout_names_the_missing_part() -> None:
    with (
        skipring.blocking.connect(UNUSED_URL, tick_s=TICK_S, drain_s=0) as node,
        node.subscribe("orders") as orders,
        pytest.raises(TimeoutError, match=r"supervisor at|nothing listens on"),
    ):
        orders.synced(timeout=0.01)


@pytest.mark.parametrize(
    "use",
    [
        list,
        Subscription.read,
        Subscription.read_many,
        Subscription.read_available,
        Subscription.synced,
        lambda topic: topic.publish(b"x"),
        lambda topic: topic.publish_many([b"x"]),
        lambda topic: topic.retry(StorageError("no space")),
    ],
    ids=[
        *("iteration", "read", "read_many", "read_available"),
        *("synced", "publish", "publish_many", "retry"),
    ],
)
def test_subscription_used_without_block_names_the_correct_form(
    use: Callable[[Subscription], object],
) -> None:
    with ring() as cluster, to(cluster) as node:
        error = in_thread(lambda: use(node.subscribe("orders"))).get(timeout=DEADLINE_S)
    assert isinstance(error, SkipringError)
    assert "not subscribed to 'orders' yet" in str(error)
    form = "`with node.subscribe('orders') as subscription: for publication in subscription: ...`"
    assert form in str(error)


def test_calls_after_the_block_do_not_hang() -> None:
    with ring() as cluster:
        node = to(cluster)
        with pytest.raises(SkipringError, match="not connected"):
            node.subscribe("orders").open()
        with node:
            with node.subscribe("orders") as orders:
                for _ in range(3):
                    orders.publish(b"one")
                assert orders.read() is not None
            assert list(orders) == []
            with pytest.raises(SkipringError, match="no longer subscribed"):
                orders.publish(b"two")
        for use in (
            lambda: orders.publish(b"two"),
            orders.read,
            orders.read_available,
            orders.synced,
            orders.health,
            lambda: orders.lag,
            lambda: list(orders),
            orders.open,
        ):
            with pytest.raises(SkipringError, match="not connected"):
                use()
        with pytest.raises(SkipringError, match="has been used"):
            node.open()


def test_waiting_thread_returns_when_the_connection_closes(
    waiting: Queue[asyncio.AbstractEventLoop],
) -> None:
    with ring(n=1) as cluster:
        with to(cluster) as node:
            news = node.subscribe("news").open()
            reading = in_thread(news.read)
            waiting.get(timeout=DEADLINE_S)
        assert reading.get(timeout=DEADLINE_S) is None


def test_callers_get_an_error_when_the_thread_dies(
    waiting: Queue[asyncio.AbstractEventLoop],
) -> None:
    def die() -> None:
        raise SystemExit

    with ring() as cluster:
        node = to(cluster).open()
        orders = node.subscribe("orders").open()
        orders.synced(DEADLINE_S)
        reading = in_thread(orders.read)
        waiting.get(timeout=DEADLINE_S).call_soon_threadsafe(die)
        result = reading.get(timeout=DEADLINE_S)
        assert result is None or isinstance(result, SkipringError)
        until(lambda: not threads())
        with pytest.raises(SkipringError, match="ended unexpectedly: SystemExit"):
            orders.publish(b"one")
        with pytest.raises(SkipringError, match="ended unexpectedly"):
            node.close()


def test_call_that_ignores_the_end_of_the_connection_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = threading.Event()

    async def stay(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Reader, "arrival", stay)
    with ring() as cluster, to(cluster) as node:
        orders = node.subscribe("orders").open()
        staying = in_thread(orders.read)
        assert begun.wait(DEADLINE_S)
        node.close()
        assert isinstance(staying.get(timeout=DEADLINE_S), SkipringError)


def test_call_overlooked_by_the_dying_thread_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()

    def run_without_end(serving: Coroutine[Any, Any, None]) -> None:
        tasks.append(loop.create_task(serving))
        loop.run_forever()

    async def stop_loop(*_: object) -> None:
        loop.stop()
        await asyncio.Event().wait()

    tasks = list[asyncio.Task[None]]()
    with ring() as cluster:
        monkeypatch.setattr(asyncio, "run", run_without_end)
        with to(cluster) as node:
            orders = node.subscribe("orders").open()
            monkeypatch.setattr(Reader, "arrival", stop_loop)
            with pytest.raises(SkipringError):
                orders.read()
            with pytest.raises(SkipringError, match="not connected"):
                orders.read()
            tasks += asyncio.all_tasks(loop) - {*tasks}
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()


# -- Ctrl-C ----------------------------------------------------------------------------------

SCRIPT = """
import sys, threading, skipring
with skipring.blocking.connect(sys.argv[1], tick_s=0.05, drain_s=0) as node:
    with node.subscribe("orders") as orders:
        orders.publish(b"one")
        orders.synced(30)
        try:
            for publication in orders:
                print("waiting", flush=True)
        except KeyboardInterrupt:
            orders.publish(b"two")
            print(orders.read().payload.decode(), flush=True)
            {then}
print([thread.name for thread in threading.enumerate()], flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("then", ["pass", "raise"])
def test_ctrl_c_ends_waiting_and_leaves_nothing_behind(then: str) -> None:
    with ring() as cluster:
        program = [sys.executable, "-c", SCRIPT.format(then=then), cluster.url]
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            try:
                assert running.stdout is not None
                assert running.stdout.readline() == "waiting\n"
                running.send_signal(signal.SIGINT)
                out, err = running.communicate(timeout=DEADLINE_S)
            finally:
                running.kill()
    if then == "pass":
        assert (out, err, running.returncode) == ("two\n['MainThread']\n", "", 0)
    else:
        assert (out, running.returncode) == ("two\n", -signal.SIGINT)
        assert err.rstrip().endswith("KeyboardInterrupt")


# -- key-value view --------------------------------------------------------------------------


def test_blocking_view_reads_writes_watches_and_leases() -> None:
    with (
        ring() as cluster,
        blocking.connect(cluster.url, tick_s=TICK_S, drain_s=0) as node,
        node.keyvalue("settings") as view,
    ):
        view.put_many({"shop/a": b"1", "shop/b": b"2"})
        view.json.put("limit", [1, 2])
        view.delete("shop/b")
        view.ready(DEADLINE_S)
        entry = view.get("shop/a")
        assert entry is not None
        assert entry.value == b"1"
        assert view.keys() == ["limit", "shop/a"]
        assert [each.value for each in view.json.items("limit")] == [[1, 2]]
        watch = view.watch(prefix="worker/")
        with view.lease("worker/1", b"here", ttl=30):
            assert len(view) == 3
            assert next(watch).entry == view.get("worker/1")
        assert next(watch).deleted
        assert len(view) == 2


def test_blocking_watch_ends_when_another_thread_closes_the_view() -> None:
    with ring() as cluster, blocking.connect(cluster.url, tick_s=TICK_S, drain_s=0) as node:
        view = node.keyvalue("settings").open()
        watch = view.watch()
        thread = Thread(target=list, args=(watch,))
        thread.start()
        view.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        with pytest.raises(SkipringError, match="no longer subscribed to 'settings'"):
            view.get("k")
