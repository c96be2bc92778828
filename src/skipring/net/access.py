"""Access to a cluster: addresses of its supervisors, and the certificate to present.

Precedence: argument or option, environment, context, default. The environment and a context apply
only if no supervisor is given, so a process never presents a certificate of one cluster to another.

A context stores the addresses and certificates of a cluster under a name, for one user, in
``$XDG_CONFIG_HOME/skipring/contexts.json``, by default below ``~/.config``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
from msgspec import Struct

from skipring.core.limits import shown
from skipring.errors import InputError
from skipring.net.addresses import DEFAULT_SUPERVISOR, parse_supervisors
from skipring.wire.rpc import Address

if TYPE_CHECKING:  # Importing it loads cryptography, which few processes need.
    from skipring.security.credentials import Credentials

SUPERVISOR_VARIABLE: Final = "SKIPRING_SUPERVISOR"
TLS_VARIABLES: Final = {
    "ca": "SKIPRING_TLS_CA",
    "cert": "SKIPRING_TLS_CERT",
    "key": "SKIPRING_TLS_KEY",
}

CONTEXTS_MAX: Final = 1000  # Guess: more clusters than one user has.
NAME_CHARACTERS_MAX: Final = 64
SELECTED: Final = "SKIPRING_CONTEXT"  # environment variable that overrides ``context use``

StrPath = str | Path


class Access(Struct, frozen=True, kw_only=True):
    """Supervisors of a cluster, and the certificate files to present to them."""

    supervisors: tuple[Address, ...] = ()
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def resolve(
        cls,
        supervisor: str | None = None,
        *,
        ca: StrPath | None = None,
        cert: StrPath | None = None,
        key: StrPath | None = None,
    ) -> Self:
        """Complete missing values from the environment, the selected context or the default."""
        files = {"ca": ca, "cert": cert, "key": key}
        if supervisor is None:
            supervisor = os.environ.get(SUPERVISOR_VARIABLE) or None
            files = _first(
                files, {name: os.environ.get(var) or None for name, var in TLS_VARIABLES.items()}
            )
        if supervisor is None and (name := (contexts := Contexts.load()).selected) is not None:
            context = contexts.find(name)
            supervisor = context.supervisor
            files = _first(files, {"ca": context.ca, "cert": context.cert, "key": context.key})
        return cls.explicit(DEFAULT_SUPERVISOR if supervisor is None else supervisor, **files)

    @classmethod
    def explicit(
        cls,
        supervisor: str,
        *,
        ca: StrPath | None = None,
        cert: StrPath | None = None,
        key: StrPath | None = None,
    ) -> Self:
        """Check the given values; ignore the environment and contexts."""
        files = cls.files(ca=ca, cert=cert, key=key)
        addresses = parse_supervisors(supervisor, is_secured=files.is_secured)
        return cls(supervisors=addresses, ca=files.ca, cert=files.cert, key=files.key)

    @classmethod
    def files(cls, *, ca: StrPath | None, cert: StrPath | None, key: StrPath | None) -> Self:
        """Check that all certificate files are given, or none; leave the supervisors empty."""
        texts = {
            name: None if path is None else str(Path(path).expanduser())
            for name, path in (("ca", ca), ("cert", cert), ("key", key))
        }
        missing = [name for name, path in texts.items() if path is None]
        if missing and len(missing) < len(texts):
            raise InputError(
                "missing; the CA, the certificate and its key go together", parameter=missing[0]
            )
        return cls(ca=texts["ca"], cert=texts["cert"], key=texts["key"])

    @property
    def is_secured(self) -> bool:
        """Return True if there is a certificate."""
        return self.cert is not None

    def credentials(self) -> Credentials | None:
        """Load and check the certificate; return None if there is none."""
        if self.ca is None or self.cert is None or self.key is None:
            return None
        from skipring.security.credentials import Credentials  # noqa: PLC0415  (as above)

        return Credentials(Path(self.ca), Path(self.cert), Path(self.key))


def _first(
    given: Mapping[str, StrPath | None], others: Mapping[str, StrPath | None]
) -> dict[str, StrPath | None]:
    """Return the given files, or the other files if none is given."""
    return dict(given if any(given.values()) else others)


# -- contexts --------------------------------------------------------------------------------


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
        """Return the context with this name; raise InputError, which lists the names, if none."""
        found = self.contexts.get(name)
        if found is None:
            names = ", ".join(sorted(self.contexts))
            known = f"saved contexts: {names}" if names else "no contexts are saved"
            raise InputError(f"no context {shown(name)}; {known}")
        return found

    def select(self, name: str) -> None:
        """Make an existing context the current one."""
        self.find(name)
        self.current = name

    def delete(self, name: str) -> None:
        """Delete an existing context."""
        self.find(name)
        del self.contexts[name]
        self.current = None if self.current == name else self.current

    def add(self, name: str, context: Context) -> None:
        """Store a context under a name; replace an older one."""
        if not name.isprintable() or not 1 <= len(name) <= NAME_CHARACTERS_MAX or "/" in name:
            raise InputError(
                f"a context name has 1 to {NAME_CHARACTERS_MAX} printable characters and no /"
            )
        if name not in self.contexts and len(self.contexts) >= CONTEXTS_MAX:
            raise InputError(f"there are {CONTEXTS_MAX} contexts; delete one first")
        self.contexts[name] = context


def contexts_file() -> Path:
    """Return the path of the file that stores the contexts of this user."""
    home = os.environ.get("XDG_CONFIG_HOME")
    directory = Path(home) if home else Path("~/.config").expanduser()
    return directory / "skipring" / "contexts.json"
