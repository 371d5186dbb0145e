"""The wording of the command line: errors on stderr, times for people, text that is safe to show.

Law: the content of a store is not trusted; no character of it controls the terminal.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Final

STANDARD_INPUT: Final = "/dev/stdin"
"""What a lone dash stands for."""

_MODULES: Final = {
    ("rocketstore", "cli", "__main__.py"): "rocketstore.cli",
    ("rocketstore", "__main__.py"): "rocketstore",
}
_ERROR_NUMBER: Final = re.compile(r"\[Errno -?\d+\] ")


def complain(text: str) -> None:
    """Print a sentence on stderr, in the one form that all have."""
    print_on_stderr(complaint(text))


def complaint(text: str) -> str:
    """Return a sentence in the form that all have on stderr."""
    lines = map(printable, _ERROR_NUMBER.sub("", text).split("\n"))
    return "rocketstore: " + "\n".join(lines)


def print_on_stderr(text: str) -> None:
    """Print a line with one write: other threads log there, and `print` writes its end apart.

    Where it cannot be written, since its reader has left or its disk is full, it is lost: what a
    broker logs on the way to an answer must not cost the answer.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def drop_output() -> None:
    """Write what is still to come nowhere: the reader of our output has left (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def program_name() -> str:
    """Return how this program was started, so that a command shown to the user works as it is."""
    started = sys.argv[0] if sys.argv else ""
    for parts, module in _MODULES.items():
        if Path(started).parts[-len(parts) :] == parts:
            return f"{_short_path(Path(sys.executable))} -m {module}"
    if Path(started).name != "rocketstore" or os.sep not in started:
        return "rocketstore"
    on_path = shutil.which("rocketstore")
    if on_path is not None and Path(on_path).resolve() == Path(started).resolve():
        return "rocketstore"
    return _short_path(Path(started))


def _short_path(path: Path) -> str:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are: .venv/bin/python
    here = Path.cwd()
    name = absolute.relative_to(here) if absolute.is_relative_to(here) else absolute
    return shlex.quote(str(name))


def system_error(error: OSError) -> str:
    """Return what the operating system refused: the file first, without the number."""
    if error.strerror is None:
        return str(error)
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    reason = error.strerror[:1].lower() + error.strerror[1:]
    return f"{names}: {reason}" if names else reason


def local_time(timestamp_ms: int, precision: str = "milliseconds") -> str:
    """Return a moment as ISO 8601, in the zone of this machine."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    try:
        moment = datetime.fromtimestamp(seconds).astimezone()
    except (OverflowError, OSError, ValueError):  # a damaged record can state any number
        return str(timestamp_ms)
    return moment.replace(microsecond=milliseconds * 1000).isoformat(timespec=precision)


def printable(text: str) -> str:
    """Return a text with invisible and control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )
