"""Settings in a TOML file: top-level keys apply to all commands, a table to one command.

A key is an option without its dashes: ``supervisor = ["10.0.0.1:7400"]`` at the top, and
``topic = ["orders"]`` in the table ``[node]``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from skipring.errors import InputError

CONFIG_FILE: Final = "skipring.config"

_OWN: Final = "config"
Option = click.Option


def _load(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Use the settings of the file as the defaults of the command's options."""
    if path is not None:
        context.meta[CONFIG_FILE] = path  # a command may read it again while it runs
        context.default_map = {**(context.default_map or {}), **read_settings(context, path)}
    return path


config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="SKIPRING_CONFIG",
    is_eager=True,
    expose_value=False,
    callback=_load,
    help="Settings file (TOML).",
)


def read_settings(context: click.Context, path: Path) -> dict[str, Any]:
    """Return the settings of a file for a command, by parameter name."""
    tree = _parse(path)
    commands = _configurable(context)
    general = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    _check_names(general, {name for command in commands.values() for name in command}, path, "")
    for name, table in tree.items():
        if isinstance(table, dict):
            if name not in commands:
                raise InputError(
                    f"{path}: no command {name!r}; the commands are {_listed(commands)}"
                )
            _check_names(table, set(commands[name]), path, f"[{name}] ")
    own = context.command.name or ""
    given = {**general, **tree.get(own, {})}
    options = commands[own]
    return {
        str(options[name].name): _checked_option(value, options[name], context, f"{path}: {name}")
        for name, value in given.items()
        if name in options
    }


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML ({error})") from None


def _configurable(context: click.Context) -> dict[str, dict[str, Option]]:
    """Return the options of all commands that read a file, by their names in it."""
    group = context.find_root().command
    commands = group.commands.values() if isinstance(group, click.Group) else [context.command]
    found = {str(command.name): _options_of(command) for command in commands}
    return {name: options for name, options in found.items() if options.pop(_OWN, None)}


def _options_of(command: click.Command) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for option in command.params:
        if isinstance(option, click.Option):
            name = max(option.opts, key=len).lstrip("-")
            found[name] = option
            if option.name == f"{name}s":  # at the top, "supervisor" may be the name of a table
                found[option.name] = option
    return found


def _check_names(given: Mapping[str, Any], known: set[str], path: Path, where: str) -> None:
    for name in given:
        if name not in known:
            raise InputError(
                f"{path}: {where}no setting {name!r}; the settings are {_listed(known)}"
            )


def _listed(names: set[str] | Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))


def _checked_option(value: object, option: Option, context: click.Context, place: str) -> object:
    """Return a value as the command line would give it; a list for a repeatable option."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"{place}: expected true or false")
        return value
    values = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, str | int | float) for each in values):
        raise InputError(f"{place}: expected a text or a number, or a list of them")
    texts = [str(each) for each in values]
    given = texts if option.multiple else ",".join(texts)
    try:
        option.type_cast_value(context, given)
    except click.BadParameter as error:
        raise InputError(f"{place}: {error.message}") from None
    return given
