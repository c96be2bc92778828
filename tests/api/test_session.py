"""Sessions of connections: arguments of ``connect``, and use outside the block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from skipring.api.connection import Connection, connect
from skipring.api.session import new_session
from skipring.core.batches import BatchRecord, RecordBatch
from skipring.errors import CursorError, IdentityError, InputError, SkipringError
from skipring.storage import store
from skipring.storage.recovery import RecoveredLog, recover
from skipring.storage.store import TOPICS, LogStore
from skipring.storage.topic_directory import RECORD_FILE, directory_name
from skipring.testing import Cluster
from tests.support.connections import TICK_S, to

UNUSED_URL = "skipring://127.0.0.1:9"  # no supervisor listens here


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: connect("skipring://"), "supervisor: no address given"),
        (lambda: connect("skipring://127.0.0.1:1,x"), "supervisor: expected HOST:PORT"),
        (lambda: connect("127.0.0.1:0"), "supervisor: port 0 cannot be dialled"),
        (lambda: connect(7400), "url: expected a text"),  # type: ignore[arg-type]
        (lambda: connect("skipring://10.0.0.1:7400"), "there are no certificates"),
        (lambda: connect(UNUSED_URL, listen="0.0.0.0:0"), "there are no certificates"),
        (lambda: connect(UNUSED_URL, listen="127.0.0.1"), "listen: expected HOST:PORT"),
        (lambda: connect(UNUSED_URL, tick_s=0), "seconds above 0"),
        (lambda: connect(UNUSED_URL).subscribe(""), "topic: a topic has 1 to 255 bytes"),
        (lambda: connect(UNUSED_URL).subscribe(3), "topic: expected a text"),  # type: ignore[arg-type]
        (lambda: connect(UNUSED_URL).subscribe("t", start="old"), 'start: expected "all" or "new"'),
    ],
)
def test_invalid_addresses_and_topics_are_refused_immediately(
    make: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.parametrize("name", ["", "a b", "supervisor"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(IdentityError):
        connect(UNUSED_URL, name=name)


async def test_connection_refuses_use_outside_its_block() -> None:
    node = connect(UNUSED_URL)
    with pytest.raises(SkipringError, match="not connected"):
        await node.subscribe("t").__aenter__()
    async with node:
        pass
    with pytest.raises(SkipringError, match="not connected"):
        await node.subscribe("t").__aenter__()
    with pytest.raises(SkipringError, match="has been used"):
        await node.__aenter__()


@pytest.mark.parametrize(
    ("drain_s", "count"), [(0.01, 2), (0, 0)], ids=["a wait that fails", "no wait"]
)
async def test_session_names_the_publications_that_no_member_has_confirmed(
    drain_s: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipring.api.topic_session.LEAVE_S", 0.05)
    session = new_session(UNUSED_URL, tick_s=TICK_S, drain_s=drain_s)
    node = await Connection(session).__aenter__()
    orders = await node.subscribe("orders").__aenter__()
    await orders.publish_many([b"one", b"two"])
    assert await node.close() == 2
    assert await node.close() == 2  # the second call does nothing
    doubt = session.doubt or "confirmed: 0;"
    assert f"confirmed: {count};" in doubt


def test_session_reads_its_name_from_the_data_directory(tmp_path: Path) -> None:
    async def name(given: str | None) -> str:
        session = new_session(UNUSED_URL, data_dir=tmp_path, name=given)
        before = session.name
        async with Connection(session) as node:
            assert node.name == session.name
        assert before in ("", session.name)
        return session.name

    first = asyncio.run(name("first"))
    assert asyncio.run(name(None)) == first == "first"


async def test_log_without_its_record_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogStore.open(tmp_path, "a") as kept:
        record = BatchRecord(b"x")
        kept.log("t").append(RecordBatch.of([record], publisher="a", first=0, topic="t"))
        kept.commit()
    (tmp_path / TOPICS / directory_name("t") / RECORD_FILE).unlink()
    threads: list[bool] = []

    def read(*given: object) -> RecoveredLog:
        threads.append(threading.current_thread() is threading.main_thread())
        return recover(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "recover", read)
    async with Cluster(n=0) as cluster, to(cluster, data_dir=tmp_path) as node:
        cursor = f"c2.{node.session.store.id}.1.1.{bytes(12).hex()}.t"  # type: ignore[union-attr]
        with pytest.raises(CursorError, match="restored from a copy"):
            await node.subscribe("t", start=cursor).__aenter__()
        async with node.subscribe("t", start="all") as news:
            assert (await anext(news)).payload == b"x"
    assert threads == [False]
