"""Deny list: serial numbers of certificates that are refused although an authority has signed them.

The list is a text file beside the file of the authorities; a missing file is an empty list. Each
line has one serial number in hexadecimal digits; a comment starts with # (decision 0047).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from skipring.core.limits import shown
from skipring.errors import InputError

FILE_NAME: Final = "denied-serials.txt"

_FILE_BYTES_MAX: Final = 4 << 20  # Chosen limit: about 50,000 lines.


def deny_list_beside(ca: Path) -> Path:
    """Return the path of the deny list that belongs to a file of authorities."""
    return ca.parent / FILE_NAME


def serial_text(serial: int) -> str:
    """Return a serial number in the form of a deny list.

    >>> serial_text(48879)
    'BEEF'
    """
    return f"{serial:X}"


def parse_serial(text: str) -> int | None:
    """Return the serial number in a text; None if it is not a hexadecimal number.

    >>> parse_serial("be:ef"), parse_serial("0xBEEF"), parse_serial("alpha")
    (48879, 48879, None)
    """
    digits = text.replace(":", "").removeprefix("0x")
    try:
        return int(digits, 16) if digits.isalnum() else None
    except ValueError:
        return None


def read_deny_list(path: Path) -> frozenset[int]:
    """Read the serial numbers of a deny list; a missing file has none."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check who may read it") from None
    if len(data) > _FILE_BYTES_MAX:
        raise InputError(f"{path}: longer than {_FILE_BYTES_MAX >> 20} MiB; change the authority")
    serials = set()
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        serial = parse_serial(text)
        if serial is not None:
            serials.add(serial)
        elif text:
            raise InputError(
                f"{path}: line {number} is not a serial number: {shown(text)}; give hexadecimal "
                "digits, and comments after #"
            )
    return frozenset(serials)


def deny(path: Path, serials: Mapping[int, str]) -> list[int]:
    """Add serial numbers with comments to a deny list; return the numbers that are new."""
    denied = read_deny_list(path)
    added = [serial for serial in serials if serial not in denied]
    lines = [f"{serial_text(serial)}  # {serials[serial]}\n" for serial in added]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; check who may write it") from None
    return added
