"""Project of a pipeline: settings, schema of silver, gold tables and functions, as files."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from msgspec import Struct, ValidationError, convert

from skipring.errors import InputError

SETTINGS: Final = "pipeline.toml"
SCHEMA: Final = "schema.toml"
FUNCTIONS: Final = "functions.py"
TEMPLATES: Final = ("orders", "telemetry")
SILVER: Final = "silver"
DELIVERIES: Final = "deliveries"
OFFSETS_MAX: Final = 100_000  # Guess: publications of a micro-batch, some seconds of work.
WINDOW_S: Final = 60
WINDOW_MAX_S: Final = 86_400  # a day, by which tables are partitioned

# Tables of each lake, and names that a gold table cannot have.
RESERVED: Final = frozenset({"bronze", SILVER, "quarantine", DELIVERIES, "checkpoint", "work"})
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_GOLD_FORM: Final = 2  # of the tables; another one rebuilds them
_SETTING: Final = re.compile(r"--\s*(window|of|lookback):\s*(\S+)\s*")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")

Parsed = TypeVar("Parsed")


class PayloadFormat(StrEnum):
    """Format of values."""

    JSON = "json"  # one JSON object
    TEXT = "text"  # text of any content
    BINARY = "binary"  # bytes of any content


class SilverColumn(Struct, frozen=True, forbid_unknown_fields=True):
    """Column of silver: a field of the payload, or an SQL expression."""

    type: str
    field: str | None = None  # by default the field with the name of the column
    sql: str | None = None


class SilverSchema(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Schema of the silver table, and the conditions for its rows."""

    format: PayloadFormat = PayloadFormat.JSON
    time: str = "timestamp"
    new_fields: Literal["add", "ignore"] = "add"
    columns: dict[str, SilverColumn] = {}
    expect: dict[str, str] = {}


class GoldTable(Struct, frozen=True, kw_only=True):
    """Gold table: its query, and the windows that a micro-batch recomputes."""

    name: str
    sql: str
    window_s: int = WINDOW_S
    of: str = SILVER  # the table whose new rows change a window
    lookback_s: int | None = None  # age of the rows of silver that a gold of deliveries joins

    @property
    def digest(self) -> str:
        """Return a hash of the definition; the table is rebuilt when it changes."""
        text = f"{self.sql}\0{self.window_s}\0{self.of}\0{self.lookback_s}\0{_GOLD_FORM}"
        return blake2b(text.encode(), digest_size=8).hexdigest()


class PipelineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of ``pipeline.toml``."""

    topics: tuple[str, ...]
    lake: str = "lake"
    trigger: str = "5s"
    retention: str | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    max_offsets: int = OFFSETS_MAX
    fail_on_data_loss: bool = True
    deliveries: bool = False
    keep_values: bool = True
    spark: dict[str, str] = {}


class Project(Struct, frozen=True, kw_only=True):
    """Pipeline as a directory of files describes it."""

    directory: str
    settings: PipelineSettings
    lake: str  # absolute path or URI
    trigger_s: float
    retention_days: int | None
    silver: SilverSchema
    gold: tuple[GoldTable, ...]
    functions: tuple[Callable[..., Any], ...]


def read_project(directory: Path) -> Project:
    """Return the project in a directory; raise InputError if a file is missing or wrong."""
    settings = _read(directory / SETTINGS, PipelineSettings, is_needed=True)
    return Project(
        directory=str(directory),
        settings=settings,
        lake=settings.lake if _is_uri(settings.lake) else _local(directory, settings.lake),
        trigger_s=_duration_s(directory / SETTINGS, "trigger", settings.trigger),
        retention_days=_retention_days(directory / SETTINGS, settings.retention),
        silver=_read_schema(directory / SCHEMA),
        gold=_read_gold(directory, has_deliveries=settings.deliveries),
        functions=_read_functions(directory / FUNCTIONS),
    )


def write_template(name: str, directory: Path, topics: tuple[str, ...]) -> list[str]:
    """Write the files of a template to a new directory; return their names."""
    if directory.is_dir() and any(directory.iterdir()):
        raise InputError(f"{directory} is not empty; choose another directory")
    listed = ", ".join(f'"{topic}"' for topic in topics)
    written = []
    with as_file(files("skipring.spark.pipeline") / "templates" / name) as template:
        for source in sorted(path for path in template.rglob("*") if path.is_file()):
            target = directory / source.relative_to(template)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text(encoding="utf-8").replace('"TOPICS"', listed)
            target.write_text(text, encoding="utf-8")
            written.append(target.relative_to(directory).as_posix())
    return written


# -- files -------------------------------------------------------------------------------------


def _read(path: Path, kind: type[Parsed], *, is_needed: bool) -> Parsed:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if is_needed:
            raise InputError(
                f"{path.parent} is no project: it has no {path.name}; "
                "'skipring pipeline init' writes one"
            ) from None
        found = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if isinstance(columns := found.get("columns"), dict):
        short = {name: {"type": given} for name, given in columns.items() if isinstance(given, str)}
        found["columns"] = {**columns, **short}
    try:
        return convert(found, kind)
    except ValidationError as error:
        raise InputError(f"{path}: {error}") from None


def _read_schema(path: Path) -> SilverSchema:
    schema = _read(path, SilverSchema, is_needed=False)
    for name, column in schema.columns.items():
        if column.field is not None and column.sql is not None:
            raise InputError(f"{path}: the column {name!r} has both 'field' and 'sql'")
    return schema


def _read_gold(directory: Path, *, has_deliveries: bool) -> tuple[GoldTable, ...]:
    found = []
    for path in sorted((directory / "gold").glob("*.sql")):
        if not _NAME.fullmatch(path.stem) or path.stem in RESERVED:
            raise InputError(f"{path}: {path.stem!r} cannot be the name of a gold table")
        sql = path.read_text(encoding="utf-8").strip().removesuffix(";")
        found_in = (_SETTING.fullmatch(line) for line in sql.splitlines())
        given = {match[1]: match[2] for match in found_in if match is not None}
        window_s = _duration_s(path, "window", given.get("window", f"{WINDOW_S}s"))
        if window_s != int(window_s) or not 1 <= window_s <= WINDOW_MAX_S:
            raise InputError(f"{path}: a window is a whole number of seconds, at most a day")
        of = given.get("of", SILVER)
        if of not in {SILVER, *([DELIVERIES] if has_deliveries else [])}:
            raise InputError(f"{path}: 'of' is silver, or deliveries if {SETTINGS} reads them")
        lookback = given.get("lookback")
        found.append(
            GoldTable(
                name=path.stem,
                sql=sql,
                window_s=int(window_s),
                of=of,
                lookback_s=None
                if lookback is None
                else int(_duration_s(path, "lookback", lookback)),
            )
        )
    return tuple(found)


def _read_functions(path: Path) -> tuple[Callable[..., Any], ...]:
    """Return the public functions of a file; SQL calls them by name.

    The names are not importable, so Spark sends the functions to executors by value.
    """
    if not path.is_file():
        return ()
    try:
        found = runpy.run_path(str(path))
    except Exception as error:  # noqa: BLE001  (the user's own code)
        raise InputError(f"{path} cannot be executed: {error!r}") from None
    return tuple(
        value
        for name, value in found.items()
        if callable(value) and not name.startswith("_") and _is_of_file(value)
    )


def _is_of_file(function: Callable[..., Any]) -> bool:
    return getattr(function, "__module__", "") == "<run_path>"


def _is_uri(lake: str) -> bool:
    """Return True if a lake has a scheme, as in ``hdfs:/lake`` and ``s3a://bucket/lake``."""
    return lake.partition("/")[0].endswith(":")


def _local(directory: Path, lake: str) -> str:
    return str((directory / lake).absolute())


def _retention_days(path: Path, given: str | None) -> int | None:
    if given is None:
        return None
    days = _duration_s(path, "retention", given) / _UNITS_S["d"]
    if days != int(days) or days < 1:
        raise InputError(f"{path}: 'retention' is a whole number of days, such as '90d'")
    return int(days)


def _duration_s(path: Path, name: str, given: str) -> float:
    match = _DURATION.fullmatch(given)
    if match is None or float(match[1]) == 0:
        raise InputError(f"{path}: {name!r} is no duration such as '5s' or '1m': {given!r}")
    return float(match[1]) * _UNITS_S[match[2]]
