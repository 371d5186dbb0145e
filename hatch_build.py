"""Build the optional compiled modules (the C files named in ``SOURCES``) with the package.

Where there is no C compiler, or no Python headers, the package is built without them: everything
works, a put of a single message takes about three times as long, and so does decoding one; a query
by key takes about twice as long.
``python hatch_build.py`` builds them in place.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

LOG = Path("src/rocketstore/storage/log")

SOURCES = (
    (LOG / "_append.c", LOG / "_message.c", LOG / "_put.c", LOG / "_put_batch.c"),
    (LOG / "_put_group.c", LOG / "_group.c", LOG / "_turns.c"),
    (Path("src/rocketstore/storage/reading/_gather.c"),),
    (Path("src/rocketstore/storage/reading/_key_search.c"),),
    (Path("src/rocketstore/format/_decode.c"),),
    (Path("src/rocketstore/format/_properties.c"),),
)
"""Of each module; the first one names it."""

SWITCH = "ROCKETSTORE_BUILD_ACCELERATOR"
"""Environment variable; ``off`` builds without, ``require`` fails where it cannot be built."""


def build(root: Path) -> list[Path]:
    """Compile in place and return the modules; those are left out where that cannot be done."""
    wish = os.environ.get(SWITCH, "on").lower()
    if wish == "off" or not sys.platform.startswith("linux"):
        return []
    modules = [[root / source for source in sources] for sources in SOURCES]
    built = [_compile(sources, is_required=wish == "require") for sources in modules]
    return [target for target in built if target is not None]


def _compile(sources: list[Path], *, is_required: bool) -> Path | None:
    source = sources[0]
    target = source.with_name(source.stem + str(sysconfig.get_config_var("EXT_SUFFIX")))
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [
        *shlex.split(compiler),
        # The interpreter's own: without its NDEBUG the assertions of Python.h are compiled in.
        *shlex.split(sysconfig.get_config_var("CFLAGS") or "-DNDEBUG -fwrapv"),
        "-g0", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing",
        f"-I{sysconfig.get_paths()['include']}",
        *map(str, sources),
        "-o", str(target),
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        if is_required:
            raise RuntimeError(f"cannot build {source}: {reason}") from error
        print(f"building without {source}: {reason.splitlines()[-1]}", file=sys.stderr)
        return None
    return target


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, outside a build
    BuildHookInterface = None  # type: ignore[assignment, misc]

if BuildHookInterface is not None:

    class AcceleratorHook(BuildHookInterface):  # type: ignore[type-arg]
        """Puts the compiled module into the wheel, whose tag then names platform and Python."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile before the files are collected."""
            del version
            built = build(Path(self.root))
            if built:
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["artifacts"] += [str(path.relative_to(self.root)) for path in built]


if __name__ == "__main__":
    print(*build(Path(__file__).resolve().parent), sep="\n")
