"""Sessions: master, settings, environment, start and end."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from skipring.cli.options import SparkChoice, spark_options
from skipring.errors import InputError, UnreachableError
from skipring.spark.session import builder as builder_module
from skipring.spark.session.builder import (
    chosen_master,
    default_settings,
    is_local,
    is_on_this_machine,
    require_usable,
    submitted_settings,
    variables,
)
from tests.support.processes import MARK, left_of, marked

CORES = os.cpu_count() or 1


# --- masters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[*]", CORES), ("local[2,4]", 2), ("local[*, 4]", CORES)],
)
def test_local_master_has_as_many_shuffle_partitions_as_cores(master: str, cores: int) -> None:
    assert is_local(master)
    assert is_on_this_machine(master)
    assert default_settings(master)["spark.sql.shuffle.partitions"] == str(cores)


@pytest.mark.parametrize(
    ("master", "is_here"),
    [
        ("spark://127.0.0.1:7077", True),
        ("spark://[::1]:1", True),
        ("local-cluster[1,1,512]", True),
        ("spark://10.0.0.1:7077", False),
        ("yarn", False),
        ("k8s://https://10.0.0.1:443", False),
    ],
)
def test_cluster_gets_few_settings_and_loopback_only_on_this_machine(
    master: str, is_here: bool
) -> None:
    assert not is_local(master)
    chosen = default_settings(master)
    assert (chosen.get("spark.driver.bindAddress") == "127.0.0.1") is is_here
    assert is_here or set(chosen) == {
        "spark.python.authenticate.socketTimeout",
        "spark.sql.execution.arrow.pyspark.enabled",
        "spark.sql.session.timeZone",
        "spark.ui.showConsoleProgress",
    }


@pytest.mark.parametrize(
    "master", ["lokal", "http://x:1", "spark://x", "spark://x:99999", "spark://:1"]
)
def test_invalid_master_is_refused(master: str) -> None:
    with pytest.raises(InputError, match="not a Spark master"):
        require_usable(master)


def test_master_that_does_not_answer_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"spark://127.0.0.1:{server.getsockname()[1]}"
        require_usable(url)
        require_usable(f"{url},127.0.0.1:1")
    with pytest.raises(UnreachableError, match="no Spark master answers at spark://127"):
        require_usable(url)


# --- settings ------------------------------------------------------------------------------------


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("MASTER", "PYSPARK_PYTHON", "LOG4J_CONFIGURATION_FILE", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_master_of_the_caller_precedes_that_of_the_file_and_of_the_variable(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen_master({}, submitted_settings()) == "local[*]"
    monkeypatch.setenv("MASTER", "local[5]")
    assert chosen_master({}, submitted_settings()) == "local[5]"
    lines = "# none\n\nspark.master  local[4]\nspark.sql.session.timeZone = Asia/Tokyo \n"
    (conf_dir / "spark-defaults.conf").write_text(lines)
    given = submitted_settings()
    assert given == {"spark.master": "local[4]", "spark.sql.session.timeZone": "Asia/Tokyo"}
    assert chosen_master({}, given) == "local[4]"
    assert chosen_master({"spark.master": "local[3]"}, given) == "local[3]"


def test_tasks_run_in_this_python_unless_a_cluster_has_its_own(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def python(master: str, conf: dict[str, str]) -> str:
        return variables(master, conf)["PYSPARK_PYTHON"]

    assert python("yarn", {}) == python("local", {}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "env/bin/python")
    assert (python("yarn", {}), python("local", {})) == ("env/bin/python", sys.executable)
    assert python("local", {"spark.pyspark.python": "other"}) == "other"
    assert variables("local", {})["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_logging_and_addresses_of_the_user_are_kept(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = variables("local", {})
    assert Path(ours["LOG4J_CONFIGURATION_FILE"]).is_file()
    assert ours["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in variables("yarn", {})
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", "mine")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.2")
    theirs = variables("local", {})
    assert (theirs["LOG4J_CONFIGURATION_FILE"], theirs["SPARK_LOCAL_IP"]) == ("mine", "127.0.0.2")
    (conf_dir / "log4j2.properties").touch()
    assert "LOG4J_CONFIGURATION_FILE" not in variables("local", {})


# --- on the command line -------------------------------------------------------------------------


@click.command()
@spark_options
def shown(spark: SparkChoice) -> None:
    click.echo(f"{spark.master} {dict(spark.conf)}")


def test_command_gets_master_and_settings_as_one_value() -> None:
    given = ["--master", "local[2]", "--conf", "spark.a=1", "--conf", "spark.b=x=y"]
    assert (
        CliRunner().invoke(shown, given).output == "local[2] {'spark.a': '1', 'spark.b': 'x=y'}\n"
    )
    assert CliRunner().invoke(shown, []).output == "None {}\n"


@pytest.mark.parametrize("text", ["spark.a", "=1", "", "a=1"])
def test_setting_of_another_form_is_refused(text: str) -> None:
    result = CliRunner().invoke(shown, ["--conf", text])
    assert result.exit_code == 2
    assert f"{text!r} is not of the form spark.KEY=VALUE" in result.output


# --- sessions ------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_active_session_is_used_and_not_stopped(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    changed = {"spark.sql.shuffle.partitions": "7", "spark.driver.memory": "9g"}
    try:
        with builder_module.opened(master="local[1]", conf=changed) as found:
            assert found is spark
            assert found.conf.get("spark.sql.shuffle.partitions") == "7"
            with ThreadPoolExecutor(1) as other:
                assert other.submit(builder_module.start).result() is not None
        assert spark.conf.get("spark.driver.memory") != "9g"
        assert spark.range(3).count() == 3
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


PROGRAM = """
import sys
from skipring.errors import InputError
from skipring.spark.session import builder as session

try:
    session.start(master="local[1]", conf={"spark.driver.maxResultSize": "many"})
except InputError as error:
    print(error)
session.start(master="local[1]", conf={"spark.driver.memory": "512m"})
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.heavy
def test_jvm_of_a_killed_driver_ends_without_output_or_files(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, MARK: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        try:
            lines = [program.stdout.readline() for _ in range(2)]
            running = marked(str(tmp_path))
        finally:
            program.kill()
        errors = program.stderr.read()
    assert re.fullmatch("Spark does not start: .*'many'.*\n", lines[0])
    assert lines[1] == "started\n"
    assert len(running) > 1  # the JVM too
    assert left_of(str(tmp_path)) == []
    assert errors == ""
    assert list(tmp_path.iterdir()) == []


def test_session_ends_if_executors_cannot_run_the_code(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        @staticmethod
        def stop() -> None:
            stopped.append("context")

    class Builder:
        def config(self, **_: object) -> Builder:
            return self

        def getOrCreate(self) -> str:
            vars(context).update(_active_spark_context=Context)
            return "session"

    def refuse(spark: object) -> None:
        raise InputError("lacking")

    stopped: list[str] = []
    context = SimpleNamespace(_active_spark_context=None, _gateway=None)
    spark_session = SimpleNamespace(builder=Builder(), getActiveSession=lambda: None)
    monkeypatch.setattr(builder_module, "SparkSession", spark_session)
    monkeypatch.setattr(builder_module, "SparkContext", context)
    monkeypatch.setattr(builder_module, "ship", lambda spark: None)
    monkeypatch.setattr(builder_module, "check_executors", refuse)
    with pytest.raises(InputError, match="lacking"):
        builder_module.start(master="yarn")
    assert stopped == ["context"]
