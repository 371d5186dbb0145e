"""The JSON tables in ``config/``: read as leniently as needed, written as fastjson writes them.

fastjson writes maps with numeric keys without quotes and without line breaks (``{0:102,1:94``),
which no JSON parser reads; everything else is JSON indented by tabs.

Law: text in, values out, or a `FormatError`. What a table holds beyond the fields known here is
kept in ``extra`` and written back, so that a newer broker's file survives us.
Page: docs/format/metadata.md. Source: rocketmq-all-4.9.8, ConfigManager.persist and fastjson 1.2.76
(``toJSONString(…, prettyFormat=true)``); spec F13.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar

import msgspec

from rocketstore.errors import FieldRangeError, FormatError

TOPICS_FILE: Final = "topics.json"
CONSUMER_OFFSETS_FILE: Final = "consumerOffset.json"
DELAY_OFFSETS_FILE: Final = "delayOffset.json"
SUBSCRIPTION_GROUPS_FILE: Final = "subscriptionGroup.json"
CONSUMER_FILTERS_FILE: Final = "consumerFilter.json"
BACKUP_SUFFIX: Final = ".bak"
"""Names below ``config/`` (StorePathConfigHelper); the backup is the text before the last write."""

MAX_DEPTH: Final = 64
"""Deepest nesting read; 4.9's tables have 6 levels, and a deeper file must not end in a crash."""

_STRING_OR_KEY: Final = re.compile(
    # The closing quote is optional, so that an unclosed string is passed over only once.
    r'"(?:[^"\\]|\\.)*"?|(?<=[{,])(\s*)(-?[0-9]{1,19})(?=\s*:)',
    re.DOTALL,
)
_BARE_KEY_MARK: Final = "\ufdd0"
"""A noncharacter in front of a bare key's digits while the text passes through the JSON parser."""
_MARKED_KEY: Final = re.compile(_BARE_KEY_MARK + r"(-?[0-9]{1,19})")
_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_SHORT_ESCAPES: Final = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}

PERMISSION_READ: Final = 4
PERMISSION_WRITE: Final = 2
PERMISSION_INHERIT: Final = 1


class _Bean(msgspec.Struct, kw_only=True, rename="camel"):
    """A Java bean: fields in alphabetical order on disk, unknown ones in ``extra``."""


class DataVersion(_Bean):
    """Which of two tables is newer."""

    counter: int = 0
    timestamp: int = 0
    extra: dict[str, Any] = {}


class TopicConfig(_Bean):
    """A topic's settings; the values are those of a new topic."""

    topic_name: str
    order: bool = False
    perm: int = PERMISSION_READ | PERMISSION_WRITE
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    extra: dict[str, Any] = {}


class SubscriptionGroup(_Bean):
    """A consumer group's settings; the values are those of a new group."""

    group_name: str
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1
    extra: dict[str, Any] = {}


class TopicTable(_Bean):
    """``topics.json``."""

    data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = {}
    extra: dict[str, Any] = {}


class SubscriptionGroupTable(_Bean):
    """``subscriptionGroup.json``."""

    data_version: DataVersion | None = None
    subscription_group_table: dict[str, SubscriptionGroup] = {}
    extra: dict[str, Any] = {}


class ConsumerOffsets(_Bean):
    """``consumerOffset.json``: ``topic@group`` -> queue id -> next offset."""

    offset_table: dict[str, dict[int, int]] = {}
    extra: dict[str, Any] = {}


class DelayOffsets(_Bean):
    """``delayOffset.json``: delay level -> next entry of its queue."""

    offset_table: dict[int, int] = {}
    extra: dict[str, Any] = {}


class BloomFilterData(_Bean):
    """Bits of one group in the filter map."""

    bit_num: int = 0
    bit_pos: list[int] = []
    extra: dict[str, Any] = {}


class ConsumerFilter(_Bean):
    """A group's SQL92 expression."""

    consumer_group: str
    topic: str
    bloom_filter_data: BloomFilterData | None = None
    born_time: int = 0
    client_version: int = 0
    dead: bool = False
    dead_time: int = 0
    expression: str | None = None
    expression_type: str | None = None
    extra: dict[str, Any] = {}


class TopicFilters(_Bean):
    """The expressions of a topic, by group."""

    group_filter_data: dict[str, ConsumerFilter] = {}
    topic: str | None = None
    extra: dict[str, Any] = {}


class ConsumerFilterTable(_Bean):
    """``consumerFilter.json``."""

    filter_data_by_topic: dict[str, TopicFilters] = {}
    extra: dict[str, Any] = {}


Table = TypeVar("Table", bound=_Bean)


