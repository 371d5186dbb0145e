"""The root of the command tree, and how a command ends."""

from __future__ import annotations

import _thread
import ast
import contextlib
import gc
import inspect
import io
import logging
import os
import select
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, NoReturn, cast

import cyclopts
from cyclopts import App

from rocketstore import events
from rocketstore.cli import exit_codes
from rocketstore.cli.help_pages import FilledParagraphs
from rocketstore.cli.wording import (
    STANDARD_INPUT,
    complain,
    complaint,
    drop_output,
    print_on_stderr,
    printable,
    program_name,
    system_error,
)
from rocketstore.errors import RocketStoreError, SparkJobError, UnsupportedEnvironmentError

NARROWEST: Final = 20
"""Columns that help is written in where there are fewer: the parser's never ends in two."""

INTERRUPT_AGAIN_S: Final = 0.01
"""Pause after which a swallowed Ctrl-C is repeated: longer than a destructor takes."""

FULL_PIPE_S: Final = 0.1
"""How long a line of the log waits for a reader; once one is lost, the next do not wait."""

COMMANDS: Final = (
    ("store", "app", "Inspect, verify, repair and fill a store."),
    ("topic", "app", "Topics of a store."),
    ("message", "app", "Read messages of a store."),
    ("queue", "app", "ConsumeQueues: what consumers read through."),
    ("delay", "app", "Delayed messages: which wait, and when they are due."),
    ("transaction", "app", "Transactions: which are open, and for how long."),
    ("index", "app", "Index files: which message carries which key."),
    ("config", "app", "Settings."),
    ("serve", "app", "Run a broker, a name server, or a store as a master or a slave."),
    ("replica", "app", "How far behind a slave is."),
    ("pipeline", "app", "Jobs over whole stores, on Spark: needs rocketstore[pipeline]."),
    ("bench", "app", "Measure puts, gets and scans on this machine."),
    ("demo", "demo", "Import 336,776 real flights into a store, query and verify it."),
)
"""Name, attribute of the module ``rocketstore.cli.<name>``, and what each help says of it; a
module is imported when its command is used, so that ``rocketstore --help`` is quick."""

TRACEBACK: Final = "--traceback"
"""After any command of ``pipeline``: shows the traceback of an error, with workers' stacks."""

app = App(
    name="rocketstore",
    help="Read, write, verify and repair Apache RocketMQ 4.9 message stores.",
    version_flags=["--version", "-V"],
    # A library that renders Markdown takes longer than all the rest of `--help`.
    help_format="plaintext",
    help_formatter=FilledParagraphs(),
    suppress_keyboard_interrupt=False,
)
for _name, _attribute, _help in COMMANDS:
    app.command(f"rocketstore.cli.{_name}:{_attribute}", name=_name, help=_help)
app.command(
    "rocketstore.cli.completion:install",
    name="--install-completion",
    help="Install completion for this shell.",
)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code."""
    _fill_streams()
    # Characters that the encoding lacks are escaped, as on stderr.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.unraisablehook = _interrupt_again
    # Until the command begins: what is imported stays, and looking for garbage among it, again and
    # again, would be a tenth of a broker's start.
    gc.disable()
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except MemoryError:
        complain("no memory is left; raise its limit (ulimit -v, or the container's)")
        code = exit_codes.UNREACHABLE
    except Exception:  # noqa: BLE001 - Python's own code for it would say "found, and no damage"
        traceback.print_exc()
        code = exit_codes.UNREACHABLE
    sys.exit(code)


def _fill_streams() -> None:
    """Let no file or socket of this program take the place of a standard stream that is closed.

    What is written to that stream is dropped, and never reaches a store's file. And uvloop ends a
    process that has closed one of these descriptors, as if by an error of the system. One that
    does not block, as another program made it, has Python drop what its reader is too slow for.
    """
    for number in range(3):
        try:
            os.set_blocking(number, True)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came while an object was destroyed, where Python would only print it."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # A moment later, since what is raised in this function is lost like the first.
        threading.Timer(INTERRUPT_AGAIN_S, _thread.interrupt_main).start()
    # Else Python reports a second signal that came while it gave the first its default meaning.
    elif "ignored due to race condition" not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; no stack trace for what a user can fix."""
    logging.getLogger().addFilter(_is_not_of_py4j)
    events.ROOT.addHandler(_ON_STDERR)
    # The parser takes a lone dash for an option; here, as everywhere, it is standard input.
    arguments = [STANDARD_INPUT if argument == "-" else argument for argument in arguments]
    is_traced = arguments[:1] == ["pipeline"] and TRACEBACK in arguments
    if is_traced:
        arguments = [argument for argument in arguments if argument != TRACEBACK]
    try:
        outcome = _outcome(arguments)
        sys.stdout.flush()
    except cyclopts.CycloptsError as error:
        words = [program_name(), *(error.command_chain or ()), "--help"]
        complain(f"{printable(_wrong_usage(error))} See: {' '.join(words)}")
        return exit_codes.USAGE
    except RocketStoreError as error:
        complain(str(error) if isinstance(error, SparkJobError) else printable(str(error)))
        if is_traced:
            traceback.print_exception(error)
        elif isinstance(error, SparkJobError):
            complain(f"what led to it {_kept_traceback(error)}; {TRACEBACK} shows it here")
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        complain("; ".join(filter(None, ("interrupted", str(interrupt)))))
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left (`| head`): there is no one to write to.
        drop_output()
        return exit_codes.FINE
    except OSError as error:
        from rocketstore.storage.files.disk import hint_of

        complain(f"{system_error(error)}; {hint_of(error)}")
        if os.environ.get("ROCKETSTORE_DEBUG"):
            traceback.print_exc()
        return exit_codes.UNREACHABLE
    return outcome if isinstance(outcome, int) else exit_codes.FINE


