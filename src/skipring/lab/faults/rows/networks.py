"""Rows of cut networks and of arbitrary memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.lab.faults.processes import DEADLINE_S
from skipring.lab.faults.proxies import Cut, IsCut, ProxiedNetwork
from skipring.lab.faults.requests import TOPIC
from skipring.lab.faults.row import FaultRow
from skipring.lab.faults.trial import NAMES, FaultRing, FaultTrial

CUT_TICKS: Final = 30  # longer than an eviction takes
NOTICED_TICKS: Final = 3  # after which the doctor must not report a healthy topic
ADVERSARIES: Final = ("A15", "A60", "A61", "A62", "A63", "A64", "A65", "A66")


def _behind_proxies(network: ProxiedNetwork, ring: FaultRing, *names: NodeId) -> None:
    """Start nodes that are reachable through proxies only, as is their supervisor."""
    supervisor = network.listen(SUPERVISOR)
    network.lead(SUPERVISOR, ring.running[SUPERVISOR].address)
    for name in names:
        options = ("--advertise", network.listen(name))
        ring.start(name, supervisor=supervisor, options=options)
        network.lead(name, ring.running[name].address)


def asymmetric_cut(trial: FaultTrial) -> None:
    """Hold all bytes to a node, or all from it, while all nodes publish."""
    with ProxiedNetwork() as network, trial.ring("first") as ring:
        _behind_proxies(network, ring, *NAMES)
        ring.heal()
        for number in range(trial.repeats):
            victim, is_deaf = NAMES[number % len(NAMES)], bool(number % 2)
            with ring.load():
                network.cut(_one_way(victim, is_deaf=is_deaf), Cut.BLACKHOLE)
                ring.wait_ticks(CUT_TICKS)
                network.heal()
            ring.heal()


def _one_way(victim: NodeId, *, is_deaf: bool) -> IsCut:
    """Return the senders from which no receiver gets anything."""
    known = {SUPERVISOR, *NAMES}

    def is_cut(sender: NodeId, receiver: NodeId) -> bool:
        cut, other = (receiver, sender) if is_deaf else (sender, receiver)
        return cut == victim and other in known

    return is_cut


def partition(trial: FaultTrial) -> None:
    """Partition the members: the doctor reports it, and all members end with everything."""
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
            with ring.load():
                ring.wait_ticks(CUT_TICKS)
                network.heal()
            ring.heal()
            assert not is_hidden, "the doctor reported a healthy topic during the partition"


def arbitrary_state(trial: FaultTrial) -> None:
    """Overwrite the variables of all members and of the supervisor; remove publications."""
    with trial.ring(options=("--chaos",)) as ring:
        for number in range(trial.repeats):
            ring.publish_some(100)
            ring.heal()
            name = ADVERSARIES[number % len(ADVERSARIES)]
            _chaos(ring, "tries", TOPIC, "--seed", str(number))
            _chaos(ring, "adversary", TOPIC, name, "--seed", str(number))
            ring.heal()


def _chaos(ring: FaultRing, *words: str) -> None:
    supervisor = ("--supervisor", ring.running[SUPERVISOR].address)
    command = [sys.executable, "-m", "skipring", "chaos", *words, *supervisor]
    done = subprocess.run(  # noqa: S603  (a fixed command)
        command, capture_output=True, timeout=DEADLINE_S, check=False, text=True
    )
    assert done.returncode == 0, done.stderr


ROWS: Final = (
    FaultRow(
        name="asymmetric-cut",
        fault="a node sends and receives nothing, or receives and sends nothing, for 30 ticks",
        method="proxies hold the bytes of one direction",
        run=asymmetric_cut,
        repeats=6,
    ),
    FaultRow(
        name="partition",
        fault="the members are parted for 30 ticks; all reach the supervisor (section 4)",
        method="proxies reset connections, or hold all bytes; the doctor reports it in 3 ticks",
        run=partition,
        repeats=4,
    ),
    FaultRow(
        name="arbitrary-state",
        fault="all variables are arbitrary, and members lose half of their publications",
        method="skipring chaos tries, and adversaries of the simulator",
        run=arbitrary_state,
        repeats=8,
    ),
)
