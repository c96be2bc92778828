"""State of a lake: facts that its tables do not show, in the file ``lake.json``."""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from skipring.errors import InputError
from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.project import Project
from skipring.spark.pipeline.silver import distinct, folded

FILE: Final = "lake.json"
FORMAT: Final = "skipring-lake/2"
CHECKPOINT: Final = "checkpoint"


class LakeState(Struct, frozen=True, kw_only=True):
    """Content of ``lake.json``."""

    format: str = FORMAT
    topics: tuple[str, ...]
    time: str
    columns: dict[str, str] = {}  # types of silver, with the fields that payloads have added
    gold: dict[str, str] = {}  # hash of the definition of each gold table
    # Start of the first micro-batch. Spark stores only the end of a micro-batch, and asks for the
    # start again if the first one was killed.
    began: dict[str, dict[str, str | int]] = {}


def read_state(files: LakeFiles) -> LakeState | None:
    """Return the state of a lake; None if the directory is empty or missing."""
    content = files.read(FILE)
    if content is None:
        if files.list(""):
            raise InputError(f"{files.uri()} is no lake, and not empty; choose another directory")
        return None
    try:
        state = json.decode(content, type=LakeState)
    except DecodeError as error:
        raise InputError(f"{files.uri(FILE)} cannot be read: {error}") from None
    if state.format != FORMAT:
        raise InputError(
            f"{files.uri()} has the format {state.format!r}; this version reads only {FORMAT!r}"
        )
    return state


def agreed(files: LakeFiles, project: Project) -> LakeState:
    """Return the state for a run; raise InputError if the project contradicts the lake."""
    topics, schema = tuple(sorted(project.settings.topics)), project.silver
    state = read_state(files)
    if state is None:
        return LakeState(topics=topics, time=schema.time)
    lake = files.uri()
    _require_same(lake, "topics", ", ".join(state.topics), ", ".join(topics))
    _require_same(lake, "time", state.time, schema.time)
    names = {folded(name): name for name in distinct(state.columns)}
    for name, column in schema.columns.items():
        known = state.columns.get(name, column.type)
        _require_same(lake, f"silver.{name}", known, column.type)
        _require_same(lake, "the column", names.get(folded(name), name), name)
    has_rows = len(files.list("bronze")) > 1  # more than the date of the empty file
    if has_rows and not files.exists(f"{CHECKPOINT}/offsets"):
        raise InputError(
            f"{lake} has lost its directory {CHECKPOINT!r}, so its position is unknown; "
            "restore it, or start again in another directory"
        )
    return state


def saved(files: LakeFiles, state: LakeState, **changes: Any) -> LakeState:  # noqa: ANN401
    """Write a state with these changes, and return it."""
    new = replace(state, **changes)
    if new != state or not files.exists(FILE):
        files.write(FILE, json.format(json.encode(new)) + b"\n")
    return new


def _require_same(lake: str, what: str, known: str, wanted: str) -> None:
    if known != wanted:
        raise InputError(
            f"{lake} has {what} {known}, not {wanted}; choose another directory for these"
        )
