"""Programs of this Python, in a process of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from support.patience import PATIENCE_S

NOTHING: Mapping[str, str] = MappingProxyType({})


def run_python(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] = NOTHING,
    limit_s: float = PATIENCE_S,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run this Python to its end and return what it said.

    `env` is added to the environment; `given` is what its standard input has.
    """
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=False,
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=limit_s,
        input=given,
    )


def printed(code: str, *arguments: object, **environment: str) -> str:
    """Return what a program printed that ended well."""
    done = run_python("-c", code, *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
