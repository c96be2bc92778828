"""Fan-out to n subscribers, compared with other systems (``skipring bench fanout``).

Each system has one process that publishes, one with all subscribers, and its broker if it has one.
The jobs are parameter sets of the same run; the systems run several times, in rotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from skipring.errors import SkipringError
from skipring.lab.bench.harness import (
    RunResult,
    compare,
    delivery_row,
    middle,
    rss_figure,
    run_directory,
    run_of,
)
from skipring.lab.bench.report import (
    Row,
    against_goal,
    at_least,
    at_most,
    check_count,
    is_measured,
    spread,
    with_ratios,
)
from skipring.lab.bench.run import FIRST, PUBLISHER, BenchRun, Board, Moment, Slot
from skipring.lab.bench.servers import BROKER, BenchProcesses
from skipring.lab.bench.systems.catalog import OURS, RELAY, SYSTEMS
from skipring.lab.bench.systems.lossy import DRIVER, SURVIVORS, VICTIMS, victims_of
from skipring.lab.bench.systems.ours import forming_tick_s

SIZES: Final = (64, 256)
PAYLOAD_BYTES: Final = 128
REPEATS: Final = 3
N_MAX: Final = 64  # for all jobs but throughput and growth with n
LATENCY_RATE: Final = 200.0
LATENCY_S: Final = 2.0
# Guess: more than 3 s, so the run includes deferred indexing and several commits.
SUSTAINED_COUNT: Final = 32_000
THROUGHPUT: Final = "throughput"
SUSTAINED: Final = "sustained"
LATENCY: Final = "latency"
HOTTEST: Final = "hottest"
GROWTH: Final = "growth"
LOSS: Final = "loss"
JOBS: Final = (THROUGHPUT, SUSTAINED, LATENCY, HOTTEST, GROWTH, LOSS)

# Goals: lower bounds on another system's CPU time and latency relative to skipring's.
CPU_GOALS: Final[Mapping[str, float]] = {"nats": 2.5, "zenoh": 1.0, "zeromq": 1 / 3}
P50_GOALS: Final[Mapping[str, float]] = {"nats": 1.5}
MESSAGES_GOAL: Final = 1.2  # maximum per delivery
SUPERVISOR_MESSAGES_GOAL: Final = 0.0  # per publication

GROWTH_SYSTEMS: Final = (OURS, "nats")  # drivers that support several topics
GROWTH_REPEATS_MAX: Final = 2
GROWTH_COUNT: Final = 2500  # Guess: short, and the same for all cases.
GROWTH_BYTES_MAX: Final = 8 << 20  # Limit: of all payloads; each member stores them.
TOPICS_N: Final = 16  # a node ticks once per topic, and all nodes share a core
SERIES: Final[Mapping[str, tuple[int, ...]]] = {
    "size": (16, 128, 1024, 16384),
    "topics": (1, 4, 16),
    "n": (16, 64, 256),
}
LOSS_COUNT: Final = 2000
LOSS_SHARE: Final = 0.05  # share of all frames


def measure(  # noqa: PLR0913  (keyword arguments with defaults)
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
    """Return an iterator of one row per measurement, the ratios last."""
    template = BenchRun(n=max(sizes), size=size, count=count or 0, rate=rate, profiles=profiles)
    return with_ratios(_rows(template, repeats, sizes, list(systems), list(jobs)), ratios)


def _rows(
    template: BenchRun,
    repeats: int,
    sizes: Sequence[int],
    systems: Sequence[str],
    names: Sequence[str],
) -> Iterator[Row]:
    for job in _delivery_jobs(template, sizes, names):
        # Slow systems run with fewer publications, so their runs are not sustained.
        able = [
            system
            for system in systems
            if job.job != SUSTAINED or SYSTEMS[system].deliveries_max is None
        ]
        yield from compare([run_of(job, system) for system in able], repeats, delivery_row)
    if HOTTEST in names:
        yield from _hottest(_limited(template, HOTTEST), repeats, systems)
    if GROWTH in names:
        yield from _growth(replace(template, job=GROWTH, profiles=None), repeats, systems)
    if LOSS in names and OURS in systems:
        yield _loss_row(min(template.n, N_MAX))


def _delivery_jobs(
    template: BenchRun, sizes: Sequence[int], names: Sequence[str]
) -> Iterator[BenchRun]:
    if THROUGHPUT in names:
        for n in sizes:
            yield replace(template, job=THROUGHPUT, n=n)
    if SUSTAINED in names:
        yield replace(_limited(template, SUSTAINED), count=template.count or SUSTAINED_COUNT)
    if LATENCY in names:
        rate = template.rate or LATENCY_RATE
        count = template.count or round(rate * LATENCY_S)
        yield replace(_limited(template, LATENCY), count=count, rate=rate)


def _limited(template: BenchRun, job: str) -> BenchRun:
    return replace(template, job=job, n=min(N_MAX, template.n))


# -- hottest: the busiest node of a ring against a broker ---------------------------------------


def _hottest(job: BenchRun, repeats: int, systems: Iterable[str]) -> Iterator[Row]:
    """Yield the CPU time of the first member, in its own process, and of each broker."""
    runs = [run_of(job, each) for each in systems if each == OURS or SYSTEMS[each].broker]
    apart = {"n": job.n - 1, "is_first_apart": True}  # one of the n subscribers
    runs = [replace(run, **apart) if run.system == OURS else run for run in runs]
    yield from compare(runs, repeats, _hottest_row)


def _hottest_row(run: BenchRun, results: list[RunResult]) -> Row:
    part, n = FIRST if run.is_first_apart else BROKER, run.n + run.is_first_apart
    scale, figures = 1e6 / run.count, [each.figures for each in results]
    row: Row = {
        "size": run.size,
        "count": run.count,
        "repeats": len(results),
        **spread("cpu_us_per_publication", [scale * each.cpu_s[part] for each in results]),
        **spread(
            "cpu_us_per_publication_settled", [scale * each.cpu_settled_s[part] for each in results]
        ),
        **spread("rss_mib", [each[rss_figure(part)] for each in figures]),
        "copies_per_publication": n,
    }
    if run.is_first_apart:
        size = run.count * run.size
        row["copies_per_publication"] = middle(each["first_bytes"] / size for each in figures)
        row["copies_per_publication_others"] = middle(
            each["hottest_bytes"] / size for each in figures
        )
    delivered = [int(each["delivered"] + each.get("first_delivered", 0)) for each in figures]
    return row | check_count(delivered, n * run.count)


def _hottest_ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Return the CPU time of each broker relative to that of the busiest node."""
    measured = [row for row in rows if row["job"] == HOTTEST and is_measured(row)]
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


