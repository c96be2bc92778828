"""Systems that skipring is compared with; each really runs where it is installed."""

import asyncio
import shutil
import sqlite3
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from skipring.lab.bench import fanout, history
from skipring.lab.bench.harness import run_of, run_once
from skipring.lab.bench.run import BenchRun
from skipring.lab.bench.systems import brokerless, brokers, catalog
from skipring.lab.bench.systems.brokers import (
    ROWS_AT_ONCE,
    STORE_FILE,
    STORED_AT_ONCE,
    MessageStore,
)
from skipring.lab.bench.systems.catalog import JETSTREAM_STORED, OURS, STORED, SYSTEMS, System
from skipring.lab.bench.worker import MEASURED, history_payload, make_payload

PEERS = [name for name in SYSTEMS if not name.startswith(OURS)]
STORED_PEERS = [name for name in STORED if not name.startswith(OURS)]


def _require(system: System) -> None:
    if system.missing is not None:
        pytest.skip(f"not installed: {system.missing}")


@pytest.mark.heavy
@pytest.mark.parametrize("name", PEERS)
def test_system_delivers_everything(name: str) -> None:
    _require(SYSTEMS[name])
    outcome = run_once(run_of(BenchRun(n=3, count=20), name))
    assert outcome.figures["delivered"] == 60
    has_broker = SYSTEMS[name].broker is not None
    assert ("broker" in outcome.cpu_s) is has_broker
    assert outcome.cpu_s["publisher"] > 0 < outcome.cpu_s["subscribers"]


@pytest.mark.parametrize("step", [1, 7, 40])
def test_relay_delivers_whole_payloads_from_split_data(step: int) -> None:
    payloads = [make_payload(MEASURED, number, 16) for number in range(4)]
    data, got = b"".join(payloads), list[bytes]()

    async def scene() -> None:
        member = brokerless.RelayMember(16)
        reading = asyncio.create_task(member.read(got.append))
        for start in range(0, len(data), step):
            member.data_received(data[start : start + step])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        reading.cancel()

    asyncio.run(scene())
    assert got == payloads


@pytest.mark.heavy
@pytest.mark.parametrize("name", STORED_PEERS)
def test_newcomer_fetches_the_whole_history(name: str) -> None:
    _require(STORED[name])
    row, *_ = history.measure([20], repeats=1, systems=[name])
    assert row["delivered"] == 20
    assert row["cpu_s_newcomer"] > 0
    assert 0 < row["first_s"] <= row["wall_s"]


def test_missing_program_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(catalog, "find_spec", lambda _: object())
    commands = {name: system.missing for name, system in SYSTEMS.items()}
    assert {name: command for name, command in commands.items() if command} == {
        "nats": "apt-get install nats-server",
        "redis": "apt-get install redis-server",
        "mosquitto": "apt-get install mosquitto",
    }


def test_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _: None)
    (zenoh,) = fanout.measure([4], systems=["zenoh"], jobs=[fanout.THROUGHPUT])
    assert zenoh["skipped"] == "not installed: pip install 'skipring[bench]'"


@pytest.mark.parametrize("name", [*SYSTEMS, *STORED])
def test_driver_module_loads_without_its_packages_and_has_its_classes(name: str) -> None:
    for systems, parts in ((SYSTEMS, ("Publisher", "Subscribers")), (STORED, ("Newcomer",))):
        if name in systems:
            module, prefix = systems[name].driver.split(".")
            found = import_module(f"skipring.lab.bench.systems.{module}")
            assert all(isinstance(getattr(found, prefix + part), type) for part in parts)


# -- stored histories ---------------------------------------------------------------------------

Rows = list[tuple[int, bytes]]


def _on_disk(directory: Path) -> Rows:
    """Return the state that a process would find after a crash now."""
    copy = directory / "copy"
    copy.mkdir()
    for file in directory.glob(f"{STORE_FILE}*"):
        shutil.copy(file, copy)
    db = sqlite3.connect(copy / STORE_FILE)
    try:
        return db.execute("SELECT id, payload FROM messages ORDER BY id").fetchall()
    finally:
        db.close()
        shutil.rmtree(copy)


def _expected(count: int) -> Rows:
    return [(number, history_payload(number, 16)) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 3])
def test_stored_messages_are_on_disk(count: int, tmp_path: Path) -> None:
    store, rows = MessageStore(tmp_path), _expected(count)
    store.add([number for number, _ in rows], [payload for _, payload in rows])
    assert _on_disk(tmp_path) == rows
    assert store.count == count
    store.close()


def test_jetstream_newcomer_stores_groups_and_ends_with_the_last(tmp_path: Path) -> None:
    group = STORED_AT_ONCE
    count = group + 3
    run = BenchRun(system=JETSTREAM_STORED, n=1, count=count, directory=tmp_path)
    keeper = brokers.JetStreamStoredNewcomer(run)
    keeper.store = MessageStore(tmp_path)
    kept: dict[int, int] = {}

    async def scene() -> None:
        done = asyncio.Event()
        handle = keeper.handler(done)
        for number, payload in _expected(count):
            assert not done.is_set()
            reply = f"$JS.ACK.BENCH.who.1.{number}.77.1700000000000000000.{count - number}"
            await handle(SimpleNamespace(reply=reply, data=payload))
            if number % group in (0, 1, 3, group - 1):
                kept[number] = keeper.store.count
        assert done.is_set()

    asyncio.run(scene())
    assert kept == {1: 0, 3: 0, group - 1: 0, group: group, group + 1: group, count: count}
    assert keeper.first_ns > 0
    assert _on_disk(tmp_path) == _expected(count)
    asyncio.run(keeper.leave())
    assert keeper.count == count
