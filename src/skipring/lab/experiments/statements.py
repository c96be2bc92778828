"""Table of the paper's statements: text, known result, and measure."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import HEALING, IN_THE_MODEL, UNDISTURBED

MODES: Final = (Mode.PAPER, Mode.FIXED, Mode.FAST)


class Share(Struct, frozen=True):
    """Measure: every run ``among`` these ``shows`` it; ``is_more`` if stronger than the claim."""

    among: str
    shows: str
    is_more: bool = False


class UpperBound(Struct, frozen=True):
    """Measure: the mean of a value stays below a limit at every n."""

    among: str
    value: str
    limit: float


class Constant(Struct, frozen=True):
    """Measure: the mean of a value does not depend on n."""

    among: str
    value: str


class Unmeasured(Struct, frozen=True):
    """Measure that no run can provide; docs/paper-map.md names the tests in ``file`` instead."""

    file: str


Measure: TypeAlias = Share | UpperBound | Constant | Unmeasured


class Statement(Struct, frozen=True):
    """Statement of the paper, its known result and its measure."""

    section: str
    title: str
    claim: str
    known: str  # result in docs/paper-map.md
    measure: Measure
    decisions: tuple[str, ...] = ()  # numbers of decision records
    modes: tuple[Mode, ...] = MODES


# Overlays are not simulated and have no modes; their rows have the default, "fast".
_NO_MODE: Final = (Mode.FAST,)
_TOPOLOGY: Final = "kind = 'topology'"
_MODEL: Final = f"{HEALING} AND {IN_THE_MODEL}"
_STEADY: Final = f"kind = 'steady' AND {IN_THE_MODEL}"
_SUBSCRIBE: Final = f"kind = 'subscribe' AND {IN_THE_MODEL}"
_UNSUBSCRIBE: Final = f"kind = 'unsubscribe' AND {IN_THE_MODEL}"
_FLOOD: Final = f"kind = 'spread' AND spread = 'flood' AND {IN_THE_MODEL}"
_SUPERVISOR: Final = "measures['supervisor_messages']"
_SUBSCRIBERS: Final = "measures['subscriber_messages']"


def _overlay(name: str) -> str:
    return f"measures['{name}']"


def _less(key: str) -> str:
    """Return the condition that the skip ring has a smaller value than both others."""
    own = _overlay(f"skip_ring.{key}")
    return f"{own} < {_overlay(f'chord.{key}')} AND {own} < {_overlay(f'skip_graph.{key}')}"


_HOLDS: Final = "holds"
_STRICT: Final = "holds of strict states, in which no stale message is in flight"

STATEMENTS: Final[tuple[Statement, ...]] = (
    # --- sections 1 and 2 ---
    Statement(
        "Abstract",
        "Constant cost of checking",
        "In a legitimate state a node sends a constant number of messages in an interval.",
        _HOLDS,
        Constant(_STEADY, "measures['messages_per_node_round']"),
        ("0012",),
    ),
    Statement(
        "1.3",
        "Diameter",
        "A skip ring of n nodes has diameter log n.",
        _HOLDS,
        Share(_TOPOLOGY, f"{_overlay('skip_ring.flood_hops_max')} <= levels"),
        modes=_NO_MODE,
    ),
    Statement(
        "1.3",
        "Balance",
        "The nodes are distributed in a much more balanced way than Chord's.",
        _HOLDS,
        Share(_TOPOLOGY, f"{_overlay('skip_ring.gap_max')} < {_overlay('chord.gap_max')}"),
        modes=_NO_MODE,
    ),
    Statement(
        "1.3",
        "Congestion, of floods",
        "Less congestion than Chord and skip graphs, from n = 64 on: edges of a flood, per node.",
        "holds, as the average degree is below 4",
        Share(f"{_TOPOLOGY} AND n >= 64", _less("degree_mean")),
        modes=_NO_MODE,
    ),
    Statement(
        "1.3",
        "Congestion, of routed requests",
        "Less congestion than Chord and skip graphs, from n = 64 on: what the busiest relay of "
        "random requests forwards.",
        "not said by the paper in these words: no member routes requests in this system, and 0 and "
        "1/2 would relay a constant share of them",
        Share(f"{_TOPOLOGY} AND n >= 64", _less("congestion")),
        modes=_NO_MODE,
    ),
    Statement(
        "2.1",
        "Lemma Node Degree",
        "The degree is logarithmic in the worst case and constant on average.",
        "holds; the count in its proof is one edge too many",
        Share(
            _TOPOLOGY,
            f"{_overlay('skip_ring.degree_max')} <= 2 * levels "
            f"AND {_overlay('skip_ring.degree_mean')} < 4",
        ),
        modes=_NO_MODE,
    ),
    Statement(
        "2.2",
        "Lemma: BuildRing with its extension is self-stabilizing",
        "The sorted ring forms from any weakly connected state, even with wrong labels; measured "
        "inside BuildSR, because no run uses BuildRing alone.",
        "holds of BuildRing alone, false inside BuildSR, where displaced shortcuts write into it",
        Share(_MODEL, "layers_end >= 3"),
        ("0003",),
    ),
    # --- section 3 ---
    Statement(
        "3.2.1",
        "Theorem: fewer than one request expected in an interval",
        "In a legitimate state all subscribers together send less than 1 request an interval.",
        "false of the pseudocode, whose value goes to 1.32; with exponent k + 1 below 0.912",
        UpperBound(_STEADY, "measures['requests_per_round']", 1.0),
        ("0012",),
    ),
    Statement(
        "3.3",
        "A crash",
        "A skip ring without the crashed node forms.",
        "false of the pseudocode, which keeps dead neighbours",
        Share(f"kind = 'crash' AND {IN_THE_MODEL}", "rounds_strict IS NOT NULL"),
        ("0012", "0020"),
    ),
    Statement(
        "3.3",
        "One failure detector, at the supervisor, is enough",
        "Every start with references to the crashed heals although no subscriber watches its "
        "neighbours (rule R9 off).",
        "false: it does not reach an unrecorded node with a dead neighbour",
        Share(
            f"{HEALING} AND without = 'R9' AND loss = 0 AND duplicate = 0 AND churn = 0 "
            "AND adversary IN ('A17', 'A18', 'A18b')",
            "rounds_strict IS NOT NULL",
        ),
        ("0005",),
        modes=(Mode.FIXED, Mode.FAST),
    ),
    # --- section 4 ---
    Statement(
        "4.1",
        "Lemma (unsubscribe): v gets disconnected",
        "A member that has sent unsubscribe ends without references to or from it.",
        _HOLDS,
        Share(_UNSUBSCRIBE, "rounds_explicit IS NOT NULL"),
        ("0015",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the supervisor, to subscribe",
        "Because of it the supervisor sends at most 3 messages, whatever n: to the newcomer and, "
        "with rule S11, to both its neighbours.",
        _HOLDS,
        Share(_SUBSCRIBE, f"{_SUPERVISOR} <= 3"),
        ("0011",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the supervisor, to unsubscribe",
        "Because of it the supervisor sends at most 6 messages, whatever n: to the leaver, to whom "
        "takes its place and, with rule S11, to the neighbours of both places.",
        _HOLDS,
        Share(_UNSUBSCRIBE, f"{_SUPERVISOR} <= 6"),
        ("0011",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the subscribers, to subscribe",
        "The number of messages that all subscribers send because of it does not depend on n.",
        "false of the pseudocode, where references are passed on",
        Constant(_SUBSCRIBE, _SUBSCRIBERS),
        ("0006",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the subscribers, to unsubscribe",
        "The number of messages that all subscribers send because of it does not depend on n.",
        "false of the pseudocode, where references are passed on",
        Constant(_UNSUBSCRIBE, _SUBSCRIBERS),
        ("0006",),
    ),
    Statement(
        "4.3",
        "Flooding, in step",
        "A flood reaches all members over at most log n hops, where messages do not overtake each "
        "other (scheduler sync).",
        "holds of a flood alone; with repairs beside it, as here, we know runs with one hop more "
        "than log n (n = 256, seed 4: 9), whatever this matrix shows",
        Share(f"{_FLOOD} AND scheduler = 'sync'", "hops_max <= levels"),
    ),
    Statement(
        "4.3",
        "Flooding, where messages overtake each other",
        "The hops of the farthest delivery, divided by log n, do not grow.",
        "not said by the paper, which speaks of the diameter: the first copy need not take the "
        "shortest path",
        Constant(f"{_FLOOD} AND scheduler <> 'sync'", "hops_max / levels"),
    ),
    # --- section 5 ---
    Statement(
        "5",
        "Theorem Network Convergence",
        "Any weakly connected start becomes a skip ring.",
        "false of the pseudocode, which livelocks on larger rings and keeps dead neighbours; "
        "with our rules weak connectivity is not needed",
        Share(_MODEL, "rounds_strict IS NOT NULL"),
        ("0003", "0004", "0005", "0012"),
    ),
    Statement(
        "5",
        "Lemma Supervisor Validity",
        "The database stops being corrupted; measured as that and all being recorded.",
        "holds, from the first event on",
        Share(_MODEL, "layers_end >= 1", is_more=True),
        ("0010",),
    ),
    Statement(
        "5",
        "Lemma Supervisor Convergence",
        "All subscribers become recorded.",
        "needs rule R9 where there are references to the crashed",
        Share(_MODEL, "layers_end >= 1"),
        ("0005",),
    ),
    Statement(
        "5",
        "Lemma Ring Convergence",
        "Once all members have their labels, the ring becomes correct.",
        "holds, if configurations overwrite",
        Share(f"{_MODEL} AND layers_end >= 2", "layers_end >= 3"),
        ("0012", "0004"),
    ),
    Statement(
        "5",
        "Lemma Shortcut Convergence",
        "Once the ring is correct, all shortcuts form.",
        "false of the pseudocode, where the induction is circular",
        Share(f"{_MODEL} AND layers_end >= 3", "layers_end >= 4"),
        ("0003",),
    ),
    Statement(
        "5",
        "Theorem Network Closure",
        "Explicit edges that form a skip ring are preserved.",
        "false with a stale message in flight",
        Share(f"{UNDISTURBED} AND first_explicit IS NOT NULL", "NOT lost_explicit"),
        ("0016",),
    ),
    Statement(
        "5",
        "Theorem Network Closure, of strict states",
        "The same if the messages in flight are part of what is legitimate (ours).",
        _HOLDS,
        Share(
            f"{UNDISTURBED} AND first_strict IS NOT NULL",
            "NOT lost_strict AND coalesce(closure_ok, true)",
        ),
        ("0016",),
    ),
    Statement(
        "5",
        "Lemma Supervisor Closure",
        "The database of a skip ring is not modified.",
        _STRICT,
        Share(f"{UNDISTURBED} AND first_explicit IS NOT NULL", "coalesce(layers_after, 5) >= 1"),
        ("0016",),
    ),
    Statement(
        "5",
        "Lemma Ring Closure",
        "The edges of the ring are not modified.",
        f"{_STRICT}; its proof is false of Algorithm 4",
        Share(f"{UNDISTURBED} AND first_explicit IS NOT NULL", "coalesce(layers_after, 5) >= 3"),
        ("0003", "0012"),
    ),
    Statement(
        "5",
        "Lemma Shortcut Closure",
        "The shortcuts are not modified.",
        _STRICT,
        Share(f"{UNDISTURBED} AND first_explicit IS NOT NULL", "coalesce(layers_after, 5) >= 4"),
    ),
    Statement(
        "5",
        "Theorem Publication Convergence",
        "All subscribers receive all publications eventually.",
        "holds once there is a skip ring; what memory has corrupted needs T10",
        Share(f"{_MODEL} AND publications > 0", "rounds_publications IS NOT NULL"),
        ("0021",),
    ),
    Statement(
        "5",
        "Corollary: the potential is 0 exactly if all have all",
        "Φ ≥ 0, and Φ = 0 exactly if every subscriber has every publication.",
        _HOLDS,
        Unmeasured("test_publications.py"),
    ),
    Statement(
        "5",
        "Lemma: the potential never increases",
        "Φ never increases.",
        "false with flooding or R16; the sum of what members lack never grows",
        Unmeasured("test_publications.py"),
        ("0025",),
    ),
    Statement(
        "5",
        "Lemma: the potential of an edge can decrease",
        "While φ(u, v) > 0 there is a computation after which it has decreased.",
        "holds, to 0 in one session",
        Unmeasured("test_reconcile.py"),
        ("0022",),
    ),
    Statement(
        "5",
        "Claim: CheckTrie(u, t) is sent eventually",
        "The node below which all is missing is asked about.",
        "holds for any sender",
        Unmeasured("test_reconcile.py"),
        ("0022",),
    ),
    Statement(
        "5",
        "Claim: p′ = p.label",  # noqa: RUF001  (as it is printed)
        "The prefix that is asked for is the label of that node.",
        "false where c is more than one bit deeper",
        Unmeasured("test_reconcile.py"),
        ("0022",),
    ),
    Statement(
        "5",
        "Theorem Publication Closure",
        "Once all tries are equal none is modified.",
        "holds, of stored hashes that are right",
        Share(
            f"{UNDISTURBED} AND publications > 0 AND closure_ok IS NOT NULL",
            "closure_ok",
        ),
        ("0021",),
    ),
)
