"""Build the compiled parts: the sources of ``rocketstore.native``, by Cython.

Where there is no C compiler the package is built without them: everything works, and is slower.
``python setup.py build_ext --inplace`` builds them where they are imported from.

``ROCKETSTORE_BUILD`` chooses: ``off`` builds none, ``require`` fails where one cannot be built,
``strict`` does that and takes warnings for errors, ``checked`` is ``strict`` with every position
compared with its stretch of bytes, and ``sanitized`` is ``checked`` with the address and undefined
behaviour sanitizers of the compiler, for ``scripts/test-builds``.
"""

import ast
import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WISH = os.environ.get("ROCKETSTORE_BUILD", "on").lower()
IS_CHECKED = WISH in ("checked", "sanitized")
ROOM = Path("src/rocketstore/native")

NATIVE = (
    "columns",
    "decode",
    "dispatch",
    "group",
    "index",
    "log_end",
    "lookup",
    "page",
    "put",
    "resync",
    "sends",
    "touch",
    "walk",
)
"""The sources of ``rocketstore.native`` that are compiled; each has its types in a .pxd."""

DIRECTIVES = {
    # The .pxd beside a source gives the types; what they leave open follows from them.
    "annotation_typing": False,
    "infer_types": True,
    # A method that is an ordinary one of C is called a good deal faster.
    "binding": False,
    # Positions are checked by the sources; what Python would check again costs a third.
    "boundscheck": IS_CHECKED,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
}

FLAGS = ["-g0", "-fno-strict-aliasing", "-fstack-protector-strong"]
LINK_FLAGS = ["-Wl,-z,relro,-z,now"]
if WISH == "strict" or IS_CHECKED:
    FLAGS += ["-Wall", "-Werror", "-Wno-unused-function", "-Wno-unreachable-code"]
if WISH == "sanitized":
    SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1"]
    FLAGS += SANITIZERS
    LINK_FLAGS += SANITIZERS


MADE = Path("build/types")
"""Where Cython finds the types that are made here."""


def write_numbers() -> None:
    """Make constants of C of the numbers in ``native/row.py``: a module of them for each enum."""
    package = MADE / "rocketstore" / "native"
    package.mkdir(parents=True, exist_ok=True)
    for node in ast.parse((ROOM / "row.py").read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            named = [ast.unparse(one) for one in node.body if isinstance(one, ast.Assign)]
            text = "\n    ".join(["cdef enum:", *named, f"COUNT = {len(named)}", ""])
            path = package / f"{node.name}.pxd"
            if not path.exists() or path.read_text("utf-8") != text:  # else all is compiled again
                path.write_text(text, "utf-8")


def extensions() -> list[Extension]:
    """Return what is to be compiled."""
    is_linux = sys.platform.startswith("linux")
    if WISH not in ("on", "off") and not is_linux:
        raise SystemExit(f"ROCKETSTORE_BUILD={WISH}: the compiled parts are built on Linux only")
    if WISH == "off" or not is_linux:
        return []
    write_numbers()
    modules = [
        Extension(
            f"rocketstore.native.{name}",
            [str(ROOM / f"{name}.py")],
            include_dirs=[str(ROOM)],
            depends=[str(header) for header in sorted(ROOM.glob("*.h"))],
            define_macros=[("ROCKETSTORE_CHECKED", "1")] if IS_CHECKED else [],
            extra_compile_args=FLAGS,
            extra_link_args=LINK_FLAGS,
        )
        for name in NATIVE
    ]
    built: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        include_path=[str(MADE)],
        compiler_directives=DIRECTIVES,
        language_level=3,
    )
    for one in built:  # Cython's copies of the extensions lose this
        one.optional = WISH == "on"
    return built


class AllOrNone(build_ext):
    """Builds no part where one cannot be built: a compiled part knows others by their C only."""

    def build_extensions(self) -> None:
        """Build them, and remove them again where one is missing or older than its source."""
        super().build_extensions()
        files = {one.name: Path(self.get_ext_fullpath(one.name)) for one in self.extensions}
        missing = [one.name for one in self.extensions if not is_built(files[one.name], one)]
        if missing:
            self.warn(f"all runs interpreted, and slower: {', '.join(missing)} cannot be compiled")
            for file in files.values():
                file.unlink(missing_ok=True)


def is_built(file: Path, extension: Extension) -> bool:
    """Return whether a file is the compiled form of what an extension is made of now."""
    newest = max(Path(source).stat().st_mtime for source in extension.sources)
    return file.exists() and file.stat().st_mtime >= newest


setup(
    cmdclass={"build_ext": AllOrNone},
    ext_modules=extensions(),
    options={"build_ext": {"parallel": len(os.sched_getaffinity(0))}},
)
