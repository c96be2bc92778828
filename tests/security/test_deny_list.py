"""Deny lists: reading, refusals and additions."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipring.errors import InputError
from skipring.security.deny_list import deny, deny_list_beside, parse_serial, read_deny_list


def test_deny_list_is_beside_the_authority() -> None:
    assert deny_list_beside(Path("/etc/skipring/ca.pem")) == Path(
        "/etc/skipring/denied-serials.txt"
    )


def test_missing_deny_list_denies_nothing(tmp_path: Path) -> None:
    assert read_deny_list(tmp_path / "none") == frozenset()


def test_serial_numbers_are_read_in_all_usual_forms(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("BEEF # gamma\n\n  be:e0\n0xBEE1\n# only a comment\n  ", encoding="utf-8")
    assert read_deny_list(path) == {0xBEEF, 0xBEE0, 0xBEE1}


@pytest.mark.parametrize("text", ["gamma", "-5", "1 2", "0x", "\xff", "+1", "1_0"])
def test_invalid_serial_number_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list"
    path.write_text(f"BEEF\n{text}\n", encoding="latin-1")
    with pytest.raises(InputError, match=r"line 2 is not a serial number: .*; give hexadecimal"):
        read_deny_list(path)
    assert parse_serial(text) is None


def test_unreadable_deny_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_deny_list(tmp_path)


def test_serial_numbers_are_added_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "list"
    assert deny(path, {0xA: "alpha", 0xB: "beta"}) == [0xA, 0xB]
    assert deny(path, {0xB: "beta", 0xC: "gamma"}) == [0xC]
    assert path.read_text(encoding="utf-8") == "A  # alpha\nB  # beta\nC  # gamma\n"
    assert read_deny_list(path) == {0xA, 0xB, 0xC}
