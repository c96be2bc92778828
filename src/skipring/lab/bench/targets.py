"""Targets of performance, measured in one run (``skipring bench targets``).

All jobs take turns, so a busy minute of the machine affects the systems of a ratio alike. Each
round gives one value of a ratio, from two runs within seconds; the table has medians and spreads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from skipring.errors import SkipringError
from skipring.lab.bench import history, index, nodes
from skipring.lab.bench.fanout import BUSY, HOPS, LATENCY, SUSTAINED, THROUGHPUT, job_of
from skipring.lab.bench.report import (
    Figures,
    Row,
    in_turns,
    spread,
    spreads,
    table_header,
    table_row,
)
from skipring.lab.bench.servers import BATCH
from skipring.lab.bench.systems.catalog import (
    JETSTREAM_STORED,
    OURS,
    REDIS_STREAMS_STORED,
    STORED,
    SYSTEMS,
)
from skipring.lab.usage import run_alone

REPEATS: Final = 5
ROUNDED_FROM: Final = 100
IDLE_REPEATS: Final = 2  # forming 4,000 rings takes a minute
NATS: Final = "nats"
ZENOH: Final = "zenoh"
LARGE: Final = "size-16384"
ONE_TOPIC: Final = "topics-1"
MANY_TOPICS: Final = "topics-128"
HISTORY: Final = "history"
START: Final = "start"
START_SINGLE: Final = "start-single"
INDEX: Final = "index"
IDLE: Final = "idle"

FANOUT_SYSTEMS: Final[Mapping[str, Sequence[str]]] = {
    THROUGHPUT: (OURS, NATS),
    SUSTAINED: (OURS, NATS, ZENOH),
    LATENCY: (OURS, NATS),
    BUSY: (OURS, NATS),
    LARGE: (OURS, NATS),
    ONE_TOPIC: (OURS,),
    MANY_TOPICS: (OURS,),
    HOPS: (OURS,),
}
HISTORY_SYSTEMS: Final = (OURS, REDIS_STREAMS_STORED, JETSTREAM_STORED)


class Sizes(Struct, frozen=True, kw_only=True):
    """Sizes of the jobs."""

    n: int = 64
    count: int | None = None  # publications of a fan-out; None: those of its job
    history: int = 100_000
    records: int = 1_000_000  # in the store of a node that starts, and in the index
    topics: int = 1000
    pause_s: float = 45.0  # Guess: members that have just joined compare their logs more often
    idle_s: float = 20.0


SMALL: Final = Sizes(n=4, count=40, history=300, records=2000, topics=3, pause_s=0, idle_s=0.5)


# -- the table -------------------------------------------------------------------------------


class Figure(Struct, frozen=True):
    """Figure of one job by one system."""

    job: str
    name: str
    system: str = OURS


class Bound(Struct, frozen=True):
    """Target and aim of a figure, both lower or both upper bounds."""

    goal: float
    aim: float | None = None
    is_upper: bool = False

    def reached(self, found: float, limit: float) -> float:
        """Return by how much a figure reaches a limit: 1 or more if it does."""
        if self.is_upper:
            return _rounded(limit / found) if found > 0 else 1.0
        return _rounded(found / limit)


class Target(Struct, frozen=True):
    """Row of the table: a figure, or the ratio of two, with its bound if it has one."""

    key: str
    text: str
    figures: tuple[Figure, ...]  # one, or numerator and denominator
    bound: Bound | None = None


def _rounded(value: float) -> float:
    """Round to more digits below 1, so 0.999 is not printed as reached."""
    return round(value, 2 if value >= 1 else 4)


def _least(goal: float, aim: float | None = None) -> Bound:
    return Bound(goal, aim)


def _most(goal: float, aim: float | None = None) -> Bound:
    return Bound(goal, aim, is_upper=True)


def _own(job: str, name: str) -> tuple[Figure]:
    return (Figure(job, name),)


def _peer_ratio(job: str, name: str, system: str) -> tuple[Figure, Figure]:
    """Return a figure of another system, and that of skipring."""
    return Figure(job, name, system), Figure(job, name)


CPU: Final = "cpu_us_per_delivery"
SETTLED: Final = "cpu_us_per_delivery_settled"

TARGETS: Final = (
    Target(
        "cpu_nats_over_skipring_n64_settled",
        "CPU until stored and indexed, NATS / skipring",
        _peer_ratio(THROUGHPUT, SETTLED, NATS),
        _least(1.5, 2),
    ),
    Target(
        "cpu_nats_over_skipring_sustained_n64_settled",
        "sustained, CPU until stored and indexed, NATS / skipring",
        _peer_ratio(SUSTAINED, SETTLED, NATS),
        _least(1.5, 2),
    ),
    Target(
        "cpu_zenoh_over_skipring_sustained_n64",
        "sustained, CPU until delivered, Zenoh / skipring",
        _peer_ratio(SUSTAINED, CPU, ZENOH),
        _least(1, 1.5),
    ),
    Target(
        "cpu_nats_over_skipring_n64",
        "CPU until delivered, NATS / skipring",
        _peer_ratio(THROUGHPUT, CPU, NATS),
        _least(3.5, 5),
    ),
    Target(
        f"cpu_{REDIS_STREAMS_STORED}_over_skipring_100000",
        "history, both store it, CPU, Redis Streams / skipring",
        _peer_ratio(HISTORY, "cpu_s", REDIS_STREAMS_STORED),
        _least(1.2, 2),
    ),
    Target(
        f"cpu_{JETSTREAM_STORED}_over_skipring_100000",
        "history, both store it, CPU, JetStream / skipring",
        _peer_ratio(HISTORY, "cpu_s", JETSTREAM_STORED),
        _least(3, 4),
    ),
    Target(
        "cpu_us_per_member_lone",
        "lone publication, CPU per member until stored and indexed, µs",
        _own(LATENCY, "cpu_us_subscribers_settled"),
        _most(35, 20),
    ),
    Target(
        "p50_nats_over_skipring_n64",
        "p50 at 200/s, NATS / skipring",
        _peer_ratio(LATENCY, "p50_ms", NATS),
        _least(0.8, 1.2),
    ),
    Target(
        "p50_nats_over_skipring_busy_n64",
        "the same while another process competes for each core",
        _peer_ratio(BUSY, "p50_ms", NATS),
        _least(0.3),
    ),
    Target(
        "written_bytes_lone",
        "lone publication, bytes that its publisher writes",
        _own(LATENCY, "written_bytes_per_publication"),
        _most(5000),
    ),
    Target(
        "cpu_skipring_over_nats_size_16384_n64_settled",
        "16 KiB, CPU until stored and indexed, skipring / NATS",
        (Figure(LARGE, SETTLED), Figure(LARGE, SETTLED, NATS)),
        _most(1.5, 1),
    ),
    Target(
        "cpu_topics_128_over_1_n4_settled",
        "n = 4, CPU until stored and indexed, 128 topics / 1 topic",
        (Figure(MANY_TOPICS, SETTLED), Figure(ONE_TOPIC, SETTLED)),
        _most(2, 1.3),
    ),
    Target(
        "start_cpu_s",
        "start with 10⁶ records in batches of 250, CPU, s",
        _own(START, "cpu_s"),
        _most(0.3),
    ),
    Target(
        "start_pause_ms",
        "the same, longest pause of the loop, ms",
        _own(START, "pause_ms"),
        _most(50),
    ),
    Target(
        "start_single_cpu_s",
        "start with 10⁶ records in batches of one, CPU, s",
        _own(START_SINGLE, "cpu_s"),
        _most(3),
    ),
    Target(
        "start_single_pause_ms",
        "the same, longest pause of the loop, ms",
        _own(START_SINGLE, "pause_ms"),
        _most(50),
    ),
    Target(
        "inserts_per_s",
        "index, inserts/s up to 10⁶ batches",
        _own(INDEX, "inserts_per_s"),
        _least(400_000),
    ),
    Target(
        "rss_kib_per_member",
        "memory per member, n = 64 in one process, KiB",
        _own(THROUGHPUT, "rss_kib_per_subscriber"),
        _most(300, 100),
    ),
    Target(
        "idle_percent_of_core",
        "1,000 idle topics of one process, percent of a core",
        _own(IDLE, "percent_of_core"),
        _most(5),
    ),
    Target(
        "idle_mib_beyond_first_topic",
        "the same, MiB beyond the first topic",
        _own(IDLE, "mib_beyond_first_topic"),
        _most(20),
    ),
    # Figures without a target.
    Target(
        "cpu_us_per_lone_delivery",
        "lone publication, CPU of all processes per delivery, µs",
        _own(LATENCY, SETTLED),
    ),
    Target(
        "cpu_us_per_lone_delivery_nats", "the same with NATS", (Figure(LATENCY, SETTLED, NATS),)
    ),
    Target(
        "written_bytes_per_lone_delivery",
        "lone publication, bytes that a member writes",
        _own(LATENCY, "written_bytes_per_delivery"),
    ),
    Target("p50_ms_lone", "p50 at 200/s, ms", _own(LATENCY, "p50_ms")),
    Target(
        "p50_ms_per_hop",
        "p50 at 200/s per hop, n = 8 in processes of their own, ms",
        _own(HOPS, "p50_ms_per_hop"),
    ),
    Target(
        "cpu_us_per_lone_delivery_apart",
        "the same, CPU of all processes per delivery, µs",
        _own(HOPS, CPU),
    ),
)


# -- measurement -----------------------------------------------------------------------------

Key = tuple[str, str]  # job and system
Results = Mapping[Key, list[Figures] | SkipringError]


def actions_of(sizes: Sizes, jobs: Iterable[str]) -> dict[Key, Callable[[], Figures]]:
    """Return the action that runs each job once by each of its systems."""
    found: dict[Key, Callable[[], Figures]] = {}
    for name, systems in FANOUT_SYSTEMS.items():
        job = job_of(name, sizes.n, count=sizes.count)
        found |= {(name, system): partial(job.measure, system) for system in systems}
    for system in HISTORY_SYSTEMS:
        found[HISTORY, system] = partial(history.fetch_once, system, sizes.history)
    found[START, OURS] = partial(nodes.start_once, sizes.records, BATCH)
    found[START_SINGLE, OURS] = partial(nodes.start_once, sizes.records, 1)
    found[INDEX, OURS] = partial(run_alone, index.insert_figures, sizes.records)
    found[IDLE, OURS] = partial(nodes.idle_once, sizes.topics, sizes.pause_s, sizes.idle_s)
    return {key: action for key, action in found.items() if key[0] in set(jobs)}


JOBS: Final = (*FANOUT_SYSTEMS, HISTORY, START, START_SINGLE, INDEX, IDLE)


def measure(
    sizes: Sizes | None = None,
    *,
    repeats: int = REPEATS,
    jobs: Iterable[str] = JOBS,
    observe: Callable[[Key, float], None],
) -> Results:
    """Run all jobs in rotation; return the figures of each repeat."""
    actions = actions_of(sizes or Sizes(), jobs)
    missing = {key: _missing(*key) for key in actions}
    able = {key: action for key, action in actions.items() if missing[key] is None}
    found = in_turns(able, repeats, observe, fewer={(IDLE, OURS): IDLE_REPEATS})
    return {key: found.get(key, SkipringError(f"{missing[key]}")) for key in actions}


def _missing(job: str, system: str) -> str | None:
    catalogue = STORED if job == HISTORY else SYSTEMS
    command = catalogue[system].missing
    return None if command is None else f"{system} is not installed: {command}"


# -- rows ------------------------------------------------------------------------------------


def rows(results: Results) -> Iterator[Row]:
    """Yield the figures of each job, then the rows of the table."""
    for (job, system), repeats in results.items():
        row: Row = {"job": job, "system": system}
        yield row | (
            {"failed": str(repeats)} if isinstance(repeats, SkipringError) else spreads(repeats)
        )
    for target in TARGETS:
        found = target_row(target, results)
        if found is not None:
            yield found


def target_row(target: Target, results: Results) -> Row | None:
    """Return the row of a target; None if its job has not run."""
    row: Row = {"target": target.key, "text": target.text}
    columns: list[list[float]] = []
    for figure in target.figures:
        repeats = results.get((figure.job, figure.system))
        if repeats is None:
            return None
        if isinstance(repeats, SkipringError):
            return row | {"failed": str(repeats)}
        columns.append([each[figure.name] for each in repeats])
    values = [
        found[0] / found[1] if found[1:] else found[0] for found in zip(*columns, strict=True)
    ]
    row |= {"repeats": len(values), **spread("value", values)}
    if target.bound is not None:
        goal, aim = target.bound.goal, target.bound.aim
        row |= {"target_value": goal, "reached": target.bound.reached(row["value"], goal)}
        if aim is not None:
            row |= {"aim": aim, "aim_reached": target.bound.reached(row["value"], aim)}
    return row


# -- Markdown --------------------------------------------------------------------------------


def markdown(results: Results) -> Iterator[str]:
    """Yield the lines of the table."""
    yield from table_header("", ["measured", "repeats", "target", "", "aim", ""])
    for target in TARGETS:
        row = target_row(target, results)
        if row is None:
            continue
        if "failed" in row:
            yield table_row(target.text, [f"not measured: {row['failed']}", *[""] * 5])
            continue
        value, low, high = (_shown(row[name]) for name in ("value", "value_min", "value_max"))
        columns = [f"{value} ({low} to {high})", str(row["repeats"])]
        yield table_row(target.text, [*columns, *_verdicts(target.bound, row["value"])])


def _verdicts(bound: Bound | None, value: float) -> Iterator[str]:
    """Yield target and aim, each followed by its verdict."""
    for limit in (bound.goal, bound.aim) if bound else (None, None):
        if bound is None or limit is None:
            yield from ("", "")
            continue
        reached = bound.reached(value, limit)
        yield f"at {'most' if bound.is_upper else 'least'} {_shown(limit)}"
        yield f"{'reached' if reached >= 1 else '**missed**'} ({reached})"


def _shown(value: float) -> str:
    """Return a number with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= ROUNDED_FROM else f"{value:.3g}"
