"""java_hash: equal to Java for every text, also outside the Basic Multilingual Plane."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.format.java_hash import INT32_MIN, key_hash, string_hash, tags_code


def hash_unit_by_unit(text: str) -> int:
    """Return the hash as the documentation of String.hashCode defines it."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(encoded), 2):
        value = (31 * value + int.from_bytes(encoded[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TagC", 2598921),
        ("*", 42),
        ("中文", 646394),
        ("polygenelubricants", INT32_MIN),
        ("TopicTest#k1", 2746024),
        # U+1F600 is the two units D83D DE00.
        ("\U0001f600", 31 * 0xD83D + 0xDE00),
    ],
)
def test_string_hash_of_known_texts(text, expected):
    assert string_hash(text) == expected


@given(st.text(st.characters(), max_size=400))
def test_string_hash_equals_its_definition(text):
    assert string_hash(text) == hash_unit_by_unit(text)


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 257, 1000])
@pytest.mark.parametrize("character", ["~", "é", "\U0001f600", "\ud800"])
def test_string_hash_of_long_texts_equals_its_definition(length, character):
    assert string_hash(character * length) == hash_unit_by_unit(character * length)


@pytest.mark.parametrize("tags", [None, ""])
def test_no_tags_have_the_code_0(tags):
    assert tags_code(tags) == 0


def test_tags_code_keeps_its_sign():
    assert tags_code("polygenelubricants") == INT32_MIN


def test_key_hash_is_absolute():
    assert string_hash("AaTopic#Aa") == -10606476
    assert key_hash("AaTopic", "Aa") == 10606476
    assert key_hash("BBTopic", "BB") == 10606476


def test_key_hash_of_the_one_value_without_absolute_is_0():
    # "#" and topic are part of the hashed text, so the text is built to hash to MIN_VALUE.
    key = "".join(map(chr, _units_reaching_min_value(string_hash("t#") & 0xFFFFFFFF)))
    assert string_hash(f"t#{key}") == INT32_MIN
    assert key_hash("t", key) == 0


def _units_reaching_min_value(prefix: int) -> list[int]:
    """Return UTF-16 units, none a surrogate, that continue `prefix` to MIN_VALUE."""
    missing = ((1 << 31) - prefix * 31**5) & 0xFFFFFFFF
    units = []
    for power in (31**4, 31**3, 31**2, 31, 1):
        units.append(missing // power)
        missing %= power
    return units
