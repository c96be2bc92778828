"""Table of the paper's statements: text, hypotheses, known result, and measure."""

from __future__ import annotations

from typing import Final

from skipring.core.config import Mode
from skipring.lab.experiments.aggregates import HEALING, LIVELOCK
from skipring.lab.experiments.measures import (
    CONNECTED,
    DETECTED,
    DISPLACED,
    EXISTING,
    FORWARDED,
    IN_STEP,
    MERGED,
    MISCOUNTED,
    MODEL,
    RELIABLE,
    RIGHT_TRIES,
    RING_ONLY,
    SIBLING,
    STALE,
    STATIC,
    Always,
    Bounded,
    Eventually,
    RefutationCause,
    Statement,
    Unmeasured,
    UpperBound,
    is_least,
    overlay,
)

# Overlays are not simulated and have no modes; their rows have the default, "fast".
_NO_MODE: Final = (Mode.FAST,)
_TOPOLOGY: Final = "kind = 'topology'"
_SUBSCRIBE: Final = "kind = 'subscribe'"
_UNSUBSCRIBE: Final = "kind = 'unsubscribe'"
_FLOOD: Final = "kind = 'spread' AND spread = 'flood'"
_SUPERVISOR: Final = "measures['supervisor_messages']"
_SUBSCRIBERS: Final = "measures['subscriber_messages']"
_NETWORK: Final = (*MODEL, EXISTING, CONNECTED)
_RING: Final = (*MODEL, EXISTING)
_CLOSED: Final = (*_RING, DETECTED)


def _closed(layers: int) -> Always:
    """Return the measure that layers which held once, all of them, never stop holding."""
    return Always(
        f"{HEALING} AND first_explicit IS NOT NULL", f"coalesce(layers_after, 5) >= {layers}"
    )


_HOLDS: Final = "holds"
_STRICT: Final = "false with a stale message in flight; holds of strict states"

_INTRODUCTION: Final = (
    Statement(
        "Abstract",
        "Constant cost of checking",
        "In a legitimate state a node sends a constant number of messages in an interval.",
        _HOLDS,
        Bounded("kind = 'steady'", "measures['messages_per_node_round']"),
        decisions=("0012",),
    ),
    Statement(
        "1.3",
        "Diameter",
        "A skip ring of n nodes has diameter log n.",
        _HOLDS,
        Always(_TOPOLOGY, f"{overlay('skip_ring.flood_hops_max')} <= levels"),
        (),
        modes=_NO_MODE,
    ),
    Statement(
        "1.3",
        "Balance",
        "The nodes are distributed in a much more balanced way than Chord's.",
        _HOLDS,
        Always(_TOPOLOGY, f"{overlay('skip_ring.gap_max')} < {overlay('chord.gap_max')}"),
        (),
        modes=_NO_MODE,
    ),
    Statement(
        "1.3",
        "Congestion, of floods",
        "Less congestion than Chord and skip graphs, from n = 64 on: edges of a flood, per node.",
        "holds, as the average degree is below 4",
        Always(f"{_TOPOLOGY} AND n >= 64", is_least("degree_mean")),
        (),
        modes=_NO_MODE,
    ),
    Statement(
        "1.3",
        "Congestion, of routed requests",
        "Less congestion than Chord and skip graphs, from n = 64 on: what the busiest relay of "
        "random requests forwards.",
        "false, but not said by the paper in these words: no member routes requests",
        Always(f"{_TOPOLOGY} AND n >= 64", is_least("congestion")),
        (),
        RefutationCause("greedy routes between the semicircles pass 0 or 1/2", "none"),
        modes=_NO_MODE,
        is_ours=True,
    ),
    Statement(
        "2.1",
        "Lemma Node Degree",
        "The degree is logarithmic in the worst case and constant on average.",
        "holds; the count in its proof is one edge too many",
        Always(
            _TOPOLOGY,
            f"{overlay('skip_ring.degree_max')} <= 2 * levels "
            f"AND {overlay('skip_ring.degree_mean')} < 4",
        ),
        (),
        modes=_NO_MODE,
    ),
    Statement(
        "2.2",
        "Lemma: BuildRing with its extension is self-stabilizing",
        "The sorted ring forms from any weakly connected state, even with wrong labels.",
        "holds of BuildRing alone",
        Unmeasured("test_section_2_2_build_ring.py"),
        _NETWORK,
    ),
    Statement(
        "2.2",
        "BuildRing inside BuildSR",
        "The same inside BuildSR, where shortcuts write into the ring.",
        "false, displaced shortcuts write into the ring",
        Eventually("0", "since_L2", "measures['layers_least'] < 3"),
        _NETWORK,
        DISPLACED,
        ("0003",),
        is_ours=True,
    ),
)

