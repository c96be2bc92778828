"""Command line; heavy imports stay inside the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Final

import click

from skipring.cli.certs import certs
from skipring.cli.chaos import chaos
from skipring.cli.context import completion, context
from skipring.cli.dev import demo, dev
from skipring.cli.kv import kv
from skipring.cli.lab import bench, lab
from skipring.cli.node import node, supervisor
from skipring.cli.options import Exit
from skipring.cli.pipeline import pipeline
from skipring.cli.pub_sub import pub, sub
from skipring.cli.ring import doctor, explain, ring
from skipring.cli.simulate import shrink, simulate
from skipring.cli.top import dashboard, top, topics
from skipring.cli.topic import topic
from skipring.errors import InputError, SkipringError, UnreachableError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="skipring")
def skipring() -> None:
    """Publish/subscribe without a broker in the data path."""


COMMANDS: Final = (
    *(dev, demo, simulate, shrink, bench),
    *(supervisor, node, pub, sub, kv, topic, topics),
    *(ring, doctor, explain, top, dashboard, chaos),
    *(certs, context, completion, lab, pipeline),
)
for command in COMMANDS:
    skipring.add_command(command)


# Parameters of the library whose flags have other names.
_FLAGS: Final = {"data_dir": "data", "tick_s": "tick"}


def _with_flag(error: SkipringError, command: click.Command) -> str:
    """Return the text of an error, with the argument or flag for the library's parameter."""
    parameter = error.parameter if isinstance(error, InputError) else None
    if parameter is None or not parameter.isidentifier():  # it may also name a file
        return str(error)
    assert isinstance(error, InputError)
    arguments = [each.name for each in command.params if isinstance(each, click.Argument)]
    if parameter in arguments:
        return f"{parameter.upper()}: {error.message}"
    return f"--{_FLAGS.get(parameter, parameter).replace('_', '-')}: {error.message}"


def _command(words: Iterable[str]) -> click.Command:
    """Return the command that these words call."""
    found: click.Command = skipring
    for word in words:
        if isinstance(found, click.Group):
            found = found.commands.get(word, found)
    return found


def _status_of(error: SkipringError) -> int:
    if isinstance(error, InputError):
        return Exit.BAD_INPUT
    return Exit.UNREACHABLE if isinstance(error, UnreachableError) else Exit.NO


def main() -> None:
    """Run the command line; print each error as one sentence."""
    _open_standard_streams()
    sys.exit(_run())


def _open_standard_streams() -> None:
    """Open closed standard streams, so that no other file gets their descriptors."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free number


def _run() -> int:
    try:
        status = skipring.main(prog_name="skipring", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SkipringError as error:
        click.echo(f"Error: {_with_flag(error, _command(sys.argv[1:]))}", err=True)
        return _status_of(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.NO  # the reader has closed the pipe
    except OSError as error:
        click.echo(f"Error: {error.strerror or error}", err=True)
        return Exit.NO
    return status if isinstance(status, int) else Exit.YES
