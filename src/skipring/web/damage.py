"""What the dashboard lets one damage, where ``--chaos`` is on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from secrets import randbits
from typing import Final, Literal

from msgspec import Struct

from skipring.core.peers import NodeId, TopicId
from skipring.errors import InputError
from skipring.runtime import sabotage
from skipring.runtime.sabotage import Damages
from skipring.wire.runtime_messages import NodeStatus

Members = dict[NodeId, NodeStatus]

TICKS: Final = 60  # Our guess: a partition that nobody ends is over then.
LOST_SHARE: Final = 0.5  # of the publications, where tries are spoilt
SEED_BITS: Final = 32

WORDS: Final[Mapping[str, str]] = {
    "kill": "killed",
    "adversary": "everything replaced",
    "database": "the database was wiped",
    "labels": "labels scrambled",
    "tries": "tries spoilt, and half of the publications lost",
    "partition": "parted into two halves",
    "heal": "partitions ended",
}


class Wish(Struct, frozen=True):
    """What somebody wants to be damaged."""

    damage: Literal["kill", "adversary", "database", "labels", "tries", "partition", "heal"]
    nodes: tuple[NodeId, ...] = ()
    code: str = "A15"

    @property
    def is_gentle(self) -> bool:
        """True if those who refuse do not keep the others from it."""
        return self.damage == "heal"

    @property
    def words(self) -> str:
        """What was done, in words."""
        return WORDS[self.damage]


def plan_of(wish: Wish, topic: TopicId, members: Members) -> Damages:
    """Who is to suffer what; InputError if it cannot be."""
    seed = randbits(SEED_BITS)
    if wish.damage == "adversary":
        sabotage.check_adversary(wish.code)
        return sabotage.adversarial(wish.code, topic, members, seed)
    if wish.damage == "kill":
        if not wish.nodes:
            raise InputError("say whom to kill")
        sabotage.check_names(wish.nodes, members)
        return sabotage.killed(wish.nodes)
    return _PLANS[wish.damage](members, seed)


_PLANS: Final[Mapping[str, Callable[[Members, int], Damages]]] = {
    "database": lambda _, __: sabotage.no_database(),
    "labels": sabotage.wrong_labels,
    "tries": lambda members, seed: sabotage.spoilt_tries(members, LOST_SHARE, seed),
    "partition": lambda members, seed: sabotage.partition(
        sabotage.parts_of(members, 2, seed), TICKS
    ),
    "heal": lambda members, _: sabotage.healed(members),
}
