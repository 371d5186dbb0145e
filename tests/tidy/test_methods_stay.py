"""No method of an object is replaced after it is made, and no hook waits for somebody to set it.

What an object does is what its class says and what it was made with. Else a store that is opened by
another way is silently another store: that has cost messages (docs/decisions/0040).
"""

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from support.repository import FUNCTIONS, ROOT

MAKERS = {"__init__", "__post_init__", "__new__", "__get__"}
SETTERS = {"setattr", "__setattr__", "delattr", "__delattr__"}


class Assigned(NamedTuple):
    """An assignment in a function, "" for a module or a class; `owner` is the function's class."""

    owner: str
    function: str
    target: ast.expr
    value: ast.expr | None
    annotation: str

    @property
    def is_own(self) -> bool:
        """Whether it is to an attribute of the object itself."""
        of = self.target.value if isinstance(self.target, ast.Attribute) else None
        return isinstance(of, ast.Name) and of.id in ("self", "cls")


def assignments(node: ast.AST, owner: str = "", function: str = "") -> Iterator[Assigned]:
    for one in ast.iter_child_nodes(node):
        if isinstance(one, ast.Assign):
            for target in one.targets:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    yield Assigned(owner, function, each, one.value, "")
        elif isinstance(one, ast.AnnAssign):
            yield Assigned(owner, function, one.target, one.value, ast.unparse(one.annotation))
        if isinstance(one, ast.ClassDef):
            yield from assignments(one, one.name)
        elif isinstance(one, FUNCTIONS):
            yield from assignments(one, owner, function or one.name)
        else:
            yield from assignments(one, owner, function)


def methods_of(trees: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """Return class and name of every method; what is decorated may be a property."""
    return {
        (each.name, one.name)
        for tree in trees
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
        for one in each.body
        if isinstance(one, FUNCTIONS) and not one.decorator_list
    }


def replaced(texts: dict[str, str]) -> Iterator[str]:
    """Yield where a method or a hook is replaced."""
    trees = {file: ast.parse(text) for file, text in texts.items()}
    made = [(file, one) for file, tree in trees.items() for one in assignments(tree)]
    methods = methods_of(trees.values())
    data = {one.target.attr for _, one in made if isinstance(one.target, ast.Attribute)} & {
        one.target.attr for _, one in made if isinstance(one.target, ast.Attribute) and one.is_own
    }
    never_data = {name for _, name in methods} - data
    attributes = [one for _, one in made if isinstance(one.target, ast.Attribute)]
    lambdas = {one.target.attr for one in attributes if isinstance(one.value, ast.Lambda)}
    called = {one.target.attr for one in attributes if one.annotation.startswith("Callable")}
    for file, one in made:
        where = f"{file}:{one.target.lineno}: {ast.unparse(one.target)} ="
        is_late = one.function not in MAKERS
        if isinstance(one.target, ast.Subscript):
            if is_late and ("__dict__[" in where or "vars(" in where):
                yield where
        elif isinstance(one.target, ast.Attribute):
            name = one.target.attr
            is_hook = name in lambdas or (name in called and not one.is_own)
            is_method = (one.owner, name) in methods if one.is_own else name in never_data
            if name == "__class__" or is_method or (is_hook and (is_late or not one.is_own)):
                yield where
    for file, tree in trees.items():
        for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if getattr(call.func, "id", getattr(call.func, "attr", "")) in SETTERS:
                    yield f"{file}:{call.lineno}: {ast.unparse(call)}"


def test_no_method_of_an_object_is_replaced_and_no_hook_waits_to_be_set():
    paths = sorted((ROOT / "src/rocketstore").rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    assert len(texts) > 250
    assert list(replaced(texts)) == []


CLASS = "class A:\n    def put(self): ...\n"
MADE = "class A:\n    def __init__(self, hook):\n        "


@pytest.mark.parametrize(
    "text",
    [
        f"{CLASS}def f(a):\n    a.put = 1",
        f"{CLASS}    def late(self):\n        self.put = 1",
        f"{CLASS}    def __init__(self):\n        self.put = 1",
        f"{MADE}self.hook = lambda: 0\ndef f(a):\n    a.hook = 1",
        f"{MADE}self.hook = lambda: 0\n    def late(self):\n        self.hook = 1",
        f"{MADE}self.hook: Callable[[], int] = hook\ndef f(a):\n    a.hook = 1",
        "class A:\n    async def put(self): ...\ndef f(a):\n    a.put = 1",
        f"{CLASS}    async def late(self):\n        self.put = 1",
        "def f(a):\n    setattr(a, 'put', 1)",
        "async def f(a):\n    setattr(a, 'put', 1)",
        "def f(a):\n    a.__class__ = int",
        "def f(a):\n    a.__dict__['put'] = 1",
    ],
)
def test_each_way_to_replace_one_is_found(text):
    assert len(list(replaced({"a.py": text}))) == 1


def test_an_object_may_be_made_with_something_to_call_and_have_numbers_changed():
    text = f"{MADE}self.hook: Callable[[], int] = hook\n        self.n = 0\ndef f(a):\n    a.n = 1"
    assert not list(replaced({"a.py": text}))
