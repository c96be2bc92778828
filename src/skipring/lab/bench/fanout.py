"""Fan-out to n subscribers, compared with other systems (``skipring bench fanout``).

Each system has one process that publishes, one with all subscribers, and its broker if it has one.
The jobs are parameter sets of the same run; the systems run several times, in rotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from msgspec.structs import replace

from skipring.core.limits import PAYLOAD_BYTES_MAX
from skipring.errors import SkipringError
from skipring.lab.bench.harness import (
    Job,
    RunResult,
    compare,
    delivery_figures,
    rss_figure,
    run_directory,
)
from skipring.lab.bench.report import (
    Figures,
    Row,
    against_goal,
    at_least,
    at_most,
    is_measured,
    with_ratios,
)
from skipring.lab.bench.run import PUBLISHER, BenchRun, Board, Moment, Slot, apart_roles
from skipring.lab.bench.servers import BROKER, BenchProcesses
from skipring.lab.bench.systems.catalog import OURS, RELAY, SYSTEMS
from skipring.lab.bench.systems.lossy import DRIVER, SURVIVORS, VICTIMS, victims_of
from skipring.lab.bench.systems.ours import forming_tick_s

SIZES: Final = (64, 256)
REPEATS: Final = 3
THROUGHPUT: Final = "throughput"
SUSTAINED: Final = "sustained"
LATENCY: Final = "latency"
BUSY: Final = "busy"
HOPS: Final = "hops"
HOTTEST: Final = "hottest"
LOSS: Final = "loss"

# Goals: lower bounds on another system's CPU time and latency relative to skipring's.
CPU_GOALS: Final[Mapping[str, float]] = {"nats": 2.5, "zenoh": 1.0, "zeromq": 1 / 3}
P50_GOALS: Final[Mapping[str, float]] = {"nats": 1.5}
MESSAGES_GOAL: Final = 1.2  # maximum per delivery
SUPERVISOR_MESSAGES_GOAL: Final = 0.0  # per publication
GOAL_JOBS: Final = (THROUGHPUT, SUSTAINED, LATENCY)

LOSS_N: Final = 64
LOSS_COUNT: Final = 2000
LOSS_SHARE: Final = 0.05  # share of all frames


# -- jobs ------------------------------------------------------------------------------------


def hottest_figures(run: BenchRun, result: RunResult) -> Figures:
    """Return the costs of the broker, or of the member that joined first, per publication."""
    (part,) = apart_roles(run) or (BROKER,)
    given, scale, size = result.figures, 1e6 / run.count, run.count * run.size
    figures = {
        "cpu_us_per_publication": scale * result.cpu_s[part],
        "cpu_us_per_publication_settled": scale * result.cpu_settled_s[part],
        "rss_mib": given[rss_figure(part)],
    }
    if not run.apart:
        return figures | {"copies_per_publication": run.n}
    return figures | {
        "copies_per_publication": given[f"{part}_bytes_sent"] / size,
        "copies_per_publication_others": given["hottest_bytes"] / size,
    }


def hop_figures(run: BenchRun, result: RunResult) -> Figures:
    """Return the latency of members with processes of their own, by hops from the publisher."""
    figures, given, roles = delivery_figures(run, result), result.figures, apart_roles(run)
    p50_ms = [given[f"{role}_p50_ms"] for role in roles]
    hops = [given[f"{role}_hops"] for role in roles]
    per_hop = [value / distance for value, distance in zip(p50_ms, hops, strict=True)]
    own = {"p50_ms": median(p50_ms), "p50_ms_per_hop": median(per_hop), "hops_max": max(hops)}
    return {"cpu_us_per_delivery": figures["cpu_us_per_delivery"], **own}


_WITH_TOPICS: Final = (OURS, "nats")  # their drivers have topics
_RUN: Final = BenchRun(n=64)
JOBS: Final[Mapping[str, Job]] = {
    THROUGHPUT: Job(_RUN),
    # Guess: more than 3 s, so the run includes indexing and several commits. Slow systems run with
    # fewer publications, so their runs are not sustained.
    SUSTAINED: Job(
        replace(_RUN, count=32_000),
        tuple(name for name, system in SYSTEMS.items() if system.deliveries_max is None),
    ),
    LATENCY: Job(replace(_RUN, rate=200.0)),
    BUSY: Job(replace(_RUN, rate=200.0, is_busy=True), (OURS, "nats", RELAY)),
    HOPS: Job(BenchRun(n=1, apart=7, rate=200.0), (OURS,), hop_figures),
    HOTTEST: Job(
        BenchRun(n=63, apart=1),
        (OURS, *(name for name, system in SYSTEMS.items() if system.broker is not None)),
        hottest_figures,
    ),
    "size-16": Job(replace(_RUN, size=16), _WITH_TOPICS),
    "size-1024": Job(replace(_RUN, size=1024), _WITH_TOPICS),
    # Limit: 8 MiB of payloads; each member stores them.
    "size-16384": Job(replace(_RUN, size=16_384, count=512), _WITH_TOPICS),
    # Limit: 32 MiB of payloads, of the largest size.
    "size-524288": Job(BenchRun(n=16, size=PAYLOAD_BYTES_MAX, count=64), _WITH_TOPICS),
    "topics-1": Job(BenchRun(n=4), _WITH_TOPICS),
    "topics-16": Job(BenchRun(n=4, topics=16), _WITH_TOPICS),
    "topics-128": Job(BenchRun(n=4, topics=128), _WITH_TOPICS),
}
JOB_NAMES: Final = (*JOBS, LOSS)


def job_of(name: str, n: int, **given: float | Path | None) -> Job:
    """Return a job with at most ``n`` subscribers, and with the parameters that are not None."""
    job = JOBS[name]
    own, apart = job.run.n, min(job.run.apart, n - 1)
    changed = {key: value for key, value in given.items() if value is not None}
    changed["n"] = n if name == THROUGHPUT else min(own, n - apart)
    return replace(job, run=replace(job.run, apart=apart, **changed))


def measure(  # noqa: PLR0913  (keyword arguments with defaults)
    sizes: Sequence[int] = SIZES,
    *,
    size: int | None = None,
    count: int | None = None,
    rate: float | None = None,
    repeats: int = REPEATS,
    systems: Sequence[str] = tuple(SYSTEMS),
    jobs: Iterable[str] = JOB_NAMES,
    profiles: Path | None = None,
) -> Iterator[Row]:
    """Return an iterator of one row per measurement, the ratios last."""

    def rows() -> Iterator[Row]:
        for name in jobs:
            if name == LOSS:
                yield from [_loss_row(min(max(sizes), LOSS_N))] if OURS in systems else []
                continue
            for n in sizes if name == THROUGHPUT else [max(sizes)]:
                job = job_of(name, n, size=size, count=count, rate=rate, profiles=profiles)
                yield from compare(name, job, systems, repeats)

    return with_ratios(rows(), ratios)


# -- loss: frames are dropped and nodes killed -------------------------------------------------


def measure_loss(
    *,
    n: int = LOSS_N,
    count: int = LOSS_COUNT,
    share: float = LOSS_SHARE,
    deadline_s: float = 120.0,
) -> Row:
    """Publish under frame loss, kill a tenth of the nodes, and wait until the rest are in sync."""
    with run_directory() as directory, BenchProcesses(directory) as processes:
        board = Board(directory)
        run = BenchRun(
            system=OURS,
            driver=DRIVER,
            n=n,
            count=count,
            directory=directory,
            address=processes.start_supervisor(None, "--tick", str(forming_tick_s(n))),
            loss=share,
            deadline_s=deadline_s,
        )
        processes.start_workers(run, (PUBLISHER, SURVIVORS, VICTIMS))
        processes.wait_calm((PUBLISHER, SURVIVORS))
        board[Slot.BEGIN] = 1
        processes.wait(lambda: board[Slot.PUBLISHED] >= run.count // 2)
        processes.kill(VICTIMS)
        figures = processes.wait_figures((PUBLISHER, SURVIVORS))
        return _loss_figures(run, figures, board.seconds(Moment.ENDED)[0])


def _loss_figures(run: BenchRun, figures: Figures, seconds: float) -> Row:
    wrong = figures["incomplete"] + figures["missing"] + figures["invented"]
    return {
        "job": LOSS,
        "system": OURS,
        "n": run.n,
        "killed": victims_of(run.n),
        "survivors": int(figures["survivors"]),
        "publications": int(figures["published"]),
        "loss": run.loss,
        "frames_dropped": int(figures["dropped"] + figures["publisher_dropped"]),
        "missing": int(figures["missing"]),
        "complete": not wrong,
        "seconds_until_complete": None if wrong else round(max(0.0, seconds), 2),
    }


def _loss_row(n: int) -> Row:
    try:
        return measure_loss(n=n)
    except SkipringError as error:
        return {"job": LOSS, "system": OURS, "n": n, "failed": str(error)}


# -- ratios ----------------------------------------------------------------------------------


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Compare other systems with skipring, and both with their goals."""
    measured, found = [row for row in rows if is_measured(row)], dict[str, float]()
    compared = [row for row in measured if row["job"] not in (HOPS, HOTTEST, LOSS)]
    ours = {(row["job"], row["n"]): row for row in compared if row["system"] == OURS}
    for row in compared:
        own = ours.get((row["job"], row["n"]))
        if own is not None and row is not own:
            found |= _against(row, own)
    found |= _relay_ratios(row for row in compared if row["job"] == LATENCY)
    for row in ours.values():
        found |= _own_ratios(row) if row["job"] in GOAL_JOBS else {}
    for row in measured:
        if row["job"] == LOSS:
            found |= at_least(f"complete_after_loss_n{row['n']}", float(row["complete"]), 1.0)
    return found


