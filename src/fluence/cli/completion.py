"""`fluence completion`: the script that teaches a shell to complete fluence's commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    \b
    bash   fluence completion bash > ~/.local/share/bash-completion/completions/fluence
    zsh    fluence completion zsh  > a file _fluence in a directory of your $fpath
    fish   fluence completion fish > ~/.config/fish/completions/fluence.fish

    To try it in the running shell: source <(fluence completion bash)
    """
    from fluence.cli.commands import main

    script = get_completion_class(shell)
    assert script is not None
    made = script(main, {}, "fluence", "_FLUENCE_COMPLETE")
    # NB not made.source(): that runs the shell to look at its version, which may not be installed here.
    click.echo(made.source_template % made.source_vars())
