"""The compiled modules are built as the interpreter was: not with assertions that abort it."""

import ast
import importlib.util
import os
import re
from pathlib import Path

import pytest

from rocketstore.scan import kernels
from support.patience import START_S
from support.python_process import run_python
from support.repository import ROOT
from support.trees import copy_tree

SETUP = ast.parse((ROOT / "setup.py").read_text("utf-8"))
MODULES = tuple(
    f"rocketstore.native.{name}"
    for node in SETUP.body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NATIVE"
    for name in ast.literal_eval(node.value)
)


@pytest.mark.skipif(not kernels.is_compiled(), reason="nothing compiled is used with kernels off")
@pytest.mark.parametrize("name", MODULES)
def test_a_compiled_module_has_no_assertions_of_the_interpreter(name):
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    assert b"__assert_fail" not in Path(spec.origin).read_bytes()


NO_COMPILER = "exit 1"
FAILS_ONCE = """case "$*" in *group.c*) exit 1;; esac
while [ $# -gt 1 ]; do [ "$1" != -o ] || touch "$2"; shift; done"""


@pytest.fixture(scope="module")
def of_cython(tmp_path_factory):
    """A directory that the first build makes: what Cython makes of the sources, for the others."""
    return tmp_path_factory.mktemp("build") / "cython"


@pytest.mark.parametrize("compiler", [NO_COMPILER, FAILS_ONCE], ids=["none", "fails once"])
@pytest.mark.parametrize(("wish", "code"), [("on", 0), ("require", 1)])
def test_without_a_compiler_the_package_is_built_unless_all_of_it_is_required(
    wish, code, compiler, tmp_path, of_cython
):
    """One that compiles all parts but one leaves none either: they would not work together."""
    pytest.importorskip("Cython", reason="a build has it; this interpreter's tests need none")
    root = Path(__file__).parents[2]
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((root / name).read_bytes())
    # Whatever the sources say: it is the compiler that fails.
    room = tmp_path / "src/rocketstore/native"
    room.mkdir(parents=True)
    for source in (root / "src/rocketstore/native").glob("*.py"):
        (room / source.name).write_text("ANSWER = 42\n")
        os.utime(room / source.name, (0, 0))  # older than what Cython made of it
    (room.parent / "__init__.py").touch()
    made = tmp_path / "build/cython"
    if of_cython.exists():
        copy_tree(of_cython, made)
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\n{compiler}\n")
    cc.chmod(0o755)
    done = run_python(
        "setup.py",
        "build_ext",
        cwd=tmp_path,
        env={"CC": str(cc), "LDSHARED": str(cc), "ROCKETSTORE_BUILD": wish},
        limit_s=START_S,
    )
    assert done.returncode == code, done.stderr
    assert wish == "require" or not list(tmp_path.rglob("*.so"))
    copy_tree(made, of_cython)


@pytest.mark.parametrize(("wish", "code"), [("on", 0), ("require", 1)])
def test_what_is_required_and_cannot_be_built_is_an_error_elsewhere_than_on_linux(wish, code):
    pytest.importorskip("Cython", reason="a build has it; this interpreter's tests need none")
    known = "import sys, setuptools.command.build_ext"  # it asks for the settings of the platform
    script = f"{known}; sys.platform = 'other'; sys.argv[1:] = ['--version']; import setup"
    done = run_python("-c", script, cwd=ROOT, env={"ROCKETSTORE_BUILD": wish}, limit_s=START_S)
    assert done.returncode == code, done.stderr
    assert ("on Linux only" in done.stderr) == bool(code)


def constants_of_c(text: str) -> dict[str, int]:
    """Return the constants in the enums of a ``.pxd``."""
    blocks = re.findall(r"^cp?def enum:.*\n((?: +\w+ = .*\n)+)", text, re.MULTILINE)
    assert len(blocks) == text.count("def enum:")
    return {
        name: int(number, 0) for name, number in re.findall(r"(\w+) = (-?\w+)", "".join(blocks))
    }


def constants_of_python(tree: ast.Module) -> dict[str, int]:
    """Return the constants that a module has where it is not compiled."""
    found: dict[str, int] = {}
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "not cython.compiled":
            for node in block.body:
                known = ("from rocketstore.format.", "from rocketstore.message ")
                if ast.unparse(node).startswith(known) or isinstance(node, ast.Assign):
                    exec(ast.unparse(node), {}, found)  # noqa: S102 - our own numbers
    return found


@pytest.mark.parametrize("name", [name.rpartition(".")[2] for name in MODULES])
def test_constants_are_the_same_compiled_and_interpreted(name):
    native = ROOT / "src" / "rocketstore" / "native"
    compiled = constants_of_c((native / f"{name}.pxd").read_text())
    interpreted = constants_of_python(ast.parse((native / f"{name}.py").read_text()))
    assert compiled == {name: interpreted[name] for name in compiled}
