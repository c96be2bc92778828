"""Sections about costs: messages, supervisor, membership, publications, faulty channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from skipring.core.config import Mode, Spread
from skipring.lab.experiments.aggregates import (
    COMMON,
    HEALING,
    IN_THE_MODEL,
    Group,
    groups,
    groups_of_each,
    together,
)
from skipring.lab.experiments.figures import (
    by_n,
    by_row,
    expected_requests,
    highest_point,
    log2_line,
    mean_point,
    mean_table,
    median_point,
    median_table,
    panels_by_n,
    sizes_of,
    theory,
)
from skipring.lab.experiments.overlays import OVERLAYS
from skipring.lab.experiments.sections.convergence import COMMON_NOTE, RANGE_NOTE, missing
from skipring.report.page import Section
from skipring.report.plots import Axis
from skipring.report.tables import number

_BOUND_NOTE: Final = "Dots are means, bars their 95 % bounds (Student)."


def _at_largest(found: Sequence[Group], key: str, of: str = "median") -> str:
    """Return the figure of each value of ``key`` at the largest n."""
    n = max(sizes_of(found))
    texts = []
    for group in found:
        if group.at["n"] == n:
            value = group.sample.median if of == "median" else group.sample.mean
            texts.append(f"{group.at[key]} {number(value.value)}")
    return f"at n = {n} {', '.join(texts)}"


# --- healing ---------------------------------------------------------------------------


def healing_costs(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections about messages, requests and degrees until legitimacy, by mode."""
    values = ["messages_per_node", "requests_per_node"]
    texts = [f"IF(converged, {value}, NULL)" for value in values]
    messages, requests, degrees = groups_of_each(
        runs.filter(COMMON), ["mode", "n"], [*texts, "degree_peak"]
    )
    if not messages:
        what = "runs of kind converge that all modes share"
        return tuple(missing(key, title, what) for key, title in _HEALING.items())
    return (
        _per_node(
            "messages",
            messages,
            Axis("messages per node", is_log=True),
            f"The median run sends, per node, {_at_largest(messages, 'mode')} messages.",
            "All messages, those of a ring at rest included.",
        ),
        _per_node(
            "supervisor-healing",
            requests,
            Axis("requests per node"),
            "Until legitimate, the supervisor gets per node "
            f"{_at_largest(requests, 'mode')} requests.",
            "Subscribe, Unsubscribe and GetConfiguration.",
        ),
        _degrees(degrees),
    )


_HEALING: Final = {
    "messages": "Messages per node until legitimate",
    "supervisor-healing": "Supervisor load while the ring heals",
    "degree-peak": "Peak degree while the ring heals",
}


def _per_node(key: str, found: Sequence[Group], axis: Axis, reading: str, note: str) -> Section:
    return Section(
        key,
        _HEALING[key],
        reading,
        by_n(found, "mode", axis, median_point, axis.title),
        median_table(found, ("mode", "n"), axis.title),
        (f"{note} {RANGE_NOTE} {COMMON_NOTE}",),
    )


def _degrees(found: Sequence[Group]) -> Section:
    key, unit = "degree-peak", "neighbours"
    n = max(sizes_of(found))
    texts = [
        f"{group.at['mode']} {number(group.sample.values[-1])}"
        for group in found
        if group.at["n"] == n
    ]
    return Section(
        key,
        _HEALING[key],
        f"The most neighbours that any node had in any round: at n = {n} {', '.join(texts)}. The "
        "start counts too: an adversary can give a node more neighbours than the protocol would.",
        by_n(found, "mode", Axis("neighbours"), highest_point, unit, [log2_line(found, 2)]),
        median_table(found, ("mode", "n"), unit),
        (COMMON_NOTE,),
    )


# --- at rest ---------------------------------------------------------------------------


