"""Failure detector of a supervisor (section 3.3): neighbours report, the supervisor decides.

In a legitimate ring it costs nothing, because neighbours exchange messages every interval. A node
reports a neighbour after several ticks without a message. The supervisor pings the accused member
and evicts it if it does not answer; with two accusers it evicts sooner. A mistake does no harm: an
evicted node subscribes again. The supervisor also expects an acknowledgement of each label that it
assigns, for members that have no neighbour left to report them. Time is counted in ticks.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.core.roster import Roster
from skipring.core.state import CaseState, DetectorState

# Simulated at n = 1000 under harsh pauses: one crash is noticed in 11 intervals, at 6 to 7 messages
# per interval.
UNHEARD_TICKS: Final = 3
EVICTION_TICKS: Final = 9  # with two accusers
LONE_EVICTION_TICKS: Final = 18  # with one
FORGET_TICKS: Final = 6  # an accusation expires after this many ticks without another report
PINGS_PER_TICK: Final = 8
REPORTS_PER_TICK: Final = 64
ACCUSERS_MAX: Final = 2  # more make no difference


class DetectorBudget:
    """Pings and reports per tick, shared by all topics of a process."""

    __slots__ = ("pings", "reports")

    def __init__(self) -> None:
        self.pings = PINGS_PER_TICK
        self.reports = REPORTS_PER_TICK

    def renew(self) -> None:
        """Start the next tick."""
        self.pings, self.reports = PINGS_PER_TICK, REPORTS_PER_TICK

    def load(self, pings: int, reports: int) -> None:
        """Replace the counters; the values may be corrupted."""
        self.pings, self.reports = pings, reports

    def use_ping(self) -> bool:
        """Use one ping; return False if none is left in this tick."""
        self.pings = min(self.pings, PINGS_PER_TICK) - 1  # memory may be corrupted
        return self.pings >= 0

    def use_report(self) -> bool:
        """Use one report; return False if none is left in this tick."""
        self.reports = min(self.reports, REPORTS_PER_TICK) - 1
        return self.reports >= 0


class _Case(Struct):
    """Accusation of one member."""

    since: int
    newest: int
    accusers: set[NodeId]
    pinged: int = 0  # the tick after the last ping


class FailureDetector:
    """Accused members of one topic, and members that owe an acknowledgement."""

    __slots__ = ("_budget", "_cases", "_unanswered")

    def __init__(self, budget: DetectorBudget) -> None:
        self._budget = budget
        self._cases: dict[NodeId, _Case] = {}
        self._unanswered: dict[NodeId, int] = {}  # member -> tick of its configuration

    def expect(self, node: NodeId, now: int) -> None:
        """Expect an acknowledgement of a configuration."""
        self._unanswered.setdefault(node, now)

    def report(self, node: NodeId, accuser: NodeId, now: int) -> None:
        """Record a report that a member has not heard from another one for UNHEARD_TICKS."""
        if node != accuser and self._budget.use_report():
            self._accuse(node, accuser, now)

    def _accuse(self, node: NodeId, accuser: NodeId, now: int) -> None:
        case = self._cases.get(node)
        if case is None:
            case = self._cases[node] = _Case(now, now, set())
        case.newest = now
        if len(case.accusers) < ACCUSERS_MAX:
            case.accusers.add(accuser)

    def on_heard(self, node: NodeId) -> None:
        """End the suspicion of a node that has sent a message."""
        self._cases.pop(node, None)
        self._unanswered.pop(node, None)

    def on_tick(self, now: int, members: Roster) -> None:
        """Accuse members that owe an acknowledgement; forget old accusations and non-members."""
        self._audit(now, members)
        for node, since in self._unanswered.items():
            if now - since >= UNHEARD_TICKS:
                self._accuse(node, SUPERVISOR, now)
        self._cases = {
            node: case for node, case in self._cases.items() if now - case.newest <= FORGET_TICKS
        }

    def _audit(self, now: int, members: Roster) -> None:
        """Drop non-members and clamp ticks: memory may be corrupted."""
        for node in [each for each in self._unanswered if each not in members]:
            del self._unanswered[node]
        for node, since in self._unanswered.items():
            if since > now:
                self._unanswered[node] = now
        for node in [each for each in self._cases if each not in members]:
            del self._cases[node]
        for case in self._cases.values():
            case.since, case.newest = min(case.since, now), min(case.newest, now)
            case.pinged = min(case.pinged, now)

    def to_ping(self, now: int) -> list[NodeId]:
        """Return the accused members to ping now, in turn and within the budget."""
        in_turn = sorted(self._cases.items(), key=lambda found: (found[1].pinged, found[1].since))
        chosen: list[NodeId] = []
        for node, case in in_turn:
            if not self._budget.use_ping():
                break
            case.pinged = now + 1
            chosen.append(node)
        return chosen

    def take_evictions(self, now: int) -> list[NodeId]:
        """Return the members that were accused for too long, and close their cases."""
        evicted = [node for node, case in self._cases.items() if _is_over(case, now)]
        for node in evicted:
            self.on_heard(node)
        return evicted

    @property
    def suspects(self) -> int:
        """Return the number of accused members."""
        return len(self._cases)

    def state(self) -> DetectorState:
        """Return the variables as a value."""
        return DetectorState(
            cases={
                node: CaseState(case.since, case.newest, tuple(sorted(case.accusers)), case.pinged)
                for node, case in self._cases.items()
            },
            unanswered=dict(self._unanswered),
            pings=self._budget.pings,
            reports=self._budget.reports,
        )

    def load(self, state: DetectorState) -> None:
        """Replace the variables; the value may be corrupted."""
        self._cases = {
            node: _Case(case.since, case.newest, set(case.accusers), case.pinged)
            for node, case in state.cases.items()
        }
        self._unanswered = dict(state.unanswered)
        self._budget.load(state.pings, state.reports)


def _is_over(case: _Case, now: int) -> bool:
    ticks = EVICTION_TICKS if len(case.accusers) >= ACCUSERS_MAX else LONE_EVICTION_TICKS
    return now - case.since >= ticks
