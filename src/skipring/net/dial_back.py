"""Dial-backs: limits of the dials to addresses that are not proven (decision 48).

An address is proven when a dial by this process finds the expected node there. Until then it is a
claim by the node itself, by a supervisor or by another member. A member can claim any host and
port, so dials to claims of members have a budget for each member and one for all.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from msgspec import Struct

from skipring.core.peers import NodeId

# Guess: a member in a ring of 1,000 has at most 20 neighbours, and supervisors name most of them.
MEMBER_BURST: Final = 16
MEMBER_PER_S: Final = 1.0
ALL_BURST: Final = 64
ALL_PER_S: Final = 8.0
MEMBERS_MAX: Final = 1024  # Limit: members with their own budget.


class DialBackResult(StrEnum):
    """Result of a dial to an unproven address."""

    PROVEN = "proven"
    FAILED = "failed"
    LIMITED = "limited"


class _Budget(Struct):
    """Token bucket of dials: it refills with time up to a burst."""

    left: float
    at_s: float

    def refill(self, now_s: float, per_s: float, burst: int) -> None:
        self.left = min(burst, self.left + max(0.0, now_s - self.at_s) * per_s)
        self.at_s = now_s


class DialBacks:
    """Budgets and counts of the dials to unproven addresses."""

    def __init__(self) -> None:
        self.counts: Counter[DialBackResult] = Counter()
        self._all = _Budget(ALL_BURST, 0.0)
        self._members: dict[NodeId, _Budget] = {}

    def allows(self, member: NodeId, now_s: float) -> bool:
        """Return True and charge the budgets if an address that a member claims may be dialled."""
        budget = self._members.get(member)
        if budget is None:
            budget = self._members[member] = _Budget(MEMBER_BURST, now_s)
            if len(self._members) > MEMBERS_MAX:
                del self._members[next(iter(self._members))]
        budget.refill(now_s, MEMBER_PER_S, MEMBER_BURST)
        self._all.refill(now_s, ALL_PER_S, ALL_BURST)
        if budget.left < 1 or self._all.left < 1:
            self.counts[DialBackResult.LIMITED] += 1
            return False
        budget.left -= 1
        self._all.left -= 1
        return True

    def record(self, *, is_proven: bool) -> None:
        """Count the result of a dial to an unproven address."""
        self.counts[DialBackResult.PROVEN if is_proven else DialBackResult.FAILED] += 1
