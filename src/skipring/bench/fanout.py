"""Publishing to n subscribers, ours beside its peers (``skipring bench fanout``).

Every system has one process that publishes, one that holds all subscribers, each with a connection
of its own, and its broker if it has one. They take turns, each several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from skipring.bench import loss
from skipring.bench.contest import Outcome, hold
from skipring.bench.peers.catalogue import OURS, OURS_SECURED, SYSTEMS, missing
from skipring.bench.peers.run import Run
from skipring.errors import SkipringError

SIZES: Final = (64, 256)
PAYLOAD_BYTES: Final = 128
REPEATS: Final = 5
DELIVERIES: Final = 320_000  # Our guess: a second or two, for most systems.
COUNT_MIN: Final = 2000
COUNT_MAX: Final = 20_000
LATENCY_N: Final = 64
LATENCY_RATE: Final = 200.0
LATENCY_S: Final = 2.0
THROUGHPUT: Final = "throughput"
LATENCY: Final = "latency"
LOSS: Final = "loss"
JOBS: Final = (THROUGHPUT, LATENCY, LOSS)

# How many times the processor time of ours a peer has to need at least.
CPU_WANTED: Final[Mapping[str, float]] = {"nats": 2.5, "zenoh": 1.0, "zeromq": 1 / 3}
P50_WANTED: Final[Mapping[str, float]] = {"nats": 1.5}
DEVIATIONS: Final = 2.0  # of a count: what chance does not exceed in 19 of 20 runs
MESSAGES_WANTED: Final = 1.2  # per delivery, at most

Row = dict[str, Any]


class Job(Struct, frozen=True, kw_only=True):
    """What all systems have to do."""

    name: str = THROUGHPUT
    n: int = 0
    size: int
    count: int | None  # of publications; None: as many as keep most systems busy for a while
    rate: float
    repeats: int
    profiles: Path | None


def measure(  # noqa: PLR0913  (each is named, and all can be left out)
    sizes: Sequence[int] = SIZES,
    *,
    size: int = PAYLOAD_BYTES,
    count: int | None = None,
    rate: float = 0.0,
    repeats: int = REPEATS,
    systems: Iterable[str] = tuple(SYSTEMS),
    jobs: Iterable[str] = JOBS,
    profiles: Path | None = None,
) -> Iterator[Row]:
    """Yield one row a measurement, the ratios last."""
    rows: list[Row] = []
    chosen, names = list(systems), list(jobs)
    asked = Job(size=size, count=count, rate=rate, repeats=repeats, profiles=profiles)
    for job, able in _jobs(asked, sizes, chosen, names):
        for row in _compared(job, able):
            rows.append(row)
            yield row
    if LOSS in names and OURS in chosen:
        rows.append(loss.measure(n=min(max(sizes), loss.N)))
        yield rows[-1]
    yield {"ratios": ratios(rows)}


def _jobs(
    asked: Job, sizes: Sequence[int], systems: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[Job, list[str]]]:
    """What is to be done, and by whom."""
    if THROUGHPUT in names:
        for n in sizes:
            yield replace(asked, n=n), _able(systems, n)
        for system in systems:  # what is too slow for all of the sizes, beside ours
            n_max = SYSTEMS[system].n_max
            if n_max is not None and n_max < min(sizes):
                is_there = missing(SYSTEMS[system]) is None
                beside = [OURS] if OURS in systems and is_there else []
                yield replace(asked, n=n_max), [*beside, system]
    if LATENCY in names:
        n, rate = min(LATENCY_N, max(sizes)), asked.rate or LATENCY_RATE
        count = asked.count or round(rate * LATENCY_S)
        yield replace(asked, name=LATENCY, n=n, count=count, rate=rate), _able(systems, n)


def _able(systems: Iterable[str], n: int) -> list[str]:
    """Those that are measured with so many subscribers."""
    bounds = {system: SYSTEMS[system].n_max for system in systems}
    return [system for system, bound in bounds.items() if bound is None or n <= bound]


def usual_count(n: int) -> int:
    """How many publications keep most systems busy for a second or two."""
    return min(max(DELIVERIES // n, COUNT_MIN), COUNT_MAX)


# -- one job ---------------------------------------------------------------------------------


def _compared(job: Job, systems: Sequence[str]) -> Iterator[Row]:
    """One row a system; they take turns."""
    found: dict[str, list[Outcome] | Row] = {}
    for system in systems:
        command = missing(SYSTEMS[system])
        skipped = {**_named(job, system), "skipped": f"not installed: {command}"}
        found[system] = skipped if command is not None else []
    for _ in range(job.repeats):
        for system, outcomes in found.items():
            if isinstance(outcomes, list):
                try:
                    outcomes.append(hold(_run(job, system)))
                except SkipringError as error:
                    found[system] = {**_named(job, system), "failed": str(error)}
    for system, outcomes in found.items():
        yield outcomes if isinstance(outcomes, dict) else _row(job, system, outcomes)


def _run(job: Job, system: str) -> Run:
    deliveries, count = SYSTEMS[system].deliveries_max, job.count or usual_count(job.n)
    return Run(
        system=system,
        n=job.n,
        size=job.size,
        count=count if deliveries is None else max(1, min(count, deliveries // job.n)),
        rate=job.rate,
        window=SYSTEMS[system].window,
        profiles=job.profiles,
    )


def _named(job: Job, system: str) -> Row:
    return {"job": job.name, "system": system, "n": job.n}


def _row(job: Job, system: str, outcomes: Sequence[Outcome]) -> Row:
    delivered = min(int(outcome.figures["delivered"]) for outcome in outcomes)
    run = _run(job, system)
    row = _named(job, system) | {
        "size": job.size,
        "count": run.count,
        "rate": job.rate,
        "repeats": len(outcomes),
        **_spread("cpu_us_per_delivery", [_us(each, each.cpu_total_s) for each in outcomes]),
    }
    for part in outcomes[0].cpu_s:
        spent = [_us(each, each.cpu_s[part]) for each in outcomes]
        row[f"cpu_us_{part}"] = round(median(spent), 3)
    row["wall_s"] = _median(outcomes, lambda each: each.wall_s)
    row["deliveries_per_s"] = round(
        median(each.figures["delivered"] / each.wall_s for each in outcomes)
    )
    for name in ("p50_ms", "p99_ms", "rss_kib_per_subscriber"):
        if name in outcomes[0].figures:
            row |= _spread(name, [each.figures[name] for each in outcomes])
    if system in (OURS, OURS_SECURED):
        row |= _own_figures(run, outcomes)
    return row | {"delivered": delivered, "expected": job.n * run.count}


def _own_figures(run: Run, outcomes: Sequence[Outcome]) -> Row:
    """What only a ring has."""
    settled = [_us(each, each.cpu_settled_total_s) for each in outcomes]
    frames = sum(each.figures["run_frames"] for each in outcomes)
    idle = sum(each.figures["idle_frames"] for each in outcomes)
    # A ring that does nothing says something too, by chance: what exceeds chance is ours.
    excess = max(0.0, frames - idle - DEVIATIONS * sqrt(frames + idle))
    return {
        **_spread("cpu_us_per_delivery_settled", settled),
        "settled_s": _median(outcomes, lambda each: each.settled_s),
        "messages_per_delivery": _median(
            outcomes, lambda each: each.figures["messages"] / each.figures["delivered"]
        ),
        # A broker sends n times as much as it gets.
        "hottest_copies_per_publication": _median(
            outcomes, lambda each: each.figures["hottest_bytes"] / run.count / run.size
        ),
        "supervisor_cpu_us_per_join": _median(
            outcomes, lambda each: each.figures["joining_cpu_us"] / (run.n + 1)
        ),
        "supervisor_messages_per_join": _median(
            outcomes, lambda each: each.figures["joining_frames"] / (run.n + 1)
        ),
        "supervisor_messages": int(frames),
        "supervisor_messages_idle": int(idle),
        "supervisor_messages_per_publication": round(excess / run.count / len(outcomes), 4),
    }


def _us(outcome: Outcome, seconds: float) -> float:
    """Microseconds per delivery."""
    return 1e6 * seconds / max(1.0, outcome.figures["delivered"])


def _median(outcomes: Sequence[Outcome], figure: Callable[[Outcome], float]) -> float:
    return round(median(map(figure, outcomes)), 3)


def _spread(name: str, values: Sequence[float]) -> Row:
    return {
        name: round(median(values), 3),
        f"{name}_min": round(min(values), 3),
        f"{name}_max": round(max(values), 3),
    }


# -- ratios ----------------------------------------------------------------------------------


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """How the peers compare with ours, and both with what is wanted: 1 or more is reached."""
    rows, found = list(rows), dict[str, float]()
    ours = {(row["job"], row["n"]): row for row in rows if _is_measured(row, OURS)}
    for row in rows:
        own = ours.get((row["job"], row["n"]))
        if own is not None and row is not own and _is_measured(row):
            found |= _against(row, own)
    for row in ours.values():
        found |= _own_ratios(row)
    return found | loss.ratios(rows)


def _is_measured(row: Row, system: str | None = None) -> bool:
    return "cpu_us_per_delivery" in row and system in (None, row["system"])


def _against(row: Row, own: Row) -> dict[str, float]:
    system, n = row["system"], row["n"]
    if row["job"] == LATENCY:
        return _compared_with(f"p50_{system}_over_skipring_n{n}", row, own, "p50_ms", P50_WANTED)
    name = f"cpu_{system}_over_skipring_n{n}"
    return _compared_with(name, row, own, "cpu_us_per_delivery", CPU_WANTED)


def _compared_with(
    name: str, row: Row, own: Row, figure: str, wanted: Mapping[str, float]
) -> dict[str, float]:
    ratio = row[figure] / own[figure]
    found = {name: round(ratio, 2)}
    if row["system"] in wanted:
        found[f"{name}_over_wanted"] = round(ratio / wanted[row["system"]], 2)
    return found


def _own_ratios(row: Row) -> dict[str, float]:
    job, n = row["job"], row["n"]
    messages = row["messages_per_delivery"]
    said = row["supervisor_messages_per_publication"]
    found = {
        f"messages_per_delivery_{job}_n{n}": messages,
        f"messages_per_delivery_{job}_n{n}_over_wanted": round(MESSAGES_WANTED / messages, 2),
        f"supervisor_messages_per_publication_{job}_n{n}": said,
        f"supervisor_messages_per_publication_{job}_n{n}_over_wanted": float(said == 0),
    }
    if job == THROUGHPUT:
        settled = row["cpu_us_per_delivery_settled"] / row["cpu_us_per_delivery"]
        found[f"cpu_settled_over_delivered_n{n}"] = round(settled, 2)
    return found
