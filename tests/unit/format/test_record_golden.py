"""Every record of every golden store: decoded and encoded again byte for byte."""

import hashlib
from functools import cache

import pytest

from rocketstore.errors import FormatError
from rocketstore.format.java_hash import tags_code
from rocketstore.format.record import BLANK_MAGIC, encode_blank, encode_stored
from support.golden_stores import STORES, golden_store
from support.oracle.record import decode_record


@cache
def load(name: str) -> tuple[list[dict], dict[int, bytes]]:
    """Return the records of a store as the manifest has them, and its CommitLog files."""
    store, manifest = golden_store(name)
    files = {int(path.name): path.read_bytes() for path in (store / "commitlog").iterdir()}
    return manifest["records"], files


def located(files: dict[int, bytes], offset: int) -> tuple[int, bytes]:
    base = max(base for base in files if base <= offset)
    return base, files[base]


@pytest.mark.parametrize("store", STORES)
def test_every_record_is_encoded_again_byte_for_byte(store):
    records, files = load(store)
    for record in records:
        base, data = located(files, record["phy"])
        position = record["phy"] - base
        if record["type"] == "blank":
            assert encode_blank(record["size"]) == data[position : position + 8]
            assert position + record["size"] == len(data)
            continue
        message = decode_record(data, position, base=base)
        encoded = encode_stored(message)
        assert encoded == data[position : position + record["size"]]
        assert hashlib.sha1(encoded).hexdigest() == record["recordSha1"]  # noqa: S324


@pytest.mark.parametrize("store", STORES)
def test_walk_from_the_start_of_each_file_meets_exactly_these_records(store):
    records, files = load(store)
    expected = {(record["phy"], record["size"]) for record in records}
    end = max(offset + size for offset, size in expected)
    met = set()
    for base, data in files.items():
        position = 0
        while position < len(data) and base + position < end:
            if data[position + 4 : position + 8] == BLANK_MAGIC.to_bytes(4, "big"):
                with pytest.raises(FormatError, match="BLANK"):
                    decode_record(data, position, base=base)
                size = len(data) - position
            else:
                size = decode_record(data, position, base=base).size
            met.add((base + position, size))
            position += size
    assert met == expected


@pytest.mark.parametrize("store", STORES)
def test_tags_keys_and_unique_key_are_those_java_dispatches(store):
    records, files = load(store)
    for record in (record for record in records if record["type"] == "msg"):
        base, data = located(files, record["phy"])
        message = decode_record(data, record["phy"] - base, base=base)
        success, size, code, keys, unique_key = record["dispatch"]
        assert success
        assert message.size == size
        # Java: null without KEYS, "" without any properties.
        assert message.properties.get("KEYS", "null" if message.properties else "") == keys
        assert (message.unique_key or "null") == unique_key
        if not (message.topic == "SCHEDULE_TOPIC_XXXX" and "DELAY" in message.properties):
            assert tags_code(message.tags) == code


def test_no_other_position_of_a_golden_file_holds_a_record():
    records, files = load("basic")
    starts = {record["phy"] for record in records if record["type"] == "msg"}
    base, data = min(files.items())
    for position in range(4096):
        if base + position not in starts:
            with pytest.raises(FormatError):
                decode_record(data, position, base=base)
