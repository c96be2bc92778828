"""Harness of processes: no process stays, however the harness ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.processes import SUPERVISOR, LiveProcesses
from tests.support.processes import is_running

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0

# Starts two processes, pauses one, prints the ids of the fork server and of both, and waits.
PROGRAM = """
import sys
from pathlib import Path
from faults.processes import LiveProcesses

with LiveProcesses(Path(sys.argv[1])) as processes:
    processes.start_supervisor()
    processes.start("a")
    processes.pause("a")
    pids = [process.pid for process in processes.running.values()]
    parent = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1]
    print(parent, *pids, flush=True)
    sys.stdin.read()
"""


def await_end(pids: list[int]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"{left} still run"
        time.sleep(0.01)


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("who_dies", ["the test", "the fork server"])
def test_no_process_stays_when_the_test_or_the_fork_server_is_killed(
    tmp_path: Path, who_dies: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as running:
        try:
            assert running.stdout is not None
            parent, *others = map(int, running.stdout.readline().split())
            assert all(map(is_running, (parent, *others)))
            os.kill(running.pid if who_dies == "the test" else parent, signal.SIGKILL)
            await_end([parent, *others])
        finally:
            running.kill()


def test_failure_shows_the_logs_of_the_processes(tmp_path: Path) -> None:
    def fail() -> None:
        with LiveProcesses(tmp_path) as processes:
            processes.start_supervisor()
            processes.until(lambda: bool(processes.events(SUPERVISOR, "supervisor_started")))
            raise AssertionError("on purpose")

    with pytest.raises(AssertionError) as failed:
        fail()
    (note,) = failed.value.__notes__
    assert "--- supervisor.err" in note
    assert "supervisor_started" in note


def test_process_leads_its_own_session_and_ends_like_the_command(tmp_path: Path) -> None:
    with LiveProcesses(tmp_path) as processes:
        processes.start_supervisor()
        pid = processes.running[SUPERVISOR].pid
        assert os.getsid(pid) == pid
        processes.send_signal(SUPERVISOR, signal.SIGTERM)
        assert processes.exit_status(SUPERVISOR) == 0
        processes.run("mistaken", SUPERVISOR, "--listen", "nonsense")
        assert processes.exit_status("mistaken") == 2
