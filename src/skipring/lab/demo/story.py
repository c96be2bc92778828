"""The story of the demo as values: what is told, seen and found, without doing or drawing it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.peers import NodeId
from skipring.lab.demo.sight import Sight, Standing
from skipring.wire.rpc import Address

TOPIC: Final = "orders"
ORDERS: Final = 64  # that are published at once
NODES: Final = 16
KILLED_SHARE: Final = 5 / 16


class DemoPlan(Struct, frozen=True, kw_only=True):
    """What decides a telling of the story."""

    n: int = NODES
    seed: int = 0
    tick_s: float = 0.25  # Our guess: short, so that nobody waits, and 17 processes fit two cores.
    deadline_s: float = 45.0  # of a chapter
    report: Path | None = None  # where Spark's report goes; None: no Spark

    @property
    def killed(self) -> int:
        """How many nodes are killed: five of sixteen."""
        return max(1, round(self.n * KILLED_SHARE))


# --- scenes ----------------------------------------------------------------------------


class Opening(Struct, frozen=True):
    """Where all of it can be seen in a browser, and what this is."""

    plan: DemoPlan
    url: str | None  # None without the extra ``dashboard``


class Chapter(Struct, frozen=True):
    """The heading of a part of the story: what is done, and what to look at."""

    number: int
    title: str
    deed: str
    look: str


class DemoRole(Struct, frozen=True):
    """One process: what it is, and where."""

    name: str
    pid: int
    address: Address
    data: str


class DemoCast(Struct, frozen=True):
    """What runs where."""

    directory: str
    roles: tuple[DemoRole, ...]


class Note(Struct, frozen=True):
    """Something that was done or has happened, in a sentence."""

    text: str


class DemoFrame(Struct, frozen=True, kw_only=True):
    """The topic at a moment of a chapter."""

    chapter: Chapter
    seconds: float  # since the damage
    rounds: int
    sight: Sight
    history: tuple[int, ...]  # how many things were wrong at each look up to this one

    @property
    def is_first(self) -> bool:
        """True if it shows the damage."""
        return len(self.history) == 1


class StepResult(Struct, frozen=True, kw_only=True):
    """How a chapter ended."""

    chapter: Chapter
    seconds: float
    rounds: int  # ticks of a node
    members: int
    published: int
    lost: int
    faults: tuple[str, ...]  # what is still wrong, in words

    @property
    def is_good(self) -> bool:
        """True if nothing is wrong."""
        return not self.faults


class Scoreboard(Struct, frozen=True):
    """All chapters and all nodes at a glance."""

    outcomes: tuple[StepResult, ...]
    standings: tuple[Standing, ...]
    pids: Mapping[NodeId, int]

    @property
    def roots(self) -> set[str]:
        """The root hashes; one, if all have the same."""
        return {standing.root for standing in self.standings}

    @property
    def fault(self) -> str | None:
        """What is wrong with it; None if nothing is."""
        if len(self.roots) != 1:
            return f"the nodes have {len(self.roots)} different root hashes"
        return None


class Analysis(Struct, frozen=True, kw_only=True):
    """What Spark has made of the topic, or why it has not."""

    report: Path | None = None
    seconds: float = 0.0
    rows: Mapping[str, int] = {}  # of each table
    published: int = 0
    skipped: str | None = None  # why nobody has tried
    failed: str | None = None  # why it did not work

    @property
    def fault(self) -> str | None:
        """What is wrong with it; None if nothing is, or nobody has tried."""
        if self.skipped is not None or self.failed is not None:
            return self.failed
        if self.report is None:
            return "Spark has written no report"
        taken = self.rows.get("silver", 0)
        if taken != self.published:
            return f"Spark has found {taken} of {self.published} publications"
        return None


class End(Struct, frozen=True):
    """The last word: what was wrong, if anything, and what to try next."""

    faults: tuple[str, ...]
    commands: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True if all held."""
        return not self.faults


Told: TypeAlias = Opening | Chapter | DemoCast | Note | StepResult | Scoreboard | Analysis | End
Scene: TypeAlias = Told | DemoFrame


# --- chapters --------------------------------------------------------------------------

FORMING: Final = Chapter(
    1,
    "A ring of real processes",
    "A supervisor and {n} nodes start: each is a process with a port and a disk of its own. The "
    "supervisor gives every node a label, its place on the circle; they find each other by it.",
    "Watch the ring close, and the shortcuts grow above it, until nothing is wrong in any layer.",
)
PUBLISHING: Final = Chapter(
    2,
    "Everybody gets everything",
    f"{ORDERS} orders of a shop are published through different nodes, and spread from node to "
    "node. There is no broker, and the supervisor has no part in it.",
    "PUB counts the nodes that lack an order. It ends when all {n} have all of them on disk.",
)
KILLING: Final = Chapter(
    3,
    "kill -9 for {killed} of {n}",
    "{killed} nodes are killed without a word of farewell: the ring is cut, labels are vacant.",
    "Neighbours notice the silence and the supervisor gives the places to others. Since every node "
    "has every order, nothing is lost.",
)
FORGETTING: Final = Chapter(
    4,
    "The supervisor dies and forgets everybody",
    "The supervisor is killed and its database deleted, while orders are published all the time. "
    "Then it starts again and knows nobody.",
    "Orders go on reaching every node without a supervisor. Back again, it learns from the ring "
    "who is in it.",
)
SCRAMBLING: Final = Chapter(
    5,
    "Everything is scrambled",
    "One node is killed, bits of its disk are flipped, and it starts again. Then all labels, "
    "neighbours, shortcuts and the supervisor's database become nonsense, hashes are falsified, "
    "and all but one node lose half of their orders.",
    "Nobody is told. Watch the layers heal one after the other, and the orders come back.",
)
RETURNING: Final = Chapter(
    6,
    "The dead come back",
    "The {killed} that were killed start again with their old disks. They have missed much.",
    "They get new labels, and from their neighbours whatever was published meanwhile.",
)
ANALYSING: Final = Chapter(
    7,
    "What Spark makes of it",
    "A Spark pipeline reads the topic, and how each order came to each node, into tables.",
    "Every order must be in the tables exactly once. The report is a page that stays.",
)


def titled(chapter: Chapter, plan: DemoPlan) -> Chapter:
    """A chapter with the numbers of a telling."""
    texts = (chapter.title, chapter.deed, chapter.look)
    return Chapter(chapter.number, *(t.format(n=plan.n, killed=plan.killed) for t in texts))


def next_commands(supervisor: Address | None) -> tuple[str, ...]:
    """What to try next: with the ring of the demo, if it stays, else with one's own."""
    if supervisor is not None:
        whom = f"--supervisor {supervisor}"
        return (
            f"skipring ring {TOPIC} {whom} --watch",
            f"skipring pub {TOPIC} 'hello' {whom}",
            f"skipring chaos adversary {TOPIC} A15 {whom}",
            f"skipring doctor {TOPIC} {whom}",
        )
    return (
        "skipring demo --stay    # the same, and the ring stays up for your own experiments",
        "skipring supervisor --listen 127.0.0.1:7400",
        "skipring node --supervisor 127.0.0.1:7400 --topic news --listen 127.0.0.1:0",
        "skipring pub news 'hello' --supervisor 127.0.0.1:7400",
        "skipring simulate --adversary A15 --n 64",
    )
