"""Shims in processes: a disk that fails, a clock that jumps, and power loss."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Final

PAGE_BYTES: Final = 4096  # a page write may or may not reach the disk
NAMES: Final = ".names"  # suffix of the file with the durable names in a directory
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
    """Make fsync and fdatasync fail below a data directory, or restore them."""
    _mark(beside(data, ".eio"), is_set=is_failing)


def tear_writes(data: Path, *, is_torn: bool) -> None:
    """Make writes below a data directory end after half of their bytes with an error, or not."""
    _mark(beside(data, ".torn"), is_set=is_torn)


def hold_syncs(data: Path, *, is_held: bool) -> None:
    """Make fsync and fdatasync below a data directory wait, or let them continue.

    In the main thread of a process they are slow instead: a held event loop would send nothing.
    """
    _mark(beside(data, ".hold"), is_set=is_held)


def _mark(marker: Path, *, is_set: bool) -> None:
    if is_set:
        marker.mkdir()
    else:
        marker.rmdir()


def record_syncs(data: Path) -> None:
    """Start to copy each durable state of a data directory beside it."""
    synced = beside(data, ".synced")
    shutil.rmtree(synced, ignore_errors=True)
    synced.mkdir()
    if data.exists():
        _record(data, synced, _key(data))


def _record(directory: Path, synced: Path, key: str) -> None:
    """Copy the names in a directory and the contents of its files, recursively."""
    lines = []
    for path in directory.iterdir():
        each = _key(path)
        if path.is_dir():
            lines.append(f"d {each} {path.name}\n")
            _record(path, synced, each)
        else:
            lines.append(f"f {each} {path.name}\n")
            shutil.copyfile(path, synced / each)
    (synced / f"{key}{NAMES}").write_text("".join(lines), encoding="utf-8")


def lose_power(data: Path, rng: Random | None = None) -> None:
    """Restore the durable state of the directory of a killed process.

    With ``rng``, random pages written after the last fsync have reached the disk, too.
    """
    left = beside(data, ".left")
    _restore(data, left, beside(data, ".synced"), _key(data), rng)
    shutil.rmtree(data)
    left.rename(data)
    record_syncs(data)


def _restore(latest: Path, left: Path, synced: Path, key: str, rng: Random | None) -> None:
    """Write the durable state of the directory with this key to ``left``."""
    left.mkdir(mode=0o700)
    names = synced / f"{key}{NAMES}"
    for line in names.read_text(encoding="utf-8").splitlines() if names.exists() else ():
        kind, each, name = line.split(" ", 2)
        if kind == "d":
            _restore(latest / name, left / name, synced, each, rng)
            continue
        durable = (synced / each).read_bytes() if (synced / each).exists() else b""
        file = latest / name
        if rng is not None and file.exists() and _key(file) == each:
            durable = _mixed(durable, file.read_bytes(), rng)
        (left / name).write_bytes(durable)
        (left / name).chmod(0o600)


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
