"""Shims: they drop unsynced data, fail on request and move the clock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from skipring.lab.faults.shims import (
    clock_shim,
    disk_shim,
    fail_syncs,
    lose_power,
    record_syncs,
    set_clock,
)

needs_compiler = pytest.mark.skipif(
    not (shutil.which("cc") and shutil.which("stat")), reason="needs cc and stat"
)

# Writes two files durably, then changes both, and makes a third, without a sync.
WRITES = """
import os, sys
from pathlib import Path

directory = Path(sys.argv[1])
for name in ("kept", "renamed.new"):
    with (directory / name).open("wb") as file:
        file.write(b"durable " + bytes(8192))
        file.flush()
        os.fsync(file.fileno())
(directory / "renamed.new").rename(directory / "renamed")
descriptor = os.open(directory, os.O_RDONLY)
os.fsync(descriptor)
(directory / "renamed").rename(directory / "renamed.again")
(directory / "kept").write_bytes(b"later")
(directory / "unsynced").write_bytes(b"later")
"""
SYNCS = "import os, sys; os.fdatasync(os.open(sys.argv[1] + '/file', os.O_RDWR | os.O_CREAT))"
CLOCK = "import time; print(time.time_ns() // 10**9, int(time.time()))"


def run(program: str, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@needs_compiler
def test_power_loss_keeps_synced_contents_and_names_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    record_syncs(data)
    done = run(WRITES, disk_shim(tmp_path), str(data))
    assert done.returncode == 0, done.stderr
    lose_power(data)
    found = {path.name: path.read_bytes()[:8] for path in data.iterdir()}
    assert found == {"kept": b"durable ", "renamed": b"durable "}


@needs_compiler
def test_power_loss_may_keep_any_pages_that_were_not_synced(tmp_path: Path) -> None:
    environment = disk_shim(tmp_path)
    seen = set()
    for seed in range(20):
        data = tmp_path / f"data{seed}"
        data.mkdir()
        record_syncs(data)
        run(WRITES, environment, str(data))
        lose_power(data, Random(seed))
        seen.add((data / "kept").read_bytes()[:8])
    assert {b"durable ", b"later"} <= seen


@needs_compiler
def test_sync_fails_on_request_and_works_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    environment = disk_shim(tmp_path)
    fail_syncs(data, is_failing=True)
    assert "Input/output error" in run(SYNCS, environment, str(data)).stderr
    fail_syncs(data, is_failing=False)
    assert run(SYNCS, environment, str(data)).returncode == 0


def test_clock_of_a_process_jumps_by_the_seconds_of_its_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = [
        json.loads(word) for word in run(CLOCK, clock_shim(), "--data", str(data)).stdout.split()
    ]
    set_clock(data, -1e9)
    after = [
        json.loads(word) for word in run(CLOCK, clock_shim(), "--data", str(data)).stdout.split()
    ]
    assert all(abs(now - then + 1e9) < 100 for now, then in zip(after, before, strict=True))
