"""Every command of the command line."""

from collections.abc import Iterator

from cyclopts import App

from rocketstore.cli.application import app


def commands(of: App = app, *words: str) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield the words of every command below one, and the command."""
    if of.default_command is not None:
        yield words, of
    for word in of:
        if not word.startswith("-"):
            yield from commands(of[word], *words, word)
