"""The properties of a message as one block of bytes: ``name 0x01 value 0x02 name 0x01 value``.

Law: what is encoded here decodes to the same names and values, in the same order, with this reader
and with the one of 4.9; decoding never fails, whatever the bytes are.

How derived: MessageDecoder.messageProperties2String and string2messageProperties of 4.9.3 (spec
F3.3). 4.9.1 and later write no separator after the last value, older and 5.2 brokers do; readers
take both.

No checksum covers the text of a record, topic and properties. Every judge of a record asks
`is_text_whole` of ``native.walk``: text that 4.9 writes is whole; text after a cut, with an
unwritten sector or foreign bytes is not (docs/format/properties.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from rocketstore.errors import RefusedMessageError
from rocketstore.format.java_hash import string_hash

if TYPE_CHECKING:
    from rocketstore.message import Message

KEY_SEPARATOR: Final = " "
"""Between the keys of the property ``KEYS``."""

PROPERTIES_SIZE_MAX: Final = 32767
"""Most bytes of the whole block: its length is a signed 16-bit number."""

GIVE_BACK_ROOM: Final = 512
"""Bytes of properties that a message given back, and delayed, gets besides its own, at most: names
of two topics and an id. A put says so where it leaves less."""
PROPERTIES_SIZE_ROOMY: Final = PROPERTIES_SIZE_MAX - GIVE_BACK_ROOM

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
"""The reserved names (MessageConst) that the store reads or writes; the page lists all."""

_DELAY, _QUEUES, _WAIT = (f"{name}\1".encode() for name in (DELAY, INNER_MULTI_DISPATCH, WAIT))
_BINARY: Final = "encode binary values, for example as base64"
_NO_TEXT: Final = "make it text (bytes as base64, say), and leave out what is null"


def encode_properties(properties: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """Return the block of `properties`, a mapping or pairs, in the given order, as UTF-8.

    There is no separator at the end, except after a value whose last character is U+0000: without
    it, the block would look cut off. An empty value is written as given, but every reader of 4.9,
    and ours, drops it. A name given twice is written twice; readers take the later one. The limit
    of 32767 bytes is the caller's to check: it has a put status.

    Raises `RefusedMessageError` where a name is empty, or a name or value is not text, is not valid
    Unicode, or holds a separator with which other properties would be read back. Source:
    MessageDecoder.messageProperties2String.
    """
    return _encoded(list(properties.items() if isinstance(properties, Mapping) else properties))


def message_properties(message: Message) -> bytes:
    """Return the block of a message: ``properties`` as given, then KEYS, UNIQ_KEY and TAGS.

    Parts that are empty or None are left out, as no reader would see them. Refuses what
    `encode_properties` refuses; also keys, tags or a unique key that are no texts, and a blank in
    one of several keys, which would make two keys of it.
    """
    keys, unique_key, tags = message.keys, message.unique_key, message.tags
    if keys and not isinstance(keys, str):
        keys = joined_keys(keys)
    _check_text("a unique key is one text", UNIQ_KEY, unique_key)
    _check_text("tags are one text", TAGS, tags)
    properties = message.properties
    pairs: list[Any] = list(properties.items()) if properties else []
    pairs += [pair for pair in ((KEYS, keys), (UNIQ_KEY, unique_key), (TAGS, tags)) if pair[1]]
    return _encoded(pairs) if pairs else b""


def _check_text(what: str, name: str, value: object) -> None:
    if not (value is None or isinstance(value, str) or (type(value) is tuple and not value)):
        raise _refused(what, name, value, _NO_TEXT)


def joined_keys(keys: tuple[str, ...]) -> str:
    """Return the value of ``KEYS`` for several keys; raises `RefusedMessageError`."""
    if not isinstance(keys, (tuple, list)) or not all(isinstance(key, str) for key in keys):
        raise _refused("keys are one text, or several in a tuple", KEYS, keys, _NO_TEXT)
    if any(KEY_SEPARATOR in key for key in keys):
        hint = "put something else in its place: a reader would find two keys"
        raise _refused("a key contains a blank, the separator of keys", KEYS, keys, hint)
    return KEY_SEPARATOR.join(keys)


def split_keys(value: str) -> list[str]:
    """Return the keys in the value of ``KEYS``."""
    return [key for key in value.split(KEY_SEPARATOR) if key]


def joined_properties(pairs: Iterable[tuple[str, str]]) -> str:
    """Return names and values as one text, whatever they are."""
    return "\x02".join(["\x01".join(pair) for pair in pairs])


def _encoded(pairs: list[tuple[str, str]]) -> bytes:
    """Join names and values and check the result as a whole, which is cheaper than part by part."""
    try:
        text = joined_properties(pairs)
    except TypeError as error:
        name, value = next(pair for pair in pairs if not all(isinstance(one, str) for one in pair))
        what = "a property is a name and a value, both text"
        raise _refused(what, name, value, _NO_TEXT) from error
    count = len(pairs)
    # As many separators as parts need, and none of them where a name should begin; else each part.
    if (
        text.count("\x01") != count
        or text.count("\x02") != max(count - 1, 0)
        or text.startswith("\x01")
        or "\x02\x01" in text
    ):
        for name, value in pairs:
            if not name:
                raise _refused("a property has an empty name", name, value, "name it")
            if "\x01" in name or "\x02" in name:
                raise _refused("a name of a property has 0x01 or 0x02 in it", name, value)
            if "\x02" in value:  # a further 0x01 belongs to the value
                raise _refused("a value of a property has 0x02 in it", name, value)
    if text.endswith("\0"):
        text += "\x02"
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RefusedMessageError(
            f"properties are not valid Unicode text: lone surrogate at character {error.start}",
            hint=_BINARY,
        ) from error


def _refused(what: str, name: object, value: object, hint: str = _BINARY) -> RefusedMessageError:
    return RefusedMessageError(f"{what}: name {name!r}, value {value!r:.80}", hint=hint)


def decode_properties(block: bytes) -> dict[str, str]:
    """Return names and values in stored order; of a name stored twice the later value wins.

    Invalid UTF-8 becomes U+FFFD. A part without 0x01, with an empty name or an empty value
    is left out; a second 0x01 belongs to the value. A repeated name keeps its first place.
    Source: MessageDecoder.string2messageProperties (4.9.3).
    """
    properties: dict[str, str] = {}
    if not block:
        return properties
    for part in block.decode("utf-8", "replace").split("\x02"):
        name, _, value = part.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def asked(block: bytes) -> dict[str, str]:
    """Return the properties that may ask something of the store; most messages have none."""
    has_any = _DELAY in block or _QUEUES in block or _WAIT in block
    return decode_properties(block) if has_any else {}


def in_hash_map_order(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties in the order of a ``java.util.HashMap``, in which 4.9 encodes them again.

    >>> list(in_hash_map_order({"TAGS": "a", "KEYS": "b", "UNIQ_KEY": "c"}))
    ['KEYS', 'UNIQ_KEY', 'TAGS']
    """
    size = 16
    while 4 * len(properties) > 3 * size:
        size *= 2
    order = sorted(properties, key=lambda name: _spread_hash(name) & (size - 1))
    return {name: properties[name] for name in order}


@lru_cache(4096)
def _spread_hash(name: str) -> int:
    hashed = string_hash(name) & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def hold_names(block: bytes) -> bool:
    """Return whether bytes are UTF-8 with a 0x01 in it, as a block with any name is."""
    if b"\x01" not in block:
        return False
    if block.isascii():
        return True
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def storable_properties(block: bytes) -> bytes:
    """Return an encoded block in a form that may be stored and that no reader takes for damage.

    A zero at the end gets a separator after it; without, the block would look cut off.
    """
    if not block:
        return block
    if not hold_names(block):
        raise RefusedMessageError(
            f"properties are not UTF-8, or name nothing: {block[:40]!r}",
            hint=f"send them as name 0x01 value 0x02 …; {_BINARY}",
        )
    return block if block[-1] else block + b"\x02"
