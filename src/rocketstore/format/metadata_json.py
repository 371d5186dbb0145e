"""The JSON tables in ``config/``: read as leniently as needed, written as fastjson writes them.

fastjson writes maps with numeric keys without quotes and without line breaks (``{0:102,1:94``),
which no JSON parser reads; everything else is JSON indented by tabs.

Law: text in, values out, or a `FormatError`. `loads` and `dumps` keep every field, also those that
only a newer broker knows; a table has those known here.
Page: docs/format/metadata.md. Source: rocketmq-all-4.9.8, ConfigManager.persist and fastjson 1.2.76
(``toJSONString(…, prettyFormat=true)``); spec F13.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.units import QueueKey

TOPICS_FILE: Final = "topics.json"
CONSUMER_OFFSETS_FILE: Final = "consumerOffset.json"
LMQ_CONSUMER_OFFSETS_FILE: Final = "lmqConsumerOffset.json"
DELAY_OFFSETS_FILE: Final = "delayOffset.json"
SUBSCRIPTION_GROUPS_FILE: Final = "subscriptionGroup.json"
CONSUMER_FILTERS_FILE: Final = "consumerFilter.json"
BACKUP_SUFFIX: Final = ".bak"
"""Names below ``config/`` (StorePathConfigHelper); the backup is the text before the last write."""

_STRING_OR_KEY: Final = re.compile(
    # The closing quote is optional, so that an unclosed string is passed over only once.
    r'"(?:[^"\\]|\\.)*"?|(?<=[{,])(\s*)(-?[0-9]{1,19})(?=\s*:)',
    re.DOTALL,
)
_BARE_KEY_MARK: Final = "\ufdd0"
"""A noncharacter in front of a bare key's digits while the text passes through the JSON parser."""
_MARKED_KEY: Final = re.compile(_BARE_KEY_MARK + r"-?[0-9]{1,19}")
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB]H\\u[dD][c-fC-F]H|(u[dD][89a-fA-F]H)|.)".replace(b"H", b"[0-9a-fA-F]{2}")
)
"""The group is half a character."""
_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\\x7f-\x9f\u2028\u2029\ud800-\udfff]')
_WRITTEN_OTHERWISE: Final = re.compile(r"[\\\x7f-\x9f\u2028\u2029]")
_PLAIN: Final = frozenset({str, int, bool})
_SHORT_ESCAPES: Final = dict(zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True))


QUEUE_TYPE: Final = "queue.type"
BATCH_QUEUES: Final = "BatchCQ"
"""The attribute of a topic that a broker of 5.x looks at, and its value for queues of batches."""


Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Java's ``int`` and ``long``: fastjson reads no table with a number that is not of its type."""


class _Bean(msgspec.Struct, rename="camel"):
    """A Java bean: fields in alphabetical order, as on disk."""


class DataVersion(_Bean):
    """Which of two tables is newer."""

    counter: Int64 = 0
    timestamp: Int64 = 0


class TopicConfig(_Bean, kw_only=True):
    """A topic's settings; the values are those of a new topic."""

    attributes: dict[str, str] | None = None
    order: bool = False
    perm: Int32 = 6
    read_queue_nums: Int32 = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16


class SubscriptionGroup(_Bean, kw_only=True):
    """A consumer group's settings; the values are those of a new group."""

    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: Int64 = 1


class TopicTable(_Bean):
    """``topics.json``."""

    data_version: DataVersion | None = None
    topic_config_table: dict[str, TopicConfig] = {}

    def batch_topics(self) -> frozenset[str]:
        """Return the topics whose queues have batches (TopicAttributes of 5.x)."""
        topics = self.topic_config_table.items()
        attributes = ((name, one.attributes or {}) for name, one in topics)
        return frozenset(name for name, one in attributes if one.get(QUEUE_TYPE) == BATCH_QUEUES)


class SubscriptionGroupTable(_Bean):
    """``subscriptionGroup.json``."""

    data_version: DataVersion | None = None
    subscription_group_table: dict[str, SubscriptionGroup] = {}