_SKIP_RING: Final = (
    Statement(
        "3.2.1",
        "Theorem: fewer than one request expected in an interval",
        "In a legitimate state all subscribers together send less than 1 request an interval.",
        "false of the pseudocode, whose value goes to 1.32; with exponent k + 1 below 0.912",
        UpperBound("kind = 'steady'", "measures['requests_per_round']", 1.0),
        cause=MISCOUNTED,
        decisions=("0012",),
    ),
    Statement(
        "3.3",
        "A skip ring without the crashed node forms",
        "After a crash that the failure detector of the supervisor reports, a skip ring without "
        "the crashed node forms.",
        "false of the pseudocode, which keeps dead neighbours",
        Eventually(
            "0",
            "rounds_strict",
            "measures['layers_least'] < 5",
            f"(kind = 'crash' OR {LIVELOCK} AND adversary = 'A36')",
        ),
        MODEL,
        MERGED,
        ("0012", "0020"),
    ),
    Statement(
        "3.3",
        "One failure detector, at the supervisor, is enough",
        "Every start with references to crashed nodes heals although no subscriber watches its "
        "neighbours (modes fixed and fast without rule R9).",
        "false: it does not reach an unrecorded node with a dead neighbour",
        Eventually(
            "0",
            "rounds_strict",
            "measures['layers_least'] < 5",
            f"({HEALING} OR {LIVELOCK}) AND start_crashed AND (mode = 'paper' OR without = 'R9')",
        ),
        (RELIABLE, STATIC),
        MERGED,
        ("0005",),
    ),
)

