"""Rows of processes that are killed, stopped by a signal or lose their supervisor."""

from __future__ import annotations

import shutil
from random import Random
from time import monotonic
from typing import Final

from faults.load import written_bytes
from faults.matrix import fault_row, program
from faults.shims import beside, disk_shim, hold_syncs, lose_power, record_syncs
from faults.trial import HOLDER, NAMES, FaultRing, FaultTrial, history
from skipring.core.failure_detector import LONE_EVICTION_TICKS
from skipring.core.peers import SUPERVISOR

AWAY_S: Final = 20.0
HISTORY: Final = 20_000
SHORT_PAUSE_TICKS: Final = 5
WRITERS: Final = ("writer0", "writer1", "writer2", "writer3")
UNSYNCED_LINES: Final = 8  # that a publisher prints before its disk stalls


@fault_row(
    "kill-some",
    "one node, then two more, are killed while all publish",
    "SIGKILL, eviction, restart",
    repeats=10,
)
def _kill_some(trial: FaultTrial) -> None:
    rng = Random(17)
    with trial.ring() as ring:
        for number in range(trial.repeats):
            one, *others = rng.sample(NAMES, 3)
            with ring.load() as load:
                ring.await_load(load, 20)
                ring.kill(one)
                if number % 2:
                    ring.await_load(load, 20)
                ring.kill(*others)
                ring.await_load(load, 20)
            _await_evicted(ring, one, *others)
            ring.restart(one, *others)
            ring.heal()


def _await_evicted(ring: FaultRing, *names: str) -> None:
    """Wait until the ring is healthy without these nodes."""

    def is_closed() -> bool:
        return set(ring.diagnosis().silent).isdisjoint(names) and ring.diagnosis().is_healthy

    ring.until(is_closed, lambda: f"the ring still contains {names}")


@fault_row(
    "kill-all",
    "all processes are killed at once while they publish",
    "SIGKILL of supervisor and nodes, restart",
    repeats=100,
    short=2,
)
def _kill_all(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        everyone = [SUPERVISOR, *NAMES]
        for number in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 5 + number % 20)
                ring.kill(*everyone)
            ring.restart(*everyone)
            ring.heal()


