"""Messages by key: what the index suggests, held against the records (``native.lookup``).

How derived: DefaultMessageStore.queryMessage and IndexService.queryOffset of 4.9 (spec B14, B15.4).
Java sorts each round by offset, oldest first, which mixes rounds; here the order is that of
IndexService.queryOffset, which is also the more useful one when there are more hits than wanted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from rocketstore.native.lookup import Lookup

if TYPE_CHECKING:
    from rocketstore.message import StoredMessage
    from rocketstore.native.decode import LogAtHand
    from rocketstore.storage.index.index_service import IndexService
    from rocketstore.storage.index.pread_index import PreadIndex

_FIRST_MS: Final = -(1 << 63)
_LAST_MS: Final = (1 << 63) - 1


class KeySearch:
    """Finds messages of one store by key; safe to use from several threads."""

    def __init__(
        self, log: LogAtHand, index: IndexService | PreadIndex, memory_span_bytes: int
    ) -> None:
        self._log = log
        self._index = index
        self._span_bytes = memory_span_bytes

    def find(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int | None, max_messages: int
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key, newest first; see `Reader.find`."""
        if max_messages <= 0 or not key:
            return []
        end = _LAST_MS if end_ms is None else end_ms
        try:
            lookup = Lookup(self._log, topic, key, begin_ms, end, self._span_bytes, max_messages)
        except UnicodeEncodeError:  # half a surrogate pair, which no record holds
            return []
        except (OverflowError, TypeError):
            return self._find_between(topic, key, begin_ms, end, max_messages)
        index = self._index
        if index.is_mapped:
            slot_count, item_count = index.layout
            for file in index.mapped_files:
                try:
                    mapping = file.mapping
                except FileNotFoundError:  # retention was faster: all it knows has expired
                    continue
                if not lookup.search(mapping, slot_count, item_count):
                    break
        else:
            for offset in index.candidates(topic, key, begin_ms=begin_ms, end_ms=end):
                if not lookup.look_at(offset):
                    break
        return lookup.messages()

    def _find_between(
        self, topic: object, key: object, begin_ms: float, end_ms: float, max_messages: int
    ) -> list[StoredMessage]:
        """Return what was asked for with times that are no numbers of 64 bits."""
        begin, end = max(math.ceil(begin_ms), _FIRST_MS), min(math.floor(end_ms), _LAST_MS)
        if begin > end or not (isinstance(topic, str) and isinstance(key, str)):
            return []
        return self.find(topic, key, begin_ms=begin, end_ms=end, max_messages=max_messages)
