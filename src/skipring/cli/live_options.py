"""Options that the commands of a live ring share: supervisors, certificates, durations.

Precedence: option, environment variable ``SKIPRING_...``, settings file (``--config``), context,
default.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any, Final

import click

from skipring.cli.config_file import config_option

SECONDS: Final = click.FloatRange(0.01, 3600)
INTERRUPTED: Final = 130  # exit status after Ctrl-C
LEVELS: Final = ("debug", "info", "warning", "error")
SUPERVISOR_LISTEN: Final = "127.0.0.1:7400"
FILE: Final = click.Path(dir_okay=False, path_type=Path)


def finite(_: click.Context, __: click.Parameter, value: float) -> float:
    """Refuse NaN and infinity, which no range excludes."""
    if not isfinite(value):
        raise click.BadParameter("it is a number of seconds")
    return value


tick_option = click.option(
    "--tick",
    type=SECONDS,
    default=1.0,
    metavar="S",
    envvar="SKIPRING_TICK",
    callback=finite,
    help="Interval.",
)

supervisors_option = click.option(
    "--supervisor",
    "supervisors",
    metavar="HOST:PORT[,...]",
    envvar="SKIPRING_SUPERVISOR",
    help="Or SKIPRING_SUPERVISOR, or a context.  [default: 127.0.0.1:7400]",
)

_CREDENTIALS: Final = tuple(
    click.option(
        f"--tls-{name}", type=FILE, metavar="FILE", envvar=f"SKIPRING_TLS_{name.upper()}", help=text
    )
    for name, text in (
        ("ca", "Certificate of the cluster's authority."),
        ("cert", "Certificate of this process."),
        ("key", "The key of that certificate."),
    )
)

Command = Callable[..., Any]


def access_options(command: Command) -> Command:
    """Add the options of a command that connects to a ring; it receives them as ``access``."""

    @wraps(command)
    def with_access(
        *,
        supervisors: str | None,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        **others: Any,  # noqa: ANN401  (the options of any command)
    ) -> Any:  # noqa: ANN401
        from skipring.net.access import Access

        access = Access.resolve(supervisors, ca=tls_ca, cert=tls_cert, key=tls_key)
        return command(access=access, **others)

    return supervisors_option(_credential_options(with_access))


def identity_options(command: Command) -> Command:
    """Add the options of a command's own certificate; it receives them as ``access``."""

    @wraps(command)
    def with_identity(
        *,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        **others: Any,  # noqa: ANN401  (the options of any command)
    ) -> Any:  # noqa: ANN401
        from skipring.net.access import Access

        access = Access.files(ca=tls_ca, cert=tls_cert, key=tls_key)
        return command(access=access, **others)

    return _credential_options(with_identity)


def _credential_options(command: Command) -> Command:
    for option in (*_CREDENTIALS, config_option):
        command = option(command)
    return command


def duration(_: click.Context | None, __: click.Parameter | None, text: str) -> float:
    """Return the seconds of a text such as 500ms, 10s, 5m, 2h or 7d; without a unit, seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 500ms, 10s or 5m")
    return float(match[1]) * _UNITS_S[match[2]]


_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d|)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
