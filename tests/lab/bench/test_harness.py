"""Processes, servers, the board and single runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from skipring.errors import SkipringError
from skipring.lab.bench import harness
from skipring.lab.bench.harness import RunResult, delivery_figures, run_of, run_once
from skipring.lab.bench.run import BenchRun, Board, Moment, Slot
from skipring.lab.bench.servers import COMPETITOR, BenchProcesses
from skipring.lab.bench.systems.catalog import OURS
from skipring.lab.bench.worker import MEASURED, PROBE, Tally, make_payload
from skipring.lab.usage import cpu_ns, resident_bytes_of


def test_worker_that_ends_early_is_reported_with_its_last_line(tmp_path: Path) -> None:
    run = BenchRun(system="nothing", driver="nothing.Ring", n=1, directory=tmp_path)
    with BenchProcesses(tmp_path) as processes:
        processes.start_workers(run, ["publisher"])
        with pytest.raises(SkipringError, match="the publisher ended early: ModuleNotFound"):
            processes.wait(lambda: False)


@pytest.mark.heavy
def test_profiles_of_both_processes_are_written(tmp_path: Path) -> None:
    run_once(run_of(BenchRun(n=2, count=10, profiles=tmp_path), OURS))
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["skipring-n2-publisher.prof", "skipring-n2-subscribers.prof"]


def _result(**figures: float) -> RunResult:
    cpu, settled = {"publisher": 1.0, "subscribers": 2.0}, {"publisher": 1.5, "subscribers": 3.5}
    written = {"written_bytes_publisher": 5000.0, "written_bytes_subscribers": 20_000.0}
    return RunResult(
        wall_s=2.0, cpu_s=cpu, cpu_settled_s=settled, settled_s=3.0, figures=written | figures
    )


def test_figures_are_costs_per_delivery() -> None:
    run = BenchRun(system="nats", n=4, count=50)
    found = delivery_figures(run, _result(delivered=200.0, p50_ms=1.5))
    assert found == {
        "cpu_us_per_delivery": pytest.approx(15_000),
        "cpu_us_per_delivery_settled": pytest.approx(25_000),
        "cpu_us_publisher": pytest.approx(5_000),
        "cpu_us_publisher_settled": pytest.approx(7_500),
        "cpu_us_subscribers": pytest.approx(10_000),
        "cpu_us_subscribers_settled": pytest.approx(17_500),
        "wall_s": 2.0,
        "settled_s": 3.0,
        "deliveries_per_s": 100.0,
        "written_bytes_per_publication": 100.0,
        "written_bytes_per_delivery": 100.0,
        "delivered": 200,
        "p50_ms": 1.5,
    }


def test_incomplete_run_fails() -> None:
    run = BenchRun(system="nats", n=3, apart=1, count=50)
    with pytest.raises(SkipringError, match="199 of 200 publications arrived"):
        delivery_figures(run, _result(**{"delivered": 150.0, "apart-0_delivered": 49.0}))


def test_run_at_a_rate_takes_seconds() -> None:
    assert run_of(BenchRun(n=4, rate=100.0), OURS).count == 100 * harness.LATENCY_S
    assert run_of(BenchRun(n=4, rate=100.0, count=7), OURS).count == 7


def test_only_a_ring_has_members_with_their_own_processes() -> None:
    job = BenchRun(n=3, apart=2)
    runs = {system: run_of(job, system) for system in (OURS, "nats")}
    assert {system: (run.n, run.apart) for system, run in runs.items()} == {
        OURS: (3, 2),
        "nats": (5, 0),
    }


def test_competitors_use_each_core_until_they_are_killed(tmp_path: Path) -> None:
    with BenchProcesses(tmp_path) as processes:
        processes.start_competitors()
        pids = [process.pid for process in processes.running.values()]
        assert len(pids) == len(os.sched_getaffinity(0))
        assert all(name.startswith(COMPETITOR) for name in processes.running)
        processes.wait(lambda: all(cpu_ns(pid) > 10**8 for pid in pids))
        processes.kill_competitors()
        assert processes.running == {}
        assert [cpu_ns(pid) for pid in pids] == [0] * len(pids)


def _children(pid: int) -> set[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return set(map(int, listed.read_text(encoding="ascii").split())) if listed.exists() else set()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("number", "job"),
    [
        (signal.SIGINT, "fanout --n 2 --against skipring"),
        (signal.SIGTERM, "history --against skipring"),
    ],
)
def test_signal_ends_all_processes_and_leaves_no_files(
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


def test_failed_broker_is_reported_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho no room >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with (
        pytest.raises(SkipringError, match="redis-server does not start: no room"),
        BenchProcesses(tmp_path) as processes,
    ):
        processes.start_broker("redis")


def test_failed_supervisor_is_reported_with_its_last_line(tmp_path: Path) -> None:
    with (
        pytest.raises(SkipringError, match=r"supervisor ended .*: .*--tick"),
        BenchProcesses(tmp_path) as processes,
    ):
        processes.start_supervisor(None, "--tick", "no number")


def test_board_is_shared_between_processes(tmp_path: Path) -> None:
    board, other = Board(tmp_path), Board(tmp_path)
    board[Slot.PUBLISHED] = 7
    board.set_pids([os.getpid()])
    assert other[Slot.PUBLISHED] == 7
    assert other.pids == [os.getpid()]
    assert not other.is_past(Moment.BEGAN)
    other.record(Moment.BEGAN)
    assert board.is_past(Moment.BEGAN)
    board.record(Moment.ENDED)
    wall_s, cpu_s = other.seconds(Moment.ENDED)
    assert wall_s > 0
    assert 0 <= cpu_s <= cpu_ns(os.getpid()) / 1e9


def test_ended_process_has_no_cpu_time_and_no_memory() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert cpu_ns(ended.pid) == 0
    assert resident_bytes_of(ended.pid) == 0
    assert resident_bytes_of(os.getpid()) > 10**6


def test_probes_are_not_counted_and_the_last_delivery_ends_the_run(tmp_path: Path) -> None:
    board = Board(tmp_path)
    tally = Tally(BenchRun(system=OURS, n=2, count=1), board)
    first, second = tally.receivers()
    first(make_payload(PROBE, 2, 16))
    first(make_payload(PROBE, 1, 16))  # may come in any order
    assert not tally.publish_probes()
    assert board[Slot.PROBED] == 0
    second(make_payload(PROBE, 1, 16))
    tally.publish_probes()
    assert board[Slot.PROBED] == 1
    first(make_payload(MEASURED, 0, 16))
    assert not board.is_past(Moment.ENDED)
    second(make_payload(MEASURED, 0, 16))
    assert board.is_past(Moment.ENDED)
    assert tally.count == 2
