"""metadata_json: the text that fastjson writes, and no crash for any other."""

import json
import sys
from collections import Counter
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError, FormatError
from rocketstore.format import metadata_json
from rocketstore.format.metadata_json import (
    BloomFilterData,
    ConsumerFilter,
    ConsumerFilterTable,
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    SubscriptionGroup,
    SubscriptionGroupTable,
    TopicConfig,
    TopicFilters,
    TopicTable,
    decode_table,
    dumps,
    encode_table,
    loads,
)
from rocketstore.storage.queues.topic_file import decoded_topics
from rocketstore.tables.consumer_offsets import _decoded as decoded_offsets
from support.golden_stores import STORES, golden_root
from support.page_tables import table_with
from support.vectors import VECTOR_ROOT

TABLES = {
    metadata_json.TOPICS_FILE: TopicTable,
    metadata_json.SUBSCRIPTION_GROUPS_FILE: SubscriptionGroupTable,
    metadata_json.CONSUMER_OFFSETS_FILE: ConsumerOffsets,
    metadata_json.DELAY_OFFSETS_FILE: DelayOffsets,
    metadata_json.CONSUMER_FILTERS_FILE: ConsumerFilterTable,
}
BEANS = (DataVersion, TopicConfig, SubscriptionGroup, BloomFilterData, ConsumerFilter)

