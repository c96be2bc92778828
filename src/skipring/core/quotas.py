"""Quotas at a supervisor: topics of each name, and requests of each name about other nodes.

The supervisor charges a topic to its first member, or to the name that asked for it first. It
derives the charges from the topics at every tick, so a wrong charge lasts for one tick at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from skipring.core.peers import NodeId

TOPICS_MAX: Final = 10_000  # Limit: each topic costs time at every tick.
TOPICS_PER_NAME_MAX: Final = 2_500  # Limit: a quarter, so one name cannot keep others out.
# Limit: a member asks about its neighbours, 20 in a ring of 1,000.
SUBJECTS_PER_NAME_MAX: Final = 1_024


class Quotas:
    """Use of topics and subjects at one supervisor, by name."""

    __slots__ = ("_subjects", "_topics", "_total")

    def __init__(self) -> None:
        self._topics: Counter[NodeId] = Counter()
        self._total = 0
        self._subjects: Counter[NodeId] = Counter()  # since the last tick

    def refuse_topic(self, name: NodeId) -> str | None:
        """Charge a new topic to a name, or return the reason for refusal."""
        if self._topics[name] >= TOPICS_PER_NAME_MAX:
            return (
                f"{name} has {TOPICS_PER_NAME_MAX} topics at this supervisor, the limit "
                "of one name; leave some, or use another supervisor"
            )
        if self._total >= TOPICS_MAX:
            return f"this supervisor has {TOPICS_MAX} topics and serves no more"
        self._topics[name] += 1
        self._total += 1
        return None

    def refuse_subject(self, name: NodeId) -> str | None:
        """Charge a request about another node to a name; return a reason to ignore it, or None."""
        self._subjects[name] += 1
        if self._subjects[name] <= SUBJECTS_PER_NAME_MAX:
            return None
        return (
            f"{name} has asked about {SUBJECTS_PER_NAME_MAX} other nodes in this interval, the "
            "limit of one name; ask again later"
        )

    def is_first_excess(self, name: NodeId) -> bool:
        """Return True for the first ignored request of an interval: only this one is answered."""
        return self._subjects[name] == SUBJECTS_PER_NAME_MAX + 1

    def on_tick(self, owners: Iterable[NodeId]) -> None:
        """Begin an interval; ``owners`` has the name that each topic is charged to."""
        self._topics = Counter(owners)
        self._total = self._topics.total()
        self._subjects = Counter()
