"""Options of the commands that use Spark: master and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click
from msgspec import Struct


class SparkChoice(Struct, frozen=True, kw_only=True):
    """Master and settings of Spark; the arguments of ``session.start``."""

    master: str | None = None
    conf: Mapping[str, str] = {}


Command = Callable[..., Any]


def spark_options(command: Command) -> Command:
    """Add the options of Spark to a command, which receives them as ``spark``."""

    @wraps(command)
    def with_spark(
        *,
        master: str | None,
        conf: dict[str, str],
        **others: Any,  # noqa: ANN401  (the options of any command)
    ) -> Any:  # noqa: ANN401
        return command(spark=SparkChoice(master=master, conf=conf), **others)

    return _master_option(_conf_option(with_spark))


def _settings(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{text!r} is not of the form spark.KEY=VALUE")
        settings[key] = value
    return settings


_master_option = click.option(
    "--master",
    metavar="URL",
    envvar="SKIPRING_SPARK_MASTER",
    help="Spark's master: local[2], spark://HOST:PORT, yarn ... [default: this machine's cores]",
)

_conf_option = click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_settings,
    help="A setting of Spark's; may be repeated.",
)