class ConsumerOffsets(_Bean):
    """``consumerOffset.json``: ``topic@group`` -> queue id -> next offset.

    With ``enableLmq`` it is ``lmqConsumerOffset.json``, which has the groups named ``%LMQ%…`` in a
    table without queue ids: for those it is queue 0. `log_marks` are ours (`tables.positions`):
    they tell to which log the offsets belong. 4.9 neither writes nor keeps them.
    """

    lmq_offset_table: dict[str, Int64] | None = None
    log_marks: list[tuple[Int64, Int64, Int64]] | None = None
    offset_table: dict[str, dict[Int32, Int64]] = {}

    def by_name(self) -> dict[str, dict[int, int]]:
        """Return both tables as one."""
        light = (self.lmq_offset_table or {}).items()
        return self.offset_table | {
            name: {**self.offset_table.get(name, {}), 0: offset} for name, offset in light
        }

    def rows(self) -> Iterator[tuple[str, QueueKey, int]]:
        """Yield group, queue and next offset of each queue that a group has an offset of."""
        for name, offsets in sorted(self.by_name().items()):
            topic, _, group = name.partition("@")
            for queue_id, offset in sorted(offsets.items()):
                yield group, QueueKey(topic, queue_id), offset


def offset_tables_by_age(changed: Mapping[str, int]) -> list[str]:
    """Return the names of the two files of offsets; the one changed last counts, and comes first.

    `changed` maps file names to the time of their last change. A writer updates only the file that
    goes with its ``enableLmq``, which no file records. For the same time, ``lmq…`` counts.
    """
    names = (LMQ_CONSUMER_OFFSETS_FILE, CONSUMER_OFFSETS_FILE)
    last = {one: max(changed.get(one, 0), changed.get(one + BACKUP_SUFFIX, 0)) for one in names}
    return sorted(names, key=last.__getitem__, reverse=True)


def offsets_key(topic: str, group: str) -> str:
    """Return the name of a group's offsets of a topic (ConsumerOffsetManager)."""
    return f"{topic}@{group}"


class DelayOffsets(_Bean):
    """``delayOffset.json``: delay level -> next entry of its queue.

    `log_end` and `log_marks` are ours: where the log ended then, and which log it was. 4.9 neither
    writes nor keeps them.
    """

    log_end: Int64 | None = None
    log_marks: list[tuple[Int64, Int64, Int64]] | None = None
    offset_table: dict[Int32, Int64] = {}


class BloomFilterData(_Bean):
    """Bits of one group in the filter map."""

    bit_num: Int32 = 0
    bit_pos: list[Int32] = []


class ConsumerFilter(_Bean, kw_only=True):
    """A group's SQL92 expression."""

    bloom_filter_data: BloomFilterData | None = None
    born_time: Int64 = 0
    client_version: Int64 = 0
    consumer_group: str
    dead: bool = False
    dead_time: Int64 = 0
    expression: str | None = None
    expression_type: str | None = None
    topic: str


class TopicFilters(_Bean):
    """The expressions of a topic, by group."""

    group_filter_data: dict[str, ConsumerFilter] = {}
    topic: str | None = None


class ConsumerFilterTable(_Bean):
    """``consumerFilter.json``."""

    filter_data_by_topic: dict[str, TopicFilters] = {}


Table = TypeVar("Table", bound=_Bean)
Body = TypeVar("Body")
_type_info: Final[Any] = cache(msgspec.inspect.type_info)  # it takes a millisecond


