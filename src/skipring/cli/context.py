"""``skipring context`` and ``completion``: clusters by name, and completion in a shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skipring.cli.options import json_option, option

if TYPE_CHECKING:
    from skipring.net.access import Context

SHELLS = ("bash", "zsh", "fish")


@click.group()
def context() -> None:
    """Store addresses and certificates of clusters under names.

    Commands use the selected context if neither an option nor the environment names a supervisor.
    SKIPRING_CONTEXT overrides the selection in one shell.
    """


@context.command()
@click.argument("name")
@option("--supervisor", "Supervisors of the cluster.", "HOST:PORT[,...]", required=True)
@option("--tls-ca", "Certificate of the cluster's authority.", "FILE")
@option("--tls-cert", "Your certificate.", "FILE")
@option("--tls-key", "Key of your certificate.", "FILE")
def save(
    name: str, supervisor: str, tls_ca: str | None, tls_cert: str | None, tls_key: str | None
) -> None:
    """Save a context as NAME, replacing an earlier one."""
    from skipring.net.access import Access, Context, Contexts

    access = Access.explicit(supervisor, ca=tls_ca, cert=tls_cert, key=tls_key)
    access.credentials()  # fail now instead of at the first connection
    ca, cert, key = (
        None if file is None else str(Path(file).resolve())
        for file in (access.ca, access.cert, access.key)
    )
    contexts = Contexts.load()
    contexts.add(name, Context(supervisor=",".join(access.supervisors), ca=ca, cert=cert, key=key))
    contexts.save()
    if contexts.selected != name:
        click.echo(f"saved; select it with: skipring context use {name}")


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Select the context NAME for all later commands."""
    from skipring.net.access import SELECTED, Contexts

    contexts = Contexts.load()
    contexts.select(name)
    contexts.save()
    if contexts.selected != name:
        click.echo(f"{SELECTED}={contexts.selected} takes precedence in this shell", err=True)


@context.command("list")
@json_option("Print JSON.")
def list_contexts(as_json: bool) -> None:
    """List all contexts; an asterisk marks the selected one."""
    from skipring.net.access import Contexts

    contexts = Contexts.load()
    for name, each in sorted(contexts.contexts.items()):
        if as_json:
            click.echo(json.dumps(_row(name, each, is_selected=name == contexts.selected)))
        else:
            mark = "*" if name == contexts.selected else " "
            click.echo(f"{mark} {name}  {each.supervisor}{'  TLS' if each.cert else ''}")
    if not contexts.contexts and not as_json:
        click.echo("no contexts; save one with: skipring context save NAME --supervisor HOST:PORT")


@context.command()
@click.argument("name", required=False)
@json_option("Print JSON.")
def show(name: str | None, as_json: bool) -> None:
    """Show the context NAME; by default, the selected one."""
    from skipring.errors import InputError
    from skipring.net.access import Contexts

    contexts = Contexts.load()
    name = name or contexts.selected
    if name is None:
        raise InputError("no context is selected; select one with: skipring context use NAME")
    row = _row(name, contexts.find(name), is_selected=name == contexts.selected)
    if as_json:
        click.echo(json.dumps(row))
        return
    for field, value in row.items():
        if value is not None:
            click.echo(f"{field:<11}{value}")


@context.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete the context NAME."""
    from skipring.net.access import Contexts

    contexts = Contexts.load()
    contexts.delete(name)
    contexts.save()


def _row(name: str, each: Context, *, is_selected: bool) -> dict[str, object]:
    return {
        "name": name,
        "selected": is_selected,
        "supervisor": each.supervisor,
        "tls_ca": each.ca,
        "tls_cert": each.cert,
        "tls_key": each.key,
    }


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(skipring completion bash)"      in ~/.bashrc
    zsh:   eval "$(skipring completion zsh)"       in ~/.zshrc
    fish:  skipring completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301  (click looks for a backspace character)
    from click.shell_completion import get_completion_class

    command = click.get_current_context().find_root().command
    shell_class = get_completion_class(shell)
    assert shell_class is not None, "each choice has a class"
    click.echo(shell_class(command, {}, "skipring", "_SKIPRING_COMPLETE").source())
