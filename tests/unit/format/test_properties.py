"""properties: what is written is read back; what cannot be, is refused; reading never fails."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import RefusedMessageError
from rocketstore.format import properties as module
from rocketstore.format.properties import decode_properties, encode_properties, message_properties
from rocketstore.message import Message
from support.page_tables import table_with

texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1
)


def test_block_has_no_separator_at_its_end():
    assert encode_properties({"TAGS": "TagA", "KEYS": "k1"}) == b"TAGS\x01TagA\x02KEYS\x01k1"


def test_no_properties_are_no_bytes():
    assert encode_properties({}) == b""
    assert encode_properties([]) == b""
    assert decode_properties(b"") == {}


@given(st.dictionaries(texts, texts))
def test_every_mapping_survives_in_its_order(mapping):
    block = encode_properties(mapping)
    assert list(decode_properties(block).items()) == list(mapping.items())
    assert block == encode_properties(mapping.items())


@given(st.dictionaries(texts, texts, min_size=1))
def test_separator_at_the_end_changes_nothing(mapping):
    block = encode_properties(mapping)
    assert decode_properties(block + b"\x02") == decode_properties(block)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"a\x01b", {"a": "b"}),
        (b"a\x01", {}),
        (b"\x01b", {}),
        (b"a", {}),
        (b"\x02\x02", {}),
        (b"\x01\x02\x01\x01", {}),
        (b"a\x01b\x01c", {"a": "b\x01c"}),
        (b"a\x01\x01", {"a": "\x01"}),
        (b"no separator\x02a\x01b", {"a": "b"}),
        (b"a\x01b\x02a\x01c", {"a": "c"}),
        (b"a\xff\x01b\xfe", {"a\ufffd": "b\ufffd"}),
    ],
)
def test_malformed_parts_are_read_as_java_reads_them(block, expected):
    assert decode_properties(block) == expected


def test_later_duplicate_wins_in_the_place_of_the_first():
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    decoded = decode_properties(encode_properties(pairs))
    assert list(decoded.items()) == [("a", "3"), ("b", "2")]


def test_empty_value_is_written_but_no_reader_sees_it():
    block = encode_properties({"a": "", "b": "1"})
    assert block == b"a\x01\x02b\x011"
    assert decode_properties(block) == {"b": "1"}


@pytest.mark.parametrize("value", ["\x01", "v\x01", "\x01v", "b\x01c\x01"])
def test_a_further_0x01_belongs_to_the_value_it_is_in(value):
    block = encode_properties({"a": value, "b": "1"})
    assert decode_properties(block) == {"a": value, "b": "1"}


@pytest.mark.parametrize(
    ("pairs", "claim"),
    [
        ([("", "v")], "empty name"),
        ([("a", "1"), ("", "v")], "empty name"),
        ([("a\x01", "v")], "name of a property has 0x01"),
        ([("\x01", "v")], "name of a property has 0x01"),
        ([("a", "1"), ("b\x02c", "v")], "name of a property has 0x01 or 0x02"),
        ([("a", "\x02"), ("b", "1")], "value of a property has 0x02"),
        ([("a", "\x02b\x01c")], "value of a property has 0x02"),
        ([("a", "\ud800")], "not valid Unicode"),
    ],
)
def test_what_would_read_back_differently_is_refused(pairs, claim):
    with pytest.raises(RefusedMessageError, match=claim):
        encode_properties(pairs)


@pytest.mark.parametrize("wrong", [5, b"x", ("a", "b"), ["a"], True, 1.5, {"a": 1}])
def test_what_is_no_text_is_refused_and_not_stored_as_its_repr(wrong):
    for field, claim in (("tags", "tags are one text"), ("unique_key", "a unique key is one text")):
        for others in ({}, {"keys": "k", "unique_key": "u", "tags": "t"}):
            with pytest.raises(RefusedMessageError, match=claim):
                message_properties(Message(topic="t", **(others | {field: wrong})))
    with pytest.raises(RefusedMessageError, match="a name and a value, both text: name 'n'"):
        message_properties(Message(topic="t", properties={"n": wrong}))


@pytest.mark.parametrize("name", [5, b"x", None])
def test_a_property_s_name_is_a_text(name):
    with pytest.raises(RefusedMessageError, match="both text"):
        encode_properties({name: "x"})


@given(st.lists(st.tuples(st.text("ab\x01\x02", max_size=3), st.text("ab\x01\x02", max_size=3))))
def test_refused_exactly_when_a_part_cannot_be_stored(pairs):
    storable = all(
        name and not re.search("[\x01\x02]", name) and "\x02" not in value for name, value in pairs
    )
    if storable:
        assert encode_properties(pairs).count(b"\x02") == max(len(pairs) - 1, 0)
    else:
        with pytest.raises(RefusedMessageError):
            encode_properties(pairs)


def test_message_properties_come_first_then_keys_unique_key_and_tags():
    message = Message(
        topic="t", tags="TagA", keys=("k1", "k2"), unique_key="U", properties={"z": "1", "a": "2"}
    )
    assert list(decode_properties(message_properties(message)).items()) == [
        ("z", "1"),
        ("a", "2"),
        ("KEYS", "k1 k2"),
        ("UNIQ_KEY", "U"),
        ("TAGS", "TagA"),
    ]


anything = st.none() | st.text(st.characters(), max_size=4) | st.text("a\x01\x02é", max_size=3)


@given(keys=anything, unique_key=anything, tags=anything, user=st.dictionaries(texts, texts))
def test_message_properties_are_those_of_its_pairs(keys, unique_key, tags, user):
    message = Message(topic="t", keys=keys or (), unique_key=unique_key, tags=tags, properties=user)
    pairs = list(user.items())
    pairs += [
        (name, value)
        for name, value in (("KEYS", keys), ("UNIQ_KEY", unique_key), ("TAGS", tags))
        if value
    ]
    try:
        expected = encode_properties(pairs)
    except RefusedMessageError as error:
        with pytest.raises(RefusedMessageError, match=re.escape(str(error))):
            message_properties(message)
    else:
        assert message_properties(message) == expected


def test_message_with_keys_unique_key_and_tags_only():
    message = Message(topic="t", keys=("a", "b"), unique_key="U", tags="T")
    assert message_properties(message) == b"KEYS\x01a b\x02UNIQ_KEY\x01U\x02TAGS\x01T"
    message = Message(topic="t", keys="é", unique_key="U", tags="T")
    assert message_properties(message) == "KEYS\x01é\x02UNIQ_KEY\x01U\x02TAGS\x01T".encode()


def test_message_without_properties_has_none():
    assert message_properties(Message(topic="t")) == b""
    assert message_properties(Message(topic="t", tags="", keys="", unique_key="")) == b""
    assert message_properties(Message(topic="t", keys=("",))) == b""


def test_one_key_is_stored_as_given():
    assert message_properties(Message(topic="t", keys="o-17")) == b"KEYS\x01o-17"


def test_several_keys_in_one_text_stay_several():
    assert message_properties(Message(topic="t", keys="a b")) == b"KEYS\x01a b"


@pytest.mark.parametrize("keys", [5, (5,), ("a", None), {"a": "b"}])
def test_keys_that_are_no_text_are_refused(keys):
    with pytest.raises(RefusedMessageError, match="keys are one text"):
        message_properties(Message(topic="t", body=b"", keys=keys))


def test_a_blank_inside_one_of_several_keys_is_refused():
    with pytest.raises(RefusedMessageError, match="a key contains a blank"):
        message_properties(Message(topic="t", keys=("a b",)))


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"keys": ("a", None)}, "leave out what is null"),
        ({"tags": 5}, "leave out what is null"),
        ({"properties": {"a": None}}, "leave out what is null"),
        ({"keys": ("a b",)}, "a reader would find two keys"),
        ({"properties": {"": "v"}}, "name it"),
        ({"properties": {"a": "\x02"}}, "as base64"),
        ({"tags": "\ud800"}, "as base64"),
    ],
)
def test_a_refusal_says_what_to_do_about_this_fault(fields, hint):
    with pytest.raises(RefusedMessageError) as caught:
        message_properties(Message(topic="t", **fields))
    assert caught.value.hint.endswith(hint)


@pytest.mark.parametrize("field", ["tags", "keys", "unique_key"])
def test_separators_in_message_fields_are_refused(field):
    with pytest.raises(RefusedMessageError, match="has 0x02"):
        message_properties(Message(topic="t", **{field: "a\x02b"}))


def test_error_names_the_property_and_what_to_do():
    with pytest.raises(RefusedMessageError, match=r"'shape'.*base64"):
        encode_properties({"colour": "red", "shape": "round\x02"})


def test_page_lists_the_reserved_names_of_the_module():
    names = {value for name, value in vars(module).items() if name.isupper() and name == value}
    reserved = table_with("format/properties.md", "name", "meaning")
    listed = [row["name"].strip("`") for row in reserved]
    assert len(listed) == len(set(listed))
    assert {"KEYS", "TAGS", "UNIQ_KEY"} < names < set(listed)