# -- growth with the payload, the topics and n -------------------------------------------------


def _growth(template: BenchRun, repeats: int, systems: Iterable[str]) -> Iterator[Row]:
    """Yield one row per case; a case that belongs to two series runs once."""
    able = [each for each in GROWTH_SYSTEMS if each in systems and not SYSTEMS[each].missing]
    series = {what: _cases(template, what) for what in SERIES}
    jobs = dict.fromkeys(job for cases in series.values() for job in cases)
    runs = [run_of(job, system) for job in jobs for system in able]
    rows = compare(runs, min(repeats, GROWTH_REPEATS_MAX), delivery_row)
    found = dict(zip(runs, rows, strict=True))
    for what, cases in series.items():
        for system in able:
            of_system = [run_of(job, system) for job in cases]
            smallest = found[of_system[0]] | {what: getattr(of_system[0], what)}
            for run in of_system:
                case = {"by": what, "size": run.size, "topics": run.topics}
                row = {"job": run.job, "system": system, "n": run.n} | case | found[run]
                yield row | _over(smallest, row, what)


def _cases(template: BenchRun, what: str) -> list[BenchRun]:
    """Return the jobs of one series up to the requested size."""
    usual = replace(template, n=min(template.n, TOPICS_N if what == "topics" else N_MAX))
    bound = template.n if what == "n" else max(SERIES[what])
    values = dict.fromkeys(min(value, bound) for value in SERIES[what])
    jobs = [replace(usual, **{what: value}) for value in values]
    return [
        replace(job, count=job.count or min(GROWTH_COUNT, GROWTH_BYTES_MAX // job.size))
        for job in jobs
    ]


def _over(smallest: Row, row: Row, what: str) -> Row:
    if not (is_measured(smallest) and is_measured(row)):
        return {}
    return {"smallest": smallest[what]} | {
        f"{name}_over_smallest": round(row[name] / smallest[name], 2)
        for name in ("cpu_us_per_delivery", "cpu_us_per_delivery_settled")
    }


def _growth_ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Return the cost per delivery relative to that of the smallest case of its series."""
    return {
        f"cpu_{row['system']}_{row['by']}_{row[row['by']]}_over_{row['smallest']}": row[
            "cpu_us_per_delivery_over_smallest"
        ]
        for row in rows
        if row["job"] == GROWTH and "smallest" in row and row["smallest"] != row[row["by"]]
    }


# -- loss: frames are dropped and nodes killed -------------------------------------------------


def measure_loss(
    *,
    n: int = N_MAX,
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
        processes.wait_set(board, Slot.PUBLISHER_CALM, Slot.SUBSCRIBERS_CALM)
        board[Slot.BEGIN] = 1
        processes.wait(lambda: board[Slot.PUBLISHED] >= run.count // 2)
        processes.kill(VICTIMS)
        processes.wait_set(board, Slot.PUBLISHER_DONE, Slot.SUBSCRIBERS_DONE)
        return _loss_figures(run, processes.figures(), board.seconds(Moment.ENDED)[0])


def _loss_figures(run: BenchRun, figures: Mapping[str, float], seconds: float) -> Row:
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


def _loss_ratios(rows: Iterable[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        if row["job"] == LOSS and is_measured(row):
            found |= at_least(f"complete_after_loss_n{row['n']}", float(row["complete"]), 1.0)
    return found


# -- ratios ----------------------------------------------------------------------------------


def ratios(rows: Iterable[Row]) -> dict[str, float]:
    """Compare other systems with skipring, and both with their goals."""
    rows, found = list(rows), dict[str, float]()
    measured = [row for row in rows if is_measured(row)]
    shared = [row for row in measured if row["job"] in (THROUGHPUT, SUSTAINED, LATENCY)]
    ours = {(row["job"], row["n"]): row for row in shared if row["system"] == OURS}
    for row in shared:
        own = ours.get((row["job"], row["n"]))
        if own is not None and row is not own:
            found |= _against(row, own)
    found |= _relay_ratios(row for row in shared if row["job"] == LATENCY)
    for row in ours.values():
        found |= _own_ratios(row)
    return found | _hottest_ratios(rows) | _growth_ratios(rows) | _loss_ratios(rows)


def _against(row: Row, own: Row) -> dict[str, float]:
    system, n = row["system"], row["n"]
    if row["job"] == LATENCY:
        ratio = row["p50_ms"] / own["p50_ms"]
        return against_goal(f"p50_{system}_over_skipring_n{n}", ratio, P50_GOALS.get(system))
    where = f"{SUSTAINED}_n{n}" if row["job"] == SUSTAINED else f"n{n}"
    name, key = f"cpu_{system}_over_skipring_{where}", "cpu_us_per_delivery"
    settled = row[f"{key}_settled"] / own[f"{key}_settled"]
    return {
        **against_goal(name, row[key] / own[key], CPU_GOALS.get(system)),
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
