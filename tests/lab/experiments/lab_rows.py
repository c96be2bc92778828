"""Handmade rows of a lab, in the form of simulated ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import convert
from pyspark.sql import DataFrame, SparkSession

from skipring.lab.experiments.lemmas import VARIABLES
from skipring.lab.experiments.matrix import Trial
from skipring.lab.experiments.overlays import overlay_measures
from skipring.lab.experiments.results import ROUNDS, RUNS, spark_schema
from skipring.lab.experiments.trials import blank_row

Row: TypeAlias = dict[str, Any]


def run(kind: str, n: int, **values: object) -> Row:
    """Return a row of ``runs``; omitted values are those of a run without results."""
    names = [name for name in values if name in Trial.__struct_fields__]
    given = convert({"kind": kind, "n": n, **{name: values.pop(name) for name in names}}, Trial)
    row = blank_row(given) | {"degree_peak": 4, "degree_mean": 3.5}
    measures = convert(values.pop("measures", {}), dict[str, float])
    return row | {"measures": list(measures.items())} | values


def healed(n: int, rounds: int | None, **values: object) -> Row:
    """Return a run of kind converge that converged after this number of rounds, or never."""
    ends = dict.fromkeys(("rounds_explicit", "rounds_strict", "rounds_publications"), rounds)
    told = {"messages": 50 * n, "supervisor_requests": 2 * n, "max_rounds": 100, "closure": 10}
    closure = None if rounds is None else True
    values = {"adversary": "A15", **told, "closure_ok": closure, **values}
    return run("converge", n, converged=rounds is not None, **ends, **values)


def seen(run_id: str, layers: Sequence[int], strict_from: int | None = None) -> list[Row]:
    """Return the rounds of a run, given the number of layers that held in each."""
    strict_from = len(layers) - 1 if strict_from is None else strict_from
    return [
        {
            "run_id": run_id,
            "round": number,
            "explicit": holding == 5,
            "strict": holding == 5 and number >= strict_from,
            "publications": holding == 5,
            "layers": holding,
            "database_valid": holding > 0,
            "messages": 10,
            "supervisor_requests": 1,
            "degree_max": 4,
            "in_flight": 7,
        }
        for number, holding in enumerate(layers)
    ]


def frame(spark: SparkSession, schema: pa.Schema, rows: Iterable[Row]) -> DataFrame:
    """Return the rows as a DataFrame."""
    table = pa.Table.from_pylist(list(rows), schema=schema)
    return spark.createDataFrame(table, schema=spark_schema(schema))


def write_lab(directory: Path, runs: Sequence[Row], rounds: Sequence[Row]) -> Path:
    """Write a directory in the form of `skipring lab run`."""
    for name, schema, rows in (("runs", RUNS, runs), ("rounds", ROUNDS, rounds)):
        (directory / name).mkdir(parents=True)
        table = pa.Table.from_pylist(list(rows), schema=schema)
        pq.write_table(table, directory / name / "chunk-000000.parquet")
    return directory


def whole_lab() -> tuple[list[Row], list[Row]]:
    """Return runs of every kind and their rounds, so a report has every figure."""
    runs = [
        healed(n, rounds, mode=mode, seed=seed, adversary=code, publications=count, degree_peak=n)
        for n in (8, 16, 32)
        for code, count in (("A05", 5), ("A15", 0))
        for seed in range(6)
        for mode, rounds in (
            *(("fast", 6 + seed), ("fixed", 20 + n)),
            *(("paper", 30 if seed else None), ("deterministic", 7 + seed)),
        )
    ]
    rounds = [
        row
        for one in runs
        for row in seen(one["run_id"], [0, 1, 3, 5, 5] if one["converged"] else [0, 1, 2, 1])
    ]
    runs += _in_weather() + _at_rest() + _operations() + _spread() + _of_lemmas()
    runs += [run("topology", n, converged=True, measures=overlay_measures(n, 0)) for n in (8, 64)]
    return runs, rounds


def _in_weather() -> list[Row]:
    weathers: list[Row] = [
        {"without": "R9"},
        {"without": "S11"},
        {"loss": 0.1},
        {"loss": 0.25},
        {"churn": 0.01},
        {"churn": 0.05},
        {"scheduler": "sync"},
        {"scheduler": "delay"},
    ]
    return [
        healed(16, 12 + seed, seed=seed, **weather) for weather in weathers for seed in range(6)
    ]


def livelock(seed: int, **values: object) -> Row:
    """Return a lockstep computation of the pseudocode that repeats 144 rounds."""
    cycle = {"cycle_start": 24, "cycle_length": 144, "coin_period": 144}
    changing = {f"changing_{name}": number for number, name in enumerate(VARIABLES)}
    healed_by = {"healed_by_R1": 1, "healed_by_B13": 0, "healed_by_both": 1}
    measures = cycle | {"layers_least": 2, "layers_most": 3} | changing | healed_by
    given = {"adversary": "A15", "mode": "paper", "max_rounds": 300, "measures": measures}
    return run("livelock", 8, seed=seed, **given | values)


def _of_lemmas() -> list[Row]:
    phi = {"phi_rises": 0, "missing_rises": 0, "phi_mismatches": 0}
    claims = {"differs": 1, "asked": 1, "equal": 0, "missing_start": 2, "missing_end": 0}
    return [
        livelock(0),
        livelock(1, converged=True, rounds_strict=9, measures={}),
        *(
            run("potential", n, seed=n, mode="paper", rounds_publications=4, measures=phi)
            for n in (4, 8)
        ),
        run("session", 2, mode="paper", measures=claims),
    ]


def _at_rest() -> list[Row]:
    return [
        run(
            "steady",
            n,
            mode=mode,
            seed=seed,
            converged=True,
            measures={
                "requests_per_round": requests + seed / 100,
                "messages_per_node_round": 5.0 + seed / 100,
            },
        )
        for n in (8, 16, 32)
        for mode, requests in (("paper", 1.25), ("fast", 0.85))
        for seed in range(4)
    ]


def _operations() -> list[Row]:
    return [
        run(
            kind,
            n,
            mode=mode,
            seed=seed,
            converged=True,
            rounds_explicit=3,
            rounds_strict=3,
            measures={
                "supervisor_messages": 3.0,
                "subscriber_messages": (4.0 if mode == "fast" else 2.0 * n) + seed,
                "rounds": 3.0,
            },
        )
        for kind in ("subscribe", "unsubscribe", "crash")
        for n in (8, 16, 32, 64)
        for mode in ("paper", "fast")
        for seed in range(4)
    ]


def _spread() -> list[Row]:
    return [
        run(
            "spread",
            n,
            spread=spread,
            scheduler=scheduler,
            seed=seed,
            converged=True,
            hops_max=n.bit_length() - 1,
            hops_mean=2.0,
            measures={"messages_per_delivery": 3.9 if spread == "flood" else 1.0},
        )
        for n in (8, 16, 32)
        for spread in ("flood", "tree", "adaptive")
        for scheduler in ("sync", "random")
        for seed in range(3)
    ]
