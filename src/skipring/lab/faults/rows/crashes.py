"""Rows of processes that are killed, stopped by a signal or lose their supervisor."""

from __future__ import annotations

import shutil
from random import Random
from time import monotonic
from typing import Final

from skipring.core.failure_detector import LONE_EVICTION_TICKS
from skipring.core.peers import SUPERVISOR
from skipring.lab.faults.history import HOLDER, fill_history, written_bytes
from skipring.lab.faults.row import FaultRow
from skipring.lab.faults.shims import beside
from skipring.lab.faults.trial import NAMES, FaultRing, FaultTrial

AWAY_S: Final = 20.0
HISTORY: Final = 20_000
SHORT_PAUSE_TICKS: Final = 5


def kill_some(trial: FaultTrial) -> None:
    """Kill one node and then two, with or without healing in between, while all publish."""
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


def kill_all(trial: FaultTrial) -> None:
    """Kill all processes at once while they publish; start them again."""
    with trial.ring() as ring:
        everyone = [SUPERVISOR, *NAMES]
        for number in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 5 + number % 20)
                ring.kill(*everyone)
            ring.restart(*everyone)
            ring.heal()


def kill_and_return(trial: FaultTrial) -> None:
    """Kill a node and start it again at once: it keeps its place."""
    with trial.ring() as ring:
        before = ring.world().supervisor.database
        with ring.load():
            for number in range(trial.repeats):
                name = NAMES[number % len(NAMES)]
                ring.kill(name)
                ring.restart(name)
        ring.heal()
        assert ring.world().supervisor.database == before, "a node has lost its place"
        assert not ring.evicted(), f"evicted: {ring.evicted()}"


def kill_in_backfill(trial: FaultTrial) -> None:
    """Kill a newcomer during its backfill."""
    rng = Random(5)
    for _ in range(trial.repeats):

        def before(ring: FaultRing) -> None:
            ring.ledger.acknowledge_all(fill_history(ring.data(HOLDER), HISTORY))

        with trial.ring(HOLDER, before=before) as ring:
            enough = rng.randrange(written_bytes(ring.data(HOLDER)) // 2)
            for name in ("b", "c"):
                ring.start(name)
                ring.until(lambda: written_bytes(ring.data(name)) > enough)  # noqa: B023
                ring.kill(name)
                ring.restart(name)


def pause_briefly(trial: FaultTrial) -> None:
    """Stop a node for some ticks: it is not evicted."""
    with trial.ring() as ring:
        for number in range(trial.repeats):
            name = NAMES[number % len(NAMES)]
            with ring.load() as load:
                ring.pause(name)
                ring.wait_ticks(SHORT_PAUSE_TICKS)
                ring.resume(name)
                ring.await_load(load, 5)
            ring.heal()
        assert not ring.evicted(), f"evicted: {ring.evicted()}"


def pause_until_evicted(trial: FaultTrial) -> None:
    """Stop a node until it is evicted; let it continue."""
    with trial.ring() as ring:
        for number in range(trial.repeats):
            name = NAMES[number % len(NAMES)]
            evictions = len(ring.evicted())
            with ring.load() as load:
                ring.pause(name)
                ring.until(lambda: len(ring.evicted()) > evictions)  # noqa: B023
                ring.await_load(load, 20)
                ring.resume(name)
            ring.heal()


def pause_supervisor(trial: FaultTrial) -> None:
    """Stop the supervisor for longer than an eviction takes: it evicts no member."""
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            ticks = ring.ticks("a")
            with ring.load():
                ring.pause(SUPERVISOR)
                ring.until(lambda: ring.ticks("a") > ticks + LONE_EVICTION_TICKS)  # noqa: B023
                ring.resume(SUPERVISOR)
                ring.wait_ticks(LONE_EVICTION_TICKS)
            ring.heal()
        assert not ring.evicted(), f"evicted: {ring.evicted()}"


def supervisor_away(trial: FaultTrial) -> None:
    """Kill the supervisor, and start it again after 20 s."""
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            with ring.load():
                ring.kill(SUPERVISOR)
                end = monotonic() + AWAY_S
                ring.until(lambda: monotonic() > end)  # noqa: B023
                ring.restart(SUPERVISOR)
            ring.heal()
        assert not ring.evicted(), f"evicted: {ring.evicted()}"


def supervisor_lost(trial: FaultTrial) -> None:
    """Kill the supervisor and delete its data directory."""
    with trial.ring() as ring:
        for _ in range(trial.repeats):
            with ring.load() as load:
                ring.kill(SUPERVISOR)
                ring.delete_data(SUPERVISOR)
                ring.await_load(load, 20)
                ring.restart(SUPERVISOR)
            ring.heal()


def supervisor_old(trial: FaultTrial) -> None:
    """Give the supervisor back a database in which two members are missing."""
    with trial.ring(*NAMES[:3]) as ring:
        data = ring.data(SUPERVISOR)
        ring.kill(SUPERVISOR)
        shutil.copytree(data, beside(data, ".old"))
        ring.restart(SUPERVISOR)
        ring.start(*NAMES[3:])
        ring.heal()
        for _ in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 20)
                ring.kill(SUPERVISOR)
                ring.delete_data(SUPERVISOR)
                shutil.copytree(beside(data, ".old"), data)
                ring.restart(SUPERVISOR)
                ring.await_load(load, 20)
            ring.heal()


ROWS: Final = (
    FaultRow(
        name="kill-some",
        fault="one node, then two more, are killed while all publish",
        method="SIGKILL, eviction, restart",
        run=kill_some,
        repeats=10,
    ),
    FaultRow(
        name="kill-all",
        fault="all processes are killed at once while they publish",
        method="SIGKILL of supervisor and nodes, restart",
        run=kill_all,
        repeats=100,
        short=2,
    ),
    FaultRow(
        name="kill-return",
        fault="a node is killed and is back at once",
        method="SIGKILL, restart; it keeps its place",
        run=kill_and_return,
        repeats=10,
    ),
    FaultRow(
        name="kill-backfill",
        fault="a newcomer is killed while a history of 20,000 publications comes",
        method="SIGKILL after a random number of stored bytes, restart",
        run=kill_in_backfill,
        repeats=3,
    ),
    FaultRow(
        name="pause-short",
        fault="a node is stopped for 5 ticks",
        method="SIGSTOP, SIGCONT; it is not evicted",
        run=pause_briefly,
        repeats=5,
    ),
    FaultRow(
        name="pause-long",
        fault="a node is stopped until it is evicted",
        method="SIGSTOP, SIGCONT",
        run=pause_until_evicted,
        repeats=3,
    ),
    FaultRow(
        name="pause-supervisor",
        fault="the supervisor is stopped for longer than an eviction takes",
        method="SIGSTOP, SIGCONT; no member is evicted",
        run=pause_supervisor,
        repeats=2,
    ),
    FaultRow(
        name="supervisor-away",
        fault="the supervisor is away for 20 s",
        method="SIGKILL, restart",
        run=supervisor_away,
        repeats=1,
    ),
    FaultRow(
        name="supervisor-lost",
        fault="the supervisor loses its database",
        method="SIGKILL, its directory is deleted, restart",
        run=supervisor_lost,
        repeats=3,
    ),
    FaultRow(
        name="supervisor-old",
        fault="the supervisor gets an old database",
        method="SIGKILL, its directory is replaced by an earlier copy, restart",
        run=supervisor_old,
        repeats=3,
    ),
)
