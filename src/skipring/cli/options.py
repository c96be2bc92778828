"""Options, exit statuses and checks that several commands share.

Precedence of a setting: option, environment variable ``SKIPRING_...``, settings file
(``--config``), context, default.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import IntEnum
from functools import wraps
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from skipring.cli.config_file import config_option
from skipring.errors import InputError

if TYPE_CHECKING:
    from skipring.admin.inspector import Inspector
    from skipring.admin.topic_policy import PolicyReport
    from skipring.net.access import Access

Command = Callable[..., Any]

SECONDS: Final = click.FloatRange(0.01, 3600)
SUPERVISOR_LISTEN: Final = "127.0.0.1:7400"
FILE: Final = click.Path(dir_okay=False, path_type=Path)
DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)


class Exit(IntEnum):
    """Exit status of the command line."""

    YES = 0
    NO = 1
    BAD_INPUT = 2
    NOT_CONVERGED = 3
    UNREACHABLE = 4
    INTERRUPTED = 130

    @classmethod
    def after(cls, stopped_by: Signals) -> Exit:
        """Return the status of a process that a signal has stopped as requested."""
        return cls.INTERRUPTED if stopped_by is Signals.SIGINT else cls.YES


def option(
    flag: str,
    text: str,
    metavar: str | None = None,
    *,
    into: str | None = None,
    env: bool = False,
    **attributes: Any,  # noqa: ANN401  (as click.option)
) -> Callable[[Command], Command]:
    """Return an option; its help shows the default.

    ``into`` names the parameter if it differs from the flag. With ``env`` the option is also read
    from ``SKIPRING_`` and its name.
    """
    names = [flag] if into is None else [flag, into]
    variable = f"SKIPRING_{flag.lstrip('-').replace('-', '_').upper()}" if env else None
    attributes.setdefault("show_default", attributes.get("default") is not None)
    return click.option(*names, metavar=metavar, envvar=variable, help=text, **attributes)


def apply_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds several options, in the order of the help text."""

    def add(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return add


def json_option(text: str | None = None) -> Callable[[Command], Command]:
    """Return the option ``--json``; the command receives it as ``as_json``.

    Without a text, ``as_json`` is also True if stdout is not a terminal.
    """
    help_text = text or "Print JSON also on a terminal."
    callback = None if text is not None else _json_on_pipe
    return click.option("--json", "as_json", is_flag=True, callback=callback, help=help_text)


def _json_on_pipe(_: click.Context, __: click.Parameter, given: bool) -> bool:
    return given or sys.stdout is None or not sys.stdout.isatty()  # None: it is closed


# --- extras ----------------------------------------------------------------------------

# Packages of the extras in pyproject.toml without which a command cannot start. The clients of
# other systems in ``bench`` are not listed: a benchmark skips the systems whose client is missing.
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "dashboard": ("starlette", "uvicorn"),
    "spark": ("pyspark", "pyarrow", "pandas", "plotly"),
}


def has_extra(extra: str) -> bool:
    """Return True if the packages of an extra are installed."""
    return all(find_spec(name) is not None for name in EXTRAS[extra])


def require_extra(extra: str) -> None:
    """Exit with status 2 and the command to run if the packages of an extra are missing."""
    if not has_extra(extra):
        command = " ".join(click.get_current_context().command_path.split()[:2])
        click.echo(f"{command} needs: pip install 'skipring[{extra}]'", err=True)
        raise click.exceptions.Exit(Exit.BAD_INPUT)


# --- live rings ------------------------------------------------------------------------


def finite(_: click.Context, __: click.Parameter, value: float) -> float:
    """Refuse NaN and infinity, which no range excludes."""
    if not isfinite(value):
        raise click.BadParameter("expected a finite number of seconds")
    return value


def tick_option(default_s: float = 1.0, *, env: bool = True) -> Callable[[Command], Command]:
    """Return the option ``--tick``."""
    text = "Seconds between two ticks."
    return option("--tick", text, "S", type=SECONDS, default=default_s, env=env, callback=finite)


_SUPERVISORS: Final = option(
    "--supervisor",
    "Supervisors; or SKIPRING_SUPERVISOR, or a context.  [default: 127.0.0.1:7400]",
    "HOST:PORT[,...]",
    into="supervisors",
    env=True,
)

_CREDENTIALS: Final = apply_options(
    option("--tls-ca", "Certificate of the cluster's authority.", "FILE", type=FILE, env=True),
    option("--tls-cert", "Certificate of this process.", "FILE", type=FILE, env=True),
    option("--tls-key", "Key of that certificate.", "FILE", type=FILE, env=True),
)


