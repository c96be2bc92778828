"""``skipring completion``: completion of commands and options in a shell."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


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
    made = get_completion_class(shell)
    assert made is not None, "each choice has a class"
    script = made(command, {}, "skipring", "_SKIPRING_COMPLETE").source()
    click.echo(script)
