"""The name of a node, kept in its data directory."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Final

from skipring.core.peers import SUPERVISOR, NodeId
from skipring.errors import IdentityError
from skipring.storage.files import failures_told, make_directory, write_durably

FILE: Final = "node-id"
RANDOM_CHARACTERS: Final = 12  # Our guess: 62 bits, so that two of a million never meet.

_FORM: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FILE_BYTES_MAX: Final = 1024
_ALPHABET: Final = ascii_lowercase + digits


def node_id(directory: Path, name: str | None = None) -> NodeId:
    """The node's own id: the one kept, or else the name given, or else a random one, then kept.

    IdentityError if one of them is no name for a node, or if they differ.
    """
    if name is not None:
        check_name(name, parameter="name")
    path = directory / FILE
    with failures_told(directory):
        make_directory(directory)
        kept = _read(path)
        if kept is None:
            made = name or "".join(secrets.choice(_ALPHABET) for _ in range(RANDOM_CHARACTERS))
            write_durably(path, f"{made}\n".encode())
            return made
    check_name(kept, parameter=str(path))
    if name not in (None, kept):
        raise IdentityError(
            f"{path}: this node is called {kept}, not {name}; "
            "leave the name out, or take another data directory"
        )
    return kept


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode(errors="replace").removesuffix("\n")
    except FileNotFoundError:
        return None


def check_name(name: str, *, parameter: str) -> None:
    """Refuse a name that no node can have; ``parameter`` states where it comes from."""
    if not _FORM.fullmatch(name):
        raise IdentityError(
            f"{name[:80]!r} is no name for a node; "
            "it has 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'",
            parameter=parameter,
        )
    if name == SUPERVISOR:
        raise IdentityError(
            f"{name!r} is the supervisor's own name; choose another", parameter=parameter
        )
