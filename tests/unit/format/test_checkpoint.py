"""checkpoint: three times in front of a page of zeros."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstore.errors import FieldRangeError, TruncatedRecordError
from rocketstore.format.checkpoint import (
    CHECKPOINT_MARGIN_MS,
    CHECKPOINT_SIZE_BYTES,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    encode_times,
)
from support.golden_stores import STORES, golden_store
from support.page_tables import DOCS
from support.vectors import vector

TIMES = st.integers(-(2**63), 2**63 - 1)
checkpoints = st.builds(Checkpoint, TIMES, TIMES, TIMES)


@given(checkpoints, st.binary(max_size=40))
def test_decode_gives_back_what_was_encoded(checkpoint, rest):
    data = encode_checkpoint(checkpoint)
    assert len(data) == CHECKPOINT_SIZE_BYTES
    assert decode_checkpoint(data) == checkpoint
    assert decode_checkpoint(encode_times(checkpoint) + rest) == checkpoint


@pytest.mark.parametrize("name", STORES)
def test_golden_checkpoint_is_the_manifest_s_and_encodes_to_the_same_bytes(name):
    store, described = golden_store(name)
    data = (store / "checkpoint").read_bytes()
    checkpoint = decode_checkpoint(data)
    expected = described["checkpoint"]
    assert checkpoint == Checkpoint(
        expected["physicMsgTimestamp"],
        expected["logicsMsgTimestamp"],
        expected["indexMsgTimestamp"],
    )
    assert encode_checkpoint(checkpoint) == data


def test_worked_example_of_the_page_is_that_of_basic():
    times = vector("checkpoint/clean-stop")
    page = (DOCS / "format/checkpoint.md").read_text("utf-8")
    assert times.hex(" ", 8) in page
    checkpoint = decode_checkpoint(times)
    for name, value in zip(("physic", "logics", "index"), checkpoint, strict=True):
        assert f"{name} {value}" in page


@given(checkpoints)
def test_recovery_never_starts_after_any_of_the_times(checkpoint):
    assert checkpoint.min_timestamp >= 0
    older = min(checkpoint.physic_ms, checkpoint.logics_ms)
    assert checkpoint.min_timestamp == max(0, older - CHECKPOINT_MARGIN_MS)
    assert checkpoint.min_timestamp_index == min(checkpoint.min_timestamp, checkpoint.index_ms)


def test_missing_file_means_the_start_of_the_log():
    assert Checkpoint() == (0, 0, 0)
    assert Checkpoint().min_timestamp == 0


@pytest.mark.parametrize("size", [0, 23])
def test_cut_off_checkpoint_is_refused(size):
    with pytest.raises(TruncatedRecordError) as caught:
        decode_checkpoint(bytes(size))
    assert caught.value.expected == "24 bytes"


def test_time_that_does_not_fit_is_refused():
    with pytest.raises(FieldRangeError, match="does not fit"):
        encode_checkpoint(Checkpoint(2**63, 0, 0))
