"""Run of a pipeline: the lock of the lake. tests/live/test_pipeline.py covers the query."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skipring.errors import StoreBusyError
from skipring.spark.pipeline import runner as runner_module
from skipring.spark.pipeline.project import read_project
from tests.spark.pipeline.lakes import write_project


@pytest.mark.heavy
def test_lake_that_another_process_writes_to_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "LOCK_WAIT_S", 0.1)
    project = read_project(write_project(tmp_path))
    with runner_module.opened_lake(spark, project) as (lake, state):
        assert lake.files.exists("")
        assert state.topics == ("orders",)
    with (tmp_path / "lake" / runner_module.LOCK).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)  # as the JVM of another run does
        with pytest.raises(StoreBusyError, match="another pipeline"):
            runner_module.opened_lake(spark, project).__enter__()
    with runner_module.opened_lake(spark, project):
        pass
