"""The examples of the pages for Python programs run as they stand.

Those on Spark: tests/spark; those with clients: tests/interop/test_testing_page.py.
"""

import ast
import doctest
import logging
import re
from pathlib import Path

import pytest

import rocketstore
from rocketstore import Message, MessageStore, StoreConfig
from support.python_process import run_python
from support.repository import ROOT, files_with, module_ast, module_nodes

EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN_ELSEWHERE = re.compile(r"docs/(guide/testing|(guide|reference)/spark)")
EXAMPLES = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in files_with(".md")
    if not RUN_ELSEWHERE.match(str(page))
    for number, code in enumerate(EXAMPLE.findall((ROOT / page).read_text("utf-8")))
    if "pipeline" not in code
]
MANUALS = {
    path.parent: manual
    for path in files_with(".py", under=("src",))
    if path.name == "__init__.py" and (manual := ast.get_docstring(module_ast(path)))
}
"""What each package says of itself."""
PACKAGE = Path("src", "rocketstore")


def test_the_guide_and_the_readme_have_examples():
    pages = {example.id.rpartition("-")[0] for example in EXAMPLES}
    assert {"python", "README", "configuration"} <= pages


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs_as_it_stands(code, tmp_path, monkeypatch):
    """In a directory of its own, which has a broker.conf and a store."""
    monkeypatch.chdir(tmp_path)
    with MessageStore.open("data/store", StoreConfig.small()) as store:
        store.put(Message(topic="orders", body=b"before", keys="o-1")).raise_for_status()
    (tmp_path / "broker.conf").write_text("brokerName=b\n")
    if "def test_" in code:
        (tmp_path / "test_example.py").write_text(code)
        done = run_python(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "."),
            env={"ROCKETSTORE_KERNELS": "off", "PYTHONPATH": str(ROOT / "tests")},
        )
        assert (done.returncode, done.stdout.count(" passed")) == (0, 1), done.stdout
        return
    logger = logging.getLogger("rocketstore")
    before, handlers = logger.level, list(logging.root.handlers)
    try:
        exec(compile(code, "example", "exec"), {"__name__": "example"})  # noqa: S102 - our pages
    finally:
        logger.setLevel(before)
        logging.root.handlers[:] = handlers


@pytest.mark.parametrize(
    "package", [path for path, manual in MANUALS.items() if ">>>" in manual], ids=str
)
def test_the_example_in_a_manual_does_what_it_says(package, tmp_path, monkeypatch):
    """With what `rocketstore` exports at hand."""
    monkeypatch.chdir(tmp_path)
    names = {name: getattr(rocketstore, name) for name in rocketstore.__all__}
    names["Path"] = Path
    example = doctest.DocTestParser().get_doctest(MANUALS[package], names, str(package), None, 0)
    said = []
    failed, tried = doctest.DocTestRunner().run(example, out=said.append)
    assert (failed, tried > 0) == (0, True), "".join(said)


@pytest.mark.parametrize("package", [path for path in MANUALS if PACKAGE in path.parents], ids=str)
def test_a_manual_has_an_example_and_a_law(package):
    """A package in another, whose manual has the laws, may show its call within a line."""
    manual, is_inner = MANUALS[package], package.parent != PACKAGE
    has_call = re.search(r"``[\w.]+\([^`]+``", manual) is not None
    assert "::\n\n    " in manual or (is_inner and has_call)
    assert is_inner or re.search(r"^Laws?: ", manual, re.MULTILINE)


@pytest.mark.parametrize("package", MANUALS, ids=str)
def test_a_manual_names_what_is_in_its_package(package):
    """By name; what is elsewhere with the packages that it is in."""
    manual = re.sub(r"``.*?``", "", MANUALS[package])
    named = set(re.findall(r"`([\w.]+)`", manual))
    elsewhere = {name for name in named if "." in name}
    assert named - elsewhere <= names_in(package)
    assert [name for name in elsewhere if not is_in_product(name)] == []


def names_in(package) -> set[str]:
    """Return the names of modules, classes, functions and parameters that a manual may mean."""
    modules = [path for path in files_with(".py", under=("src",)) if path.is_relative_to(package)]
    nodes = [node for path in modules for node in module_nodes(path)]
    names = {getattr(node, "name", None) or getattr(node, "arg", None) for node in nodes}
    places = (*(ROOT / package).iterdir(), *(ROOT / "src" / "rocketstore").iterdir())
    return names | {place.stem for place in places}


def is_in_product(name: str) -> bool:
    path = ROOT.joinpath("src", "rocketstore", *name.removeprefix("rocketstore.").split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
