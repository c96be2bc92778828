"""Script of the demo: the plan, the steps as a list of values, and the events of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.lab.demo.cluster import TOPIC, DemoCluster
from skipring.lab.demo.state import ClusterState, NodeState
from skipring.wire.rpc import Address

ORDERS: Final = 64  # published at once
KILLED_SHARE: Final = 5 / 16
DOWN_TICKS: Final = 12  # Guess: long enough to reveal a ring that depends on its supervisor.


class DemoPlan(Struct, frozen=True, kw_only=True):
    """Parameters of a run."""

    n: int = 16
    seed: int = 0
    tick_s: float = 0.25  # Guess: a short demo, and 17 processes fit two cores.
    deadline_s: float = 45.0  # per step
    report: Path | None = None  # the file of Spark's report; None: no Spark
    has_dashboard: bool = False  # the extra ``dashboard`` is installed

    @property
    def killed(self) -> int:
        """Return the number of nodes to kill: five of sixteen."""
        return max(1, round(self.n * KILLED_SHARE))


# --- events ----------------------------------------------------------------------------


class Opening(Struct, frozen=True):
    """Start of the demo, and the address of its dashboard."""

    plan: DemoPlan
    url: str | None  # None without the extra ``dashboard``


class ProcessTable(Struct, frozen=True):
    """Running processes: name, process id, address."""

    directory: str
    rows: tuple[tuple[str, int, Address], ...]


class DemoFrame(Struct, frozen=True, kw_only=True):
    """Topic at a moment of a step."""

    step: Step
    seconds: float  # since the step began
    rounds: int
    state: ClusterState
    history: tuple[int, ...]  # number of faults at each check, this one included

    @property
    def is_first(self) -> bool:
        """Return True for the first frame of a step, which shows the damage."""
        return len(self.history) == 1


class StepResult(Struct, frozen=True, kw_only=True):
    """Result of a step."""

    step: Step
    seconds: float
    rounds: int  # ticks of a node
    members: int
    published: int
    lost: int
    faults: tuple[str, ...]  # sentences; empty if the ring is healthy

    @property
    def is_good(self) -> bool:
        """Return True if the step ended with a healthy ring."""
        return not self.faults


class Scoreboard(Struct, frozen=True):
    """Results of all steps, and the state of all nodes."""

    results: tuple[StepResult, ...]
    nodes: tuple[NodeState, ...]
    pids: Mapping[NodeId, int]

    @property
    def roots(self) -> set[str]:
        """Return the different root hashes; a single one if all nodes are in sync."""
        return {node.root for node in self.nodes}

    @property
    def fault(self) -> str | None:
        """Return a sentence if the nodes are not in sync; None if they are."""
        if len(self.roots) != 1:
            return f"the nodes have {len(self.roots)} different root hashes"
        return None


class SparkResult(Struct, frozen=True, kw_only=True):
    """Result of the Spark pipeline, or the reason why it did not run."""

    report: Path | None = None
    seconds: float = 0.0
    rows: Mapping[str, int] = {}  # rows of each table
    published: int = 0
    skipped: str | None = None  # reason not to run it
    failed: str | None = None  # error of the run

    @property
    def fault(self) -> str | None:
        """Return a sentence if the pipeline failed; None if it succeeded or was skipped."""
        if self.skipped is not None or self.failed is not None:
            return self.failed
        if self.report is None:
            return "Spark has written no report"
        found = self.rows.get("silver", 0)
        if found != self.published:
            return f"Spark has found {found} of {self.published} publications"
        return None


class End(Struct, frozen=True):
    """End of the demo: the faults, and commands to try next."""

    faults: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Return True if every step succeeded."""
        return not self.faults


# --- steps -----------------------------------------------------------------------------

# Changes the cluster; returns a sentence for the viewer, a table of processes, or nothing.
Action = Callable[[DemoCluster, DemoPlan], Awaitable[str | ProcessTable | None]]
Condition = Callable[[ClusterState], bool]


class Phase(Struct, frozen=True, kw_only=True):
    """Action on the cluster, and a condition that must hold before the next phase."""

    action: Action
    until: Condition | None = None  # after the last phase, the ring must be healthy
    ticks: int = 0  # minimum time before the condition is checked
    done: str = ""  # sentence for the viewer, once the condition holds


class Step(Struct, frozen=True, kw_only=True):
    """Step of the script: sentences for the viewer, and phases that the runner executes."""

    number: int
    title: str
    action: str
    observe: str
    phases: tuple[Phase, ...] = ()
    is_damage: bool = True
    is_publishing: bool = False  # orders are published during all phases

    def filled(self, plan: DemoPlan) -> Step:
        """Return the step with the numbers of a plan in its sentences."""
        texts = {name: getattr(self, name) for name in ("title", "action", "observe")}
        numbers = {"n": plan.n, "killed": plan.killed}
        return replace(self, **{name: text.format(**numbers) for name, text in texts.items()})


Event: TypeAlias = (
    Opening | Step | ProcessTable | str | DemoFrame | StepResult | Scoreboard | SparkResult | End
)


async def _start_nodes(cluster: DemoCluster, _: DemoPlan) -> ProcessTable:
    await cluster.start_nodes()
    addresses = {SUPERVISOR: cluster.supervisor, **cluster.addresses()}
    rows = ((name, pid, addresses[name]) for name, pid in cluster.pids().items())
    return ProcessTable(str(cluster.directory), tuple(rows))


