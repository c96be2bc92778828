"""Code for executors: the zip that is sent, and missing packages."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from skipring.errors import InputError
from skipring.spark.session.executors import NEEDED, check_python, missing, package_zip


def test_zip_of_the_code_is_reproducible_and_complete(tmp_path: Path) -> None:
    content = package_zip()
    assert package_zip() == content
    names = ZipFile(BytesIO(content)).namelist()
    assert {"skipring/spark/session/executors.py", "pyspark_skipring/__init__.py"} < set(names)
    assert not [name for name in names if "__pycache__" in name]
    archive = tmp_path / "skipring.zip"
    archive.write_bytes(content)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from importlib.metadata import version;"
        "import skipring.api.connection as c; print(version('skipring'), c.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, archive], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split()[1].startswith(str(archive))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(0) == []
    monkeypatch.setattr("skipring.spark.session.executors.NEEDED", (*NEEDED, "no_such_package"))
    assert missing(0) == ["no_such_package"]


def test_check_of_packages_needs_none_of_them() -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(sys.argv[1:]);"
        "from skipring.spark.session.executors import missing; print(missing)"
    )
    unneeded = [name for name in NEEDED if name != "pandas"]  # PySpark imports pandas if it exists
    subprocess.run([sys.executable, "-c", program, *unneeded], check=True, capture_output=True)


def test_own_python_of_the_driver_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    check_python(sys.executable)


def program(directory: Path, *lines: str) -> str:
    """Return a program that stands for another Python."""
    path = directory / "python9"
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o700)
    return str(path)


def test_other_python_that_can_import_skipring_is_accepted(tmp_path: Path) -> None:
    check_python(program(tmp_path, f'exec {sys.executable} "$@"'))


def test_python_of_another_version_is_reported_with_the_remedy(tmp_path: Path) -> None:
    other = program(tmp_path, "echo 3.9")
    remedy = f"it is Python 3.9, and the driver .*set PYSPARK_PYTHON={sys.executable}"
    with pytest.raises(InputError, match=remedy):
        check_python(other)


@pytest.mark.parametrize("is_present", [False, True])
def test_python_without_skipring_is_reported_with_the_remedy(
    tmp_path: Path, is_present: bool
) -> None:
    other = program(tmp_path, "echo \"No module named 'skipring'\" >&2", "exit 1")
    remedy = f"set PYSPARK_PYTHON={sys.executable} in the environment"
    with pytest.raises(InputError, match=remedy) as caught:
        check_python(other if is_present else "no-such-python")
    assert ("No module named 'skipring'" in str(caught.value)) == is_present
