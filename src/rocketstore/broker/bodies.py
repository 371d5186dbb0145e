"""JSON bodies of a broker: read as leniently as fastjson reads them, written as it writes them.

A map whose keys are numbers, or queues, has them bare, as 4.9 has: no strict JSON, but every
client's own reader takes it (broker specification, section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rocketstore.errors import FieldRangeError
from rocketstore.format.metadata_json import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")


def decode_body(body: bytes, kind: type[T]) -> T:
    """Return a body as one of our types; a null stands for what is not there.

    Raises
    ------
    FormatError
        It is no JSON, or a member has another type.
    """
    try:
        return msgspec.convert(_without_nulls(loads(body)), kind, strict=False)
    except msgspec.ValidationError as error:
        raise FieldRangeError(f"body: {error}", field="body") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def encode_body(value: Any) -> bytes:
    """Return a plain value as the body of a reply."""
    return dumps(value, in_lines=False).encode()


def encode_queues(rows: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], more: str) -> bytes:
    """Return a table of queues, each of which is a key; `more` are members before it."""
    pairs = (":".join(dumps(one, in_lines=False) for one in row) for row in rows)
    return f'{{{more}"offsetTable":{{{",".join(pairs)}}}}}'.encode()