def _against(row: Row, own: Row) -> dict[str, float]:
    """Return the ratios of another system; only some jobs have goals."""
    job, system = row["job"], row["system"]
    where = f"n{row['n']}" if job in (THROUGHPUT, LATENCY) else f"{job}_n{row['n']}"
    if "p50_ms" in row:
        goal = P50_GOALS.get(system) if job == LATENCY else None
        return against_goal(
            f"p50_{system}_over_skipring_{where}", row["p50_ms"] / own["p50_ms"], goal
        )
    name, key = f"cpu_{system}_over_skipring_{where}", "cpu_us_per_delivery"
    settled = row[f"{key}_settled"] / own[f"{key}_settled"]
    return {
        **against_goal(
            name, row[key] / own[key], CPU_GOALS.get(system) if job in GOAL_JOBS else None
        ),
        f"{name}_settled": round(settled, 2),
    }


def _relay_ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Return the latency of systems that have a goal, relative to that of the bare relay."""
    p50 = {(row["system"], row["n"]): row["p50_ms"] for row in rows}
    return {
        f"p50_{system}_over_{RELAY}_n{n}": round(found / p50[RELAY, n], 2)
        for (system, n), found in p50.items()
        if system in P50_GOALS and (RELAY, n) in p50
    }


def _own_ratios(row: Row) -> dict[str, float]:
    where = f"{row['job']}_n{row['n']}"
    messages, supervisor = "messages_per_delivery", "supervisor_messages_per_publication"
    found = {
        **at_most(f"{messages}_{where}", row[messages], MESSAGES_GOAL),
        **at_most(f"{supervisor}_{where}", row[supervisor], SUPERVISOR_MESSAGES_GOAL),
    }
    if row["job"] != LATENCY:
        settled = row["cpu_us_per_delivery_settled"] / row["cpu_us_per_delivery"]
        found[f"cpu_settled_over_delivered_{where}"] = round(settled, 2)
    return found
