"""Properties and queues of many rows at once, by whole columns.

Law: what is made here is what `row_encoder` makes of each row alone; of rows that need a closer
look, such as those that it refuses, nothing is made. Texts are in UTF-8, and checked to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow  # noqa: ICN001 - `pa` is the same without its annotations

from rocketstore.format.java_hash import string_hash
from rocketstore.format.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    KEY_SEPARATOR,
    KEYS,
    TAGS,
    UNIQ_KEY,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    Numbers: TypeAlias = npt.NDArray[np.int64]

pa: Any = pyarrow
_SPECIAL: Final = (DELAY, INNER_MULTI_DISPATCH)
_COLUMNS: Final = (("keys", KEYS), ("uniqKey", UNIQ_KEY), ("tags", TAGS))  # in stored order


class UnlikeError(Exception):
    """A row needs a closer look."""


def first_equal(columns: Iterable[pyarrow.Array], count: int) -> Numbers:
    """Return for each row the number of the first one that equals it in all of some columns."""
    code = np.zeros(count, dtype=np.int64)
    for column in columns:
        found: Any = column.dictionary_encode()
        if len(found.dictionary) > 1:
            code = code * len(found.dictionary) + found.indices.to_numpy()
            _, code = np.unique(code, return_inverse=True)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return first[code]


def java_hashes(texts: pyarrow.Array) -> Numbers:
    """Return ``String.hashCode`` of texts, none of which is empty."""
    offsets, data = _bytes_of(texts)
    if not len(texts) or data.max() > 0x7F:
        return np.array([string_hash(text) for text in texts.to_pylist()], dtype=np.int64)
    sizes = np.diff(offsets)
    powers = np.full(int(sizes.max()), 31, dtype=np.uint32)
    powers[0] = 1
    powers = np.multiply.accumulate(powers, dtype=np.uint32)  # which wraps as Java's int does
    after = np.repeat(offsets[1:], sizes) - 1 - np.arange(len(data))
    terms = data.astype(np.uint32) * powers[after]
    totals = np.add.reduceat(terms, offsets[:-1], dtype=np.uint32)
    return totals.view(np.int32).astype(np.int64)


def property_blocks(columns: Mapping[str, Any], count: int) -> tuple[Any, Any]:
    """Return the encoded properties of rows, and their keys as they are stored; null for none."""
    import pyarrow.compute as pc  # noqa: PLC0415 - takes long, and plans and commits need none

    entries = _Entries(columns["properties"], count) if "properties" in columns else None
    pieces = [] if entries is None else [entries.blocks()]
    keys = pa.nulls(count, pa.string())
    for column, name in _COLUMNS:
        stored = None if entries is None else entries.values_of(name)
        text = _text(columns[column]) if column in columns else None
        if text is not None:
            given = text
            if stored is not None:
                if pc.any(pc.not_equal(stored, text)).as_py():
                    raise UnlikeError
                given = pc.if_else(pc.is_valid(stored), pa.scalar(None, pa.string()), text)
            pieces.append(pc.binary_join_element_wise(f"\x02{name}\x01", given, ""))
        if name == KEYS:
            known = [one for one in (text, stored) if one is not None]
            keys = pc.coalesce(*known) if known else keys
    keys = pc.if_else(pc.equal(keys, ""), pa.scalar(None, pa.string()), keys)
    if not pieces:
        return pa.repeat(b"", count), keys
    # Each with a separator in front, of which the first one goes: a row may have none of them.
    joined = pc.binary_join_element_wise(*(piece.fill_null("") for piece in pieces), "")
    return pc.utf8_slice_codeunits(joined, 1).cast(pa.binary()), keys


class _Entries:
    """The names and values of rows, all plain, of a map or of Kafka's headers."""

    def __init__(self, column: Any, count: int) -> None:
        import pyarrow.compute as pc  # noqa: PLC0415 - as above

        offsets = column.offsets.to_numpy().astype(np.int64)
        sizes = np.diff(offsets)
        if column.null_count and sizes[column.is_null().to_numpy(zero_copy_only=False)].any():
            raise UnlikeError
        if pa.types.is_map(column.type):
            names, values = column.keys, column.items
        else:
            if column.values.null_count:
                raise UnlikeError
            names, values = column.values.field(0), column.values.field(1)
        some = slice(offsets[0], offsets[-1])
        self.names, self.values = _plain(names[some]), _plain(values[some])
        self.rows = np.repeat(np.arange(count), sizes)
        self.offsets = (offsets - offsets[0]).astype(np.int32)
        found = self.names.dictionary_encode()
        places = self.rows * (len(found.dictionary) + 1) + found.indices.to_numpy()
        listed = found.dictionary.to_pylist()
        # Two of one name in a row are not side by side.
        if "" in listed or not set(_SPECIAL).isdisjoint(listed):
            raise UnlikeError
        if len(np.unique(places)) < len(places):
            raise UnlikeError
        self._listed, self._pc = set(listed), pc

    def blocks(self) -> Any:
        """Return the encoded entries of each row, a separator in front; null for none."""
        joined = self._pc.binary_join_element_wise(self.names, self.values, "\x01")
        lists = pa.ListArray.from_arrays(
            self.offsets, joined, mask=pa.array(np.diff(self.offsets) == 0)
        )
        return self._pc.binary_join_element_wise("\x02", self._pc.binary_join(lists, "\x02"), "")

    def values_of(self, name: str) -> Any:
        """Return the value that each row has of a name; None where no row has it."""
        if name not in self._listed:
            return None
        at = np.flatnonzero(self._pc.equal(self.names, name).to_numpy(zero_copy_only=False))
        places = np.full(len(self.offsets) - 1, -1)
        places[self.rows[at]] = at
        return self.values.take(pa.array(places, mask=places < 0))


def _text(column: Any) -> Any:
    """Return the text of each row, several keys joined, null instead of an empty one."""
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    if pa.types.is_list(column.type):
        each = _plain(column.flatten())
        if pc.any(pc.match_substring(each, KEY_SEPARATOR)).as_py():
            raise UnlikeError
        column = pc.binary_join(column.cast(pa.list_(pa.string())), KEY_SEPARATOR)
    text = _plain(column.filter(column.is_valid()))
    if not len(text) or text.nbytes == 0:
        return pa.nulls(len(column), pa.string())
    text = column.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _plain(texts: Any) -> Any:
    """Return texts, which are there, are UTF-8 and have no separator and no 0x00."""
    if texts.null_count:
        raise UnlikeError
    texts = texts.cast(pa.string(), safe=False)
    texts.validate(full=True)
    _, data = _bytes_of(texts)
    if len(data) and data.min() <= 2:
        raise UnlikeError
    return texts


def _bytes_of(texts: Any) -> tuple[Numbers, npt.NDArray[np.uint8]]:
    """Return where each text begins and the last one ends, and the bytes of all."""
    _, ends, data = texts.buffers()
    if data is None or not len(texts):
        return np.zeros(len(texts) + 1, dtype=np.int64), np.empty(0, dtype=np.uint8)
    offsets = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    held = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return (offsets - offsets[0]).astype(np.int64), held
