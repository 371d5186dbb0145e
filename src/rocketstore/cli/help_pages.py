"""How ``--help`` is written: the lines of each paragraph filled, however wide the terminal is."""

import re
from functools import cached_property
from typing import Any


class FilledParagraphs:
    """The parser's own formatter, which would break lines where those of a docstring end."""

    @cached_property
    def _formatter(self) -> Any:
        # With the library that prints, it takes longer to import than most commands run.
        from cyclopts.help.formatters.default import DefaultFormatter

        return DefaultFormatter()

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Write a table of commands or parameters."""
        for entry in panel.entries:
            _fill(entry.description)
        self._formatter(console, options, panel)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        """Write the line of the usage."""
        self._formatter.render_usage(console, options, usage)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        """Write what a command does."""
        _fill(description)
        self._formatter.render_description(console, options, description)


def _fill(text: Any) -> None:
    """Join the lines of each paragraph, and leave the marks of code out."""
    shown = getattr(text, "primary_renderable", None)
    if shown is not None:
        shown.plain = re.sub(r"(?<!\n)\n(?!\n)", " ", shown.plain).replace("``", "")
