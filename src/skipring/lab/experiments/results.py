"""Directory of a lab: schemas of its tables, the matrix, and the results in chunks.

A chunk is two files of one name, below ``rounds`` and below ``runs``. Each is written atomically,
``rounds`` first: a run is finished once it is in ``runs``, and a chunk that has only its rounds is
unfinished.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from skipring.errors import InputError
from skipring.lab.experiments.matrix import Matrix
from skipring.storage.data_dir import Lock, sync_directory, translate_os_errors


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


# Parameters of a run; the names are those of matrix.Trial.
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

# Results of the runs. No time is stored: the same matrix gives the same rows on any machine.
RUNS: Final = pa.schema(
    [
        _column("run_id", pa.string()),
        *_PARAMETERS,
        _column("start_connected", pa.bool_()),
        _column("start_crashed", pa.bool_()),
        _column("start_leavers", pa.bool_()),
        _column("start_tries_wrong", pa.bool_()),
        _column("converged", pa.bool_()),
        _column("message_limit", pa.bool_()),
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
    _column("database_valid", pa.bool_()),
    _column("messages", pa.int64()),
    _column("supervisor_requests", pa.int64()),
    _column("degree_max", pa.int32()),
    _column("in_flight", pa.int32()),
)

# The state after each sampled round, and the cost of that round.
ROUNDS: Final = pa.schema([_column("run_id", pa.string()), *_SAMPLE])

# Input of a task: the runs, and the partition of each.
WORK: Final = pa.schema(
    [_column("partition", pa.int32()), *_PARAMETERS, _column("rounds", pa.int32())]
)

# Output of a task: a run with its rounds, so neither is stored without the other.
RESULTS: Final = pa.schema(
    [*RUNS, _column("samples", pa.list_(_column("sample", pa.struct(_SAMPLE))))]
)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the same columns for Spark."""
    return from_arrow_schema(schema)


FORMAT: Final = "skipring-lab/3"
ABOUT: Final = "lab.json"
MATRIX: Final = "matrix.toml"
SEARCHED: Final = "searched.json"  # worst cases beside the matrix: names and texts
ENVIRONMENT: Final = "environment.json"  # of the process that ran the matrix last
PACKAGES: Final = ("skipring", "pyspark", "scipy", "plotly", "pyarrow", "msgspec")
LOCK: Final = ".lock"
UNFINISHED: Final = "."  # Spark ignores files whose names begin with this


class Results:
    """Directory of a lab, to which chunks can be added."""

    def __init__(self, directory: Path) -> None:
        self.runs = directory / "runs"
        self.rounds = directory / "rounds"
        self._clear()
        numbers = [_number(path) for path in self.runs.glob("chunk-*.parquet")]
        self._next = max(numbers, default=-1) + 1

    def _clear(self) -> None:
        """Remove the unfinished chunks of a killed process."""
        for folder in (self.rounds, self.runs):
            folder.mkdir(exist_ok=True)
            for path in folder.glob(f"{UNFINISHED}chunk-*"):
                path.unlink()
        for path in self.rounds.glob("chunk-*.parquet"):
            if not (self.runs / path.name).exists():
                path.unlink()

    def finished(self) -> set[str]:
        """Return the finished runs."""
        return {name for table in self._columns("run_id") for name in table["run_id"].to_pylist()}

    def failed(self) -> dict[str, str]:
        """Return the runs that raised an error, with the error."""
        return {
            row["run_id"]: row["error"]
            for table in self._columns("run_id", "error")
            for row in table.to_pylist()
            if row["error"] is not None
        }

    def _columns(self, *names: str) -> Iterator[pa.Table]:
        for path in sorted(self.runs.glob("chunk-*.parquet")):
            try:
                table = pq.read_table(path, columns=list(names), partitioning=None).select(names)
            except (pa.ArrowException, OSError, KeyError):
                raise _no_chunk(path) from None
            yield table

    def add(self, runs: pa.Table, rounds: pa.Table) -> None:
        """Store a chunk; once this returns, a kill or a power loss does not lose it."""
        name = f"chunk-{self._next:06d}.parquet"
        self._next += 1
        with translate_os_errors(self.runs.parent):
            write_table(self.rounds / name, rounds.cast(ROUNDS))
            write_table(self.runs / name, runs.cast(RUNS))


@contextmanager
def opened(directory: Path, matrix: Matrix) -> Iterator[Results]:
    """Create the directory of a lab, or open an existing one; one process at a time."""
    with translate_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = Lock(directory / LOCK)
    try:
        yield _prepared(directory, matrix)
    finally:
        lock.release()


def _prepared(directory: Path, matrix: Matrix) -> Results:
    require_format(directory, new=True)
    about = {"format": FORMAT, "title": matrix.title}
    with translate_os_errors(directory):
        _replace(directory / ABOUT, json.dumps(about, indent=2) + "\n")
        _replace(directory / MATRIX, matrix.text)
        _replace(directory / SEARCHED, json.dumps(dict(matrix.searched), indent=2) + "\n")
        _replace(directory / ENVIRONMENT, json.dumps(environment(), indent=2) + "\n")
        return Results(directory)


def environment() -> dict[str, str]:
    """Return interpreter, operating system and versions of the packages of this process."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "os": platform.platform(),
    }
    return found | {name: version(name) for name in PACKAGES}


def require_format(directory: Path, *, new: bool = False) -> None:
    """Raise InputError for another version or a directory without a lab; ``new`` may be empty."""
    about = directory / ABOUT
    if not about.exists():
        others = [path.name for path in directory.glob("*") if path.name != LOCK]
        if new and not others:
            return
        raise InputError(
            f"{directory} holds no results of `skipring lab run`: "
            + (f"there is {others[0]}, but no {ABOUT}" if others else "it is empty")
        )
    try:
        found = json.loads(about.read_text(encoding="utf-8"))["format"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{about} cannot be read; choose another directory") from None
    if found != FORMAT:
        raise InputError(
            f"{directory} has the format {found!r:.40}, this version writes {FORMAT!r}; "
            "choose another directory"
        )


def _number(path: Path) -> int:
    number = path.stem.partition("-")[2]
    if not (number.isascii() and number.isdigit()):
        raise _no_chunk(path)
    return int(number)


def _no_chunk(path: Path) -> InputError:
    return InputError(
        f"{path} cannot be read as results of `skipring lab run`; remove it and its namesake "
        "below rounds, and run again"
    )


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table under a hidden name, then rename it."""
    hidden = path.with_name(UNFINISHED + path.name)
    with hidden.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    sync_directory(path.parent)


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
