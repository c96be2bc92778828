"""Rows of time: clocks that jump, and a member that ticks slowly."""

from __future__ import annotations

from typing import Final

from skipring.core.peers import SUPERVISOR
from skipring.lab.faults.row import FaultRow
from skipring.lab.faults.rows.stops import record_publisher, run_publisher
from skipring.lab.faults.shims import clock_shim, set_clock
from skipring.lab.faults.trial import NAMES, TICK_S, FaultTrial

DAY_S: Final = 86_400.0
JUMPS_S: Final = (400 * DAY_S, -400 * DAY_S, 3600.0, -3600.0, 0.0)
BEFORE_1970_S: Final = -70 * 365 * DAY_S
SLOW: Final = "slow"
FACTOR: Final = 10


def clock_jumps(trial: FaultTrial) -> None:
    """Move the clock of one process, then of all; restart with the wrong clock."""
    with trial.ring(environment=clock_shim()) as ring:
        for number in range(trial.repeats):
            jump_s = JUMPS_S[number % len(JUMPS_S)]
            one = NAMES[number % len(NAMES)]
            for names in ([one], [SUPERVISOR, *NAMES]):
                with ring.load() as load:
                    ring.await_load(load, 10)
                    for name in names:
                        set_clock(ring.data(name), jump_s)
                    ring.await_load(load, 10)
                    ring.kill(one)
                    ring.restart(one)
                    ring.await_load(load, 10)
                program = f"jump{number}.{len(names)}"
                set_clock(ring.data("writer"), jump_s)
                run_publisher(ring, program, str(ring.data("writer")), 20, called="writer")
                assert ring.exit_status(program) == 0, ring.last_log_line(program)
                record_publisher(ring, program)
                ring.start("writer")  # with publications that no other member has yet
                ring.heal()
                ring.stop("writer")
                ring.heal()


def before_1970(trial: FaultTrial) -> None:
    """Publish with a clock before 1970: the error names the cause."""
    with trial.ring(*NAMES[:3], environment=clock_shim()) as ring:
        for number in range(trial.repeats):
            name = f"early{number}"
            set_clock(ring.data(name), BEFORE_1970_S)
            run_publisher(ring, name, str(ring.data(name)), 1)
            assert ring.exit_status(name) == 1
            error = " ".join(ring.lines(name))
            assert "before 1970" in error, f"the error is: {error}"
            record_publisher(ring, name)
            set_clock(ring.data("a"), BEFORE_1970_S)
            ring.publish_some(20)
            set_clock(ring.data("a"), 0)


def tenfold_tick(trial: FaultTrial) -> None:
    """Let one member tick ten times as slowly as the others."""
    with trial.ring() as ring:
        ring.start(SLOW, options=("--tick", f"{FACTOR * TICK_S}"))
        ring.heal()
        for _ in range(trial.repeats):
            with ring.load() as load:
                ring.await_load(load, 100)
                ring.kill(SLOW)
                ring.restart(SLOW)
                ring.await_load(load, 100)
            ring.heal()


ROWS: Final = (
    FaultRow(
        name="clock-jumps",
        fault="clocks jump by 400 days and by an hour, ahead and back",
        method="a shim before time.time_ns, in one process and in all; restart",
        run=clock_jumps,
        repeats=5,
        short=1,
    ),
    FaultRow(
        name="clock-1970",
        fault="a clock is set before 1970 (P11)",
        method="a shim before time.time_ns; the error names the cause",
        run=before_1970,
        repeats=2,
    ),
    FaultRow(
        name="tenfold-tick",
        fault="a member ticks ten times as slowly as the others",
        method="--tick 2.5 beside 0.25, SIGKILL, restart",
        run=tenfold_tick,
        repeats=5,
    ),
)