def at_rest(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections about the messages of a legitimate ring."""
    steady = runs.filter(f"kind = 'steady' AND {IN_THE_MODEL}")
    values = ["measures['requests_per_round']", "measures['messages_per_node_round']"]
    found, per_node = groups_of_each(steady, ["mode", "n"], values)
    title = "Supervisor load in a legitimate state"
    if not found:
        return (missing("supervisor-steady", title, "runs of kind steady"),)
    sizes = sizes_of(found)
    lines = [
        theory("paper, expected", sizes, lambda n: expected_requests(n, 0)),
        theory("with k + 1, expected", sizes, lambda n: expected_requests(n, 1)),
        theory("the theorem's bound, 1", sizes, lambda _: 1.0),
    ]
    unit, node_unit = "requests a round", "messages a node and round"
    return (
        Section(
            "supervisor-steady",
            title,
            f"All subscribers together send, on average, {_at_largest(found, 'mode', 'mean')} "
            "requests a round; the theorem of section 3.2.1 says less than 1.",
            by_n(found, "mode", Axis("requests a round, in all"), mean_point, unit, lines),
            mean_table(found, ("mode", "n"), unit),
            (f"{_BOUND_NOTE} Grey lines follow from the probabilities of section 3.2.1.",),
        ),
        Section(
            "messages-steady",
            "Messages of a ring at rest",
            f"A node sends, on average, {_at_largest(per_node, 'mode', 'mean')} messages a round.",
            by_n(per_node, "mode", Axis("messages a node and round"), mean_point, node_unit),
            mean_table(per_node, ("mode", "n"), node_unit),
            (_BOUND_NOTE,),
        ),
    )


# --- membership ------------------------------------------------------------------------

_CAUSED_NOTE: Final = (
    f"{_BOUND_NOTE} Of the messages of subscribers, only those count that a ring at rest never "
    "sends: "
    "Introduce, RemoveConnections, Subscribe, Unsubscribe."
)
_OPERATIONS: Final = ("subscribe", "unsubscribe", "crash")
_COSTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "supervisor_messages": ("membership-supervisor", "of the supervisor", "messages"),
    "subscriber_messages": ("membership-subscribers", "of all subscribers", "messages"),
    "rounds": ("membership-rounds", "in rounds until legitimate again", "rounds"),
}


def membership(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections about a subscribe, an unsubscribe and a crash in a legitimate ring."""
    operations = runs.filter(f"kind IN {_OPERATIONS} AND {IN_THE_MODEL}")
    each = groups_of_each(
        operations, ["kind", "mode", "n"], [f"measures['{measure}']" for measure in _COSTS]
    )
    return tuple(map(_operation_cost, _COSTS.values(), each))


def _operation_cost(cost: tuple[str, str, str], found: Sequence[Group]) -> Section:
    key, whose, unit = cost
    title = f"Cost of a subscribe, an unsubscribe and a crash {whose}"
    kinds = [kind for kind in _OPERATIONS if any(group.at["kind"] == kind for group in found)]
    if not kinds:
        return missing(key, title, "runs of the kinds subscribe, unsubscribe and crash")
    of_kind = {kind: [group for group in found if group.at["kind"] == kind] for kind in kinds}
    panels = [(kind, of_kind[kind], Axis(unit)) for kind in kinds]
    of, reduce = ("mean", mean_point) if unit == "messages" else ("median", median_point)
    texts = [f"{kind} {_at_largest(of_kind[kind], 'mode', of)}" for kind in kinds]
    return Section(
        key,
        title,
        f"{of.capitalize()} {unit}: {'; '.join(texts)}.",
        panels_by_n(panels, "mode", reduce, unit),
        (mean_table if of == "mean" else median_table)(found, ("kind", "mode", "n"), unit),
        (_CAUSED_NOTE,) if unit == "messages" else (RANGE_NOTE,),
    )


# --- publications ----------------------------------------------------------------------


def publications(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections about hops and messages of a publication, by spread."""
    spread = runs.filter(f"kind = 'spread' AND {IN_THE_MODEL} AND mode = '{Mode.FAST}'")
    by = ["scheduler", "spread", "n"]
    most, cost = groups_of_each(spread, by, ["hops_max", "measures['messages_per_delivery']"])
    if not most:
        return (missing("hops", "Hops of a publication", "runs of kind spread in mode fast"),)
    unit = "messages per delivery"
    return (
        Section(
            "hops",
            "Hops of a publication",
            f"The farthest delivery takes, on average, {_by_scheduler(most)} hops. log₂ n is the "
            "paper's diameter; where messages overtake each other, the first copy need not take "
            "the shortest path.",
            panels_by_n(_panels(most, "hops"), "spread", mean_point, "hops", [log2_line(most)]),
            mean_table(most, by, "hops of the farthest delivery"),
            (_BOUND_NOTE,),
        ),
        Section(
            "messages-per-delivery",
            "Messages per delivery",
            f"A delivery costs, on average, {_by_scheduler(cost)} messages. {Spread.FLOOD} is "
            "section 4.3 literally.",
            panels_by_n(_panels(cost, unit), "spread", mean_point, unit),
            mean_table(cost, by, unit),
            (_DELIVERY_NOTE,),
        ),
    )


_DELIVERY_NOTE: Final = (
    f"{_BOUND_NOTE} PublishNew, IHave and Want are counted, for all deliveries. Publications "
    "that arrived by repair cost none of these, so a figure can be below 1."
)
_ORDERS: Final = {"sync": "in step", "random": "in random order"}


def _order(scheduler: object) -> str:
    return _ORDERS.get(str(scheduler), f"scheduler {scheduler}")


def _of_scheduler(found: Sequence[Group]) -> dict[str, list[Group]]:
    """Return the groups of each scheduler, by the scheduler's display name."""
    split: dict[str, list[Group]] = {}
    for group in found:
        split.setdefault(_order(group.at["scheduler"]), []).append(group)
    return split


def _panels(found: Sequence[Group], unit: str) -> list[tuple[str, Sequence[Group], Axis]]:
    return [(order, own, Axis(unit)) for order, own in _of_scheduler(found).items()]


def _by_scheduler(found: Sequence[Group]) -> str:
    return "; ".join(
        f"{order} {_at_largest(own, 'spread', 'mean')}"
        for order, own in _of_scheduler(found).items()
    )


# --- overlays --------------------------------------------------------------------------

_DEGREE_NOTE: Final = (
    "In a flood a node sends over each of its edges once, so the average degree is what a "
    "delivery by flooding costs."
)
_CONGESTION_NOTE: Final = (
    "Congestion: every node sends one request to a random other, routed greedily; it is how many "
    "the busiest node relays. Gap: the longest arc between neighbours on the circle, 1 is even; a "
    "skip graph has no circle."
)
_PATHS_NOTE: Final = (
    "Greedy: every hop goes to the neighbour that is nearest to the target, in Chord and the skip "
    "graph without passing it."
)


class _Comparison(Struct, frozen=True):
    """Section about overlays: title, measures by name, and unit."""

    key: str
    title: str
    shown: Mapping[str, str]
    unit: str
    note: str


_COMPARISONS: Final = (
    _Comparison(
        "overlays-degree",
        "Degree compared with Chord and a skip graph",
        {"degree_mean": "average degree", "degree_max": "largest degree"},
        "neighbours",
        _DEGREE_NOTE,
    ),
    _Comparison(
        "overlays-congestion",
        "Congestion compared with Chord and a skip graph",
        {"congestion": "requests at the busiest relay", "gap_max": "longest gap, in units of 1/n"},
        "",
        _CONGESTION_NOTE,
    ),
    _Comparison(
        "overlays-paths",
        "Path lengths compared with Chord and a skip graph",
        {"path_mean": "average greedy path", "flood_hops_max": "farthest node of a flood"},
        "hops",
        _PATHS_NOTE,
    ),
)


def overlays(runs: DataFrame) -> tuple[Section, ...]:
    """Return sections about degree, congestion and path lengths of three overlays."""
    each = runs.filter("kind = 'topology'").select("n", F.explode("measures").alias("key", "it"))
    named = each.withColumn("overlay", F.substring_index("key", ".", 1)).withColumn(
        "measure", F.substring_index("key", ".", -1)
    )
    found = groups(named, ["measure", "overlay", "n"], "it")
    if not found:
        return (missing("overlays-degree", _COMPARISONS[0].title, "runs of kind topology"),)
    return tuple(_compared(found, it) for it in _COMPARISONS)


def _compared(found: Sequence[Group], it: _Comparison) -> Section:
    panels = []
    for measure, name in it.shown.items():
        own = [_named(group, name) for group in found if group.at["measure"] == measure]
        own.sort(key=lambda group: list(OVERLAYS.values()).index(str(group.at["overlay"])))
        panels.append((name, own, Axis(it.unit or name, is_log=measure == "congestion")))
    texts = [f"{name} {_at_largest(own, 'overlay', 'mean')}" for name, own, _ in panels]
    return Section(
        it.key,
        it.title,
        f"On average: {'; '.join(texts)}.",
        panels_by_n(panels, "overlay", mean_point, it.unit),
        mean_table(
            [group for _, own, _ in panels for group in own],
            ("what", "overlay", "n"),
            it.unit or "value",
        ),
        (it.note,),
    )


def _named(group: Group, name: str) -> Group:
    overlay = OVERLAYS.get(str(group.at["overlay"]), str(group.at["overlay"]))
    return Group({"what": name, "overlay": overlay, "n": group.at["n"]}, group.sample)


# --- faulty channels --------------------------------------------------------------------

_START: Final = ("n", "adversary", "publications")
_CALM: Final = {"loss": "loss = 0", "churn": "churn = 0", "scheduler": "scheduler = 'random'"}
# Without churn a run is measured from its start, with churn from the end of the churn.
_STORM: Final = {"churn": "churn > 0"}
_TITLES: Final = {
    "loss": ("Lost messages", "of all messages lost"),
    "churn": ("Churn", "of the nodes crash, and as many join, in each of 100 rounds before"),
    "scheduler": ("Schedulers", ""),
}


def weather(runs: DataFrame) -> tuple[Section, ...]:
    """Return the section about rounds by loss, churn and scheduler, all else equal."""
    healing = runs.filter(f"{HEALING} AND mode = '{Mode.FAST}' AND without = ''")
    return tuple(_effect(healing, what) for what in _TITLES)


def _effect(healing: DataFrame, what: str) -> Section:
    title, unit = _TITLES[what]
    key = f"weather-{what}"
    calm = " AND ".join((_CALM | {what: _STORM.get(what, "true")}).values())
    found = _on_equal_starts(groups(healing.filter(calm), [what, *_START], "rounds"), what)
    if len(found) < 2:  # noqa: PLR2004  (one alone cannot be compared)
        return missing(key, title, f"runs of kind converge that differ in {what} only")
    named = [Group({"what": _words(group.at[what], unit)}, group.sample) for group in found]
    texts = [f"{group.at['what']}: {number(group.sample.median.value)}" for group in named]
    return Section(
        key,
        title,
        f"Median rounds until legitimate, from the same starts: {', '.join(texts)}.",
        by_row(named, "what", median_point, Axis("rounds until legitimate"), "rounds"),
        median_table(named, ("what",), "rounds"),
        (f"Mode fast. {RANGE_NOTE}",),
    )


def _on_equal_starts(found: Sequence[Group], what: str) -> list[Group]:
    """Return one group for each kind of channel, restricted to the initial states of all kinds."""
    tried: dict[tuple[object, ...], set[object]] = {}
    for group in found:
        tried.setdefault(_start(group), set()).add(group.at[what])
    weathers = {group.at[what] for group in found}
    equal = [group for group in found if tried[_start(group)] == weathers]
    return [
        Group({what: value}, together(group for group in equal if group.at[what] == value))
        for value in dict.fromkeys(group.at[what] for group in equal)
    ]


def _start(group: Group) -> tuple[object, ...]:
    return tuple(group.at[name] for name in _START)


def _words(value: str | float, unit: str) -> str:
    return f"{100 * value:g} % {unit}" if isinstance(value, float) else str(value)
