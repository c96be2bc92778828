"""Rows of processes that end: stop, replacement, and exit after publishing."""

from __future__ import annotations

from time import monotonic
from typing import Final

from faults.matrix import fault_row
from faults.trial import HOLDER, NAMES, FaultRing, FaultTrial, history
from skipring.core.peers import SUPERVISOR

END_S_MAX: Final = 1.0  # Requirement: members that stop together do not wait for each other.
STOPPED: Final = frozenset({0, 1})  # 1: publications were not handed over
HANDED_OVER: Final = frozenset({0})
DRAINED_S_MAX: Final = 40.0  # the default drain of 30 s and a margin
SLOW: Final = "slow"
SLOW_HISTORY: Final = 8_000
SLOW_S_MAX: Final = 60.0  # 240 ticks; the slow source alone takes 4,000 s
ROLLED: Final = 20_000
ROLLED_BYTES: Final = 1024
ROLLED_RECORDS: Final = 20  # of each batch
EXITS: Final = 12
VOLATILE: Final = "volatile"


@fault_row(
    "stop-together",
    "all processes are stopped at once",
    "SIGTERM; the last has ended within 1 s; restart",
    repeats=5,
)
def _stop_together(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        everyone = (SUPERVISOR, *NAMES)
        for _ in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 20)
            _end(ring, *everyone)
            ring.restart(*everyone)
            ring.heal()


@fault_row(
    "stop-last",
    "a node is stopped after all others were killed",
    "SIGKILL of the others, SIGTERM; it ends within 1 s; restart",
    repeats=3,
)
def _stop_last(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        last, *others = NAMES
        for _ in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 20)
            ring.kill(SUPERVISOR, *others)
            _end(ring, last)
            ring.restart(SUPERVISOR, *NAMES)
            ring.heal()


def _end(
    ring: FaultRing,
    *names: str,
    limit_s: float = END_S_MAX,
    allowed: frozenset[int] = STOPPED,
) -> None:
    """Send SIGTERM; fail if a process runs longer than allowed or exits with another status."""
    begun = monotonic()
    statuses = ring.end(*names)
    seconds = monotonic() - begun
    assert seconds < limit_s, f"the last process ended after {seconds:.1f} s"
    bad = {name: status for name, status in statuses.items() if status not in allowed}
    assert not bad, f"exit status: {bad}"


# -- replacement -------------------------------------------------------------------------------


@fault_row(
    "rolling",
    "three members with 20,000 x 1 KB are replaced one after the other (D2)",
    "new node, /readyz is 200, SIGTERM of the old one, which exits with 0",
    repeats=2,
)
def _rolling(trial: FaultTrial) -> None:
    for _ in range(trial.repeats):
        before = history(ROLLED, ROLLED_BYTES, records=ROLLED_RECORDS)
        with trial.ring("a", "b", "c", before=before) as ring:
            for old, new in (("a", "x"), ("b", "y"), ("c", "z")):
                ring.start(new)
                ring.until(lambda: not ring.not_ready(new), lambda: f"{new} is not ready")  # noqa: B023
                _end(ring, old, limit_s=DRAINED_S_MAX, allowed=HANDED_OVER)


@fault_row(
    "slow-source",
    "a neighbour hands its history over by one publication every two ticks (P6)",
    "a newcomer with that and another neighbour has all 8,000 within 60 s",
)
def _slow_source(trial: FaultTrial) -> None:
    for _ in range(trial.repeats):
        before = history(SLOW_HISTORY, holders=(HOLDER, SLOW))
        with trial.ring(HOLDER, before=before) as ring:
            ring.start_member(SLOW, "slow_source")
            ring.heal()
            ring.start("newcomer")
            ring.until(
                lambda: len(ring.stored("newcomer")) == SLOW_HISTORY,
                lambda: f"the newcomer has {len(ring.stored('newcomer'))} of {SLOW_HISTORY}",
                SLOW_S_MAX,
            )


# -- publishing --------------------------------------------------------------------------------


@fault_row(
    "publish-exit",
    "a program publishes and exits before it has joined (D3)",
    "12 publications in memory, 12 with a disk that is not started again",
    repeats=5,
)
def _publish_and_exit(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            for place in ("-", str(ring.data(f"exit{number}"))):
                name = f"exit{number}{'m' if place == '-' else 'd'}"
                ring.run_publisher(name, place, EXITS)


@fault_row(
    "replicas",
    "a publisher with two replicas loses its disk (D3)",
    "publish(replicas=2), SIGKILL, its directory is deleted",
    repeats=5,
)
def _replicated(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name = f"replicated{number}"
            ring.start_publisher(name, str(ring.data(name)), 0, replicas=2)
            ring.until_printed(name, 40)
            ring.kill(name)
            ring.delete_data(name)
            ring.record_publisher(name)


@fault_row(
    "kill-publisher",
    "a program with a disk is killed while it publishes",
    "SIGKILL, restart under the same name",
    repeats=30,
)
def _kill_publisher(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        place = str(ring.data("writer"))
        for number in range(trial.repeats):
            name = f"writer{number}"
            ring.start_publisher(name, place, 0, called="writer")
            ring.until_printed(name, 50 + 7 * number % 60)
            ring.kill(name)
            ring.record_publisher(name)
        ring.start("writer", options=("--data", place))  # it may hold unreplicated publications


@fault_row(
    "publisher-again",
    "a named publisher without a disk runs again (D4)",
    "SIGKILL, start; no sequence number occurs twice",
    repeats=5,
)
def _publish_unnamed(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name, before = f"volatile{number}", len(ring.numbers("a", VOLATILE))
            ring.start_publisher(name, "-", 0, called=VOLATILE)
            ring.until(lambda: len(ring.numbers("a", VOLATILE)) > before)  # noqa: B023
            ring.kill(name)
            ring.record_publisher(name, is_acknowledged=False)  # its memory was the only copy
            ring.heal()
        numbers = ring.numbers("a", VOLATILE)
        assert len(numbers) == len(set(numbers)), "a sequence number was issued twice"
