"""Contexts: addresses and certificates of clusters, stored under names for one user.

The file is ``$XDG_CONFIG_HOME/skipring/contexts.json``, by default below ``~/.config``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from skipring.core.limits import shown
from skipring.errors import InputError

CONTEXTS_MAX: Final = 1000  # Guess: more clusters than one user has.
NAME_CHARACTERS_MAX: Final = 64

SELECTED: Final = "SKIPRING_CONTEXT"  # environment variable that overrides ``context use``


class Context(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Supervisors of a cluster, and the certificate to present to them."""

    supervisor: str
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class Contexts(Struct, kw_only=True, omit_defaults=True):
    """All contexts of a user, and the name of the current one."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    @classmethod
    def load(cls) -> Self:
        """Read the contexts of this user; return none if the file is missing."""
        path = contexts_file()
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise InputError(
                f"{path} is damaged ({error}); delete it and save the contexts again"
            ) from None

    def save(self) -> None:
        """Replace the file atomically; only this user may read it."""
        path = contexts_file()
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.touch(mode=0o600)
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
            draft.replace(path)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None

    @property
    def selected(self) -> str | None:
        """Return the name of the context in use: SKIPRING_CONTEXT, or else the current one."""
        return os.environ.get(SELECTED) or self.current

    def find(self, name: str) -> Context:
        """Return the context of a name; otherwise raise InputError with the names that exist."""
        found = self.contexts.get(name)
        if found is None:
            names = ", ".join(sorted(self.contexts))
            known = f"there are: {names}" if names else "no contexts are saved"
            raise InputError(f"no context {shown(name)}; {known}")
        return found

    def add(self, name: str, context: Context) -> None:
        """Store a context under a name; replace an older one."""
        if not name.isprintable() or not 1 <= len(name) <= NAME_CHARACTERS_MAX or "/" in name:
            raise InputError(
                f"a context name has 1 to {NAME_CHARACTERS_MAX} printable characters and no /"
            )
        if name not in self.contexts and len(self.contexts) >= CONTEXTS_MAX:
            raise InputError(f"there are {CONTEXTS_MAX} contexts; delete one first")
        self.contexts[name] = context

    def select(self, name: str) -> None:
        """Make an existing context the current one."""
        self.find(name)
        self.current = name

    def delete(self, name: str) -> None:
        """Delete an existing context."""
        self.find(name)
        del self.contexts[name]
        self.current = None if self.current == name else self.current


def contexts_file() -> Path:
    """Return the path of the file that stores the contexts of this user."""
    home = os.environ.get("XDG_CONFIG_HOME")
    directory = Path(home) if home else Path("~/.config").expanduser()
    return directory / "skipring" / "contexts.json"
