"""Rows of disks: damaged, lost, full, failing, and without power."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from skipring.core.peers import SUPERVISOR
from skipring.lab.demo.cluster import flip_bits
from skipring.lab.faults.requests import metric
from skipring.lab.faults.row import FaultRow, Need, program
from skipring.lab.faults.shims import disk_shim, fail_syncs, lose_power, record_syncs
from skipring.lab.faults.trial import NAMES, FaultRing, FaultTrial

FULL: Final = "full"  # the node on a small file system
FULL_BYTES: Final = 4 << 20
SOME: Final = 20  # publications

COMPILER: Final = program("cc", "stat")


def bit_flips(trial: FaultTrial) -> None:
    """Flip bits in all files of a node that was killed."""
    rng = Random(3)
    with trial.ring() as ring:
        for number in range(trial.repeats):
            name = NAMES[number % len(NAMES)]
            ring.publish_some(200)
            ring.heal()
            ring.kill(name)
            assert flip_bits(ring.data(name), rng) > 0
            ring.restart(name)
            ring.heal()


def disk_lost(trial: FaultTrial) -> None:
    """Delete the data directory of a node that was killed."""
    with trial.ring() as ring:
        for number in range(trial.repeats):
            name = NAMES[number % len(NAMES)]
            ring.publish_some(200)
            ring.heal()
            with ring.load() as load:
                ring.kill(name)
                ring.delete_data(name)
                ring.await_load(load, 20)
                ring.restart(name)
            ring.heal()


def fsync_error(trial: FaultTrial) -> None:
    """Let every fsync of a node fail, then cut its power: acknowledged publications are durable."""
    environment = disk_shim(trial.directory)
    with trial.ring(environment=environment, before=_record_all) as ring:
        for number in range(trial.repeats):
            name = NAMES[number % len(NAMES)]
            with ring.load() as load:
                ring.await_load(load, 20)
                fail_syncs(ring.data(name), is_failing=True)
                ring.until(lambda: _commit_failures(ring, name) > 0)  # noqa: B023
                ring.await_load(load, 20)
            assert ring.publish_some(5, name) == 0, "acknowledged although fsync failed"
            ring.kill(name)
            lose_power(ring.data(name))
            fail_syncs(ring.data(name), is_failing=False)
            ring.restart(name)
            ring.heal()


def _record_all(ring: FaultRing) -> None:
    for name in (SUPERVISOR, *NAMES):
        record_syncs(ring.data(name))


def _commit_failures(ring: FaultRing, name: str) -> float:
    address = ring.events(name, "metrics_started")[-1]["address"]
    return metric(address, "skipring_commit_failures_total")


def power_loss(trial: FaultTrial) -> None:
    """Cut the power of all machines at once: all or some writes after the last fsync are lost."""
    rng = Random(11)
    environment = disk_shim(trial.directory)
    everyone = (SUPERVISOR, *NAMES)
    with trial.ring(environment=environment, before=_record_all) as ring:
        for number in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 5 + rng.randrange(40))
                ring.kill(*everyone)
            for name in everyone:
                lose_power(ring.data(name), rng if number % 2 else None)
            ring.restart(*everyone)
            ring.heal()


# -- a full disk -------------------------------------------------------------------------------


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[None]:
    """Mount a small file system."""
    option = f"size={size_bytes}"
    command = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)  # noqa: S603
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)  # noqa: S603, S607


def can_mount() -> bool:
    """Return True if this process may mount file systems."""
    if not shutil.which("mount"):
        return False
    with (
        TemporaryDirectory() as directory,
        suppress(PermissionError),
        small_disk(Path(directory), FULL_BYTES),
    ):
        return True
    return False


MOUNT: Final = Need("root or a user namespace (unshare -rm) to mount a tmpfs", can_mount)


def full_disk(trial: FaultTrial) -> None:
    """Fill the disk of a node, publish, kill it, start it on the full disk, and make room."""
    disk = trial.directory / "disk"
    disk.mkdir()
    data = disk / "data"
    with small_disk(disk, FULL_BYTES), trial.ring(*NAMES[:3]) as ring:
        ring.start(FULL, options=("--data", str(data)))
        ring.heal()
        for number in range(trial.repeats):
            assert ring.publish_some(SOME, FULL) == SOME
            _fill(disk / "filler")
            acknowledged = ring.publish_some(SOME, FULL)
            assert acknowledged < SOME, "acknowledged although the disk was full"
            ring.kill(FULL)
            if number % 2:  # it cannot write, and may end or wait; it must not lose publications
                ring.fork_again(FULL)
                with suppress(Exception):
                    ring.until_listening(FULL)
                if ring.status(FULL) is None:
                    ring.kill(FULL)
            (disk / "filler").unlink()
            ring.restart(FULL)
            ring.heal()


def _fill(path: Path) -> None:
    """Write until nothing more fits."""
    for size in (1 << 16, 1 << 12, 1):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * size)


ROWS: Final = (
    FaultRow(
        name="bit-flips",
        fault="bits of all files of a node are flipped",
        method="SIGKILL, every 512th byte is changed, restart",
        run=bit_flips,
        repeats=10,
    ),
    FaultRow(
        name="disk-lost",
        fault="a node loses its data directory",
        method="SIGKILL, the directory is deleted, restart",
        run=disk_lost,
        repeats=5,
    ),
    FaultRow(
        name="fsync-error",
        fault="fsync fails, and what was not synced is gone",
        method="EIO from a preloaded fsync, SIGKILL, unsynced writes are dropped, restart",
        run=fsync_error,
        repeats=10,
        short=1,
        needs=(COMPILER,),
    ),
    FaultRow(
        name="full-disk",
        fault="the disk of a node is full, and it is killed",
        method="a tmpfs of 4 MiB is filled, SIGKILL, start on the full disk, room, restart",
        run=full_disk,
        repeats=6,
        needs=(MOUNT,),
    ),
    FaultRow(
        name="power-loss",
        fault="all machines lose power",
        method="SIGKILL of all; writes after the last fsync are dropped, or any pages of them",
        run=power_loss,
        repeats=30,
        short=2,
        needs=(COMPILER,),
    ),
)
