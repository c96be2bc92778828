"""Who does what: runs into chunks, and the runs of a chunk into partitions of equal work.

The seconds are estimates, and only balance the work: what a run gives does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heapreplace
from math import log2
from random import Random
from typing import Final

from skipring.lab.experiments.experiments import calm_rounds
from skipring.lab.experiments.matrix import Trial

# Measured on one core of 2026: a node's Timeout and the messages of a round, looked at afterwards.
NODE_ROUND_S: Final = 45e-6
RUN_S: Final = 1e-3  # Measured: what a run costs however small it is.
OVERLAY_NODE_S: Final = 20e-6  # Measured: a node of each overlay, for each level.
ROUNDS: Final = {"fast": 14, "fixed": 50, "paper": 500}  # Measured: what typical healing takes.
SLOW: Final = {"delay": 6, "swizzle": 3}  # Measured: schedulers under which it takes longer.
SLOW_STATES: Final = {"A18b": 75}  # Measured: rounds of the state that heals by waiting.
OPERATION_ROUNDS: Final = 4  # Measured: until a ring is legitimate again after one change.
CHURN_ROUNDS: Final = 100  # of skipring.sim.process_faults.Churn
# Measured: this many scattered publications cost as much as the ring itself.
PUBLICATIONS: Final = 10

# Our guesses: a task of Spark costs some 10 ms, so a second hides it; what a kill can lose is a
# chunk, and between two chunks nothing stands still, since the next one has begun.
PARTITION_S: Final = 1.5
CHUNK_S: Final = 30.0  # on every core
CHUNK_RUNS_MAX: Final = 5000  # the driver takes a chunk's rows into memory
HEAVY_S: Final = 5.0  # done first, or one of them would be what all wait for in the end
SHUFFLE_SEED: Final = 5


def estimated_s(run: Trial) -> float:
    """About how long a run takes on one core."""
    if run.kind == "topology":
        return RUN_S + OVERLAY_NODE_S * run.n * log2(run.n + 1)
    scattered = run.publications if run.kind == "converge" else 0
    return RUN_S + NODE_ROUND_S * run.n * _rounds(run) * (1 + scattered / PUBLICATIONS)


def _rounds(run: Trial) -> float:
    if run.kind == "steady":
        return calm_rounds(run.n) + run.rounds
    if run.kind != "converge":
        return calm_rounds(run.n) + min(OPERATION_ROUNDS, run.max_rounds) + run.closure
    healing = SLOW_STATES.get(run.adversary, ROUNDS[run.mode]) * SLOW.get(run.scheduler, 1)
    churn = CHURN_ROUNDS if run.churn > 0 else 0
    return churn + min(healing / (1 - run.loss) ** 2, run.max_rounds) + run.closure


def chunks(runs: Iterable[Trial], cores: Callable[[], int]) -> Iterator[list[Trial]]:
    """Cut the work into parts that are kept one by one: heavy runs first, then all mixed.

    The cores are counted anew for each: those of a cluster come one after the other.
    """
    chunk: list[Trial] = []
    seconds, limit_s = 0.0, CHUNK_S * cores()
    for run in _ordered(runs):
        chunk.append(run)
        seconds += estimated_s(run)
        if seconds >= limit_s or len(chunk) == CHUNK_RUNS_MAX:
            yield chunk
            chunk = []
            seconds, limit_s = 0.0, CHUNK_S * cores()
    if chunk:
        yield chunk


def _ordered(runs: Iterable[Trial]) -> list[Trial]:
    """Heavy runs first; the others shuffled, so that every chunk is like the whole."""
    order = list(runs)
    Random(SHUFFLE_SEED).shuffle(order)
    order.sort(key=lambda run: min(0.0, HEAVY_S - estimated_s(run)))
    return order


def partitions(chunk: Sequence[Trial], count: int | None = None) -> list[list[Trial]]:
    """Share a chunk out so that all parts take about as long; each part heaviest run first."""
    work = sum(map(estimated_s, chunk))
    wanted = count or max(1, int(work / PARTITION_S))
    parts: list[list[Trial]] = [[] for _ in range(min(wanted, len(chunk)))]
    loads = [(0.0, number) for number in range(len(parts))]
    heapify(loads)
    for run in sorted(chunk, key=estimated_s, reverse=True):
        load, number = loads[0]
        parts[number].append(run)
        heapreplace(loads, (load + estimated_s(run), number))
    return parts
