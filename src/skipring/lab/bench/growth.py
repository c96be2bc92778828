"""How the cost of a delivery grows with the payload, with topics and with n.

Part of ``skipring bench fanout``. All cases take turns, so that what is compared with the smallest
of its kind was measured beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from skipring.lab.bench.contest import RunResult, hold
from skipring.lab.bench.jobs import Job, named, row_of, run_of
from skipring.lab.bench.peers.catalogue import OURS, SYSTEMS
from skipring.lab.bench.turns import Row, in_turns, is_measured, skipped

JOB: Final = "growth"
MEASURED: Final = (OURS, "nats")  # those that can have several topics
N: Final = 64
TOPICS_N: Final = 16  # a node ticks for each of its topics, and all nodes share a core
REPEATS_MAX: Final = 2
COUNT: Final = 2500  # Our guess: short, and of all cases the same.
BYTES_MAX: Final = 8 << 20  # Limit of ours: of all payloads; each member stores them.

# What grows, and the cases of it.
SERIES: Final[Mapping[str, tuple[int, ...]]] = {
    "size": (16, 128, 1024, 16384),
    "topics": (1, 4, 16),
    "n": (16, 64, 256),
}


def measure(asked: Job, systems: Iterable[str]) -> Iterator[Row]:
    """One row for each case of all that grows; what is the smallest of two is measured once."""
    able = [each for each in MEASURED if each in systems and skipped(SYSTEMS[each]) is None]
    series = {what: _cases(asked, what) for what in SERIES}
    jobs = dict.fromkeys(job for cases in series.values() for job in cases)
    actions = {(job, system): partial(_held, job, system) for job in jobs for system in able}
    found = in_turns(actions, min(asked.repeats, REPEATS_MAX))
    for what, cases in series.items():
        for system in able:
            smallest: Row | None = None
            for job in cases:
                case = {"by": what, "size": job.size, "topics": job.topics}
                row = named(job, system) | case | row_of(job, system, found[job, system])
                smallest = smallest or row
                yield row | _over(smallest, row, what)


def _cases(asked: Job, what: str) -> list[Job]:
    """The jobs of one series, each no larger than what was asked for."""
    usual = replace(asked, n=min(asked.n, TOPICS_N if what == "topics" else N), profiles=None)
    bound = asked.n if what == "n" else max(SERIES[what])
    values = dict.fromkeys(min(value, bound) for value in SERIES[what])
    return [_counted(replace(usual, **{what: value})) for value in values]


def _counted(job: Job) -> Job:
    """With as many publications as all others have, if they fit on the disk."""
    return replace(job, count=job.count or min(COUNT, BYTES_MAX // job.size))


def _held(job: Job, system: str, _: int) -> RunResult:
    return hold(run_of(job, system))


def _over(smallest: Row, row: Row, what: str) -> Row:
    if not (is_measured(smallest) and is_measured(row)):
        return {}
    return {"smallest": smallest[what]} | {
        f"{name}_over_smallest": round(row[name] / smallest[name], 2)
        for name in ("cpu_us_per_delivery", "cpu_us_per_delivery_settled")
    }


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """How many times as much a delivery costs as in the smallest case of its kind."""
    return {
        _ratio_name(row): row["cpu_us_per_delivery_over_smallest"]
        for row in rows
        if row["job"] == JOB and "smallest" in row and row["smallest"] != row[row["by"]]
    }


def _ratio_name(row: Row) -> str:
    what = row["by"]
    return f"cpu_{row['system']}_{what}_{row[what]}_over_{row['smallest']}"