TEXT = st.text(max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
plain = st.recursive(
    st.booleans() | INT64 | TEXT,
    lambda inner: (
        st.dictionaries(TEXT, inner, max_size=4)
        | st.dictionaries(INT64, inner, max_size=4)
        | st.lists(inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("name", STORES)
def test_golden_tables_are_written_again_byte_for_byte(name):
    store = golden_root(name)
    paths = list((store / "config").glob("*.json*"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        table = TABLES[path.name.removesuffix(metadata_json.BACKUP_SUFFIX)]
        assert encode_table(decode_table(data, table)).encode() == data, path.name
        assert dumps(loads(data)).encode() == data, path.name


@pytest.mark.parametrize("path", sorted((VECTOR_ROOT / "metadata").iterdir()), ids=lambda p: p.name)
def test_copied_golden_tables_are_written_again_byte_for_byte(path):
    data = path.read_bytes()
    assert encode_table(decode_table(data, TABLES[path.name])).encode() == data


def test_golden_broker_tables_mean_what_they_say():
    store = golden_root("broker")
    config = store / "config"
    topics = decode_table((config / "topics.json").read_bytes(), TopicTable)
    assert topics.topic_config_table["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    assert topics.data_version == DataVersion(counter=8, timestamp=1795238178367)
    offsets = decode_table((config / "consumerOffset.json").read_bytes(), ConsumerOffsets)
    assert offsets.offset_table["GoldenTopic@golden_group"] == {0: 102, 1: 94, 2: 95, 3: 102}
    delays = decode_table((config / "delayOffset.json").read_bytes(), DelayOffsets)
    assert delays.offset_table == {1: 4, 2: 2, 3: 2}
    groups = decode_table((config / "subscriptionGroup.json").read_bytes(), SubscriptionGroupTable)
    assert groups.subscription_group_table["golden_group"] == SubscriptionGroup(
        group_name="golden_group"
    )


def test_consumer_filter_is_written_as_fastjson_does():
    bits = BloomFilterData(bit_num=112, bit_pos=[1, 2, 3])
    consumer = ConsumerFilter(
        consumer_group="g",
        topic="T",
        expression='a > 1 AND b = "x"',
        expression_type="SQL92",
        bloom_filter_data=bits,
        client_version=1_795_238_178_367,  # a time, as clients send it
    )
    table = ConsumerFilterTable(
        filter_data_by_topic={"T": TopicFilters(group_filter_data={"g": consumer}, topic="T")}
    )
    text = encode_table(table)
    assert text.splitlines()[5:10] == [
        '\t\t\t\t\t"bloomFilterData":{',
        '\t\t\t\t\t\t"bitNum":112,',
        '\t\t\t\t\t\t"bitPos":[1,2,3]',
        "\t\t\t\t\t},",
        '\t\t\t\t\t"bornTime":0,',
    ]
    assert r'"expression":"a > 1 AND b = \"x\""' in text
    assert decode_table(text, ConsumerFilterTable) == table


def test_fields_of_a_newer_broker_survive():
    text = (
        '{"dataVersion":{"counter":1,"stateVersion":7,"timestamp":2},"extra":{"x":[{"y":1}]},'
        '"topicConfigTable":{"T":{"attributes":{"queue.type":"BatchCQ"},"memory":true,'
        '"topicName":"T"}}}'
    )
    again = loads(dumps(loads(text)))
    assert again["dataVersion"]["stateVersion"] == 7
    assert again["extra"] == {"x": [{"y": 1}]}
    assert again["topicConfigTable"]["T"]["memory"] is True
    table = decode_table(text, TopicTable)
    assert table.data_version == DataVersion(counter=1, timestamp=2)
    topic = TopicConfig(topic_name="T", attributes={"queue.type": "BatchCQ"})
    assert table.topic_config_table == {"T": topic}


def test_special_characters_are_escaped_as_fastjson_does():
    # Written by fastjson 1.2.76 for the same text.
    text = "\x00\x07\b\t\n\x0b\f\r\x0e\x1f \"'/\\\x7f\x9f\xa0\u2027\u2028\u2029中😀"
    assert dumps(text) == (
        r'"\u0000\u0007\b\t\n\u000B\f\r\u000E\u001F \"'
        "'/"
        r"\\\u007F\u009F"
        "\xa0\u2027"
        r"\u2028\u2029"
        '中😀"'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ([], "[]"),
        ([1, 2], "[1,2]"),
        (["a", "b"], '[\n\t"a",\n\t"b"\n]'),
        ([[1, 2], []], "[\n\t[1,2],\n\t[]\n]"),
        ({"a": None}, "{\n}"),
        ({"a": None, "b": 1}, '{\n\t"b":1\n}'),
        ({"a": [None]}, '{\n\t"a":[\n\t\tnull\n\t]\n}'),
        ({1: {"a": 1}, -2: 3}, '{1:{\n\t\t"a":1\n\t},-2:3\n}'),
        ({"": True}, '{\n\t"":true\n}'),
        ("\ud83d", r'"\uD83D"'),
    ],
)
def test_values_are_laid_out_as_fastjson_does(value, text):
    assert dumps(value) == text


@given(st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.none()))
@example({"a": "b,", "c": 1})
@example({"a,": "\ud83d", "c": "\u2028"})
def test_a_row_is_written_at_once_as_it_is_member_by_member(row):
    with mock.patch.object(metadata_json, "_row", return_value=None):
        expected = dumps({"t": row}), dumps(row, in_lines=False)
    assert (dumps({"t": row}), dumps(row, in_lines=False)) == expected


def test_a_table_of_many_rows_is_written_by_few_calls_for_each():
    group = msgspec.to_builtins(SubscriptionGroup(group_name="billing"))
    table = {"subscriptionGroupTable": {f"billing-{number}": group for number in range(100)}}
    calls = Counter[str]()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        dumps(table)
    finally:
        sys.setprofile(None)
    assert calls["call"] < 100 * 10  # of Python's own functions; 20 member by member


@pytest.mark.parametrize(
    ("decoded", "text"),
    [(decoded_topics, b'{"topicConfigTable":{}}'), (decoded_offsets, b'{"offsetTable":{}}')],
)
def test_a_whole_table_is_judged_by_one_reading(decoded, text):
    with mock.patch.object(json, "loads", side_effect=json.loads) as reading:
        decoded(text)
    assert reading.call_count == 1


@given(plain)
def test_loads_gives_back_what_dumps_wrote(value):
    assert loads(dumps(value)) == value
    assert loads(dumps(value).encode()) == value


@given(st.dictionaries(TEXT, plain, max_size=5))
def test_ordinary_json_is_read_as_json_reads_it(value):
    text = json.dumps(value)
    assert loads(text) == json.loads(text)


@pytest.mark.parametrize("text", ["{0:1}", "{ 0 : 1 }", '{"0":1}', "{\n0\t:1}"])
def test_quoted_and_bare_numbers_are_the_same_queue(text):
    table = decode_table('{"offsetTable":{"T@g":' + text + "}}", ConsumerOffsets)
    assert table.offset_table == {"T@g": {0: 1}}


def test_text_that_looks_like_a_bare_key_inside_a_string_is_left_alone():
    assert loads(r'{"a{0:1,2:3":"x,4:5\",6:7"}') == {"a{0:1,2:3": 'x,4:5",6:7'}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a":',
        '{"a":1}}',
        "{a:1}",
        "{0x1:1}",
        "{1.5:1}",
        '{"a":NaN}',
        "[" * 100_000,
        "{0:" * 100_000,
        '{"a":"' + '\\"' * 50_000,
        "9" * 5000,
        b"\xff",
        b'{"a":"\xc0"}',
        b"\xef\xbb\xbf",
        b"\0" * 100,
        " \r\n",
    ],
)
def test_other_text_is_a_typed_error(text):
    with pytest.raises(FormatError):
        loads(text)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('{"offsetTable":{"T@g":{0:"1"}}}', ConsumerOffsets),
        ('{"offsetTable":{"T@g":{"x":1}}}', ConsumerOffsets),
        ('{"offsetTable":{"T@g":5}}', ConsumerOffsets),
        ('{"offsetTable":7}', DelayOffsets),
        ('{"topicConfigTable":{"T":{"perm":6}}}', TopicTable),
        ('{"topicConfigTable":{"T":[]}}', TopicTable),
        ('{"topicConfigTable":{"T":{"topicName":{"a":1}}}}', TopicTable),
        ('{"dataVersion":{"counter":1.5},"topicConfigTable":{}}', TopicTable),
    ],
)
def test_field_of_the_wrong_type_is_named(text, table):
    with pytest.raises(FieldRangeError, match=table.__name__):
        decode_table(text, table)


@pytest.mark.parametrize("as_read", [str, str.encode])
def test_half_a_character_is_read_as_java_stores_it(as_read):
    text = r'{"offsetTable":{"\ud83d@\ud83d\ude00":{0:1}}}'
    assert decoded_offsets(as_read(text))["offsetTable"] == {"?@😀": {0: 1}}
    with pytest.raises(FormatError):
        loads(as_read(r'{"a":"\ud8"}x"}'))  # not four digits


def test_the_byte_order_mark_of_an_editor_is_passed_over():
    assert loads(b"\xef\xbb\xbf" + b'{"T@g":{0:1}}') == {"T@g": {0: 1}}


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("{}", ConsumerOffsets),
        ('{"topicConfigTable":{}}', ConsumerOffsets),
        ('{"offsetTable":{"T@g":{0:1}}}', DelayOffsets),
        ('{"offsetTable":{1:5}}', ConsumerOffsets),
        ('{"offsetTable":{}}', TopicTable),
        ('{"subscriptionGroupTable":{}}', TopicTable),
        ('{"topicConfigTable":{}}', SubscriptionGroupTable),
        ('{"topicConfigTable":{}}', ConsumerFilterTable),
    ],
)
def test_a_table_of_another_kind_is_refused(text, table):
    with pytest.raises(FormatError, match=table.__name__):
        decode_table(text, table)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"'])