async def _publish(cluster: DemoCluster, _: DemoPlan) -> None:
    await cluster.orders.publish(ORDERS)


async def _kill_nodes(cluster: DemoCluster, plan: DemoPlan) -> str:
    victims = sorted(cluster.rng.sample(cluster.names[1:], plan.killed))
    pids = cluster.pids()
    await cluster.kill(victims)
    return f"killed: {', '.join(f'{name} (pid {pids[name]})' for name in victims)}"


async def _kill_supervisor(cluster: DemoCluster, _: DemoPlan) -> str:
    await cluster.kill([SUPERVISOR])
    cluster.delete_database()
    return "the supervisor is dead and its database deleted; publishing continues"


async def _restart_supervisor(cluster: DemoCluster, _: DemoPlan) -> str:
    await cluster.restart([SUPERVISOR])
    return "the supervisor is back, with an empty database"


async def _damage_disk(cluster: DemoCluster, _: DemoPlan) -> str:
    names = [name for name in sorted(cluster.addresses()) if name != cluster.witness]
    victim = cluster.rng.choice(names)
    await cluster.kill([victim])
    bits = cluster.flip_bits(victim)
    await cluster.restart([victim])
    return f"{victim} was killed, and is back with {bits} flipped bits on its disk"


async def _scramble(cluster: DemoCluster, _: DemoPlan) -> str:
    await cluster.scramble()
    return "the memory of every process is scrambled"


async def _restart_nodes(cluster: DemoCluster, _: DemoPlan) -> str:
    running = cluster.addresses()
    victims = [name for name in cluster.names if name not in running]
    await cluster.restart(victims)
    return f"rejoining: {', '.join(victims)}"


STEPS: Final = (
    Step(
        number=1,
        title="A ring of real processes",
        action="A supervisor and {n} nodes start: each is a process with its own port and disk. "
        "The supervisor assigns a label to every node, its place on the circle, and the nodes "
        "find their neighbours by label.",
        observe="Watch the ring close and the shortcuts appear, until every layer is healthy.",
        phases=(Phase(action=_start_nodes),),
        is_damage=False,
    ),
    Step(
        number=2,
        title="Every node gets every order",
        action=f"{ORDERS} orders of a shop are published through different nodes and spread from "
        "node to node. There is no broker; the supervisor forwards nothing.",
        observe="PUB counts the nodes that lack an order. The step ends when all {n} nodes are in "
        "sync: each has all orders on disk.",
        phases=(Phase(action=_publish),),
        is_damage=False,
    ),
    Step(
        number=3,
        title="kill -9 for {killed} of {n}",
        action="{killed} nodes are killed without notice: the ring is cut, labels are vacant.",
        observe="Neighbours report the silent nodes; the supervisor evicts them and assigns their "
        "labels to others. Every node has every order, so nothing is lost.",
        phases=(Phase(action=_kill_nodes),),
    ),
    Step(
        number=4,
        title="The supervisor dies and loses its database",
        action="The supervisor is killed and its database deleted, while orders are published all "
        "the time. Then it starts again and knows no member.",
        observe="Orders reach every node without a supervisor. After its restart, the supervisor "
        "learns the members from the ring.",
        phases=(
            Phase(
                action=_kill_supervisor,
                ticks=DOWN_TICKS,
                until=attrgetter("is_in_sync"),
                done="without it, all {members} nodes have received all {published} orders",
            ),
            Phase(
                action=_restart_supervisor,
                until=attrgetter("is_ring_healthy"),
                done="the supervisor knows all {members} nodes again",
            ),
        ),
        is_publishing=True,
    ),
    Step(
        number=5,
        title="Everything is scrambled",
        action="One node is killed, bits of its disk are flipped, and it starts again. Then all "
        "labels, neighbours, shortcuts and the supervisor's database are overwritten with "
        "arbitrary values, hashes are falsified, and all nodes but one lose half of their orders.",
        observe="No process is notified. Watch the layers heal one after the other, and the "
        "orders return.",
        phases=(Phase(action=_damage_disk), Phase(action=_scramble)),
    ),
    Step(
        number=6,
        title="The killed nodes rejoin",
        action="The {killed} killed nodes start again with their old disks, which lack the newest "
        "orders.",
        observe="They get new labels, and from their neighbours the orders that they missed.",
        phases=(Phase(action=_restart_nodes),),
    ),
)
SPARK_STEP: Final = Step(
    number=7,
    title="Analysis with Spark",
    action="A Spark pipeline reads the topic, and the path of each order to each node, into "
    "tables.",
    observe="Every order must be in the tables exactly once. The report is a page that stays.",
)


def next_commands(supervisor: Address | None) -> tuple[str, ...]:
    """Return commands to try next, with the ring of the demo if it stays, else with a new ring."""
    if supervisor is not None:
        option = f"--supervisor {supervisor}"
        return (
            f"skipring ring {TOPIC} {option} --watch",
            f"skipring pub {TOPIC} 'hello' {option}",
            f"skipring chaos adversary {TOPIC} A15 {option}",
            f"skipring doctor {TOPIC} {option}",
        )
    return (
        "skipring demo --stay    # the same, and the ring stays up for your own experiments",
        "skipring supervisor --listen 127.0.0.1:7400",
        "skipring node --supervisor 127.0.0.1:7400 --topic news --listen 127.0.0.1:0",
        "skipring pub news 'hello' --supervisor 127.0.0.1:7400",
        "skipring simulate --adversary A15 --n 64",
    )
