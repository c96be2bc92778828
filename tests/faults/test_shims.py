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

from faults.shims import (
    clock_shim,
    disk_shim,
    fail_syncs,
    hold_syncs,
    lose_power,
    record_syncs,
    set_clock,
    tear_writes,
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
# Writes segments of two topics durably, then more bytes and a third segment without a sync.
SEGMENTS = """
import os, sys
from pathlib import Path

def sync(path):
    os.fsync(os.open(path, os.O_RDONLY))

topics = Path(sys.argv[1]) / "topics"
topics.mkdir()
sync(topics.parent)
for name in ("kept", "unlisted"):
    (topics / name).mkdir()
    file = os.open(topics / name / "0.log", os.O_RDWR | os.O_CREAT)
    os.pwritev(file, [b"durable ", bytes(5000)], 0)
    os.fdatasync(file)
    sync(topics / name)
    if name == "kept":
        sync(topics)
    os.pwritev(file, [b"more"], 5008)
    (topics / name / "1.log").write_bytes(b"later")
"""
SYNCS = "import os, sys; os.fdatasync(os.open(sys.argv[1] + '/file', os.O_RDWR | os.O_CREAT))"
SYNCS_IN_THREAD = """
import os, sys, threading
file = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
os.fdatasync(file)
print("synced in the main thread", flush=True)
threading.Thread(target=os.fdatasync, args=[file]).start()
"""
WRITES_IN_PARTS = """
import os, sys
file = os.open(sys.argv[1] + "/topics/file", os.O_RDWR | os.O_CREAT)
os.pwritev(file, [b"one ", b"two ", b"three "], 0)
os.pwrite(file, b"four", 14)
"""
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
def test_power_loss_keeps_synced_contents_and_names_of_nested_directories(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    record_syncs(data)
    environment = disk_shim(tmp_path)
    for expected in (b"durable ", b"durable "):  # the second time, it is recorded before the start
        done = run(SEGMENTS.replace(".mkdir()", ".mkdir(exist_ok=True)"), environment, str(data))
        assert done.returncode == 0, done.stderr
        lose_power(data)
        found = {str(path.relative_to(data)): path for path in data.rglob("*") if path.is_file()}
        assert list(found) == ["topics/kept/0.log"]
        assert found["topics/kept/0.log"].read_bytes() == expected + bytes(5000)


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


@needs_compiler
def test_torn_write_has_half_of_the_bytes_and_fails(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "topics").mkdir(parents=True)
    environment = disk_shim(tmp_path)
    tear_writes(data, is_torn=True)
    assert "Input/output error" in run(WRITES_IN_PARTS, environment, str(data)).stderr
    assert (data / "topics" / "file").read_bytes() == b"one two"
    tear_writes(data, is_torn=False)
    assert run(WRITES_IN_PARTS, environment, str(data)).returncode == 0
    assert (data / "topics" / "file").read_bytes() == b"one two three four"


@needs_compiler
def test_held_sync_in_a_thread_waits_until_it_is_released(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    hold_syncs(data, is_held=True)
    command = [sys.executable, "-c", SYNCS_IN_THREAD, str(data)]
    environment = {**os.environ, **disk_shim(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "synced in the main thread\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        hold_syncs(data, is_held=False)
        assert process.wait(60) == 0


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