def access_options(command: Command) -> Command:
    """Add the options of a command that connects to a ring; it receives them as ``access``."""
    return _SUPERVISORS(identity_options(command))


def identity_options(command: Command) -> Command:
    """Add the options of a command's own certificate; it receives them as ``access``."""

    @wraps(command)
    def with_access(
        *,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        **others: Any,  # noqa: ANN401  (the options of any command)
    ) -> Any:  # noqa: ANN401
        from skipring.net.access import Access

        files = {"ca": tls_ca, "cert": tls_cert, "key": tls_key}
        try:
            if "supervisors" in others:
                access = Access.resolve(others.pop("supervisors"), **files)
            else:
                access = Access.files(**files)
        except InputError as error:
            if error.parameter not in files:
                raise
            raise InputError(error.message, parameter=f"tls_{error.parameter}") from None
        return command(access=access, **others)

    return _CREDENTIALS(config_option(with_access))


def open_inspector(
    topic: str, access: Access, **limits: float
) -> AbstractAsyncContextManager[Inspector]:
    """Open an inspector of a topic; print on stderr what it is waiting for."""
    from skipring.admin.inspector import open_inspector as open_live_inspector
    from skipring.rpc.client import WaitReport

    report = WaitReport(lambda reason: click.echo(f"waiting: {reason}", err=True))
    return open_live_inspector(access.supervisors, topic, access.credentials(), report, **limits)


def read_policy(topic: str, access: Access) -> PolicyReport:
    """Return the policy of a topic as its members report it."""
    from skipring.admin.inspector import TopicContents
    from skipring.admin.topic_policy import policy_report
    from skipring.node.process import run

    async def ask() -> PolicyReport:
        async with open_inspector(topic, access) as inspector:
            return policy_report(await inspector.inspect(TopicContents.NOTHING))

    return run(ask())


class Duration(click.ParamType[float]):
    """Time such as 500ms, 10s, 5m, 2h or 7d, in seconds; without a unit, seconds."""

    name = "duration"

    def __init__(self, least_s: float = 0.0, most_s: float = inf) -> None:
        self._least_s, self._most_s = least_s, most_s

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the duration in seconds."""
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a duration such as 500ms, 10s or 5m", param, ctx)
        seconds = float(found[1]) * UNITS_S[found[2]]
        if not self._least_s <= seconds <= self._most_s:
            span = f"from {self._least_s:g} s to {self._most_s:g} s"
            self.fail(f"{value!r} is out of range; give a duration {span}", param, ctx)
        return seconds


DURATION: Final = Duration()
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|)")
UNITS_S: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_option(
    flag: str, text: str, default: str, *, env: bool = False
) -> Callable[[Command], Command]:
    """Return an option that is a duration."""
    return option(flag, text, "TIME", type=DURATION, default=default, env=env)


# --- Spark -----------------------------------------------------------------------------


class SparkChoice(Struct, frozen=True, kw_only=True):
    """Master and settings of Spark; the arguments of ``session.start``."""

    master: str | None = None
    conf: Mapping[str, str] = {}


def spark_options(command: Command) -> Command:
    """Add the options of Spark to a command, which receives them as ``spark``.

    The command requires the extra ``spark``.
    """

    @wraps(command)
    def with_spark(
        *,
        master: str | None,
        conf: dict[str, str],
        **others: Any,  # noqa: ANN401  (the options of any command)
    ) -> Any:  # noqa: ANN401
        require_extra("spark")
        return command(spark=SparkChoice(master=master, conf=conf), **others)

    return _MASTER(_CONF(with_spark))


def key_values(form: str = "K=V", prefix: str = "") -> Callable[..., dict[str, str]]:
    """Return a callback that parses repeated texts KEY=VALUE into a dictionary."""

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text in given:
            key, equals, value = text.partition("=")
            if not equals or not key or not key.startswith(prefix):
                raise click.BadParameter(f"{text!r} is not of the form {form}")
            found[key] = value
        return found

    return parse


_MASTER: Final = click.option(
    "--master",
    metavar="URL",
    envvar="SKIPRING_SPARK_MASTER",
    help="Spark master: local[2], spark://HOST:PORT, yarn ...  [default: all local cores]",
)

_CONF: Final = option(
    *("--conf", "Spark setting; may be repeated.", "KEY=VALUE"),
    multiple=True,
    callback=key_values("spark.KEY=VALUE", prefix="spark."),
)