def loads(text: str | bytes | bytearray | memoryview) -> Any:
    """Parse JSON whose objects may have bare integers as keys, which become `int`.

    Raises `FormatError` where it is not UTF-8, no such JSON, or nested more than `MAX_DEPTH` deep.

    >>> loads('{"TopicA@group":{0:250,1:250}}')
    {'TopicA@group': {0: 250, 1: 250}}
    """
    try:
        decoded = text if isinstance(text, str) else bytes(text).decode("utf-8")
        quoted = _STRING_OR_KEY.sub(_quote_bare_key, decoded)
        parsed = json.loads(
            quoted, object_pairs_hook=_object_of_pairs, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no JSON table of RocketMQ: {error}") from error
    _check_depth(parsed)
    return parsed


def decode_table(text: str | bytes, table: type[Table]) -> Table:
    """Decode one of the tables above, for example ``decode_table(text, TopicTable)``.

    Raises `FormatError` where it is no JSON object, `FieldRangeError` where a field has a wrong
    type.
    """
    loaded = loads(text)
    if not isinstance(loaded, dict):
        raise FormatError("no JSON table of RocketMQ", expected="an object", found=type(loaded))
    try:
        return msgspec.convert(_with_extra(loaded, table), table, strict=True, str_keys=True)
    except msgspec.ValidationError as error:
        raise FieldRangeError(f"{table.__name__}: {error}") from error


def encode_table(table: _Bean) -> str:
    """Encode a table as fastjson does, without a line break at the end."""
    return dumps(_bean_to_plain(table))


def dumps(value: Any) -> str:
    """Write plain values as ``JSON.toJSONString(value, true)`` of fastjson 1.2.76 does.

    Keys keep the order of their dict; integer keys stand bare and without a line break before them;
    None among the values of a dict is left out; a list of numbers stands on one line, as Java's
    ``int[]`` does. Raises `FormatError` for a value or key that none of the tables has, or too
    deep.
    """
    parts: list[str] = []
    _write(parts, value, 0)
    return "".join(parts)


def _quote_bare_key(match: re.Match[str]) -> str:
    digits = match[2]
    if digits is None:
        return match[0]
    return f'{match[1]}"{_BARE_KEY_MARK}{digits}"'


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str | int, Any]:
    loaded: dict[str | int, Any] = {}
    for key, value in pairs:
        marked = _MARKED_KEY.fullmatch(key)
        loaded[key if marked is None else int(marked[1])] = value
    return loaded


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise FormatError("a JSON table is nested too deep", expected=f"at most {MAX_DEPTH} levels")


def _with_extra(raw: Any, kind: Any) -> Any:
    """Move unknown fields of every bean of `raw` into its ``extra``, guided by the type `kind`."""
    bean, mapping_value = _unwrap(kind)
    if not isinstance(raw, dict):
        return raw
    if mapping_value is not None:
        return {key: _with_extra(value, mapping_value) for key, value in raw.items()}
    if bean is None:
        return raw
    types = {
        field.encode_name: field.type
        for field in msgspec.structs.fields(bean)
        if field.name != "extra"
    }
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in raw.items():
        if key in types:
            known[key] = _with_extra(value, types[key])
        else:
            extra[str(key)] = value
    return known | {"extra": extra}


def _unwrap(kind: Any) -> tuple[type[_Bean] | None, Any]:
    """Return the bean class that `kind` allows, and the value type if it is a dict of beans."""
    arguments: tuple[Any, ...] = getattr(kind, "__args__", ())
    if getattr(kind, "__origin__", None) is dict:
        return None, arguments[1]
    for candidate in (kind, *arguments):
        if isinstance(candidate, type) and issubclass(candidate, _Bean):
            return candidate, None
    return None, None


def _bean_to_plain(value: Any) -> Any:
    if isinstance(value, _Bean):
        plain = {
            field.encode_name: _bean_to_plain(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if field.name != "extra"
        }
        plain |= getattr(value, "extra", {})
        return dict(sorted(plain.items()))
    if isinstance(value, dict):
        return {key: _bean_to_plain(member) for key, member in value.items()}
    return value


def _write(parts: list[str], value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise FormatError("nested too deep for a JSON table", expected=f"{MAX_DEPTH} levels")
    if isinstance(value, str):
        parts.append(_quoted(value))
    elif value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int):
        parts.append(str(value))
    elif isinstance(value, dict):
        _write_object(parts, value, depth)
    elif isinstance(value, list | tuple):
        _write_array(parts, value, depth)
    else:
        raise FormatError("no table of RocketMQ holds such a value", found=repr(value))


def _write_object(parts: list[str], value: dict[Any, Any], depth: int) -> None:
    parts.append("{")
    first = True
    for key, member in value.items():
        if member is None:
            continue
        if not first:
            parts.append(",")
        first = False
        if isinstance(key, str):
            parts.append("\n" + "\t" * (depth + 1) + _quoted(key) + ":")
        elif type(key) is int:
            parts.append(f"{key}:")
        else:
            raise FormatError("no table of RocketMQ has such a key", found=repr(key))
        _write(parts, member, depth + 1)
    if value:
        parts.append("\n" + "\t" * depth)
    parts.append("}")


def _write_array(parts: list[str], value: list[Any] | tuple[Any, ...], depth: int) -> None:
    if all(type(member) is int for member in value):
        parts.append("[" + ",".join(map(str, value)) + "]")
        return
    parts.append("[")
    for number, member in enumerate(value):
        parts.append(("," if number else "") + "\n" + "\t" * (depth + 1))
        _write(parts, member, depth + 1)
    parts.append("\n" + "\t" * depth + "]")


def _quoted(text: str) -> str:
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(match: re.Match[str]) -> str:
    # Half a surrogate pair, which Java writes as "?", is kept as its escape.
    character = match[0]
    return _SHORT_ESCAPES.get(character) or f"\\u{ord(character):04X}"
