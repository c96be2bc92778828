"""The tables of the lab, each defined once: for Arrow here, for Spark derived from it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


# What decides a run; the names are those of lab.matrix.Run.
_PARAMETERS: Final = (
    _column("kind", pa.string()),
    _column("n", pa.int32()),
    _column("adversary", pa.string()),
    _column("scheduler", pa.string()),
    _column("mode", pa.string()),
    _column("without", pa.string()),
    _column("loss", pa.float64()),
    _column("duplicate", pa.float64()),
    _column("churn", pa.float64()),
    _column("spread", pa.string()),
    _column("publications", pa.int32()),
    _column("seed", pa.int32()),
    _column("max_rounds", pa.int32()),
    _column("closure", pa.int32()),
)

# Results of the runs. No time is kept: the same matrix gives the same rows on any machine.
RUNS: Final = pa.schema(
    [
        _column("run_id", pa.string()),
        *_PARAMETERS,
        _column("converged", pa.bool_()),
        _column("closure_ok", pa.bool_(), nullable=True),
        _column("rounds_explicit", pa.int32(), nullable=True),
        _column("rounds_strict", pa.int32(), nullable=True),
        _column("rounds_publications", pa.int32(), nullable=True),
        _column("messages", pa.int64()),
        _column("events", pa.int64()),
        _column("supervisor_requests", pa.int64()),
        _column("published", pa.int64()),
        _column("delivered_by_spreading", pa.int64()),
        _column("delivered_by_repair", pa.int64()),
        _column("duplicates", pa.int64()),
        _column("hops_mean", pa.float64()),
        _column("hops_max", pa.int32()),
        _column("degree_peak", pa.int32()),
        _column("degree_mean", pa.float64()),
        _column("measures", pa.map_(pa.string(), _column("value", pa.float64()))),
        _column("error", pa.string(), nullable=True),
    ]
)

_SAMPLE: Final = (
    _column("round", pa.int32()),
    _column("explicit", pa.bool_()),
    _column("strict", pa.bool_()),
    _column("publications", pa.bool_()),
    _column("layers", pa.int32()),
    _column("messages", pa.int64()),
    _column("supervisor_requests", pa.int64()),
    _column("degree_max", pa.int32()),
    _column("in_flight", pa.int32()),
)

# The state after each sampled round, and the cost of that round.
ROUNDS: Final = pa.schema([_column("run_id", pa.string()), *_SAMPLE])

# What a task is given: the runs, and in which partition each is done.
WORK: Final = pa.schema(
    [_column("partition", pa.int32()), *_PARAMETERS, _column("rounds", pa.int32())]
)

# What a task hands back: a run with its rounds, so that neither comes without the other.
RESULTS: Final = pa.schema(
    [*RUNS, _column("samples", pa.list_(_column("sample", pa.struct(_SAMPLE))))]
)


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns for Spark."""
    return from_arrow_schema(schema)