def test_table_that_is_no_object_is_refused(text):
    with pytest.raises(FormatError, match="an object"):
        decode_table(text, TopicTable)


@pytest.mark.parametrize("value", [1.5, b"x", {1.5: 1}, {True: 1}, {None: 1}, object()])
def test_value_that_no_table_holds_is_not_written(value):
    with pytest.raises(FormatError, match="no table of RocketMQ"):
        dumps(value)


def test_value_that_contains_itself_is_not_written():
    loop: dict[str, object] = {}
    loop["a"] = loop
    with pytest.raises(FormatError, match="too deep"):
        dumps(loop)


@pytest.mark.parametrize("last", ["consumerOffset.json", "lmqConsumerOffset.json"])
def test_of_two_files_of_offsets_that_counts_which_was_changed_last_if_only_its_backup(last):
    files = {"consumerOffset.json": 5, "lmqConsumerOffset.json": 5}
    for changed in (files | {last: 6}, files | {f"{last}.bak": 6}, {f"{last}.bak": 6}):
        assert metadata_json.offset_tables_by_age(changed)[0] == last


def test_page_lists_every_field_with_its_default_and_java_s_kind_of_number():
    numbers = {"int": metadata_json.Int32, "long": metadata_json.Int64}
    rows = {
        (row["table"], row["key"]): (row["default"], numbers.get(row["type"]))
        for row in table_with("format/metadata.md", "table", "key", "default")
    }
    expected = {}
    for bean in BEANS:
        for field in msgspec.structs.fields(bean):
            number = field.type if field.type in numbers.values() else None
            expected[bean.__name__, field.encode_name] = _default_text(field), number
    assert rows == expected


def test_page_lists_every_file():
    rows = table_with("format/metadata.md", "file", "table")
    assert {row["file"].strip("`"): row["table"].strip("`") for row in rows} == {
        name: table.__name__ for name, table in TABLES.items()
    }


def _default_text(field):
    if field.required:
        return "required"
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if default is None:
        return "absent"
    return default if isinstance(default, str) else json.dumps(default)
