"""Custom headers: texts in, typed values out."""

import pytest

from rocketstore.errors import FieldRangeError
from rocketstore.remoting.fields import (
    Header,
    Int32,
    Int64,
    decode_fields,
    encode_fields,
    field_rows,
)


class Sample(Header, kw_only=True):
    topic: str
    queue_id: Int32
    store_offset: Int64 = -1
    is_order: bool = False
    group: str | None = None
    max_times: Int32 | None = None


NEEDED = {"topic": "T", "queueId": "3"}


def test_texts_become_values_by_the_names_on_the_wire():
    texts = {**NEEDED, "storeOffset": "-9", "isOrder": "TRUE", "group": "", "bname": "b"}
    assert decode_fields(texts, Sample) == Sample(
        topic="T", queue_id=3, store_offset=-9, is_order=True, group=""
    )


def test_values_become_texts_and_what_is_none_is_left_out():
    header = Sample(topic="T", queue_id=3, max_times=16)
    assert encode_fields(header) == {
        "topic": "T", "queueId": "3", "storeOffset": "-1", "isOrder": "false", "maxTimes": "16",
    }  # fmt: skip
    assert decode_fields(encode_fields(header), Sample) == header


@pytest.mark.parametrize("text", ["1", "yes", "0", "", "false", "trues"])
def test_only_true_is_true(text):
    assert decode_fields({**NEEDED, "isOrder": text}, Sample).is_order is False


@pytest.mark.parametrize(("text", "value"), [("+4", 4), ("-4", -4), ("004", 4), ("-0", 0)])
def test_numbers_are_read_as_java_reads_them(text, value):
    assert decode_fields({**NEEDED, "queueId": text}, Sample).queue_id == value


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (None, "<topic> is null"),
        ({"topic": "T"}, "<queueId> is null"),
        *(
            ({"topic": "T", "queueId": text}, "<queueId> is no number")
            for text in ("", " 4", "4 ", "4.0", "1e3", "0x1", "1_0", "\u0664", "x", "9" * 5000)
        ),
        ({"topic": "T", "queueId": "2147483648"}, "2147483647"),
        ({**NEEDED, "storeOffset": "9223372036854775808"}, "9223372036854775807"),
        ({**NEEDED, "maxTimes": "-2147483649"}, "-2147483648"),
        ({**NEEDED, "maxTimes": "null"}, "<maxTimes> is no number"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(fields, said):
    with pytest.raises(FieldRangeError) as error:
        decode_fields(fields, Sample)
    assert said in str(error.value)


def test_a_header_lists_its_fields():
    rows = [(row.name, row.type, row.is_required) for row in field_rows(Sample)]
    assert rows == [
        ("topic", "string", True), ("queueId", "int", True), ("storeOffset", "long", False),
        ("isOrder", "boolean", False), ("group", "string", False), ("maxTimes", "int", False),
    ]  # fmt: skip
