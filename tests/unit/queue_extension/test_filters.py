"""Bit maps of consumers' filters: the bits are those of the Java classes."""

import logging

import pytest

from rocketstore.format.queue_extension import ExtensionUnit
from rocketstore.storage.queues.consumer_filters import BloomFilter, ConsumerFilters, murmur3_low_64

# Printed by guava 31.0.1 and rocketmq-filter 4.9.7: name, Hashing.murmur3_128().hashString(name,
# UTF_8).asLong() unsigned, and BloomFilter.calcBitPositions for createByFn(20, 32), (10, 128) and
# (1, 7).
OF_JAVA = [
    ("", 0, (0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0)),
    ("a", 9607679276477937801, (94, 99, 7), (262, 603, 287, 365), (14, 27, 31, 21, 37, 15, 43)),
    ("billing#orders", 51594467171867450, (31, 20, 9), (591, 132, 289, 446),
     (47, 52, 57, 62, 67, 0, 5)),
    ("0123456789abcdef", 5467490433528156583, (11, 47, 60), (11, 215, 508, 304),
     (27, 31, 4, 0, 3, 32, 28)),
    ("0123456789abcdefg", 10246358950979434974, (27, 71, 85), (27, 295, 309, 13),
     (11, 39, 21, 29, 31, 19, 70)),
    ("gruppe-ü#thema-中文", 8640407652623473882, (74, 96, 100), (186, 208, 324, 70),
     (50, 56, 20, 14, 62, 44, 7)),
    ("a" * 56 + "#b", 6427325435842548532, (13, 63, 110), (405, 455, 110, 251),
     (29, 23, 54, 51, 45, 32, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "usual", "many", "strict"), OF_JAVA)
def test_bits_of_a_group_are_those_of_java(name, number, usual, many, strict):
    assert murmur3_low_64(name.encode()) == number
    assert BloomFilter(20, 32).bits_of(name) == usual
    assert BloomFilter(10, 128).bits_of(name) == many
    assert BloomFilter(1, 7).bits_of(name) == strict


@pytest.mark.parametrize(
    ("error_percent", "expected", "hash_count", "bit_count"),
    [(20, 32, 3, 112), (10, 128, 4, 616), (1, 7, 7, 72), (50, 1000, 1, 1448)],
)
def test_length_of_a_map_is_that_of_java(error_percent, expected, hash_count, bit_count):
    bloom = BloomFilter(error_percent, expected)
    assert (bloom.hash_count, bloom.bit_count) == (hash_count, bit_count)


class Filters(ConsumerFilters):
    """At a moment that a test sets."""

    now_ms = 1000

    def __init__(self) -> None:
        super().__init__(20, 32, lambda: self.now_ms)


def test_each_group_whose_filter_passes_has_its_bits():
    filters = Filters()
    filters.register("orders", "billing", lambda properties: properties.get("kind") == "paid")
    filters.register("orders", "sql", lambda properties: int(properties["amount"]) > 5)
    filters.register("others", "billing", lambda _: True)
    bit_map = filters.bit_map("orders", b"kind\x01paid\x02amount\x013\x02")
    bits = {bit for bit in range(112) if bit_map[bit // 8] >> bit % 8 & 1}
    assert bits == {31, 20, 9}  # of billing#orders, see above
    assert bit_map[31 // 8] == 0x80
    unit = ExtensionUnit(0, 1001, bit_map)
    assert filters.may_match("orders", "billing", unit)
    assert not filters.may_match("orders", "sql", unit)


def test_a_topic_without_filters_has_no_bit_map():
    filters = Filters()
    assert filters.bit_map("orders", b"") == b""
    filters.register("orders", "billing", lambda _: True)
    assert len(filters.bit_map("orders", b"")) == 14
    filters.unregister("orders", "billing")
    filters.unregister("orders", "nobody")
    assert filters.bit_map("orders", b"") == b""


def test_a_bit_map_that_cannot_know_lets_the_message_pass():
    filters = Filters()
    filters.register("orders", "billing", lambda _: False)
    none = bytes(14)
    assert not filters.may_match("orders", "billing", ExtensionUnit(0, 1001, none))
    for unit in (
        None,
        ExtensionUnit(0, 1000, none),  # as old as the filter
        ExtensionUnit(0, 1001),
        ExtensionUnit(0, 1001, bytes(8)),  # of another length
    ):
        assert filters.may_match("orders", "billing", unit)
    assert filters.may_match("orders", "unknown", ExtensionUnit(0, 1001, none))
    filters.now_ms = 2000
    filters.register("orders", "billing", lambda _: True)
    assert filters.may_match("orders", "billing", ExtensionUnit(0, 1001, none))


@pytest.mark.parametrize(
    "fails", [lambda texts: texts["absent"] == "1", lambda _: 1 / 0, lambda _: None + 1]
)
def test_a_filter_that_fails_lets_the_message_pass(caplog, fails):
    filters = Filters()
    filters.register("orders", "billing", fails)
    filters.register("orders", "none", lambda _: False)
    filters.register("orders", "sql", lambda _: True)
    with caplog.at_level(logging.WARNING, "rocketstore"):
        unit = ExtensionUnit(0, 1001, filters.bit_map("orders", b""))
    passed = [filters.may_match("orders", group, unit) for group in ("billing", "none", "sql")]
    assert passed == [True, False, True]
    assert "filter.failed" in caplog.text
