"""Rows of processes that end: stop, replacement, and exit after publishing."""

from __future__ import annotations

import urllib.error
import urllib.request
from time import monotonic
from typing import Final

from skipring.core.peers import SUPERVISOR
from skipring.lab.faults import programs
from skipring.lab.faults.history import HOLDER, fill_history
from skipring.lab.faults.processes import program_path
from skipring.lab.faults.row import FaultRow
from skipring.lab.faults.trial import NAMES, FaultRing, FaultTrial

END_S_MAX: Final = 1.0  # Requirement: members that stop together do not wait for each other.
STOPPED: Final = frozenset({0, 1})  # 1: publications were not handed over
HANDED_OVER: Final = frozenset({0})
DRAINED_S_MAX: Final = 40.0  # the default drain of 30 s and a margin
READY_S: Final = 60.0
PUBLISHER: Final = program_path(programs, "publisher")
SLOW_SOURCE: Final = program_path(programs, "slow_source")
SLOW: Final = "slow"
SLOW_HISTORY: Final = 8_000
SLOW_S_MAX: Final = 60.0  # 240 ticks; the slow source alone takes 4,000 s
ROLLED: Final = 20_000
ROLLED_BYTES: Final = 1024
EXITS: Final = 12
VOLATILE: Final = "volatile"


def stop_together(trial: FaultTrial) -> None:
    """Send SIGTERM to all processes at once, and start them again."""
    with trial.ring() as ring:
        everyone = (SUPERVISOR, *NAMES)
        for _ in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 20)
            _end(ring, *everyone)
            ring.restart(*everyone)
            ring.heal()


def stop_last(trial: FaultTrial) -> None:
    """Kill the supervisor and all nodes but one, and stop the last node."""
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
    """Send SIGTERM; fail if a process runs for longer, or exits with another status."""
    begun = monotonic()
    statuses = ring.end(*names)
    seconds = monotonic() - begun
    assert seconds < limit_s, f"the last process ended after {seconds:.1f} s"
    bad = {name: status for name, status in statuses.items() if status not in allowed}
    assert not bad, f"exit status: {bad}"


# -- replacement -------------------------------------------------------------------------------


def rolling(trial: FaultTrial) -> None:
    """Replace three members one after the other, each as soon as its successor is ready."""

    def before(ring: FaultRing) -> None:
        ring.ledger.acknowledge_all(fill_history(ring.data(HOLDER), ROLLED, ROLLED_BYTES))

    for _ in range(trial.repeats):
        with trial.ring("a", "b", "c", before=before) as ring:
            for old, new in (("a", "x"), ("b", "y"), ("c", "z")):
                ring.start(new)
                ring.until(lambda: _is_ready(ring, new), lambda: f"{new} is not ready")  # noqa: B023
                _end(ring, old, limit_s=DRAINED_S_MAX, allowed=HANDED_OVER)


def _is_ready(ring: FaultRing, name: str) -> bool:
    """Return True if ``/readyz`` is 200."""
    address = ring.events(name, "metrics_started")[-1]["address"]
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=READY_S) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004  (HTTP)
    except urllib.error.HTTPError:
        return False


def slow_source(trial: FaultTrial) -> None:
    """Let one of two neighbours send a publication every two ticks; a newcomer gets all."""
    for _ in range(trial.repeats):
        payloads: list[bytes] = []

        def before(ring: FaultRing) -> None:
            for name in (HOLDER, SLOW):
                payloads[:] = fill_history(ring.data(name), SLOW_HISTORY)  # noqa: B023
            ring.ledger.acknowledge_all(payloads)  # noqa: B023

        with trial.ring(HOLDER, before=before) as ring:
            ring.start_member(SLOW, SLOW_SOURCE)
            ring.heal()
            ring.start("newcomer")
            ring.until(
                lambda: len(ring.stored("newcomer")) == SLOW_HISTORY,
                lambda: f"the newcomer has {len(ring.stored('newcomer'))} of {SLOW_HISTORY}",
                SLOW_S_MAX,
            )


# -- publishing --------------------------------------------------------------------------------


def publish_and_exit(trial: FaultTrial) -> None:
    """Start programs that connect, publish and exit, with a disk and without."""
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            for place in ("-", str(ring.data(f"exit{number}"))):
                name = f"exit{number}{'m' if place == '-' else 'd'}"
                run_publisher(ring, name, place, EXITS)
                assert ring.exit_status(name) == 0, ring.last_log_line(name)
                record_publisher(ring, name)


