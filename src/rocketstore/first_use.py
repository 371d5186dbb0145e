"""An attribute that is made when it is first asked for, and kept."""

from functools import cached_property
from typing import Any, TypeVar

_T = TypeVar("_T")


class MadeAtFirstUse(cached_property[_T]):
    """`cached_property` without the lock of the class that Python 3.11 holds meanwhile.

    Where one disk hangs, no other file would be mapped; and a process that is forked meanwhile
    would wait for it forever. Two threads may both make a value: the later one is kept.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> _T:  # type: ignore[override]
        value: _T = self.func(instance)
        instance.__dict__[self.attrname] = value
        return value
