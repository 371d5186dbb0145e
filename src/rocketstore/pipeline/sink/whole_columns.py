"""Properties and queues of many rows at once, by whole columns.

Law: nothing is made of rows of which the store would refuse one, and the error says why. Texts are
in UTF-8, and checked to be.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketstore.errors import RefusedMessageError
from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    KEY_SEPARATOR,
    KEYS,
    TAGS,
    UNIQ_KEY,
    encode_properties,
    joined_keys,
)
from rocketstore.format.refusals import refuse_special
from rocketstore.scan.arrow import bytes_of

_PAIRS: Final = pa.list_(pa.struct({"key": pa.string(), "value": pa.string()}))
_SPECIAL: Final = (DELAY, INNER_MULTI_DISPATCH)
_LONGEST: Final = 2**31 - 1  # of Arrow's texts
_COLUMNS: Final = (("keys", KEYS), ("uniqKey", UNIQ_KEY), ("tags", TAGS))  # in stored order


def property_blocks(columns: Mapping[str, Any], count: int) -> tuple[Any, Any]:
    """Return the encoded properties of rows, and their keys as they are stored; null for none.

    They are in stored order, and a column wins over a property of its name.
    """
    entries = _entries_of(columns["properties"], count) if "properties" in columns else None
    pieces, nothing = [], pa.nulls(count, pa.string())
    keys = nothing
    for column, name in _COLUMNS:
        stored = text = nothing
        if entries is not None and (column in columns or name == KEYS):
            stored = text = entries.values_of(name)
        if column in columns:
            text = _text(columns[column], name, stored)
            if entries is not None:
                entries.replace(name, text)
            given = pc.if_else(pc.is_valid(stored), pa.scalar(None, pa.string()), text)
            pieces.append(pc.binary_join_element_wise(f"\x02{name}\x01", given, ""))
        if name == KEYS:
            keys = pc.coalesce(text, stored)
    keys = pc.if_else(pc.equal(keys, ""), pa.scalar(None, pa.string()), keys)
    if entries is not None:
        pieces.insert(0, entries.blocks())
    if not pieces:
        return pa.repeat(b"", count), keys
    # Each with a separator in front, of which the first one goes: a row may have none of them.
    joined = pc.binary_join_element_wise(*(piece.fill_null("") for piece in pieces), "")
    blocks = pc.binary_slice(joined.cast(pa.binary()), 1, _LONGEST)
    is_like_cut = pc.ends_with(blocks, b"\0")
    if pc.any(is_like_cut).as_py():
        # As `encode_properties`: without a separator after it, such a value would look cut off.
        more = pc.if_else(is_like_cut, b"\x02", b"")
        blocks = pc.binary_join_element_wise(blocks, more, b"")
    return blocks, keys


class _Entries:
    """The names and values of the properties of rows."""

    def __init__(self, column: Any, count: int) -> None:
        lists = column.cast(_PAIRS) if pa.types.is_map(column.type) else column
        pairs = lists.flatten()
        if pairs.null_count:
            raise RefusedMessageError("a header is null, or there twice: None")
        self.names, self.values = _texts(*pairs.flatten())
        self._sizes = pc.list_value_length(lists).fill_null(0).to_numpy()
        self._rows = np.repeat(np.arange(count), self._sizes)
        found = self.names.dictionary_encode()
        places = self._rows * (len(found.dictionary) + 1) + found.indices.to_numpy()
        places.sort(kind="stable")  # nearly in order: quick for that kind alone
        self.is_repeating = bool((np.diff(places) == 0).any())
        self._listed = set(found.dictionary.to_pylist())
        if "" in self._listed:
            encode_properties({"": self.values.filter(pc.equal(self.names, ""))[0].as_py()})
        for name in self._listed.intersection(_SPECIAL):
            for value in self.values.filter(pc.equal(self.names, name)).to_pylist():
                refuse_special({name: value})

    def blocks(self) -> Any:
        """Return the encoded entries of each row, a separator in front; null for none."""
        joined = pc.binary_join_element_wise(self.names, self.values, "\x01")
        offsets = np.append(0, np.cumsum(self._sizes)).astype(np.int32)
        lists = pa.ListArray.from_arrays(offsets, joined, mask=pa.array(self._sizes == 0))
        return pc.binary_join_element_wise("\x02", pc.binary_join(lists, "\x02"), "")

    def values_of(self, name: str) -> Any:
        """Return the value that each row has of a name; null for none."""
        places = np.full(len(self._sizes), -1)
        if name in self._listed:
            at = np.flatnonzero(pc.equal(self.names, name).to_numpy(zero_copy_only=False))
            places[self._rows[at]] = at
        return self.values.take(pa.array(places, mask=places < 0))

    def replace(self, name: str, texts: Any) -> None:
        """Give the entries of a name the texts of their rows, where these are not null."""
        if name not in self._listed:
            return
        own = texts.take(pa.array(self._rows))
        is_own = pc.and_(pc.equal(self.names, name), pc.is_valid(own))
        self.values = pc.if_else(is_own, own, self.values)


def _entries_of(column: Any, count: int) -> _Entries:
    """Return the properties of rows, of a map or of Kafka's headers."""
    entries = _Entries(column, count)
    if entries.is_repeating and pa.types.is_map(column.type):
        # The later value wins at the earlier place, as in a `dict`.
        rows = [one and list(dict(one).items()) for one in column.to_pylist()]
        return _Entries(pa.array(rows, column.type), count)
    if entries.is_repeating:
        raise RefusedMessageError(f"a header is null, or there twice: {column.to_pylist()!r:.100}")
    return entries


def _text(column: Any, name: str, stored: Any) -> Any:
    """Return the text of each row, several keys joined, null instead of an empty one."""
    if pa.types.is_list(column.type):
        each = column.flatten()
        if each.null_count or pc.any(pc.match_substring(each, KEY_SEPARATOR)).as_py():
            for keys in column.drop_null().to_pylist():
                joined_keys(keys)
        column = pc.binary_join(column.cast(pa.list_(pa.string())), KEY_SEPARATOR)
        if pc.any(pc.not_equal(stored, column)).as_py():
            # What a reader split, with more blanks between, is not joined in another way.
            split = pc.utf8_trim(pc.replace_substring_regex(stored, " +", " "), KEY_SEPARATOR)
            is_split = pc.fill_null(pc.equal(split, column), fill_value=False)
            column = pc.if_else(is_split, stored, column)
    _texts(pa.repeat(name, len(column) - column.null_count), column.drop_null())
    text = column.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _texts(names: Any, values: Any) -> list[Any]:
    """Return names and values as texts; raise where properties cannot have one of them."""
    found = [one.cast(pa.string(), safe=False) for one in (names, values)]
    try:
        for one in found:
            one.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RefusedMessageError(f"a text is not UTF-8: {error}") from error
    is_usual = not (names.null_count or values.null_count)
    for one in found if is_usual else ():
        _, data = bytes_of(one)
        is_usual &= not len(data) or int(data.min()) > ord("\x02")
    for pair in () if is_usual else zip(*(one.to_pylist() for one in found), strict=True):
        encode_properties([pair])
    return found