def _wrong_usage(error: cyclopts.CycloptsError) -> str:
    said = str(error).strip()
    if not isinstance(error, cyclopts.MissingArgumentError) or error.keyword is not None:
        return said
    # The parser says the same of what is not there at all and of an option without its value.
    assert error.argument is not None
    rest = said.partition(" requires an argument.")[2]
    return f"{' '.join(error.command_chain or ())} needs {error.argument.name}.{rest}"


def _outcome(arguments: list[str]) -> object:
    if any(columns < NARROWEST for columns in _widths()):
        os.environ["COLUMNS"] = str(NARROWEST)
    if sorted(arguments) == ["--verbose", "--version"]:
        return _show_parts()
    command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    if command == app.help_print:
        _complete_help(bound.arguments["tokens"])
    gc.enable()
    try:
        return command(*bound.args, **bound.kwargs)
    except ModuleNotFoundError as error:  # of the one extra that commands need
        raise UnsupportedEnvironmentError.not_installed(error.name, "pipeline") from error
    except SystemExit as end:
        # The printer of help makes this of a reader that has left.
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise


def _complete_help(tokens: list[str]) -> None:
    """Let the page of a command say more than its line in a list, and a list have each line."""
    shown = app.parse_commands(tokens)[1][-1]
    if shown.default_command is not None:
        shown.help = _text_of(shown.default_command)
    elif shown is not app:
        for name in shown:
            _text_of(shown[name].default_command)


def _text_of(command: Any) -> str | None:
    """Return the text of a command; where Python drops such (-OO), it is read from the source."""
    if inspect.isfunction(command) and command.__doc__ is None:
        [function] = ast.parse(dedent(inspect.getsource(command))).body
        command.__doc__ = ast.get_docstring(cast("ast.FunctionDef", function))
    return None if command is None else command.__doc__


def _widths() -> Iterator[int]:
    """Yield the columns that the parser may take for the terminal's."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        yield int(columns)
        return
    for stream in range(3):
        with contextlib.suppress(OSError):  # no terminal, or one that does not know its width
            yield os.get_terminal_size(stream).columns or NARROWEST


def _show_parts() -> int:
    """Print the version, and which parts run compiled here."""
    import platform
    from importlib.metadata import version

    from rocketstore.scan.kernels import compiled_parts

    print(f"rocketstore {version('rocketstore')}, Python {platform.python_version()}")
    for name, state in compiled_parts().items():
        print(f"{name}: {state}")
    return 0


def _kept_traceback(error: BaseException) -> str:
    """Write the traceback of an error, with workers' stacks, to a file, and say where that is."""
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="rocketstore-", suffix=".log", delete=False
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError as refused:
        return f"could not be kept ({system_error(refused)})"
    return f"is in {file.name}"


class _OnStderr(logging.Handler):
    """Shows what the store logs; the stream is looked up each time, since tests replace it.

    Law: a reader that leaves its pipe full, a stopped pager say, costs lines, and not the answers
    of a broker.
    """

    _lost = 0
    _begin = ""

    def emit(self, record: logging.LogRecord) -> None:
        said = f"{self._lost} lines of the log are lost: nobody read those before them"
        if self._lost and self._is_taken(self._begin + complaint(said)):
            self._lost, self._begin = 0, ""
        if self._lost or not self._is_taken(complaint(self.format(record))):
            self._lost += 1

    def _is_taken(self, text: str) -> bool:
        """Write a line; a pipe that has any room takes each of its pieces at once."""
        try:
            number = sys.stderr.fileno()
        except (OSError, ValueError):  # the stream of a test
            print_on_stderr(text)
            return True
        line = f"{text}\n".encode(sys.stderr.encoding, "backslashreplace")
        for at in range(0, len(line), select.PIPE_BUF):
            if not select.select([], [number], [], 0 if self._lost else FULL_PIPE_S)[1]:
                self._begin = "\n" if at else self._begin  # a part of a line stands there
                return False
            with contextlib.suppress(OSError):  # it is lost
                os.write(number, line[at : at + select.PIPE_BUF])
        return True


_ON_STDERR: Final = _OnStderr()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Drop what PySpark's bridge to Java logs to the root about a call that Ctrl-C ended."""
    return "/py4j/" not in record.pathname
