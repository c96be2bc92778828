"""Shims in processes: a disk that fails, a clock that jumps, and power loss."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Final

PAGE_BYTES: Final = 4096  # a page write may or may not reach the disk
_HERE: Final = Path(__file__).with_name("shim")


def disk_shim(directory: Path) -> dict[str, str]:
    """Compile the disk shim; return the environment of processes that use it."""
    library = directory / "disk.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_HERE / "disk.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return {"LD_PRELOAD": str(library)}


def clock_shim() -> dict[str, str]:
    """Return the environment of processes whose clock jumps."""
    return {"PYTHONPATH": str(_HERE)}


def set_clock(data: Path, offset_s: float) -> None:
    """Move the clock of the process with this data directory by some seconds."""
    fresh = beside(data, ".clock.new")
    fresh.write_text(f"{offset_s:.0f}", encoding="ascii")
    fresh.replace(beside(data, ".clock"))


def fail_syncs(data: Path, *, is_failing: bool) -> None:
    """Make fsync fail in a data directory, or restore it."""
    if is_failing:
        beside(data, ".eio").mkdir()
    else:
        beside(data, ".eio").rmdir()


def record_syncs(data: Path) -> None:
    """Start to copy each durable state of a data directory beside it."""
    synced = beside(data, ".synced")
    shutil.rmtree(synced, ignore_errors=True)
    synced.mkdir()
    lines = []
    for path in data.iterdir() if data.exists() else ():
        if path.is_file():
            key = _key(path)
            shutil.copyfile(path, synced / key)
            lines.append(f"{key} {path.name}\n")
    (synced / "names").write_text("".join(lines), encoding="utf-8")


def lose_power(data: Path, rng: Random | None = None) -> None:
    """Restore the durable state of the directory of a killed process.

    With ``rng``, random pages written after the last fsync have reached the disk, too.
    """
    synced, left = beside(data, ".synced"), beside(data, ".left")
    left.mkdir(mode=0o700)
    for line in (synced / "names").read_text(encoding="utf-8").splitlines():
        key, _, name = line.partition(" ")
        durable = (synced / key).read_bytes() if (synced / key).exists() else b""
        latest = data / name
        if rng is not None and latest.exists() and _key(latest) == key:
            durable = _mixed(durable, latest.read_bytes(), rng)
        (left / name).write_bytes(durable)
        (left / name).chmod(0o600)
    shutil.rmtree(data)
    left.rename(data)
    record_syncs(data)


def _mixed(durable: bytes, latest: bytes, rng: Random) -> bytes:
    """Return the durable pages of a file, some of them replaced by their latest content."""
    size = rng.choice((len(durable), len(latest)))
    made = bytearray(durable[:size].ljust(size, b"\0"))
    for start in range(0, min(size, len(latest)), PAGE_BYTES):
        if rng.random() < 1 / 2:
            page = latest[start : min(start + PAGE_BYTES, size)]
            made[start : start + len(page)] = page
    return bytes(made)


def _key(path: Path) -> str:
    """Return the name that the shim gives to a file's durable content: inode and birth time."""
    form = "%i-%W %w"
    command = ["stat", "--format", form, str(path)]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout  # noqa: S603
    number, _, birth = output.strip().partition(" ")
    fraction = birth.split()[1].partition(".")[2] if " " in birth else "0" * 9
    return f"{number}.{fraction}"


def beside(data: Path, suffix: str) -> Path:
    """Return a path beside a data directory."""
    return data.with_name(data.name + suffix)
