"""State of a lake: projects that contradict it are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skipring.errors import InputError
from skipring.spark.pipeline.lake_files import LakeFiles
from skipring.spark.pipeline.project import read_project
from skipring.spark.pipeline.state import FILE, LakeState, agreed, saved
from tests.spark.pipeline.lakes import PIPELINE, SCHEMA, write_project

pytestmark = pytest.mark.heavy


def agree(spark: SparkSession, directory: Path) -> LakeState:
    project = read_project(directory)
    return agreed(LakeFiles(spark, project.lake), project)


def test_state_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    state = agree(spark, write_project(tmp_path))
    assert state == LakeState(topics=("orders",), time="timestamp")
    (tmp_path / "lake").mkdir()
    new = saved(LakeFiles(spark, str(tmp_path / "lake")), state, columns={"item": "string"})
    assert agree(spark, tmp_path) == new


@pytest.mark.parametrize(
    ("pipeline", "schema", "reason"),
    [
        ('topics = ["news"]', SCHEMA, "has topics orders, not news"),
        (PIPELINE, f'time = "placed"\n{SCHEMA}', "has time timestamp, not placed"),
        (PIPELINE, '[columns]\nitem = "int"', "has silver.item string, not int"),
    ],
)
def test_project_that_contradicts_the_lake_is_refused(
    spark: SparkSession, tmp_path: Path, pipeline: str, schema: str, reason: str
) -> None:
    state = agree(spark, write_project(tmp_path))
    (tmp_path / "lake").mkdir()
    saved(LakeFiles(spark, str(tmp_path / "lake")), state, columns={"item": "string"})
    write_project(tmp_path, pipeline=pipeline, schema=schema)
    with pytest.raises(InputError, match=reason):
        agree(spark, tmp_path)


def test_directory_that_is_no_lake_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "other").touch()
    with pytest.raises(InputError, match="is no lake, and not empty"):
        agree(spark, tmp_path)
    (tmp_path / "lake" / FILE).write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        agree(spark, tmp_path)
    (tmp_path / "lake" / FILE).write_text(
        json.dumps({"format": "skipring-lake/1", "topics": [], "time": ""})
    )
    with pytest.raises(InputError, match="reads only 'skipring-lake/2'"):
        agree(spark, tmp_path)


def test_lake_without_its_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    state = agree(spark, write_project(tmp_path))
    for day in ("1970-01-01", "2026-01-01"):
        (tmp_path / "lake" / "bronze" / f"date={day}").mkdir(parents=True)
    saved(LakeFiles(spark, str(tmp_path / "lake")), state, columns={"item": "string"})
    with pytest.raises(InputError, match="has lost its directory 'checkpoint'"):
        agree(spark, tmp_path)
