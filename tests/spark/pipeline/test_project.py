"""Project of a pipeline: files, and the errors that name them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skipring.errors import InputError
from skipring.spark.pipeline.project import (
    OFFSETS_MAX,
    TEMPLATES,
    SilverColumn,
    read_project,
    write_template,
)
from tests.house.test_operations import is_refused
from tests.spark.pipeline.lakes import ITEMS, PIPELINE, SCHEMA, write_project

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_is_a_project(name: str, tmp_path: Path) -> None:
    written = write_template(name, tmp_path, ("orders", "news"))
    assert {"pipeline.toml", "schema.toml"} < set(written)
    project = read_project(tmp_path)
    assert project.settings.topics == ("orders", "news")
    assert project.lake == str(tmp_path / "lake")
    assert len(project.gold) == 2


def test_typed_silver_and_two_gold_tables_need_30_lines(tmp_path: Path) -> None:
    written = write_template("orders", tmp_path, ("orders",))
    assert sum(len((tmp_path / name).read_text().splitlines()) for name in written) <= 30


def test_page_shows_the_files_of_the_template_and_valid_commands(tmp_path: Path) -> None:
    write_template("orders", tmp_path, ("orders",))
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    for name in ("pipeline.toml", "schema.toml", "gold/per_minute.sql"):
        kind = name.rpartition(".")[2]
        assert f"```{kind}\n{(tmp_path / name).read_text()}```" in page
    commands = re.findall(r"^\$ (skipring .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    assert [command for command in commands if is_refused(command)] == []


def test_template_does_not_overwrite_files(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(InputError, match="not empty"):
        write_template("orders", tmp_path, ("orders",))


@pytest.mark.parametrize("lake", ["file:/srv/lake", "hdfs:/lake", "s3a://bucket/lake", "/srv/a:/b"])
def test_lake_with_a_scheme_or_an_absolute_path_is_not_in_the_project(
    tmp_path: Path, lake: str
) -> None:
    pipeline = f'{PIPELINE}lake = "{lake}"\n'
    assert read_project(write_project(tmp_path, pipeline=pipeline)).lake == lake


def test_project_has_the_settings_of_its_files(tmp_path: Path) -> None:
    pipeline = f'{PIPELINE}lake = "s3a://b/x"\ntrigger = "500ms"\nretention = "90d"\n'
    sql = f"-- window: 10m\n{ITEMS};"
    project = read_project(write_project(tmp_path, pipeline=pipeline, gold={"items": sql}))
    assert (project.lake, project.trigger_s, project.retention_days) == ("s3a://b/x", 0.5, 90)
    assert project.settings.max_offsets == OFFSETS_MAX
    assert project.silver.columns["item"] == SilverColumn("string")
    assert project.silver.columns["net"].sql == "amount / 2"
    (gold,) = project.gold
    assert (gold.name, gold.window_s, gold.of) == ("items", 600, "silver")
    assert gold.sql.endswith("item")


def test_public_functions_are_found(tmp_path: Path) -> None:
    write_project(tmp_path)
    text = "from math import sqrt\n\ndef twice(x: float) -> float:\n    return 2 * _own(x)\n\n"
    (tmp_path / "functions.py").write_text(f"{text}def _own(x: float) -> float:\n    return x\n")
    (function,) = read_project(tmp_path).functions
    assert (function.__name__, function(2.0)) == ("twice", 4.0)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("pipeline.toml", "topics", "cannot be read"),
        ("pipeline.toml", "topics = 1", r"Expected `array`, got `int` - at `\$.topics`"),
        ("pipeline.toml", f"{PIPELINE}colour = 1", "unknown field `colour`"),
        ("pipeline.toml", f'{PIPELINE}trigger = "soon"', "'trigger' is no duration"),
        ("pipeline.toml", f'{PIPELINE}retention = "1h"', "whole number of days"),
        ("schema.toml", '[columns]\na = { type = "int", sql = "1", field = "b" }', "has both"),
        ("schema.toml", 'format = "xml"', "Invalid enum value 'xml'"),
        ("gold/items.sql", f"-- window: 2d\n{ITEMS}", "at most a day"),
        ("gold/items.sql", f"-- of: deliveries\n{ITEMS}", "'of' is silver"),
        ("gold/silver.sql", ITEMS, "'silver' cannot be the name"),
        ("functions.py", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_wrong_file_is_named_with_the_reason(
    tmp_path: Path, file: str, text: str, reason: str
) -> None:
    write_project(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(InputError, match=reason) as raised:
        read_project(tmp_path)
    assert str(tmp_path / file) in str(raised.value)


def test_directory_without_settings_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'skipring pipeline init' writes one"):
        read_project(tmp_path)
    write_project(tmp_path, schema=SCHEMA, gold={})
    assert read_project(tmp_path).gold == ()
