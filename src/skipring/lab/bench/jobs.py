"""What all systems of a job have to do, in turns, and what it has cost them, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Final

from msgspec import Struct

from skipring.errors import SkipringError
from skipring.lab.bench.contest import RunResult, hold
from skipring.lab.bench.peers.catalogue import OURS, OURS_SECURED, SYSTEMS
from skipring.lab.bench.peers.run import BenchRun
from skipring.lab.bench.turns import Row, counted, failed, in_turns, skipped, spread

DELIVERIES: Final = 320_000  # Our guess: a second or two, for most systems.
COUNT_MIN: Final = 2000
COUNT_MAX: Final = 20_000
DEVIATIONS: Final = 2.0  # of a count: what chance does not exceed in 19 of 20 runs


class Job(Struct, frozen=True, kw_only=True):
    """What all systems have to do."""

    name: str
    n: int
    size: int
    topics: int = 1
    count: int | None = None  # of publications; None: as many as keep most systems busy for a while
    rate: float = 0.0
    repeats: int = 1
    profiles: Path | None = None


def usual_count(n: int) -> int:
    """How many publications keep most systems busy for a second or two."""
    return min(max(DELIVERIES // n, COUNT_MIN), COUNT_MAX)


def run_of(job: Job, system: str) -> BenchRun:
    """One run of a job; of what is slow less is asked."""
    deliveries, count = SYSTEMS[system].deliveries_max, job.count or usual_count(job.n)
    return BenchRun(
        system=system,
        n=job.n,
        size=job.size,
        topics=job.topics,
        count=count if deliveries is None else max(1, min(count, deliveries // job.n)),
        rate=job.rate,
        window=SYSTEMS[system].window,
        profiles=job.profiles,
    )


def compared(job: Job, systems: Sequence[str]) -> Iterator[Row]:
    """One row a system; they take turns."""
    lacking = {system: skipped(SYSTEMS[system]) for system in systems}
    able = [system for system, reason in lacking.items() if reason is None]
    found = in_turns({system: partial(_held, run_of(job, system)) for system in able}, job.repeats)
    for system, reason in lacking.items():
        yield named(job, system) | (reason or row_of(job, system, found[system]))


def _held(run: BenchRun, _: int) -> RunResult:
    return hold(run)


def named(job: Job, system: str) -> Row:
    """What every row of a job begins with."""
    return {"job": job.name, "system": system, "n": job.n}


def row_of(job: Job, system: str, outcomes: list[RunResult] | SkipringError) -> Row:
    """What a system's runs have cost, or why they failed."""
    if isinstance(outcomes, SkipringError):
        return failed(outcomes)
    run = run_of(job, system)
    row = {
        "size": job.size,
        "topics": job.topics,
        "count": run.count,
        "rate": job.rate,
        "repeats": len(outcomes),
        **spread("cpu_us_per_delivery", [_us(each, each.cpu_total_s) for each in outcomes]),
        **spread(
            "cpu_us_per_delivery_settled",
            [_us(each, each.cpu_settled_total_s) for each in outcomes],
        ),
    }
    for part in outcomes[0].cpu_s:
        spent = [_us(each, each.cpu_s[part]) for each in outcomes]
        row[f"cpu_us_{part}"] = round(median(spent), 3)
    row |= spread("wall_s", [each.wall_s for each in outcomes])
    row |= spread(
        "deliveries_per_s", [each.figures["delivered"] / each.wall_s for each in outcomes]
    )
    for name in ("p50_ms", "p99_ms", "rss_kib_per_subscriber"):
        if name in outcomes[0].figures:
            row |= spread(name, [each.figures[name] for each in outcomes])
    if system in (OURS, OURS_SECURED):
        row |= _own_figures(run, outcomes)
    return row | counted([int(each.figures["delivered"]) for each in outcomes], job.n * run.count)


def _own_figures(run: BenchRun, outcomes: Sequence[RunResult]) -> Row:
    """What only a ring has."""
    frames = sum(each.figures["run_frames"] for each in outcomes)
    idle = sum(each.figures["idle_frames"] for each in outcomes)
    # A ring that does nothing says something too, by chance: what exceeds chance is ours.
    excess = max(0.0, frames - idle - DEVIATIONS * sqrt(frames + idle))
    messages = [each.figures["messages"] / max(1, each.figures["delivered"]) for each in outcomes]
    return {
        **spread("settled_s", [each.settled_s for each in outcomes]),
        **spread("messages_per_delivery", messages),
        # A broker sends n times as much as it gets.
        "hottest_copies_per_publication": middle(
            outcomes, lambda each: each.figures["hottest_bytes"] / run.count / run.size
        ),
        "supervisor_cpu_us_per_join": middle(
            outcomes, lambda each: each.figures["joining_cpu_us"] / (run.n + 1)
        ),
        "supervisor_messages_per_join": middle(
            outcomes, lambda each: each.figures["joining_frames"] / (run.n + 1)
        ),
        # The same for what it works: an idle ring costs it something too.
        "supervisor_cpu_us_per_publication": middle(
            outcomes,
            lambda each: (
                max(0.0, each.figures["run_cpu_us"] - each.figures["idle_cpu_us"]) / run.count
            ),
        ),
        "supervisor_messages": int(frames),
        "supervisor_messages_idle": int(idle),
        "supervisor_messages_per_publication": round(excess / run.count / len(outcomes), 4),
    }


def _us(outcome: RunResult, seconds: float) -> float:
    """Microseconds per delivery."""
    return 1e6 * seconds / max(1.0, outcome.figures["delivered"])


def middle(outcomes: Sequence[RunResult], figure: Callable[[RunResult], float]) -> float:
    """The median of a figure."""
    return round(median(map(figure, outcomes)), 3)
