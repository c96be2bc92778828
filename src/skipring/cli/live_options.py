"""What the commands of a live ring have in common: whom they talk to, and who they are.

Each option may also stand in a variable ``SKIPRING_...`` or in a file (``--config``); what is given
on the command line counts most, what is in the file least.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from skipring.cli.settings_file import config_option
from skipring.errors import InputError

if TYPE_CHECKING:
    from skipring.runtime.credentials import Credentials

SECONDS: Final = click.FloatRange(0.01, 3600)
FILE: Final = click.Path(dir_okay=False, path_type=Path)


def _finite(_: click.Context, __: click.Parameter, value: float) -> float:
    if not isfinite(value):  # no number is out of range of what is none
        raise click.BadParameter("it is a number of seconds")
    return value


tick_option = click.option(
    "--tick",
    type=SECONDS,
    default=1.0,
    metavar="S",
    envvar="SKIPRING_TICK",
    callback=_finite,
    help="Interval.",
)

supervisors_option = click.option(
    "--supervisor",
    "supervisors",
    required=True,
    metavar="HOST:PORT[,...]",
    envvar="SKIPRING_SUPERVISOR",
    help="Or SKIPRING_SUPERVISOR.",
)

_CREDENTIALS: Final = tuple(
    click.option(
        f"--{name}", type=FILE, metavar="FILE", envvar=f"SKIPRING_{name.upper()}", help=text
    )
    for name, text in (
        ("ca", "Certificate of the cluster's authority."),
        ("cert", "Our certificate."),
        ("key", "The key of our certificate."),
    )
)


class Access(Struct, frozen=True, kw_only=True):
    """Whom a command talks to, and what it shows to them."""

    supervisors: tuple[str, ...] = ()
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def is_secured(self) -> bool:
        """True if there is a certificate."""
        return self.cert is not None

    def credentials(self) -> Credentials | None:
        """Our certificate, checked; None if there is none."""
        given = {name: getattr(self, name) for name in ("ca", "cert", "key")}
        missing = [f"--{name}" for name, path in given.items() if path is None]
        if len(missing) == len(given):
            return None
        if self.ca is None or self.cert is None or self.key is None:
            raise InputError(
                f"{' and '.join(missing)}: missing; --ca, --cert and --key go together"
            )
        from skipring.runtime.credentials import Credentials

        return Credentials.load(self.ca, self.cert, self.key)


Command = Callable[..., Any]


def access_options(command: Command) -> Command:
    """Give a command that talks to a ring its options, as one ``access``."""
    return supervisors_option(identity_options(command))


def identity_options(command: Command) -> Command:
    """Give a command the options that say who it is, as one ``access``."""

    @wraps(command)
    def with_access(
        *,
        ca: Path | None,
        cert: Path | None,
        key: Path | None,
        supervisors: str = "",
        **others: Any,  # noqa: ANN401  (the options of any command)
    ) -> Any:  # noqa: ANN401
        addresses = address_list(supervisors)
        access = Access(supervisors=addresses, ca=ca, cert=cert, key=key)
        return command(access=access, **others)

    for option in (*_CREDENTIALS, config_option):
        with_access = option(with_access)
    return with_access


def address_list(supervisors: str) -> tuple[str, ...]:
    """The addresses in ``HOST:PORT,HOST:PORT``."""
    return tuple(address.strip() for address in supervisors.split(",") if address.strip())
