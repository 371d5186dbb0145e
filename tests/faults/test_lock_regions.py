"""No place inside a lock's block where an interrupt leaves without letting go of the lock.

CPython runs signal handlers where a loop goes back to its start. Where a condition comes right
before that (an ``if`` that ends the body, the ``while`` itself), 3.12 and 3.13 list no handler for
the instruction: an exception raised there passes by the end of the ``with``. So in such a block a
loop is a ``for`` whose body ends with a plain statement.

3.14 runs them between ``__enter__`` and the block as well: `rocketstore.locks.Lock` stands that.
"""

import ast
import dis
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import rocketstore

PACKAGE = Path(rocketstore.__file__).parent
OWN_FRAMES = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}
"""What runs in a frame of its own, in which no lock is taken."""

LOCKING = """
def work(lock, items):
    with lock:
        for item in items:
            if item:
                item()
"""


def code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


@pytest.fixture(scope="module")
def nodes():
    """Return the nodes of each module, by its name."""
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    return {name: nodes_of(path.read_text("utf-8")) for name, path in paths.items()}


def nodes_of(source: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(source))]


def blocks_of_locks(nodes: list[ast.AST]) -> list[range]:
    """Return the lines of each block entered by a name, not by a call that makes a context.

    ``cython.nogil`` takes no lock.
    """
    return [
        range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
        for node in nodes
        if isinstance(node, ast.With)
        and any(isinstance(item.context_expr, (ast.Name, ast.Attribute)) for item in node.items)
        and not any(ast.unparse(item.context_expr) == "cython.nogil" for item in node.items)
    ]


def ways_past(nodes: list[ast.AST]) -> set[int]:
    """Return the lines in blocks of locks from which an interrupt passes by the block's end."""
    blocks = blocks_of_locks(nodes)
    found = set()
    for code in code_objects(compile(nodes[0], "", "exec")) if blocks else ():
        handled = dis._parse_exception_table(code)  # type: ignore[attr-defined] # no public way
        for step in dis.get_instructions(code):
            line = step.positions.lineno if step.positions else None
            if (
                step.opname == "JUMP_BACKWARD"
                and code.co_name not in OWN_FRAMES
                and any(line in block for block in blocks)
                and not any(entry.start <= step.offset < entry.end for entry in handled)
            ):
                found.add(line)
    return found


def loops_of_conditions(nodes: list[ast.AST]) -> set[int]:
    """Return the lines of loops in blocks of locks that go back right after a condition."""
    blocks = blocks_of_locks(nodes)
    return {
        node.lineno
        for node in nodes
        if (
            isinstance(node, ast.While)
            or (isinstance(node, ast.For) and isinstance(node.body[-1], ast.If))
        )
        and any(node.lineno in block for block in blocks)
    }


def test_no_loop_in_a_lock_ends_with_a_condition(nodes):
    """As the next test, on versions too that list a handler there."""
    found = {name for name, found in nodes.items() if loops_of_conditions(found)}
    assert {Path(name).name for name in found} <= {"files.py"}  # its block is no lock's


def test_every_way_out_of_a_lock_lets_go_of_it(nodes):
    past = {name: ways_past(found) for name, found in nodes.items()}
    assert {name: lines for name, lines in past.items() if lines} == {}


def test_every_lock_of_a_block_is_one_that_no_interrupt_leaves_taken(nodes):
    plain = {
        name
        for name, found in nodes.items()
        for node in found
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func) in {"threading.Lock", "threading.RLock", "threading.Condition"}
    }
    # A bell is no block's, nor what wakes the threads of a group, nor the end of a thread's start;
    # a future's is of the library.
    bells = {"storage/threads.py", "native/group.py", "locks.py"}
    assert plain == bells | {"consuming/async_puts.py"}


def test_a_lock_is_taken_by_a_call_only_where_no_block_could_take_it(nodes):
    """After the call an interrupt may come, in front of any ``try`` that would let go."""
    calls = {
        name
        for name, found in nodes.items()
        for node in found
        if isinstance(node, ast.Attribute) and node.attr == "acquire"
    }
    # Bells, which are rung by letting go; the lock of a store's files, dropped by what opens it.
    bells = {"storage/threads.py", "native/group.py"}
    assert calls == {"locks.py", "storage/opening.py", *bells}


def test_blocks_of_locks_are_recognised():
    nodes = nodes_of(LOCKING)
    assert [list(block) for block in blocks_of_locks(nodes)] == [[4, 5, 6]]
    assert ways_past(nodes) <= {5, 6}
    assert loops_of_conditions(nodes) == {4}
