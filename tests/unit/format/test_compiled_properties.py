"""The compiled encoder of properties and the plain one: the same bytes, the same refusals."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore import Message
from rocketstore.errors import RefusedMessageError
from rocketstore.format.properties import message_properties, message_properties_plainly

pytestmark = pytest.mark.skipif(
    message_properties is message_properties_plainly,
    reason="the compiled encoder is optional: switched off, or built without a C compiler",
)

TEXTS = (
    st.text("abcXYZ019 -_", max_size=40)
    | st.text(max_size=8)
    | st.sampled_from(["", "a\x01b", "a\x02", "\x02", "é", "\ud800", "x" * 3000])
)


class Text(str):
    """Not a plain text: what it looks like may differ from what it says."""

    __slots__ = ()


ODD = st.sampled_from([0, 1, 1.5, b"k", [], ["a"], Text("t"), Text(""), object()])
KEYS = TEXTS | st.lists(TEXTS, max_size=3).map(tuple) | st.none() | ODD
SINGLE = st.none() | TEXTS | ODD


def outcome(encode, message):
    try:
        return encode(message)
    except Exception as error:  # noqa: BLE001 - whatever it is, both must raise it
        return type(error), str(error)


@given(KEYS, SINGLE, SINGLE, st.dictionaries(TEXTS, TEXTS, max_size=2) | st.none())
def test_compiled_and_plain_give_the_same_bytes_or_error(keys, unique_key, tags, properties):
    message = Message(topic="t", keys=keys, unique_key=unique_key, tags=tags, properties=properties)
    expected = outcome(message_properties_plainly, message)
    assert outcome(message_properties, message) == expected


def test_parts_that_are_missing_are_left_out():
    assert message_properties(Message(topic="t")) == b""
    assert message_properties(Message(topic="t", tags="x")) == b"TAGS\x01x"
    both = Message(topic="t", keys="k", tags="x")
    assert message_properties(both) == b"KEYS\x01k\x02TAGS\x01x"


def test_what_is_no_message_is_refused_as_by_the_plain_way():
    with pytest.raises(AttributeError, match="keys"):
        message_properties(object())
    with pytest.raises(RefusedMessageError, match="separator"):
        message_properties(Message(topic="t", tags="a\x01b"))


def test_encoding_leaves_nothing_behind():
    messages = [Message(topic="t", keys=f"k{n}", unique_key="u" * n, tags="x") for n in range(50)]
    messages += [Message(topic="t", keys=("a", "b"), properties={"n": "v"})]

    def encode_all():
        for message in messages:
            message_properties(message)
        with pytest.raises(RefusedMessageError):
            message_properties(Message(topic="t", tags="\x01"))

    encode_all()
    gc.collect()
    blocks = sys.getallocatedblocks()
    key = messages[3].keys
    counted = sys.getrefcount(key)
    for _ in range(50):
        encode_all()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 50
    assert sys.getrefcount(key) == counted