_PUBLISH_SUBSCRIBE: Final = (
    Statement(
        "4.1",
        "Lemma (unsubscribe): v gets disconnected",
        "A member that has sent unsubscribe ends without references to or from it.",
        _HOLDS,
        Eventually("0", "rounds_explicit", "false", _UNSUBSCRIBE),
        decisions=("0015",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the supervisor, to subscribe",
        "Because of it the supervisor sends at most 3 messages, whatever n: to the newcomer and, "
        "with rule S11, to both its neighbours.",
        _HOLDS,
        Bounded(_SUBSCRIBE, _SUPERVISOR, 3),
        decisions=("0011",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the supervisor, to unsubscribe",
        "Because of it the supervisor sends at most 6 messages, whatever n: to the leaver, to the "
        "member that takes its place and, with rule S11, to the neighbours of both places.",
        _HOLDS,
        Bounded(_UNSUBSCRIBE, _SUPERVISOR, 6),
        decisions=("0011",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the subscribers, to subscribe",
        "The number of messages that all subscribers send because of it does not depend on n.",
        "false of the pseudocode, where references are passed on",
        Bounded(_SUBSCRIBE, _SUBSCRIBERS),
        cause=FORWARDED,
        decisions=("0006",),
    ),
    Statement(
        "4.1",
        "Theorem: constant overhead of the subscribers, to unsubscribe",
        "The number of messages that all subscribers send because of it does not depend on n.",
        "false of the pseudocode, where references are passed on",
        Bounded(_UNSUBSCRIBE, _SUBSCRIBERS),
        cause=FORWARDED,
        decisions=("0006",),
    ),
    Statement(
        "4.3",
        "Flooding, in step",
        "A flood reaches all members over at most log n hops.",
        "holds of a flood alone; repairs beside it can add one hop",
        Always(_FLOOD, "hops_max <= levels"),
        (*MODEL, IN_STEP),
        RefutationCause("a repair moves a publication before the flood arrives", "0026"),
    ),
    Statement(
        "4.3",
        "Flooding, where messages overtake each other",
        "The hops of the farthest delivery, divided by log n, do not grow.",
        "not said by the paper, which speaks of the diameter",
        Bounded(f"{_FLOOD} AND scheduler <> 'sync'", "hops_max / levels"),
        cause=RefutationCause("the first copy need not take the shortest path", "0026"),
        is_ours=True,
    ),
)

_ANALYSIS: Final = (
    Statement(
        "5",
        "Theorem Network Convergence",
        "Any weakly connected start becomes a skip ring.",
        "false of the pseudocode, which livelocks; with our rules weak connectivity is not needed",
        Eventually("0", "rounds_strict", "measures['layers_least'] < 5"),
        _NETWORK,
        DISPLACED,
        ("0003", "0004", "0005", "0012"),
    ),
    Statement(
        "5",
        "Lemma Supervisor Validity",
        "Eventually the database is not corrupted any more.",
        "holds, from the first event on",
        Eventually("0", "coalesce(database_invalid + 1, 0)", "false"),
        _RING,
        decisions=("0010",),
    ),
    Statement(
        "5",
        "Lemma Supervisor Convergence",
        "Once the database is not corrupted, all subscribers become recorded.",
        "holds in all runs; a reference to a crashed node needs rule R9",
        Eventually("coalesce(database_invalid + 1, 0)", "since_L0", "measures['layers_least'] < 1"),
        _RING,
        DISPLACED,
        ("0005",),
    ),
    Statement(
        "5",
        "Lemma Ring Convergence",
        "Once all members have their labels, the ring becomes correct.",
        "false of the pseudocode; holds, if configurations overwrite",
        Eventually("first_L1", "since_L2", "measures['layers_least'] < 3"),
        _RING,
        DISPLACED,
        ("0012", "0004"),
    ),
    Statement(
        "5",
        "Lemma Shortcut Convergence",
        "Once the ring is correct, all shortcuts form.",
        "false of the pseudocode, where the induction is circular",
        Eventually("first_L2", "since_L3", "measures['layers_least'] < 4"),
        _RING,
        DISPLACED,
        ("0003",),
    ),
    Statement(
        "5",
        "Theorem Network Closure",
        "Explicit edges that form a skip ring are preserved.",
        "false with a stale message in flight",
        Always(f"{HEALING} AND first_explicit IS NOT NULL", "NOT lost_explicit"),
        _CLOSED,
        STALE,
        ("0016",),
    ),
    Statement(
        "5",
        "Theorem Network Closure, of strict states",
        "The same if no message in flight can disturb the state.",
        _HOLDS,
        Always(
            f"{HEALING} AND first_strict IS NOT NULL",
            "NOT lost_after_strict AND coalesce(closure_ok, true)",
        ),
        _CLOSED,
        decisions=("0016",),
        is_ours=True,
    ),
    Statement(
        "5",
        "Lemma Supervisor Closure",
        "The database of a skip ring is not modified.",
        _STRICT,
        _closed(1),
        _CLOSED,
        STALE,
        ("0016",),
    ),
    Statement(
        "5",
        "Lemma Ring Closure",
        "The edges of the ring are not modified.",
        f"{_STRICT}; its proof is false of Algorithm 4",
        _closed(3),
        _CLOSED,
        STALE,
        ("0003", "0012"),
    ),
    Statement(
        "5",
        "Lemma Shortcut Closure",
        "The shortcuts are not modified.",
        _STRICT,
        _closed(4),
        _CLOSED,
        STALE,
    ),
)

_PUBLICATIONS: Final = (
    Statement(
        "5",
        "Theorem Publication Convergence",
        "All subscribers receive all publications eventually.",
        "holds once there is a skip ring; what memory has corrupted needs T10",
        Eventually("0", "rounds_publications", "false", f"{HEALING} AND publications > 0"),
        (*_NETWORK, RIGHT_TRIES),
        decisions=("0021",),
    ),
    Statement(
        "5",
        "Corollary: the potential is 0 exactly if all have all",
        "Φ ≥ 0, and Φ = 0 exactly if every subscriber has every publication.",
        _HOLDS,
        Always("kind = 'potential'", "measures['phi_mismatches'] = 0"),
        (*MODEL, RIGHT_TRIES),
    ),
    Statement(
        "5",
        "Lemma: the potential never increases",
        "Φ never increases, in no step.",
        "holds over ring edges; false with flooding or R16",
        Always("kind = 'potential'", "measures['phi_rises'] = 0"),
        (*MODEL, RIGHT_TRIES, RING_ONLY),
        decisions=("0025",),
    ),
    Statement(
        "5",
        "Number of missing publications",
        "The number of publications that members lack, over all members, never increases.",
        _HOLDS,
        Always("kind = 'potential'", "measures['missing_rises'] = 0"),
        (*MODEL, RIGHT_TRIES),
        decisions=("0025",),
        is_ours=True,
    ),
    Statement(
        "5",
        "Lemma: the potential of an edge can decrease",
        "While φ(u, v) > 0 there is a computation after which it has decreased.",
        "holds, to 0 in one session",
        Eventually(
            "0",
            "IF(kind = 'session', IF(measures['missing_end'] = 0, 1, NULL), rounds_publications)",
            "false",
            "(kind = 'potential' OR kind = 'session' AND measures['differs'] = 1)",
        ),
        (*MODEL, RIGHT_TRIES),
        decisions=("0022",),
    ),
    Statement(
        "5",
        "Claim: CheckTrie(u, t) is sent eventually",
        "The node t below which v lacks publications is compared, unless φ(u, v) decreases first.",
        "holds for any sender",
        Always(
            "kind = 'session' AND measures['differs'] = 1 AND (measures['asked'] = 1 "
            "OR measures['missing_end'] = measures['missing_start'])",
            "measures['asked'] = 1",
        ),
        (*MODEL, RIGHT_TRIES),
        decisions=("0022",),
        modes=(Mode.PAPER,),
    ),
    Statement(
        "5",
        "Claim: p′ = p.label",  # noqa: RUF001  (as it is printed)
        "The prefix that is requested is the label of the highest node below which all is missing.",
        "false where the trie skips bits: the requested prefix is shorter",
        Always("kind = 'session' AND measures['differs'] = 1", "measures['equal'] = 1"),
        (*MODEL, RIGHT_TRIES),
        SIBLING,
        ("0022",),
        modes=(Mode.PAPER,),
    ),
    Statement(
        "5",
        "Theorem Publication Closure",
        "Once all tries are equal none is modified.",
        "holds, of stored hashes that are right",
        Always(
            f"{HEALING} AND publications > 0 AND closure_ok IS NOT NULL",
            "closure_ok",
        ),
        (*_CLOSED, RIGHT_TRIES),
        decisions=("0021",),
    ),
)

STATEMENTS: Final[tuple[Statement, ...]] = (
    *_INTRODUCTION,
    *_SKIP_RING,
    *_PUBLISH_SUBSCRIBE,
    *_ANALYSIS,
    *_PUBLICATIONS,
)