def loads(text: str | bytes | bytearray | memoryview) -> Any:
    """Parse JSON whose objects may have bare integers as keys, which become `int`.

    Half a character is read as a ?. Raises `FormatError` where it is not UTF-8, not such JSON, or
    nested too deep for Python's stack.

    >>> loads('{"TopicA@group":{0:250,1:250}}')
    {'TopicA@group': {0: 250, 1: 250}}
    """
    try:
        raw = text.encode() if isinstance(text, str) else bytes(text)
        decoded = whole_characters(raw).decode()
        decoded = _refuse_blank(decoded.removeprefix("\ufeff"))  # an editor's mark
        with contextlib.suppress(json.JSONDecodeError):  # a tenth of the time, and most tables
            return json.loads(decoded, parse_constant=_refuse_constant)
        quoted = _STRING_OR_KEY.sub(
            lambda match: f'{match[1]}"{_BARE_KEY_MARK}{match[2]}"' if match[2] else match[0],
            decoded,
        )
        return json.loads(quoted, object_pairs_hook=_with_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a JSON table of RocketMQ: {error}") from error


def decode_table(text: str | bytes, table: type[Table]) -> Table:
    """Decode one of the tables above, for example ``decode_table(text, TopicTable)``.

    Raises `FormatError` where it is no JSON object, or one of another kind, without the member that
    every broker writes; `FieldRangeError` where a field has a wrong type.
    """
    return table_of(loads(text), table)


def decode_whole(text: str | bytes, table: type[_Bean]) -> dict[str, Any]:
    """Return all that stands in one of the tables, fields of others too; as `decode_table`."""
    loaded: dict[str, Any] = loads(text)
    table_of(loaded, table)  # judges the types
    return loaded


def table_of(loaded: Any, table: type[Table]) -> Table:
    """Return one of the tables from what `loads` returned; raises as `decode_table`."""
    if not isinstance(loaded, dict):
        raise FormatError("not a JSON table of RocketMQ", expected="an object", found=type(loaded))
    if (member := table.__struct_encode_fields__[-1]) not in loaded:
        found = ", ".join(map(str, loaded))[:80] or "nothing"
        raise FormatError(f"not a {table.__name__}", expected=f"a member {member}", found=found)
    try:
        return msgspec.convert(loaded, table, str_keys=True)
    except msgspec.ValidationError as error:
        raise FieldRangeError(f"{table.__name__}: {error}") from error


def decode_body(data: bytes, kind: type[Body]) -> Body:
    """Return the body of a request or reply, read as leniently as fastjson reads it.

    Numbers as keys may be bare or in quotes, values may be texts and texts numbers, names may be in
    any case, as a client in C# has them; a null stands for what is not there. Raises `FormatError`
    where it is no JSON, `FieldRangeError` where it is of another kind.
    """
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = _by_name(loads(data.decode(errors="replace")), _type_info(kind))
            return msgspec.convert(found, kind, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise FieldRangeError(f"body: {error}") from error


def whole_characters(data: bytes) -> bytes:
    """Return JSON with a ? for each half of a character, as Java stores it.

    A text has one that was cut off within a character.
    """
    return _ESCAPE.sub(lambda one: b"?" if one[1] else one[0], data)


def _by_name(value: Any, kind: Any) -> Any:
    """Return a value with the names that its type has, and without nulls."""
    kind = getattr(kind, "types", (kind,))[0]
    if isinstance(value, list) and (item := getattr(kind, "item_type", None)):
        return [_by_name(one, item) for one in value]
    if not isinstance(value, dict):
        is_text = isinstance(kind, msgspec.inspect.StrType) and type(value) is int
        return str(value) if is_text else value
    fields, others = getattr(kind, "fields", ()), getattr(kind, "value_type", None)
    known = {one.encode_name.lower(): (one.encode_name, one.type) for one in fields}
    named = ((*known.get(str(key).lower(), (key, others)), one) for key, one in value.items())
    return {name: _by_name(one, its) for name, its, one in named if one is not None}


def encode_body(body: Any) -> bytes:
    """Return the JSON of a body, on one line: of a struct, or of a plain value with structs."""
    return dumps(msgspec.to_builtins(body), in_lines=False).encode()


class Members(list[str]):
    """The members of a dict that stands in a table, for `dumps`, each made by `member_text`."""


def member_text(key: str, value: Any) -> str:
    """Return the text of one of the `Members`."""
    line = "\n\t\t"
    return f"{_key(key, line)}:{_text(value, line)}"


class MemberTexts:
    """Makes `Members`; where a value is the same object as the time before, so is its text."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, str]] = {}

    def of(self, members: Mapping[str, Any]) -> Members:
        """Return the members of a dict whose values are replaced, and never changed in place."""
        known = self._known
        self._known = {
            key: known[key] if key in known and known[key][0] is value
            else (value, member_text(key, value))
            for key, value in members.items()
        }  # fmt: skip
        return Members(text for _, text in self._known.values())


def encode_table(table: _Bean) -> str:
    """Encode a table as fastjson does, without a line break at the end."""
    return dumps(msgspec.to_builtins(table))


def dumps(value: Any, *, in_lines: bool = True) -> str:
    """Write plain values as ``JSON.toJSONString(value, in_lines)`` of fastjson 1.2.76 does.

    Keys keep the order of their dict; integer keys stand bare and without a line break before them;
    None among the values of a dict is left out; a list of numbers stands on one line, as Java's
    ``int[]`` does. Raises `FormatError` for a value or key that none of the tables has, or too
    deep.
    """
    try:
        return _text(value, "\n" if in_lines else "")
    except RecursionError as error:
        raise FormatError("nested too deep for a JSON table") from error


def _with_keys(pairs: list[tuple[str, Any]]) -> dict[str | int, Any]:
    return {int(key[1:]) if _MARKED_KEY.fullmatch(key) else key: value for key, value in pairs}


def _refuse_blank(text: str) -> str:
    if not text.strip("\0 \t\r\n"):
        raise ValueError("it is empty, or nothing but zeros")
    return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _text(value: Any, line: str) -> str:
    """Return the JSON of `value`; `line` stands before a closing bracket, empty for a single line.

    It is a line break and the tabs after it.
    """
    deeper = line and line + "\t"
    if isinstance(value, str):
        return _quoted(value)
    if type(value) is int:
        return str(value)
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, dict | Members):
        members = _members(value, deeper)
        return "{" + members + (line if value else "") + "}"
    if isinstance(value, list):
        if all(type(member) is int for member in value):
            return f"[{','.join(map(str, value))}]"
        return "[" + ",".join(deeper + _text(member, deeper) for member in value) + line + "]"
    raise FormatError("no table of RocketMQ holds such a value", found=repr(value))


def _members(value: dict[Any, Any] | Members, line: str) -> str:
    if isinstance(value, Members):
        return ",".join(value)
    return _row(value, line) or ",".join(
        [
            f"{_key(key, line)}:{_text(member, line)}"
            for key, member in value.items()
            if member is not None
        ]
    )


def _row(value: dict[Any, Any], line: str) -> str | None:
    """Return the members of an object by one call into C; None where they are not so plain.

    A table has thousands of rows of texts and numbers, and is written whole for each new one.
    """
    if {*map(type, value)} != {str}:
        return None
    kept = {key: member for key, member in value.items() if member is not None}
    if not kept or not _PLAIN.issuperset(map(type, kept.values())):
        return None
    try:
        text = msgspec.json.encode(kept).decode()
    except UnicodeEncodeError:  # half a character
        return None
    # A backslash is in whatever JSON escapes; the others fastjson alone does.
    if text.count(',"') != len(kept) - 1 or _WRITTEN_OTHERWISE.search(text):
        return None
    return line + text[1:-1].replace(',"', f',{line}"')


def _quoted(text: str) -> str:
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _key(key: Any, line: str) -> str:
    if isinstance(key, str):
        return line + _quoted(key)
    if type(key) is int:
        return str(key)
    raise FormatError("no table of RocketMQ has such a key", found=repr(key))


def _escape(match: re.Match[str]) -> str:
    # Half a surrogate pair, which Java writes as "?", is kept as its escape.
    short = _SHORT_ESCAPES.get(match[0])
    return f"\\{short}" if short else f"\\u{ord(match[0]):04X}"
