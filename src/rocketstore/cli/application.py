"""The root of the command tree, and how a command ends."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

import cyclopts
from cyclopts import App

from rocketstore import events
from rocketstore.cli import bench, demo, index, message, pipeline, queue, settings, store, warm
from rocketstore.cli.options import STANDARD_INPUT
from rocketstore.errors import RocketStoreError

EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
"""The operating system refused: permission, a full or failing disk. Nothing is known of the store,
least of all that it is fine."""
EXIT_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""

app = App(
    name="rocketstore",
    help="Read, write, verify and repair Apache RocketMQ 4.9 message stores.",
    version_flags=["--version"],
    help_on_error=False,
    suppress_keyboard_interrupt=False,
)
app.command(store.app)
app.command(message.app)
app.command(queue.app)
app.command(index.app)
app.command(settings.app)
app.command(pipeline.app)
app.command(bench.app)
app.command(warm.warm)
app.command(demo.demo)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    # Started with a stream closed: what is said there goes nowhere, least of all to a store's file.
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; no stack trace for what a user can mend."""
    logging.getLogger().addFilter(_is_not_of_py4j)
    events.ROOT.addHandler(_ON_STDERR)
    # The parser takes a lone dash for an option; here, as everywhere, it is standard input.
    arguments = [STANDARD_INPUT if argument == "-" else argument for argument in arguments]
    try:
        outcome = app(
            arguments, exit_on_error=False, print_error=True, result_action="return_value"
        )
        sys.stdout.flush()
    except cyclopts.CycloptsError:
        return EXIT_USAGE
    except RocketStoreError as error:
        print(f"rocketstore: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("rocketstore: interrupted; what was stored before stays", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left (`| head`): nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"rocketstore: {error}", file=sys.stderr)
        if os.environ.get("ROCKETSTORE_DEBUG"):
            traceback.print_exc()
        return EXIT_UNREACHABLE
    return outcome if isinstance(outcome, int) else 0


class _OnStderr(logging.Handler):
    """Shows what the store logs; the stream is looked up each time, since tests replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"rocketstore: {self.format(record)}", file=sys.stderr)


_ON_STDERR: Final = _OnStderr(logging.WARNING)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Drop what PySpark's bridge to Java logs, to the root, of a call that Ctrl-C broke off."""
    return "/py4j/" not in record.pathname