@fault_row(
    "kill-return",
    "a node is killed and is back at once",
    "SIGKILL, restart; it keeps its place",
    repeats=10,
)
def _kill_and_return(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        before = ring.world().supervisor.database
        with ring.disturbed():
            for name in trial.victims():
                ring.kill(name)
                ring.restart(name)
        assert ring.world().supervisor.database == before, "a node has lost its place"
        ring.check_none_evicted()


@fault_row(
    "kill-backfill",
    "a newcomer is killed while a history of 20,000 publications arrives",
    "SIGKILL after a random number of stored bytes, restart",
    repeats=3,
)
def _kill_in_backfill(trial: FaultTrial) -> None:
    rng = Random(5)
    for _ in range(trial.repeats):
        with trial.ring(HOLDER, before=history(HISTORY)) as ring:
            enough = rng.randrange(written_bytes(ring.data(HOLDER)) // 2)
            for name in ("b", "c"):
                ring.start(name)
                ring.until(lambda: written_bytes(ring.data(name)) > enough)  # noqa: B023
                ring.kill(name)
                ring.restart(name)


@fault_row(
    "send-before-sync",
    "4 publishers are killed after they have sent batches and before these are on their disks",
    "a preloaded fdatasync waits, SIGKILL, unsynced writes are dropped or not, start again",
    repeats=50,
    short=1,
    needs=(program("cc", "stat"),),
)
def _killed_before_sync(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3], environment=disk_shim(trial.directory)) as ring:
        for writer in WRITERS:
            record_syncs(ring.data(writer))
        for number in range(trial.repeats):
            _kill_before_sync(ring, number)
        ring.start(*WRITERS)  # they may hold unreplicated publications
        ring.heal()
        for writer in WRITERS:
            numbers = ring.numbers("a", writer)
            assert len(numbers) == len(set(numbers)), "a sequence number was issued twice"


def _kill_before_sync(ring: FaultRing, number: int) -> None:
    """Kill all publishers while they wait for their disks, after a member has their batches."""
    programs = {f"{writer}.{number}": ring.data(writer) for writer in WRITERS}
    for writer, (name, data) in zip(WRITERS, programs.items(), strict=True):
        ring.start_publisher(name, str(data), 0, called=writer)
    for name, data in programs.items():
        ring.until_printed(name, UNSYNCED_LINES)
        hold_syncs(data, is_held=True)
    ring.until(lambda: _have_sent(ring, *programs), lambda: "a publisher has sent nothing")
    ring.kill(*programs)
    for place, (name, data) in enumerate(programs.items()):
        ring.record_publisher(name)
        hold_syncs(data, is_held=False)
        if (number + place) % 2 == 0:
            lose_power(data)


def _have_sent(ring: FaultRing, *names: str) -> bool:
    """Return True if a member holds a publication of each that its publisher has not synced."""
    held = set(ring.payloads("a"))
    return all(_unsynced(ring.lines(name)) & held for name in names)


def _unsynced(lines: list[str]) -> set[bytes]:
    tried, published = (
        {line.partition(" ")[2].encode() for line in lines if line.startswith(verb)}
        for verb in ("tries ", "published ")
    )
    return tried - published


@fault_row(
    "pause-short",
    "a node is stopped for 5 ticks",
    "SIGSTOP, SIGCONT; it is not evicted",
    repeats=5,
)
def _pause_briefly(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for name in trial.victims():
            with ring.disturbed() as load:
                ring.pause(name)
                ring.wait_ticks(SHORT_PAUSE_TICKS)
                ring.resume(name)
                ring.await_load(load, 5)
        ring.check_none_evicted()


@fault_row(
    "pause-long",
    "a node is stopped until it is evicted",
    "SIGSTOP, SIGCONT",
    repeats=3,
)
def _pause_until_evicted(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for name in trial.victims():
            evictions = len(ring.evicted())
            with ring.disturbed() as load:
                ring.pause(name)
                ring.until(lambda: len(ring.evicted()) > evictions)  # noqa: B023
                ring.await_load(load, 20)
                ring.resume(name)


@fault_row(
    "pause-supervisor",
    "the supervisor is stopped for longer than an eviction takes",
    "SIGSTOP, SIGCONT; no member is evicted",
    repeats=2,
)
def _pause_supervisor(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            ticks = ring.ticks("a")
            with ring.disturbed():
                ring.pause(SUPERVISOR)
                ring.until(lambda: ring.ticks("a") > ticks + LONE_EVICTION_TICKS)  # noqa: B023
                ring.resume(SUPERVISOR)
                ring.wait_ticks(LONE_EVICTION_TICKS)
        ring.check_none_evicted()


@fault_row(
    "supervisor-away",
    "the supervisor is away for 20 s",
    "SIGKILL, restart",
)
def _supervisor_away(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            with ring.disturbed():
                ring.kill(SUPERVISOR)
                end = monotonic() + AWAY_S
                ring.until(lambda: monotonic() > end)  # noqa: B023
                ring.restart(SUPERVISOR)
        ring.check_none_evicted()


@fault_row(
    "supervisor-lost",
    "the supervisor loses its database",
    "SIGKILL, its directory is deleted, restart",
    repeats=3,
)
def _supervisor_lost(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            with ring.disturbed() as load:
                ring.kill(SUPERVISOR)
                ring.delete_data(SUPERVISOR)
                ring.await_load(load, 20)
                ring.restart(SUPERVISOR)


@fault_row(
    "supervisor-old",
    "the supervisor gets an old database",
    "SIGKILL, its directory is replaced by an earlier copy, restart",
    repeats=3,
)
def _supervisor_old(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        data = ring.data(SUPERVISOR)
        ring.kill(SUPERVISOR)
        shutil.copytree(data, beside(data, ".old"))
        ring.restart(SUPERVISOR)
        ring.start(*NAMES[3:])
        ring.heal()
        for _ in range(trial.repeats):
            with ring.disturbed() as load:
                ring.await_load(load, 20)
                ring.kill(SUPERVISOR)
                ring.delete_data(SUPERVISOR)
                shutil.copytree(beside(data, ".old"), data)
                ring.restart(SUPERVISOR)
                ring.await_load(load, 20)
