"""What is done to the disks and the memory of the demo's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final

from skipring.admin.chaos_plans import Damages, adversarial, spoilt_tries
from skipring.core.peers import NodeId, TopicId
from skipring.storage.sqlite import FILE
from skipring.wire.chaos import CorruptTrie
from skipring.wire.rpc import NodeStatus

ARBITRARY: Final = "A15"  # of the catalogue: everything is arbitrary
LOST_SHARE: Final = 0.5  # of what a node has
BYTES_PER_FLIP: Final = 512  # Our guess: hits about every second order, and the file's own parts


def scrambled(topic: TopicId, members: Mapping[NodeId, NodeStatus], seed: int) -> Damages:
    """Make all variables of all members arbitrary, and half of their publications vanish."""
    damages = adversarial(ARBITRARY, topic, members, seed)
    for node, spoils in spoilt_tries(members, LOST_SHARE, seed).items():
        others = [each for each in damages.get(node, []) if not isinstance(each, CorruptTrie)]
        damages[node] = [*others, *spoils]
    return damages


def flip_bits(data: Path, rng: Random) -> int:
    """Flip bits here and there in the files of a store that nobody has open; how many."""
    flipped = 0
    for path in sorted(data.glob(f"{FILE}*")):
        content = bytearray(path.read_bytes())
        for place in rng.sample(range(len(content)), len(content) // BYTES_PER_FLIP):
            content[place] ^= 1 << rng.randrange(8)
            flipped += 1
        path.write_bytes(content)
    return flipped
