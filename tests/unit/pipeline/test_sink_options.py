"""Options of the sink: each is known, and refused when malformed or out of place."""

import pytest
from pyspark.sql.types import BinaryType, StructType

from rocketstore.errors import ConfigError, StoreError
from rocketstore.pipeline.sink.sink_writer import parse_sink_options
from rocketstore.pipeline.sink.spark_sink import BatchSink, StreamSink


def parse(*, streaming=False, **given):
    return parse_sink_options({"path": "/data/store", **given}, streaming=streaming)


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"path": ""}, False, "no store is named"),
        ({"path": "s3://bucket/store"}, False, "option path must be a directory"),
        ({"colour": "red"}, False, "option colour is unknown"),
        ({"quueCount": "3"}, False, "did you mean queueCount?"),
        ({"sinkId": "a/b", "batchId": "1"}, False, "option sinkId must be letters"),
        ({"sinkId": "../x", "batchId": "1"}, False, "option sinkId must be letters"),
        ({"sinkId": "a"}, False, "batchId is missing"),
        ({"batchId": "1"}, False, "sinkId is missing"),
        ({"sinkId": "a", "batchId": "-1"}, False, "option batchId must be a number"),
        ({"sinkId": "a", "batchId": "9" * 19}, False, "option batchId must be a number"),
        ({"sinkId": "a", "batchId": "1"}, True, "option batchId is for write"),
        ({"includeHeaders": "true"}, False, "option includeHeaders must be true, with columnNames"),
        ({"includeHeaders": "false", "columnNames": "kafka"}, True, "leave out their column"),
        ({"queueCount": "0"}, False, "option queueCount must be a number from 1"),
        ({"chunkBytes": "2g"}, False, "option chunkBytes must be a number of bytes up to 1024m"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(given, streaming, message):
    with pytest.raises(ConfigError) as caught:
        parse(streaming=streaming, **given)
    assert message in str(caught.value)


def test_headers_are_written_where_kafka_s_columns_have_them():
    assert parse(columnNames="kafka", includeHeaders="true").has_kafka_names


def test_names_are_matched_without_regard_to_case_and_spark_s_own_are_passed_over():
    options = parse(
        streaming=True, SINKID="a", chunkbytes="64k", checkpointLocation="/c", queryname="q"
    )
    assert (options.sink_id, options.chunk_bytes, options.lock_timeout_s) == ("a", 65_536, 60)
    assert parse(lockTimeout="0s").lock_timeout_s == 0


def test_settings_of_the_store_are_handed_on():
    options = parse(mappedfilesizecommitlog="65536", maxMessageSize="10")
    config = options.config
    assert (config.mapped_file_size_commit_log, config.max_message_size) == (65_536, 10)


def test_a_file_uri_and_a_relative_path_become_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse(path="file:///data/store").root == "/data/store"
    assert parse(path="store").root == str(tmp_path / "store")


def test_a_name_that_is_too_long_for_a_directory_is_one_sentence(tmp_path):
    given = {"path": str(tmp_path / ("a" * 300)), "topic": "t"}
    with pytest.raises(StoreError, match="cannot be written: File name too long"):
        BatchSink.planned(given, StructType().add("body", BinaryType()), overwrite=False)


@pytest.mark.parametrize(
    ("sink", "what", "hint"),
    [(BatchSink, "mode overwrite", 'mode "append"'), (StreamSink, "mode complete", "foreachBatch")],
)
def test_a_log_is_not_replaced_and_the_error_says_how_to_append(tmp_path, sink, what, hint):
    with pytest.raises(ConfigError, match=f"{what} would replace the messages of") as caught:
        sink.planned({"path": str(tmp_path / "s")}, StructType(), overwrite=True)
    assert hint in caught.value.hint
    assert [*tmp_path.iterdir()] == []
