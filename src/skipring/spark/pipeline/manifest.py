"""Manifest of a lake: ring, topics and settings, which later runs have to match."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from skipring.errors import InputError
from skipring.spark.pipeline.lake import Name, make_tables
from skipring.spark.pipeline.silver import PayloadFormat
from skipring.storage.data_dir import translate_os_errors

FORMAT: Final = "skipring-lake/1"
FILE: Final = "lake.json"
CHECKPOINT: Final = "checkpoint"
WINDOW_S: Final = 60


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ring and topics of a lake, and the settings of its pipeline."""

    format: str = FORMAT
    supervisors: tuple[str, ...]
    topics: tuple[str, ...]
    values: PayloadFormat = PayloadFormat.AUTO
    window_s: int = WINDOW_S
    # Start of the first micro-batch. Spark stores only the end of a micro-batch, and asks for the
    # start again if the first one was killed.
    began: dict[str, dict[str, str | int]] = {}


class RequestedConfig(Struct, frozen=True, kw_only=True):
    """Configuration that a user requests; None keeps the value of the lake."""

    supervisors: tuple[str, ...]
    topics: tuple[str, ...]
    values: PayloadFormat | None = None
    window_s: int | None = None


def read_manifest(lake: Path) -> Manifest:
    """Return the manifest of a lake; raise InputError if the directory is no lake."""
    try:
        about = json.decode((lake / FILE).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise InputError(
            f"{lake} is no lake: it has no {FILE}; 'skipring pipeline run' makes one"
        ) from None
    except DecodeError as error:
        raise InputError(f"{lake / FILE} cannot be read: {error}") from None
    if about.format != FORMAT:
        raise InputError(
            f"{lake} has the format {about.format!r}; this version reads only {FORMAT!r}"
        )
    return about


def agreed(lake: Path, wish: RequestedConfig) -> Manifest:
    """Return the manifest for a run; raise InputError if it contradicts that of the lake."""
    topics = tuple(sorted(wish.topics))
    if not (lake / FILE).exists():
        if lake.is_dir() and any(lake.iterdir()):
            raise InputError(f"{lake} is no lake, and not empty; choose another directory")
        return Manifest(
            supervisors=wish.supervisors,
            topics=topics,
            values=wish.values or PayloadFormat.AUTO,
            window_s=wish.window_s or WINDOW_S,
        )
    about = read_manifest(lake)
    _require_same(lake, "topics", ", ".join(about.topics), ", ".join(topics))
    _require_same(lake, "values", about.values, wish.values or about.values)
    _require_same(lake, "windows", f"{about.window_s} s", f"{wish.window_s or about.window_s} s")
    if not set(about.supervisors) & set(wish.supervisors):
        raise InputError(
            f"{lake} belongs to the ring of {', '.join(about.supervisors)}; choose another "
            "directory, or name the old address beside the new one if the supervisor has moved"
        )
    _require_checkpoint(lake)
    known = dict.fromkeys((*wish.supervisors, *about.supervisors))
    return replace(about, supervisors=tuple(known))


def write_manifest(lake: Path, about: Manifest) -> None:
    """Write the manifest, and create the tables."""
    with translate_os_errors(lake):
        make_tables(lake)
        new = lake / f"{FILE}.new"
        new.write_bytes(json.format(json.encode(about)) + b"\n")
        new.replace(lake / FILE)


def _require_same(lake: Path, what: str, known: str, wanted: str) -> None:
    if known != wanted:
        raise InputError(
            f"{lake} has {what} {known}, not {wanted}; choose another directory for these"
        )


def _require_checkpoint(lake: Path) -> None:
    """Raise InputError if the checkpoint is missing: Spark would reuse numbers of micro-batches."""
    has_rows = any(any((lake / name).glob("*")) for name in Name)
    if has_rows and not (lake / CHECKPOINT / "offsets").is_dir():
        raise InputError(
            f"{lake} has lost its directory {CHECKPOINT!r}, so its position is unknown; "
            "restore it, or start again in another directory"
        )
