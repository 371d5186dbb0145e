"""How much the objects of a program hold: the lengths of all their collections, by their names."""

import gc
import types
from collections import Counter, deque
from typing import Final

_COLLECTIONS: Final = (dict, list, set, frozenset, deque, tuple, bytearray)
_NOT_LOOKED_INTO: Final = (
    type, types.ModuleType, types.FrameType, types.CodeType, types.BuiltinFunctionType,
    str, bytes, int, float, type(None),
)  # fmt: skip


def held_by(root: object) -> Counter[str]:
    """Return how long all collections together are that an attribute of a class of ours names.

    Looked at is whatever can be reached from `root`, also by the closures of its callbacks.
    """
    lengths: Counter[str] = Counter()
    known = {id(root): root}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        for name, value in _attributes(one).items():
            if isinstance(value, _COLLECTIONS):
                lengths[f"{type(one).__name__}.{name}"] += len(value)
        for other in _referents(one):
            if not isinstance(other, _NOT_LOOKED_INTO) and id(other) not in known:
                known[id(other)] = other
                waiting.append(other)
    return lengths


def _attributes(one: object) -> dict[str, object]:
    kind = type(one)
    if not kind.__module__.startswith("rocketstore"):
        return {}
    slots = [slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())]
    names = [*getattr(one, "__dict__", ()), *getattr(kind, "__struct_fields__", slots)]
    return {name: getattr(one, name) for name in names if hasattr(one, name)}


def _referents(one: object) -> list[object]:
    if isinstance(one, types.FunctionType):  # what it calls besides is no part of it
        return [cell.cell_contents for cell in one.__closure__ or ()]
    return gc.get_referents(one)
