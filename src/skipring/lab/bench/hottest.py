"""What the busiest node of a ring spends on a publication, beside what a broker does.

Part of ``skipring bench fanout``. The member that joins first has the shortest label, and so most
below it in the tree. It has a process of its own here, and all others share one; that nobody else
has sent more is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.contest import RunResult, hold, rss_of
from skipring.lab.bench.jobs import Job, middle, named, run_of
from skipring.lab.bench.peers.catalogue import OURS, SYSTEMS
from skipring.lab.bench.peers.run import FIRST, BenchRun
from skipring.lab.bench.turns import Row, counted, failed, in_turns, is_measured, skipped, spread

JOB: Final = "hottest"
N: Final = 64
BROKER: Final = "broker"


def measure(job: Job, systems: Iterable[str]) -> Iterator[Row]:
    """One row for ours and for each broker; they take turns."""
    chosen = [each for each in systems if each == OURS or SYSTEMS[each].server is not None]
    lacking = {system: skipped(SYSTEMS[system]) for system in chosen}
    able = [system for system, reason in lacking.items() if reason is None]
    found = in_turns({system: partial(_held, job, system) for system in able}, job.repeats)
    for system, reason in lacking.items():
        yield named(job, system) | (reason or _row(job, system, found[system]))


def _held(job: Job, system: str, _: int) -> RunResult:
    run = run_of(job, system)
    # One of the n subscribers is the first, apart from the others.
    return hold(replace(run, n=job.n - 1, is_first_apart=True) if system == OURS else run)


def _row(job: Job, system: str, outcomes: list[RunResult] | SkipringError) -> Row:
    if isinstance(outcomes, SkipringError):
        return failed(outcomes)
    run, part = run_of(job, system), FIRST if system == OURS else BROKER
    spent = [each.cpu_s[part] / run.count for each in outcomes]
    settled = [each.cpu_settled_s[part] / run.count for each in outcomes]
    return {
        "size": run.size,
        "count": run.count,
        "repeats": len(outcomes),
        **spread("cpu_us_per_publication", [1e6 * each for each in spent]),
        **spread("cpu_us_per_publication_settled", [1e6 * each for each in settled]),
        **spread("rss_mib", [each.figures[rss_of(part)] for each in outcomes]),
        **(_copies(run, outcomes) if system == OURS else {"copies_per_publication": run.n}),
        **counted([_delivered(each) for each in outcomes], run.n * run.count),
    }


def _copies(run: BenchRun, outcomes: Sequence[RunResult]) -> Row:
    """How often a publication was sent: by the first, and by whoever of the others sent most."""
    size = run.count * run.size
    return {
        "copies_per_publication": middle(outcomes, lambda each: each.figures["first_bytes"] / size),
        "copies_per_publication_others": middle(
            outcomes, lambda each: each.figures["hottest_bytes"] / size
        ),
    }


def _delivered(outcome: RunResult) -> int:
    return int(outcome.figures["delivered"] + outcome.figures.get("first_delivered", 0))


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """How many times the processor time of our busiest node a broker needs."""
    measured = [row for row in rows if row["job"] == JOB and is_measured(row)]
    ours = {row["n"]: row for row in measured if row["system"] == OURS}
    found: dict[str, float] = {}
    for row in measured:
        own = ours.get(row["n"])
        if own is not None and row is not own:
            name = f"cpu_{row['system']}_broker_over_hottest_n{row['n']}"
            broker = row["cpu_us_per_publication"]
            found[name] = round(broker / own["cpu_us_per_publication"], 2)
            found[f"{name}_settled"] = round(broker / own["cpu_us_per_publication_settled"], 2)
    return found
