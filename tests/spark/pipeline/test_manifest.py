"""Manifest of a lake: later runs have to match it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from skipring.errors import InputError
from skipring.spark.pipeline.lake import Name
from skipring.spark.pipeline.manifest import (
    Manifest,
    RequestedConfig,
    agreed,
    read_manifest,
    write_manifest,
)
from skipring.spark.pipeline.silver import PayloadFormat

WISH = RequestedConfig(supervisors=("127.0.0.1:7400",), topics=("orders", "invoices"))
ABOUT = Manifest(supervisors=WISH.supervisors, topics=("invoices", "orders"))


def test_manifest_is_stored_in_the_lake(tmp_path: Path) -> None:
    about = agreed(tmp_path / "lake", WISH)
    assert about == ABOUT
    write_manifest(tmp_path / "lake", about)
    assert read_manifest(tmp_path / "lake") == about
    assert agreed(tmp_path / "lake", WISH) == about


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topics": ("orders",)}, "has topics invoices, orders, not orders"),
        ({"values": PayloadFormat.JSON}, "has values auto, not json"),
        ({"window_s": 5}, "has windows 60 s, not 5 s"),
        ({"supervisors": ("127.0.0.1:1",)}, "belongs to the ring of 127.0.0.1:7400"),
    ],
)
def test_configuration_that_contradicts_the_manifest_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    write_manifest(tmp_path, ABOUT)
    with pytest.raises(InputError, match=said):
        agreed(tmp_path, replace(WISH, **change))


def test_supervisor_that_moved_is_named_beside_its_old_address(tmp_path: Path) -> None:
    write_manifest(tmp_path, ABOUT)
    moved = ("127.0.0.1:1", "127.0.0.1:7400")
    assert set(agreed(tmp_path, replace(WISH, supervisors=moved)).supervisors) == set(moved)


def test_directory_with_other_files_is_not_a_lake(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(InputError, match="is no lake, and not empty"):
        agreed(tmp_path, WISH)
    with pytest.raises(InputError, match=r"it has no lake\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 7}', '{"x": 1}'])
def test_damaged_manifest_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "lake.json").write_text(text)
    with pytest.raises(InputError, match=r"lake\.json cannot be read"):
        read_manifest(tmp_path)


def test_lake_of_another_format_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, replace(ABOUT, format="skipring-lake/9"))
    with pytest.raises(InputError, match="this version reads only 'skipring-lake/1'"):
        read_manifest(tmp_path)


def test_lake_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, ABOUT)
    (tmp_path / Name.BRONZE / "batch=0").mkdir()
    with pytest.raises(InputError, match="has lost its directory 'checkpoint'"):
        agreed(tmp_path, WISH)
