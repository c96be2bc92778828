"""Name of a node: given, random, and kept in the data directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skipring.errors import IdentityError, StorageError
from skipring.node.settings import node_id


def test_random_name_is_created_once_in_a_private_file(tmp_path: Path) -> None:
    names = [node_id(tmp_path / directory) for directory in ("a", "a", "b")]
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch(r"[a-z0-9]{12}", name) for name in names)
    assert (tmp_path / "a" / "node-id").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["node-id"]


def test_given_name_is_kept_and_not_changed(tmp_path: Path) -> None:
    assert node_id(tmp_path, "Ann.1_b-c") == "Ann.1_b-c"
    assert (tmp_path / "node-id").read_text() == "Ann.1_b-c\n"
    with pytest.raises(IdentityError, match=r"called Ann\.1_b-c, not bob; omit the name"):
        node_id(tmp_path, "bob")
    assert node_id(tmp_path) == node_id(tmp_path, "Ann.1_b-c") == "Ann.1_b-c"


@pytest.mark.parametrize("name", ["", "a b", "é", "a" * 65, "a/b", "a\n", "supervisor"])
def test_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(IdentityError, match="name: "):
        node_id(tmp_path / "given", name)
    assert not (tmp_path / "given").exists()
    (tmp_path / "node-id").write_text(f"{name}\n")
    with pytest.raises(IdentityError, match="node-id"):
        node_id(tmp_path)


def test_binary_file_and_a_file_in_place_of_the_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_bytes(b"\xff\xfe" * 5000)
    with pytest.raises(IdentityError, match="is not a valid node name"):
        node_id(tmp_path)
    with pytest.raises(StorageError):
        node_id(tmp_path / "node-id")
