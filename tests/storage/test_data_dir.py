"""Data directory: the lock excludes other processes, and the name of a node is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skipring.errors import StoreBusyError
from skipring.storage.data_dir import Lock

HOLDER = """
import sys; from pathlib import Path
from skipring.storage.data_dir import Lock
lock = Lock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that holds the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def refusal(path: Path) -> str:
    with pytest.raises(StoreBusyError) as refused:
        Lock(path)
    return str(refused.value)


def test_lock_names_the_process_that_holds_it(path: Path) -> None:
    with holding(path) as other:
        text = refusal(path)
    assert text.startswith(f"{path.parent}: used by process {other.pid}")
    if Path("/proc/self/cmdline").exists():
        program = Path(sys.executable).name
        assert f"process {other.pid} ({program} -c" in text
    assert text.endswith("; stop it, or use another data directory")
    assert text.isprintable()


def test_lock_reports_that_this_process_holds_it(path: Path) -> None:
    lock = Lock(path)
    assert refusal(path) == (
        f"{path.parent}: already open in this process; close it first, or use another data "
        "directory"
    )
    lock.release()
    Lock(path).release()


def test_lock_of_a_killed_process_is_free(path: Path) -> None:
    with holding(path) as other:
        pass
    assert path.read_text() == f"{other.pid}\n"
    lock = Lock(path)
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()
    assert path.read_text() == ""


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-1", b"0", b"\xff" * 4096, b"9" * 4096, b"2147483646\n"]
)
def test_lock_decides_regardless_of_the_file_content(path: Path, content: bytes) -> None:
    Lock(path).release()
    with holding(path) as other:
        path.write_bytes(content)  # empty: the other process has not written its id yet
        assert refusal(path).startswith(f"{path.parent}: used by another process; stop it")
        assert other.poll() is None
    Lock(path).release()
