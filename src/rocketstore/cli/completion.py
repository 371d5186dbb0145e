"""``rocketstore --install-completion``: completion of commands and options by the shell."""

from typing import Annotated, Literal

from cyclopts import Parameter

from rocketstore.errors import UnsupportedEnvironmentError


def install(
    *,
    shell: Annotated[
        Literal["bash", "zsh", "fish"] | None, Parameter(help="Unset: the shell this runs in.")
    ] = None,
) -> None:
    """Install completion for this shell: a script in the home, named in its start file."""
    from cyclopts.completion import ShellDetectionError

    from rocketstore.cli.application import app

    try:
        path = app.install_completion(shell=shell)
    except ShellDetectionError as error:
        raise UnsupportedEnvironmentError(
            str(error), hint="name one: --install-completion --shell bash"
        ) from error
    print(f"completion is installed in {path}; a new shell has it")
