"""The systems that we are compared with: each is really run where it is installed."""

import asyncio
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep

import pytest

from skipring.errors import SkipringError
from skipring.lab.bench import fanout, history
from skipring.lab.bench.board import Board, Moment, Slot, cpu_ns
from skipring.lab.bench.contest import hold
from skipring.lab.bench.memory import resident_bytes_of
from skipring.lab.bench.peers import catalogue, relay
from skipring.lab.bench.peers.catalogue import OURS, STORED, SYSTEMS, System, missing
from skipring.lab.bench.peers.run import BenchRun
from skipring.lab.bench.servers import broker, process, skipring_process
from skipring.lab.bench.tally import MEASURED, PROBE, Tally, payload_of

PEERS = [name for name in SYSTEMS if not name.startswith(OURS)]
STORED_PEERS = [name for name in STORED if not name.startswith(OURS)]


def _require(system: System) -> None:
    command = missing(system)
    if command is not None:
        pytest.skip(f"not installed: {command}")


@pytest.mark.heavy
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_delivers_everything(name: str) -> None:
    _require(SYSTEMS[name])
    outcome = hold(BenchRun(system=name, n=3, count=20))
    assert outcome.figures["delivered"] == 60
    has_broker = SYSTEMS[name].server is not None
    assert ("broker" in outcome.cpu_s) is has_broker
    assert outcome.cpu_s["publisher"] > 0 < outcome.cpu_s["subscribers"]


@pytest.mark.parametrize("step", [1, 7, 16, 40, 64])
def test_a_relay_hands_over_whole_payloads_wherever_they_are_cut(step: int) -> None:
    payloads = [payload_of(MEASURED, number, 16) for number in range(4)]
    data, got = b"".join(payloads), list[bytes]()

    async def scene() -> None:
        member = relay.RelayMember(16)
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
def test_a_peer_gives_its_history_to_a_newcomer(name: str) -> None:
    _require(STORED[name])
    row, _ = history.measure([20], repeats=1, systems=[name])
    assert row["delivered"] == row["expected"] == 20
    assert row["cpu_s_newcomer"] > 0
    assert 0 < row["first_s"] <= row["wall_s"]


@pytest.mark.parametrize(
    "system", [*SYSTEMS.values(), *STORED.values()], ids=lambda each: each.module
)
def test_the_module_of_a_system_can_be_imported_whether_it_is_installed_or_not(
    system: System,
) -> None:
    import_module(f"skipring.lab.bench.peers.{system.module}")


def test_a_program_that_is_not_installed_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(catalogue, "find_spec", lambda _: object())
    commands = {name: missing(system) for name, system in SYSTEMS.items()}
    assert {name: command for name, command in commands.items() if command} == {
        "nats": "apt-get install nats-server",
        "redis": "apt-get install redis-server",
        "mosquitto": "apt-get install mosquitto",
    }


def test_a_package_that_is_not_installed_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda _: None)
    jobs = [fanout.THROUGHPUT]
    systems = ["zenoh", "gossipsub"]
    zenoh, gossipsub, last = fanout.measure([4], systems=systems, jobs=jobs)
    assert zenoh["skipped"] == "not installed: pip install 'skipring[bench]'"
    assert gossipsub["skipped"] == "not installed: pip install libp2p"
    assert last == {"ratios": {}}


def test_a_system_that_is_too_slow_for_so_many_is_asked_for_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda _: None)
    systems = ["zenoh", "gossipsub"]
    rows = list(fanout.measure([64, 256], systems=systems, jobs=[fanout.THROUGHPUT]))
    assert [(row["system"], row["n"]) for row in rows[:-1]] == [
        ("zenoh", 64),
        ("zenoh", 256),
        ("gossipsub", 16),
    ]


# -- processes -------------------------------------------------------------------------------


def test_a_process_is_stopped_when_its_block_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(KeyboardInterrupt), process(command, tmp_path / "log") as running:
        raise KeyboardInterrupt
    assert running.returncode is not None


def _children(pid: int) -> set[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return set(map(int, listed.read_text(encoding="ascii").split())) if listed.exists() else set()


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("job", ["fanout --n 2 --against skipring", "history --against skipring"])
def test_who_ends_a_benchmark_ends_its_processes_and_leaves_no_files(
    number: int, job: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "skipring", "bench", *job.split()]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as running:
        deadline = monotonic() + 30
        while not (children := _children(running.pid)) and monotonic() < deadline:
            sleep(0.01)
        running.send_signal(number)
        running.wait(30)
    assert children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_does_not_start_says_what_it_said_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho no room >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with (
        pytest.raises(SkipringError, match="redis-server does not start: no room"),
        broker("redis", tmp_path),
    ):
        pytest.fail("it did start")


def test_a_process_of_ours_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(SkipringError, match=r"skipring supervisor does not start: .*--tick"),
        skipring_process("supervisor", "--tick", "no number", log=tmp_path / "log"),
    ):
        pytest.fail("it did start")


# -- what processes share --------------------------------------------------------------------


def test_what_one_process_writes_on_the_board_another_one_reads(tmp_path: Path) -> None:
    board, other = Board(tmp_path / "board"), Board(tmp_path / "board")
    board[Slot.PUBLISHED] = 7
    board.set_pids([os.getpid()])
    assert other[Slot.PUBLISHED] == 7
    assert other.pids == [os.getpid()]
    assert other.noted(Moment.BEGAN) is None
    other.note(Moment.BEGAN)
    noted = board.noted(Moment.BEGAN)
    assert noted is not None
    assert 0 < noted[1] <= cpu_ns(os.getpid())


def test_a_process_that_has_ended_has_no_time_and_no_memory() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert cpu_ns(ended.pid) == 0
    assert resident_bytes_of(ended.pid) == 0
    assert resident_bytes_of(os.getpid()) > 10**6


def test_probes_are_not_counted_and_the_last_delivery_ends_the_run(tmp_path: Path) -> None:
    board = Board(tmp_path / "board")
    tally = Tally(BenchRun(system=OURS, n=2, count=1), board)
    first, second = tally.receivers()
    first(payload_of(PROBE, 2, 16))
    first(payload_of(PROBE, 1, 16))  # may come in any order
    assert not tally.note_probes()
    assert board[Slot.PROBED] == 0
    second(payload_of(PROBE, 1, 16))
    tally.note_probes()
    assert board[Slot.PROBED] == 1
    first(payload_of(MEASURED, 0, 16))
    assert board.noted(Moment.ENDED) is None
    second(payload_of(MEASURED, 0, 16))
    assert board.noted(Moment.ENDED) is not None
    assert tally.count == 2
