"""Code for executors: the zip that is sent, and missing packages."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from skipring.spark.session.executors import NEEDED, missing, package_zip


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
