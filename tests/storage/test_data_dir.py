"""The name of a node: created once and kept."""

import re
from pathlib import Path

import pytest

from skipring.errors import IdentityError, StorageError
from skipring.storage.data_dir import node_id


def test_node_without_a_name_gets_a_random_one_and_keeps_it(tmp_path: Path) -> None:
    names = [node_id(tmp_path / directory) for directory in ("a", "a", "b")]
    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch(r"[a-z0-9]{12}", name) for name in names)


def test_node_id_file_is_private(tmp_path: Path) -> None:
    node_id(tmp_path)
    assert (tmp_path / "node-id").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["node-id"]


def test_given_name_is_kept(tmp_path: Path) -> None:
    assert node_id(tmp_path, "Ann.1_b-c") == "Ann.1_b-c"
    assert (tmp_path / "node-id").read_text() == "Ann.1_b-c\n"
    assert node_id(tmp_path) == node_id(tmp_path, "Ann.1_b-c") == "Ann.1_b-c"


def test_node_is_not_renamed(tmp_path: Path) -> None:
    node_id(tmp_path, "ann")
    with pytest.raises(IdentityError, match="called ann, not bob; leave the name out"):
        node_id(tmp_path, "bob")
    assert node_id(tmp_path) == "ann"


@pytest.mark.parametrize("name", ["", "a b", "é", "a" * 65, "a/b", "a\n", "supervisor"])
def test_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(IdentityError, match="name: "):
        node_id(tmp_path / "given", name)
    assert not (tmp_path / "given").exists()
    (tmp_path / "node-id").write_text(f"{name}\n")
    with pytest.raises(IdentityError, match="node-id"):
        node_id(tmp_path)


def test_binary_name_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_bytes(b"\xff\xfe" * 5000)
    with pytest.raises(IdentityError, match="is no name for a node"):
        node_id(tmp_path)


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StorageError):
        node_id(tmp_path / "data")
