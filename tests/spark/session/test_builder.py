"""A session that just works: what it is started with, and what is left when it has ended."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import click
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from skipring.cli.options import SparkChoice, spark_options
from skipring.errors import InputError, UnreachableError
from skipring.spark import errors as installed
from skipring.spark.errors import require_spark
from skipring.spark.session import builder as session
from skipring.spark.session import executors as shipping
from skipring.spark.session.builder import (
    chosen_master,
    default_settings,
    given_settings,
    is_local,
    is_on_this_machine,
    local_cores,
    require_usable,
    variables,
)
from skipring.spark.session.executors import NEEDED, missing
from tests.support.processes import MARK, left_of, marked

CORES = os.cpu_count() or 1


# --- where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[*]", CORES), ("local[2,4]", 2), ("local[*, 4]", CORES)],
)
def test_a_local_master_has_as_many_shuffle_partitions_as_cores(master: str, cores: int) -> None:
    assert is_local(master)
    assert is_on_this_machine(master)
    assert local_cores(master) == cores
    assert default_settings(master)["spark.sql.shuffle.partitions"] == str(cores)


@pytest.mark.parametrize(
    "master", ["spark://127.0.0.1:7077", "spark://[::1]:1", "local-cluster[1,1,512]"]
)
def test_a_cluster_on_this_machine_is_reached_over_loopback_and_is_not_local(master: str) -> None:
    assert not is_local(master)
    assert default_settings(master)["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "yarn", "k8s://https://10.0.0.1:443"])
def test_on_a_real_cluster_little_is_chosen_for_the_user(master: str) -> None:
    assert set(default_settings(master)) == {
        "spark.sql.execution.arrow.pyspark.enabled",
        "spark.sql.session.timeZone",
        "spark.ui.showConsoleProgress",
    }


@pytest.mark.parametrize(
    "master", ["lokal", "http://x:1", "spark://x", "spark://x:99999", "spark://:1"]
)
def test_invalid_master_is_refused(master: str) -> None:
    with pytest.raises(InputError, match="no Spark master"):
        require_usable(master)


def test_master_that_does_not_answer_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"spark://127.0.0.1:{server.getsockname()[1]}"
        require_usable(url)
        require_usable(f"{url},127.0.0.1:1")
    with pytest.raises(UnreachableError, match="no Spark master answers at spark://127"):
        require_usable(url)


# --- with what -----------------------------------------------------------------------------------


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("MASTER", "PYSPARK_PYTHON", "LOG4J_CONFIGURATION_FILE", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_master_is_the_callers_then_the_files_then_the_variables(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen_master({}, given_settings()) == "local[*]"
    monkeypatch.setenv("MASTER", "local[5]")
    assert chosen_master({}, given_settings()) == "local[5]"
    lines = "# none\n\nspark.master  local[4]\nspark.sql.session.timeZone = Asia/Tokyo \n"
    (conf_dir / "spark-defaults.conf").write_text(lines)
    given = given_settings()
    assert given == {"spark.master": "local[4]", "spark.sql.session.timeZone": "Asia/Tokyo"}
    assert chosen_master({}, given) == "local[4]"
    assert chosen_master({"spark.master": "local[3]"}, given) == "local[3]"


def test_tasks_run_in_our_python_unless_a_cluster_has_its_own(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def python(master: str, conf: dict[str, str]) -> str:
        return variables(master, conf)["PYSPARK_PYTHON"]

    assert python("yarn", {}) == python("local", {}) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "env/bin/python")
    assert (python("yarn", {}), python("local", {})) == ("env/bin/python", sys.executable)
    assert python("local", {"spark.pyspark.python": "other"}) == "other"
    assert variables("local", {})["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_logging_and_addresses_are_left_as_the_user_has_them(
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


# --- with which code -----------------------------------------------------------------------------


def test_the_zip_of_our_code_is_the_same_each_time_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = shipping.package_zip()
    assert shipping.package_zip() == content
    names = ZipFile(BytesIO(content)).namelist()
    assert {"skipring/spark/session/executors.py", "pyspark_skipring/__init__.py"} < set(names)
    assert not [name for name in names if "__pycache__" in name]
    (tmp_path / "skipring.zip").write_bytes(content)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from importlib.metadata import version;"
        "import skipring.api.connection as c; print(version('skipring'), c.__file__)"
    )
    archive = str(tmp_path / "skipring.zip")
    ran = subprocess.run(
        [sys.executable, "-c", program, archive], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split()[1].startswith(archive)


def test_a_probe_names_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(0) == []
    monkeypatch.setattr("skipring.spark.session.executors.NEEDED", (*NEEDED, "no_such_package"))
    assert missing(0) == ["no_such_package"]


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    require_spark()
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "pyspark" else name)
    with pytest.raises(InputError) as told:
        require_spark()
    assert str(told.value) == "Spark is not installed; run: pip install 'skipring[spark]'"


def test_whether_spark_is_there_can_be_asked_without_it() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from skipring.spark.errors import require_spark\n"
        "try: require_spark()\nexcept Exception as error: print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("Spark is not installed")


# --- on the command line -------------------------------------------------------------------------


@click.command()
@spark_options
def shown(spark: SparkChoice) -> None:
    click.echo(f"{spark.master} {dict(spark.conf)}")


def test_a_command_gets_master_and_settings_as_one() -> None:
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


# --- a session -----------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_session_that_is_there_is_used_and_not_stopped(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    changed = {"spark.sql.shuffle.partitions": "7", "spark.driver.memory": "9g"}
    try:
        with session.opened(master="local[1]", conf=changed) as found:
            assert found is spark
            assert found.conf.get("spark.sql.shuffle.partitions") == "7"
            with ThreadPoolExecutor(1) as other:
                assert other.submit(session.start).result() is not None
        assert spark.conf.get("spark.driver.memory") != "9g"
        assert spark.range(3).count() == 3
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


PROGRAM = """
import sys
from skipring.errors import InputError
from skipring.spark.session import builder as session

def broken(batches):
    raise ValueError("broken")

try:
    session.start(master="local[2]", conf={"spark.driver.maxResultSize": "many"})
except InputError as error:
    print(error)
spark = session.start(master="local[2]", conf={"spark.driver.memory": "512m"})
try:
    spark.range(3).mapInArrow(broken, "id long").count()
except Exception as error:
    print("told", "broken" in str(error), flush=True)
sys.stdin.read()
"""


@pytest.mark.heavy
def test_spark_says_nothing_of_its_own_and_ends_when_we_are_killed(tmp_path: Path) -> None:
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
            said = [program.stdout.readline() for _ in range(2)]
            running = marked(str(tmp_path))
        finally:
            program.kill()
        told = program.stderr.read()
    assert re.fullmatch("Spark does not start: .*'many'.*\n", said[0])
    assert said[1] == "told True\n"
    assert len(running) > 1  # also a JVM, which is not stopped
    assert left_of(str(tmp_path)) == []
    assert told == ""
    assert list(tmp_path.iterdir()) == []


def test_executors_that_cannot_run_our_code_end_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Remote:
        sparkContext = type("", (), {"master": "yarn"})()  # noqa: N815  (PySpark's name)

    def refuse(spark: object) -> None:
        raise InputError("lacking")

    stopped: list[object] = []
    monkeypatch.setattr(session, "ship", lambda spark: None)
    monkeypatch.setattr(session, "check_executors", refuse)
    monkeypatch.setattr(session, "stop", stopped.append)
    remote = Remote()
    with pytest.raises(InputError, match="lacking"):
        session._supplied(remote)  # type: ignore[arg-type]
    assert stopped == [remote]
