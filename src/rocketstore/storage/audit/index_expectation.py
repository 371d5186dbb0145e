"""Which index items the records of a log call for.

Law: one item for UNIQ_KEY and one for each part of KEYS between blanks, for every record that is no
rollback record; equal parts count each.

How derived: IndexService.buildIndex of 4.9 (spec B15.1). Hashes are computed for all keys of one
length at once: Java's ``topic#key`` hash is a polynomial that the topic's hash begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from rocketstore.format.java_hash import key_hash
from rocketstore.message import TRANSACTION_MASK, TRANSACTION_ROLLBACK

if TYPE_CHECKING:
    import numpy.typing as npt

    from rocketstore.scan.columns import RecordColumns

    Int64Array: TypeAlias = npt.NDArray[np.int64]

_KEY_BLANK = 0x20
_NUMBER_SIGN = 35
_LOW_32 = np.int64(0xFFFFFFFF)
_SIGN_BIT = np.int64(0x80000000)


class ExpectedItems(NamedTuple):
    """Items in log order: of which record, with which hash, and when that was stored."""

    physical_offset: Int64Array
    key_hash: Int64Array
    store_timestamp_ms: Int64Array


def expected_items(columns: RecordColumns) -> ExpectedItems:
    """Return the items that these records call for."""
    indexed = columns.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
    unique = np.flatnonzero(indexed & (columns.unique_key_size > 0))
    keyed = np.flatnonzero(indexed & (columns.keys_size > 0))
    rows, starts, sizes = _split_at_blanks(columns, keyed)
    all_rows = np.concatenate((unique, rows))
    all_starts = np.concatenate((columns.unique_key_at[unique], starts))
    all_sizes = np.concatenate((columns.unique_key_size[unique], sizes))
    hashes = _hashes(columns, all_rows, all_starts, all_sizes)
    order = np.argsort(all_rows, kind="stable")
    rows = all_rows[order]
    return ExpectedItems(
        columns.physical_offset[rows], hashes[order], columns.store_timestamp[rows]
    )


def _split_at_blanks(
    columns: RecordColumns, keyed: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return row, start and size of every part of the KEYS of some records."""
    sizes = columns.keys_size[keyed]
    total = int(sizes.sum())
    if not total:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    firsts = np.cumsum(sizes) - sizes
    owner = np.repeat(np.arange(len(keyed)), sizes)
    place = np.arange(total) - firsts[owner] + columns.keys_at[keyed][owner]
    is_key = columns.buffer[place] != _KEY_BLANK
    changes = np.ones(total, dtype=np.bool_)
    changes[1:] = (owner[1:] != owner[:-1]) | (is_key[1:] != is_key[:-1])
    bounds = np.flatnonzero(changes)
    lengths = np.diff(np.append(bounds, total))
    parts = is_key[bounds]
    return keyed[owner[bounds[parts]]], place[bounds[parts]], lengths[parts]


def _hashes(
    columns: RecordColumns, rows: Int64Array, starts: Int64Array, sizes: Int64Array
) -> Int64Array:
    hashes = np.empty(len(rows), dtype=np.int64)
    seeds = (columns.topic_hash[rows] * 31 + _NUMBER_SIGN) & _LOW_32
    for size in np.unique(sizes).tolist():
        chosen = np.flatnonzero(sizes == size)
        content = columns.buffer[starts[chosen][:, None] + np.arange(size)]
        value = seeds[chosen]
        for column in content.T:
            value = (value * 31 + column) & _LOW_32
        hashes[chosen] = _positive(value)
        # Java hashes UTF-16 units: other letters than ASCII are decoded one key at a time.
        for at in np.flatnonzero((content >= 0x80).any(axis=1)).tolist():
            row = int(rows[chosen[at]])
            key = content[at].tobytes().decode("utf-8", "replace")
            hashes[chosen[at]] = key_hash(columns.topic(row), key)
    return hashes


def _positive(value: Int64Array) -> Int64Array:
    """Return ``abs`` of 32 bits as Java has it, where ``abs(MIN_VALUE)`` counts as 0."""
    folded = np.where(value > _SIGN_BIT, (1 << 32) - value, value)
    positive: Int64Array = np.where(value == _SIGN_BIT, 0, folded)
    return positive
