"""Run of a pipeline: lock of the lake, restarts (tests/live/test_pipeline.py: the query)."""

from __future__ import annotations

import fcntl
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from skipring.errors import StoreBusyError
from skipring.spark.pipeline import runner as runner_module
from skipring.spark.pipeline.project import read_project
from tests.spark.pipeline.lakes import PIPELINE, write_project


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


@pytest.mark.parametrize(
    ("project_master", "master", "choice", "shows_ui"),
    [
        (None, None, None, True),
        ("spark://cluster:7077", None, None, False),
        ("spark://cluster:7077", "local[2]", None, True),
        ("spark://cluster:7077", None, True, True),
        ("local[2]", "yarn", None, False),
        (None, None, False, False),
    ],
)
def test_page_of_spark_is_shown_on_loopback_or_on_demand(
    tmp_path: Path, project_master: str | None, master: str | None, choice: bool | None,
    shows_ui: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("MASTER", raising=False)
    setting = f'[spark]\n"spark.master" = "{project_master}"\n' if project_master else ""
    project = read_project(write_project(tmp_path, pipeline=PIPELINE + setting))
    conf = runner_module.run_conf(project, {"a": "b"}, master=master, shows_ui=choice)
    assert conf["spark.ui.enabled"] == str(shows_ui).lower()
    assert conf["a"] == "b"


def test_page_of_spark_is_not_shown_for_a_master_in_the_defaults_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    project = read_project(write_project(tmp_path / "project"))
    conf = runner_module.run_conf(project, {}, master=None)
    assert conf["spark.ui.enabled"] == "false"


class _Query:
    """A query that has ended, perhaps with an error."""

    isActive = False  # noqa: N815  (the name in PySpark)
    lastProgress = None  # noqa: N815

    def __init__(self, error: str | None) -> None:
        self._error = error
        self.is_stopped = False

    def awaitTermination(self) -> None:
        if self._error is not None:
            raise RuntimeError(self._error)

    def stop(self) -> None:
        self.is_stopped = True


SLOW = f"Python worker {runner_module.SLOW_WORKER}. SQLSTATE: XXKST"


@pytest.mark.parametrize(
    ("errors", "error"),
    [
        ([SLOW, SLOW, None], None),
        ([SLOW] * 3, runner_module.SLOW_WORKER),
        (["another"], "another"),
    ],
)
def test_query_starts_again_if_a_worker_of_spark_was_too_slow(
    monkeypatch: pytest.MonkeyPatch, errors: list[str | None], error: str | None
) -> None:
    queries = [_Query(each) for each in errors]
    starting = iter(queries)
    known = SimpleNamespace(began={}, files=None)
    monkeypatch.setattr(runner_module, "opened_lake", lambda *_: nullcontext((known, known)))
    monkeypatch.setattr(runner_module, "saved", lambda *_, **__: known)
    monkeypatch.setattr(runner_module, "Upkeep", lambda *_: SimpleNamespace(open=lambda: None))
    monkeypatch.setattr(runner_module, "start_query", lambda *_: next(starting))
    run: Any = SimpleNamespace(project=None, began={})
    spark: Any = None
    expected = pytest.raises(RuntimeError, match=error) if error else nullcontext()
    with expected:
        assert runner_module.run_pipeline(spark, run, lambda _: None, Event()) == {}
    assert all(query.is_stopped for query in queries)
    assert next(starting, None) is None
