"""Rows of the environment: clock jumps, slow ticks, network partitions and corrupted memory."""

from __future__ import annotations

from typing import Final

from faults.matrix import fault_row
from faults.processes import run_cli
from faults.proxies import Cut, IsCut, ProxiedNetwork
from faults.requests import TOPIC
from faults.shims import clock_shim, set_clock
from faults.trial import NAMES, TICK_S, FaultRing, FaultTrial
from skipring.core.peers import SUPERVISOR, NodeId

DAY_S: Final = 86_400.0
JUMPS_S: Final = (400 * DAY_S, -400 * DAY_S, 3600.0, -3600.0, 0.0)
BEFORE_1970_S: Final = -70 * 365 * DAY_S
SLOW: Final = "slow"
FACTOR: Final = 10
CUT_TICKS: Final = 30  # longer than an eviction takes
NOTICED_TICKS: Final = 3  # the doctor must report a fault by then
ADVERSARIES: Final = ("A15", "A60", "A61", "A62", "A63", "A64", "A65", "A66")


# -- clocks ------------------------------------------------------------------------------------


@fault_row(
    "clock-jumps",
    "clocks jump by 400 days and by an hour, ahead and back",
    "a shim before time.time_ns, in one process and in all; restart",
    repeats=5,
    short=1,
)
def _clock_jumps(trial: FaultTrial) -> None:
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
                ring.run_publisher(program, str(ring.data("writer")), 20, called="writer")
                ring.start("writer")  # with publications that no other member has yet
                ring.heal()
                ring.stop("writer")
                ring.heal()


@fault_row(
    "clock-1970",
    "a clock is set before 1970 (P11)",
    "a shim before time.time_ns; the error names the cause",
    repeats=2,
)
def _before_1970(trial: FaultTrial) -> None:
    with trial.ring(*NAMES[:3], environment=clock_shim()) as ring:
        for number in range(trial.repeats):
            name = f"early{number}"
            set_clock(ring.data(name), BEFORE_1970_S)
            ring.start_publisher(name, str(ring.data(name)), 1)
            assert ring.exit_status(name) == 1
            error = " ".join(ring.lines(name))
            assert "before 1970" in error, f"the error is: {error}"
            ring.record_publisher(name)
            set_clock(ring.data("a"), BEFORE_1970_S)
            ring.publish_some(20)
            set_clock(ring.data("a"), 0)


@fault_row(
    "tenfold-tick",
    "a member ticks ten times as slowly as the others",
    "--tick 2.5 beside 0.25, SIGKILL, restart",
    repeats=5,
)
def _tenfold_tick(trial: FaultTrial) -> None:
    with trial.ring() as ring:
        ring.start(SLOW, options=("--tick", f"{FACTOR * TICK_S}"))
        ring.heal()
        for _ in range(trial.repeats):
            with ring.disturbed() as load:
                ring.await_load(load, 100)
                ring.kill(SLOW)
                ring.restart(SLOW)
                ring.await_load(load, 100)


# -- networks and memory -----------------------------------------------------------------------


def _behind_proxies(network: ProxiedNetwork, ring: FaultRing, *names: NodeId) -> None:
    """Start a supervisor and nodes that are reachable through proxies only."""
    supervisor = network.listen(SUPERVISOR)
    network.forward_to(SUPERVISOR, ring.running[SUPERVISOR].address)
    for name in names:
        options = ("--advertise", network.listen(name))
        ring.start(name, supervisor=supervisor, options=options)
        network.forward_to(name, ring.running[name].address)


@fault_row(
    "asymmetric-cut",
    "a node sends and receives nothing, or receives and sends nothing, for 30 ticks",
    "proxies hold the bytes of one direction",
    repeats=6,
)
def _asymmetric_cut(trial: FaultTrial) -> None:
    with ProxiedNetwork() as network, trial.ring("first") as ring:
        _behind_proxies(network, ring, *NAMES)
        ring.heal()
        for number in range(trial.repeats):
            victim, is_deaf = NAMES[number % len(NAMES)], bool(number % 2)
            with ring.disturbed():
                network.cut(_one_way(victim, is_deaf=is_deaf), Cut.BLACKHOLE)
                ring.wait_ticks(CUT_TICKS)
                network.heal()


def _one_way(victim: NodeId, *, is_deaf: bool) -> IsCut:
    """Return a cut of all bytes to the victim if ``is_deaf``, else of all bytes from it."""
    known = {SUPERVISOR, *NAMES}

    def is_cut(sender: NodeId, receiver: NodeId) -> bool:
        cut, other = (receiver, sender) if is_deaf else (sender, receiver)
        return cut == victim and other in known

    return is_cut


@fault_row(
    "partition",
    "the members are parted for 30 ticks; all reach the supervisor (section 4)",
    "proxies reset connections, or hold all bytes; the doctor reports it in 3 ticks",
    repeats=4,
)
def _partition(trial: FaultTrial) -> None:
    sides = set(NAMES[:2]), set(NAMES[2:])

    def is_cut(sender: NodeId, receiver: NodeId) -> bool:
        return any(sender in one and receiver in other for one, other in (sides, sides[::-1]))

    with ProxiedNetwork() as network, trial.ring("first") as ring:
        _behind_proxies(network, ring, *NAMES)
        ring.stop("first")
        ring.heal()
        for number in range(trial.repeats):
            network.cut(is_cut, list(Cut)[number % len(Cut)])
            ring.wait_ticks(NOTICED_TICKS)
            is_hidden = ring.diagnosis().is_healthy
            with ring.disturbed():
                ring.wait_ticks(CUT_TICKS)
                network.heal()
            assert not is_hidden, "the doctor reported a healthy topic during the partition"


@fault_row(
    "arbitrary-state",
    "all variables are arbitrary, and members lose half of their publications",
    "skipring chaos tries, and adversaries of the simulator",
    repeats=8,
)
def _arbitrary_state(trial: FaultTrial) -> None:
    with trial.ring(options=("--chaos",)) as ring:
        for number in range(trial.repeats):
            ring.publish_some(100)
            ring.heal()
            name = ADVERSARIES[number % len(ADVERSARIES)]
            options = ("--seed", str(number), "--supervisor", ring.running[SUPERVISOR].address)
            run_cli("chaos", "tries", TOPIC, *options)
            run_cli("chaos", "adversary", TOPIC, name, *options)
            ring.heal()
