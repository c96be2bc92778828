"""Test files: one per module, at the same place below tests; exceptions may only shrink.

A package with one test file, such as tests/world/test_format.py, needs none for its modules. The
rule does not apply to directories without a package of that name: cluster, house, properties and
others test many modules together.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import PurePosixPath

import pytest

from tests.support.ratchet import check, committed, differences
from tests.support.source_tree import ROOT, modules

EXCEPTIONS = ROOT / "tests" / "house" / "test_file_exceptions.toml"
TABLES = ("modules_without_tests", "tests_without_module")


def unmatched(found: Collection[str], tests: Collection[str]) -> dict[str, set[str]]:
    """Return modules without a test file, and test files without a module or package."""
    paths = {PurePosixPath(path) for path in found}
    names = {path.with_suffix("") for path in paths if path.name != "__init__.py"}
    packages = {path.parent for path in paths}
    tested = {
        path: PurePosixPath(path).with_name(PurePosixPath(path).stem.removeprefix("test_"))
        for path in tests
        if PurePosixPath(path).parent in packages
    }
    covered = set(tested.values())
    return {
        "modules_without_tests": {
            f"{name}.py" for name in names if not {name, name.parent} & covered
        },
        "tests_without_module": {
            path for path, name in tested.items() if name not in names | packages
        },
    }


@pytest.mark.parametrize("table", TABLES)
def test_each_module_has_one_test_file_or_is_a_listed_exception(table: str) -> None:
    top = ROOT / "tests"
    tests = [path.relative_to(top).as_posix() for path in top.rglob("test_*.py")]
    found = unmatched([name for name, _ in modules()], tests)[table]
    assert check(EXCEPTIONS, table, dict.fromkeys(found, 1)) == []


@pytest.mark.parametrize("table", TABLES)
def test_exceptions_are_listed_once_and_in_order(table: str) -> None:
    listed = committed(EXCEPTIONS, table)
    assert list(listed) == sorted(listed)
    assert set(listed.values()) <= {1}


def test_unmatched_files_are_found() -> None:
    found = ["__init__.py", "errors.py", "core/__init__.py", "core/ring.py", "core/log.py"]
    found += ["world/__init__.py", "world/format/__init__.py", "world/format/parse.py"]
    tests = ["core/test_ring.py", "core/test_trie.py", "world/test_format.py", "live/test_tls.py"]
    assert unmatched(found, tests) == {
        "modules_without_tests": {"errors.py", "core/log.py"},
        "tests_without_module": {"core/test_trie.py"},
    }


@pytest.mark.parametrize("found", [{"a.py": 1, "b.py": 1}, {}])
def test_new_and_outdated_exceptions_fail(found: dict[str, int]) -> None:
    assert differences(found, {"a.py": 1}) != []


def test_fake_host_exists_once() -> None:
    names = re.compile(r"^class ((?:Fake)?(?:Host|Link))\b", re.MULTILINE)
    found = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("*.py")
        for name in names.findall(path.read_text(encoding="utf-8"))
    }
    assert found == {("fake_host.py", "FakeHost")}
