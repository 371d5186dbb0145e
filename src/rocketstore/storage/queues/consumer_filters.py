"""Filters of consumers, and the bit map that says which of them a message may be for.

A group that consumes a topic by an expression registers it here as a predicate over a message's
properties. Dispatch calls all of them and keeps the answers in the message's unit: each group whose
predicate is true has its bits there, of a Bloom filter. A reader that misses one of its bits need
not look at the record; with all of them there it has to, as other groups may have set them.

Law: a bit map only spares reading a record. If it cannot know (a message older than the filter, no
bit map, one of another length), the answer is that the message may match.

How derived: CommitLogDispatcherCalcBitMap, ConsumerFilterManager, BloomFilter, BitsArray and
ExpressionMessageFilter.isMatchedByConsumeQueue of 4.9 (spec F7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rocketstore.arguments import checked, explained
from rocketstore.events import get_logger
from rocketstore.format.properties import decode_properties
from rocketstore.process import OfOneProcess

if TYPE_CHECKING:
    from rocketstore.format.queue_extension import ExtensionUnit

    Predicate: TypeAlias = Callable[[Mapping[str, str]], bool]

_MASK_32: Final = 2**32 - 1
_MASK_64: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F

_log: Final = get_logger(__name__)


class BloomFilter:
    """Which bits of a map stand for a name: `hash_count` of `bit_count`.

    Sized so that, with `expected_names` names in the map, `error_percent` of 100 other names seem
    to be there.
    """

    def __init__(self, error_percent: int, expected_names: int) -> None:
        error_rate = error_percent / 100
        # Quotients of logarithms as Java computes them: another rounding is another map.
        self.hash_count = math.ceil(math.log(error_rate) / math.log(0.5))
        bits = math.ceil(
            expected_names
            * (math.log(1 / error_rate) / math.log(2))
            * (math.log(math.e) / math.log(2))
        )
        self.bit_count = -(-bits // 8) * 8

    def bits_of(self, name: str) -> tuple[int, ...]:
        """Return the bits of a name (BloomFilter.calcBitPositions)."""
        low = murmur3_low_64(name.encode("utf-8", "replace"))
        first, second = low & _MASK_32, low >> 32
        combined = ((first + n * second) & _MASK_32 for n in range(1, self.hash_count + 1))
        # A negative int is complemented.
        return tuple((one ^ _MASK_32 if one >> 31 else one) % self.bit_count for one in combined)


class CompiledFilter(NamedTuple):
    """The filter of a group for a topic: messages stored after `born_ms` were judged by it."""

    predicate: Predicate
    born_ms: int
    bits: tuple[int, ...]


class ConsumerFilters(OfOneProcess):
    """The filters of the groups that consume from one store; safe to change while it works.

    `clock` is never behind the store's newest store time, with which filters are compared.
    """

    def __init__(
        self, error_percent: int, expected_consumers: int, clock: Callable[[], int]
    ) -> None:
        self.bloom = BloomFilter(error_percent, expected_consumers)
        self._clock = clock
        self._filters: dict[str, dict[str, CompiledFilter]] = {}

    @checked
    def register(self, topic: str, group: str, predicate: Predicate) -> None:
        """Make later messages of a topic record whether `predicate` is true for a group.

        It is called on the dispatching thread with the properties of each message. Another one of
        the same group replaces it. If it raises, the message may match.
        """
        one = CompiledFilter(predicate, self._clock(), self.bloom.bits_of(f"{group}#{topic}"))
        # Replaced as a whole: dispatch may be iterating over the old one.
        self._filters[topic] = {**self._filters.get(topic, {}), group: one}

    @checked
    def unregister(self, topic: str, group: str) -> None:
        """Forget the filter of a group; one that is unknown is not an error."""
        known = self._filters.get(topic, {})
        self._filters[topic] = {name: one for name, one in known.items() if name != group}

    @explained
    def bit_map(self, topic: str, properties: bytes) -> bytes:
        """Return the bit map of a message; none where no group has a filter for its topic."""
        filters = self._filters.get(topic)
        if not filters:
            return b""
        bit_map = bytearray(self.bloom.bit_count // 8)
        texts = decode_properties(properties)
        for group, one in filters.items():
            if self._is_for(topic, group, one.predicate, texts):
                for bit in one.bits:
                    bit_map[bit // 8] |= 1 << bit % 8
        return bytes(bit_map)

    def _is_for(
        self, topic: str, group: str, predicate: Predicate, properties: Mapping[str, str]
    ) -> bool:
        try:
            return bool(predicate(properties))
        except Exception as error:  # noqa: BLE001 - a user's code must not end dispatch
            _log.warning("filter.failed", topic=topic, group=group, error=str(error))
            return True

    @explained
    def may_match(self, topic: str, group: str, unit: ExtensionUnit | None) -> bool:
        """Return whether a message may be for a group, judged by its unit."""
        one = self._filters.get(topic, {}).get(group)
        if one is None or unit is None or unit.store_timestamp_ms <= one.born_ms:
            return True
        if len(unit.bit_map) * 8 != self.bloom.bit_count:
            return True
        return all(unit.bit_map[bit // 8] >> bit % 8 & 1 for bit in one.bits)


def murmur3_low_64(data: bytes) -> int:
    """Return the low 64 bits of MurmurHash3 x64 128 with seed 0 (``Hashing.murmur3_128`` of guava).

    By hand rather than by a library: it is needed once for each filter.
    """
    h1 = h2 = 0
    for at in range(0, len(data) - 15, 16):
        k1 = int.from_bytes(data[at : at + 8], "little")
        k2 = int.from_bytes(data[at + 8 : at + 16], "little")
        h1 = (_rotated(h1 ^ _mixed_1(k1), 27) + h2) * 5 + 0x52DCE729 & _MASK_64
        h2 = (_rotated(h2 ^ _mixed_2(k2), 31) + h1) * 5 + 0x38495AB5 & _MASK_64
    tail = data[len(data) // 16 * 16 :]
    h1 ^= _mixed_1(int.from_bytes(tail[:8], "little"))
    h2 ^= _mixed_2(int.from_bytes(tail[8:], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _MASK_64
    h2 = h2 + h1 & _MASK_64
    return _finished(h1) + _finished(h2) & _MASK_64


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK_64


def _mixed_1(k1: int) -> int:
    return _rotated(k1 * _C1 & _MASK_64, 31) * _C2 & _MASK_64


def _mixed_2(k2: int) -> int:
    return _rotated(k2 * _C2 & _MASK_64, 33) * _C1 & _MASK_64


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return value ^ value >> 33
