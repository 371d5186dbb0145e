"""What the files of an index say about a key, without a look at the records."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from rocketstore.format.java_hash import key_hash
from rocketstore.storage.index.index_service import IndexService
from support.oracle.index import find_items

_OFFSETS_PER_CALL = 64
_LAST_MS = 2**63 - 1


def candidates(
    index: IndexService, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = _LAST_MS
) -> Iterator[int]:
    """Yield the physical offsets of a key's items, newest first; a file is held to its end."""
    offsets = np.zeros(_OFFSETS_PER_CALL + 1, np.int64)
    for file in reversed(index.files):
        try:
            array = file.file.array
        except FileNotFoundError:  # retention was faster
            continue
        number = -1
        while number:
            number = find_items(
                array,
                *index.layout,
                key_hash(topic, key),
                begin_ms,
                end_ms,
                max(number, 0),
                offsets,
            )
            yield from offsets[: offsets[-1]].tolist()


def find(
    index: IndexService, topic: str, key: str, *, max_count: int = 10_000, **times: int
) -> list[int]:
    """Return the first of `candidates`."""
    return list(islice(candidates(index, topic, key, **times), max_count))