def replicated(trial: FaultTrial) -> None:
    """Publish with two replicas, then kill the publisher and delete its disk."""
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name = f"replicated{number}"
            run_publisher(ring, name, str(ring.data(name)), 0, replicas=2)
            ring.until_printed(name, 40)
            ring.kill(name)
            ring.delete_data(name)
            record_publisher(ring, name)


def kill_publisher(trial: FaultTrial) -> None:
    """Kill a program with a disk while it publishes, and start it again."""
    with trial.ring(*NAMES[:3]) as ring:
        place = str(ring.data("writer"))
        for number in range(trial.repeats):
            name = f"writer{number}"
            run_publisher(ring, name, place, 0, called="writer")
            ring.until_printed(name, 50 + 7 * number % 60)
            ring.kill(name)
            record_publisher(ring, name)
        ring.start("writer", options=("--data", place))  # it may hold what no other member has


def publish_unnamed(trial: FaultTrial) -> None:
    """Run a named publisher without a disk several times: no number is issued twice."""
    with trial.ring(*NAMES[:3]) as ring:
        for number in range(trial.repeats):
            name, before = f"volatile{number}", len(ring.numbers("a", VOLATILE))
            run_publisher(ring, name, "-", 0, called=VOLATILE)
            ring.until(lambda: len(ring.numbers("a", VOLATILE)) > before)  # noqa: B023
            ring.kill(name)
            record_publisher(ring, name, is_acknowledged=False)  # its memory was the only copy
            ring.heal()
        numbers = ring.numbers("a", VOLATILE)
        assert len(numbers) == len(set(numbers)), "a sequence number was issued twice"


def run_publisher(
    ring: FaultRing,
    name: str,
    place: str,
    count: int,
    called: str | None = None,
    replicas: int = 0,
) -> None:
    """Start a program that joins and publishes."""
    url = f"skipring://{ring.running[SUPERVISOR].address}"
    words = ("--data", place, url, called or name, name, str(count), str(replicas))
    ring.run(name, PUBLISHER, *words)


def record_publisher(ring: FaultRing, name: str, *, is_acknowledged: bool = True) -> None:
    """Record the attempts and publications that a program has printed."""
    for line in ring.lines(name):
        verb, _, payload = line.partition(" ")
        if verb == "tries":
            ring.ledger.attempt(payload.encode())
        elif verb == "published" and is_acknowledged:
            ring.ledger.acknowledge(payload.encode())


ROWS: Final = (
    FaultRow(
        name="stop-together",
        fault="all processes are stopped at once",
        method="SIGTERM; the last has ended within 1 s; restart",
        run=stop_together,
        repeats=5,
    ),
    FaultRow(
        name="stop-last",
        fault="a node is stopped after all others were killed",
        method="SIGKILL of the others, SIGTERM; it ends within 1 s; restart",
        run=stop_last,
        repeats=3,
    ),
    FaultRow(
        name="rolling",
        fault="three members with 20,000 x 1 KB are replaced one after the other (D2)",
        method="new node, /readyz is 200, SIGTERM of the old one, which exits with 0",
        run=rolling,
        repeats=2,
    ),
    FaultRow(
        name="publish-exit",
        fault="a program publishes and exits before it has joined (D3)",
        method="12 publications in memory, 12 with a disk that is not started again",
        run=publish_and_exit,
        repeats=5,
    ),
    FaultRow(
        name="replicas",
        fault="a publisher with two replicas loses its disk (D3)",
        method="publish(replicas=2), SIGKILL, its directory is deleted",
        run=replicated,
        repeats=5,
    ),
    FaultRow(
        name="slow-source",
        fault="a neighbour hands its history over by one publication every two ticks (P6)",
        method="a newcomer with that and another neighbour has all 8,000 within 60 s",
        run=slow_source,
        repeats=1,
    ),
    FaultRow(
        name="kill-publisher",
        fault="a program with a disk is killed while it publishes",
        method="SIGKILL, restart under the same name",
        run=kill_publisher,
        repeats=30,
    ),
    FaultRow(
        name="publisher-again",
        fault="a named publisher without a disk runs again (D4)",
        method="SIGKILL, start; no sequence number occurs twice",
        run=publish_unnamed,
        repeats=5,
    ),
)
