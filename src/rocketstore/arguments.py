"""What a public call takes, as its signature says, for errors that name the argument.

Law: a call that refuses an argument has done nothing. A whole number is what `operator.index`
takes, NumPy's too, at every door, and neither True nor False.
Calls that are measured in nanoseconds look at their arguments once something failed.
"""

from __future__ import annotations

import ast
import collections.abc
import os
import re
from functools import cache, partial, wraps
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from rocketstore.errors import ArgumentError, InvalidNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    _Rule = Callable[[Any], bool]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_BYTES: Final = (bytes, bytearray, memoryview)
_NOT_SEVERAL: Final = (str, collections.abc.Mapping, *_BYTES)
_LOOKED_INTO: Final = (list, tuple, set, frozenset)
_JUDGED: Final = ("Message", "RecoveryPolicy", "SparkSession", "StoreConfig")
"""Classes whose own checks have more to say."""
_TIMES: Final = frozenset({"begin_ms", "end_ms", "timestamp_ms"})
"""Arguments that may have a fraction, as a time of Python's clocks in ms has."""


def is_whole(value: object) -> bool:
    """Whether a value counts as a whole number."""
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def whole_number(name: str, value: Any) -> int:
    """Return the argument of a name as an int; raises `ArgumentError`."""
    if not is_whole(value):
        raise ArgumentError(name, expected="int", found=value)
    return int(index(value))


def nearest(name: str, known: Iterable[str], ratio: float = 0.6) -> str:
    """Return what may be meant by a name: the known one most like it, in whatever case, or "".

    Names are alike from a `ratio` of difflib on, 0 to 1.

    >>> nearest("Startingofsets", ["startingOffsets", "topic"]), nearest("quite", ["sound"])
    ('startingOffsets', '')
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only for mistakes

    by_lower = {one.lower(): one for one in known}
    return "".join(map(by_lower.__getitem__, get_close_matches(name.lower(), by_lower, 1, ratio)))


def enter_by_name(known: dict[str, Any], made: object, kind: type, argument: str) -> None:
    """Enter what a maker made; `ArgumentError` where it is not of a kind or has no free name."""
    name = getattr(made, "name", "")
    if not isinstance(made, kind) or not name or name in known:
        expected = f"makers of a {kind.__name__} each, with a `name` of its own"
        raise ArgumentError(argument, expected=expected, found=made, call="MessageStore.open")
    known[name] = made


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and value == value  # noqa: PLR0124 - no NaN


def _is_several(kind: type) -> _Rule:
    return lambda value: isinstance(value, kind) and not isinstance(value, _NOT_SEVERAL)


_KINDS: Final[dict[str, _Rule]] = {
    "Any": lambda _: True,
    "ArrivalListener": callable,
    "Callable": callable,
    "Collection": _is_several(collections.abc.Collection),
    "Iterable": _is_several(collections.abc.Iterable),
    "Maker": callable,
    "Mapping": lambda value: isinstance(value, collections.abc.Mapping),
    "None": lambda value: value is None,
    "Path": lambda value: isinstance(value, os.PathLike),
    "Predicate": callable,
    "Queues": lambda value: value is None or _is_several(collections.abc.Container)(value),
    "Sequence": _is_several(collections.abc.Sequence),
    "bool": lambda value: type(value).__name__ in ("bool", "bool_"),
    "bytes": lambda value: isinstance(value, _BYTES),
    "float": _is_number,
    "int": is_whole,
    "object": lambda _: True,
    "os.PathLike": lambda value: isinstance(value, os.PathLike),
    "str": lambda value: isinstance(value, str),
}


@cache
def _rules(expected: str) -> list[_Rule]:
    """Return what the parts of an annotation take; of a class, objects of that name."""
    return [_rule(*part.partition("[")[::2]) for part in re.split(r" \| (?![^\[]*\])", expected)]


def _rule(head: str, inside: str) -> _Rule:
    if head == "Literal":
        choices = ast.literal_eval(f"({inside[:-1]},)")
        return lambda value: value in choices
    known = _KINDS.get(head)
    if known is None:
        return lambda value: any(kind.__name__ == head for kind in type(value).__mro__)
    if head in ("Iterable", "Sequence"):
        return partial(_is_made_of, known, _rules(inside[:-1]))
    return known


def _is_made_of(known: _Rule, parts: list[_Rule], value: Any) -> bool:
    """Whether a value is several things of a kind; an iterator's are known when it is used up."""
    if not known(value) or not isinstance(value, _LOOKED_INTO):
        return known(value)
    return all(any(rule(one) for rule in parts) for one in value)


def refuse_wrong(call: Callable[..., object], given: Mapping[str, object]) -> None:
    """Raise `ArgumentError` for the first argument that is not what a call's signature says."""
    for name, expected in call.__annotations__.items():
        if name not in given or expected.startswith(_JUDGED):
            continue
        value = given[name]
        is_time = name in _TIMES and _is_number(value)
        if not (is_time or any(rule(value) for rule in _rules(expected))):
            error = ArgumentError(name, expected=expected, found=value, call=call.__qualname__)
            raise InvalidNameError(error.message) if name in ("topic", "queue_id") else error


def _plain(value: Any) -> Any:
    """Return a whole number of another class, such as NumPy's, as an int."""
    return int(index(value)) if is_whole(value) and not isinstance(value, int) else value


def _given(
    call: Any, arguments: Iterable[object], named: Mapping[str, object]
) -> dict[str, object]:
    names = call.__code__.co_varnames[: call.__code__.co_argcount]
    return {**dict(zip(names, arguments, strict=False)), **named}


def _assert_late(call: Callable[..., object]) -> None:
    """See that annotations are texts, by which arguments are judged."""
    is_late = all(isinstance(one, str) for one in call.__annotations__.values())
    assert is_late, f"the module of {call.__qualname__} does not import annotations from __future__"


def checked(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a call's arguments looked at before it does anything, which takes microseconds."""
    _assert_late(call)

    @wraps(call)
    def looked_at(*arguments: _P.args, **named: _P.kwargs) -> _R:
        refuse_wrong(call, _given(call, arguments, named))
        plain: Any = call
        return plain(*map(_plain, arguments), **{key: _plain(one) for key, one in named.items()})  # type: ignore[no-any-return]

    return looked_at


def explained(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a call's arguments looked at once it failed; for one that fails before it does much."""
    _assert_late(call)

    @wraps(call)
    def named_after(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return call(*arguments, **named)
        except (AttributeError, OverflowError, TypeError, ValueError):
            refuse_wrong(call, _given(call, arguments, named))
            raise

    return named_after
