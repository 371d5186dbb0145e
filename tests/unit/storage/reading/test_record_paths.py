"""Every way to a record says the same of it: an intact message, or damage."""

import contextlib
import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketstore import Message, MessageStore, PreparedMessage, repair_store, verify_store
from rocketstore.cli.log_scan import LogScan
from rocketstore.errors import FormatError, RefusedMessageError
from rocketstore.format.client_batch import encode_client_batch
from rocketstore.format.file_name import file_name
from rocketstore.native.decode import decode
from rocketstore.places.files import opened
from rocketstore.scan.scanner import scan_window
from rocketstore.storage.reading.reader import Reader
from support.configured_store import small_config
from support.oracle.record import decode_record
from support.synthetic_log import record_bytes

LOG_FILE_BYTES = 1 << 20
TOPIC, KEY, RECORD_BYTES = "orders", "k1", 1400
PROPERTIES = f"KEYS\x01{KEY}".encode()
NOISE = random.Random(8).randbytes(60)

CONFIG = small_config(
    mapped_file_size_commit_log=LOG_FILE_BYTES, mapped_file_size_consume_queue=20_000
)


class Odd(NamedTuple):
    """A record of the right length that states its own place."""

    properties: bytes = PROPERTIES
    is_intact: bool = True
    body: bytes | None = None
    crc: int | None = None
    topic: bytes = TOPIC.encode()


def with_properties(text: str) -> bytes:
    return PROPERTIES + text.encode()


ODD = {
    "plain": Odd(),
    "separator behind the last value": Odd(with_properties("\x02")),
    "two separators": Odd(with_properties("\x02\x02a\x01b")),
    "duplicate name": Odd(b"KEYS\x01other\x02" + PROPERTIES),
    "empty value": Odd(with_properties("\x02TAGS\x01")),
    "no name before 0x01": Odd(with_properties("\x02\x01value")),
    "0x01 in a value": Odd(with_properties("\x02a\x01b\x01c")),
    "a part without 0x01": Odd(with_properties("\x02lonely")),
    "zeros inside a value": Odd(with_properties("\x02a\x01" + "\0" * 500 + "z")),
    "zeros at the end of a value": Odd(with_properties("\x02a\x01b\0\0\x02")),
    "other scripts": Odd(with_properties("\x02名\x01値 😀 é")),
    "empty body with a checksum": Odd(
        with_properties("\x02a\x01".ljust(1200, "v")), body=b"", crc=12345
    ),
    "empty body with a negative checksum": Odd(
        with_properties("\x02a\x01".ljust(1200, "v")), body=b"", crc=-5
    ),
    "cut before the last byte": Odd(PROPERTIES[:-1] + b"\0", is_intact=False),
    "cut inside a name": Odd(b"KEYS\x01k1\x02TA".ljust(40, b"\0"), is_intact=False),
    "cut before the properties": Odd(bytes(40), is_intact=False),
    "cut inside the topic": Odd(b"", is_intact=False, topic=b"ord\0\0\0"),
    "an empty sector": Odd(with_properties("\x02a\x01" + "\0" * 1024 + "z\x02"), is_intact=False),
    "noise": Odd(NOISE, is_intact=False),
    "noise behind a name": Odd(PROPERTIES + b"\x02a\x01\xc3(", is_intact=False),
    "half a character": Odd(PROPERTIES + "\x02a\x01値".encode()[:-1], is_intact=False),
    "a surrogate": Odd(PROPERTIES + b"\x02a\x01\xed\xa0\x80", is_intact=False),
    "text without a name": Odd(b"Lorem ipsum dolor sit amet", is_intact=False),
    "wrong checksum": Odd(crc=12345, is_intact=False),
}


def forged(odd: Odd, offset: int, queue_offset: int, store_time: int) -> bytes:
    """Return the record, its body filled up to `RECORD_BYTES`."""
    body = odd.body
    if body is None:
        body = b"b" * (RECORD_BYTES - 91 - len(odd.topic) - len(odd.properties))
    properties = odd.properties
    if odd.body is not None:
        properties = properties.ljust(RECORD_BYTES - 91 - len(odd.topic) - len(body), b"v")
    record = record_bytes(
        offset,
        body=body,
        topic=odd.topic,
        properties=properties,
        queue_offset=queue_offset,
        store_timestamp_ms=store_time,
        crc=odd.crc,
    )
    assert len(record) == RECORD_BYTES
    return record


def filled(store: MessageStore, count: int) -> list[int]:
    """Put messages of `RECORD_BYTES` with a key; return their offsets."""
    body = b"b" * (RECORD_BYTES - 91 - len(TOPIC) - len(PROPERTIES))
    results = [
        store.put(Message(topic=TOPIC, body=body, keys=KEY), queue_id=0) for _ in range(count)
    ]
    assert {result.size for result in results} == {RECORD_BYTES}
    assert store.wait_dispatched()
    return [result.physical_offset for result in results]


def overwrite(root: Path, offset: int, record: bytes) -> None:
    path = root / "commitlog" / file_name(offset - offset % LOG_FILE_BYTES)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, record, offset % LOG_FILE_BYTES)
    finally:
        os.close(descriptor)


def offsets_in(raw: bytes) -> list[int]:
    return [
        int.from_bytes(raw[at + 28 : at + 36], "big") for at in range(0, len(raw), RECORD_BYTES)
    ]


def read_every_way(store: Reader, wanted: list[int]) -> dict[str, list[int]]:
    """Return the physical offsets that each way of reading gives; bodies are intact here."""
    count = len(wanted)
    numbers = range(count)
    ids = [f"7F00000100002A9F{offset:016X}" for offset in wanted]
    one_by_one = [store.get(TOPIC, 0, number, 1).messages for number in numbers]
    views = store.get_views(TOPIC, 0, 0, count).records
    found = store.find(TOPIC, KEY, max_messages=count)
    return {
        "get": [message.physical_offset for message in store.get(TOPIC, 0, 0, count).messages],
        "get one": sorted(
            {message.physical_offset for page in one_by_one for message in page if page}
        ),
        "get_raw": offsets_in(bytes(store.get_raw(TOPIC, 0, 0, count).records)),
        # The file that the page before was in is at hand.
        "get_raw again": offsets_in(bytes(store.get_raw(TOPIC, 0, 0, count).records)),
        "get_raw any tag": offsets_in(bytes(store.get_raw(TOPIC, 0, 0, count, "*").records)),
        "get_views": [offset for view in views for offset in offsets_in(bytes(view))],
        "find": sorted(message.physical_offset for message in found),
        "by_id": [one.physical_offset for one in map(store.by_id, ids) if one is not None],
    }


def scan_every_way(root: Path) -> dict[str, list[int]]:
    """Return the physical offsets of the records that each scanner finds."""
    rows = LogScan(root, CONFIG, None, None).rows()
    path = root / "commitlog" / file_name(0)
    data = path.read_bytes()
    splits: list[int] = []
    with opened(str(path), str(path)) as file:
        for start in range(0, 8 * RECORD_BYTES, 1000):
            batches = scan_window(
                file, base=0, size=LOG_FILE_BYTES, start=start, stop=start + 1000,
                file_size=LOG_FILE_BYTES, data_stop=LOG_FILE_BYTES,
            )  # fmt: skip
            for batch in batches:
                splits += batch.columns.physical_offset.tolist()
    decoded: dict[str, list[int]] = {"decode": [], "plain codec": []}
    for offset in range(0, 3 * RECORD_BYTES, RECORD_BYTES):
        message = decode(data, offset, 0, check_crc=True)
        if message is not None:
            decoded["decode"].append(message.physical_offset)
        with contextlib.suppress(FormatError):
            decoded["plain codec"].append(decode_record(data, offset, base=0).physical_offset)
    return {
        "scan": [row["physicalOffset"] for row in rows if row["kind"] == "message"],
        "splits": splits,
        **decoded,
    }


@pytest.mark.parametrize("name", ODD)
def test_every_way_says_the_same_of_an_odd_record(tmp_path, name):
    odd = ODD[name]
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        offsets = filled(store, 3)
        record = forged(odd, offsets[1], 1, 1_700_000_000_000)
        overwrite(tmp_path, offsets[1], record)
        intact = offsets if odd.is_intact else [offsets[0], offsets[2]]
        ways = {f"writer {way}": seen for way, seen in read_every_way(store, offsets).items()}
        with MessageStore.open(tmp_path, CONFIG, read_only=True) as reader:
            ways |= {f"reader {way}": seen for way, seen in read_every_way(reader, offsets).items()}
    ways |= scan_every_way(tmp_path)
    if name == "wrong checksum":
        # These hand out bytes whose checksum the consumer compares.
        ways = {way: seen for way, seen in ways.items() if "raw" not in way and "views" not in way}
    assert {way for way, seen in ways.items() if seen != intact} == set()
    reasons = {finding.kind for finding in verify_store(tmp_path, CONFIG).findings}
    assert ("log-damage" in reasons) is not odd.is_intact


def test_what_ends_in_a_zero_is_stored_so_that_it_is_no_record_cut_off(tmp_path):
    block = b"KEYS\x01k1\x02a\x01b\0\0"
    message = Message(topic=TOPIC, body=b"", keys=KEY, properties={"a": "x"}, tags="t\0")
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        results = [
            store.put(message),
            store.put(Message(topic=TOPIC, body=b"", tags="t\0")),
            store.put_batch([message, message]),
            store.put_client_batch(TOPIC, 0, encode_client_batch([(0, b"", block)])),
            store.put_client_batch(
                TOPIC, 0, encode_client_batch([(0, b"", b"")]), properties={"a": "b\0\0"}
            ),
            store.put_client_batch(
                TOPIC, 0, encode_client_batch([(0, b"", b"")]), properties=block
            ),
            store.put_prepared(PreparedMessage(TOPIC, b"", block)),
        ]
        assert {str(result.status) for result in results} == {"PutMessageStatus.PUT_OK"}
        assert store.wait_dispatched()
        for way in (store.get, store.get_views, store.get_raw):
            assert way(TOPIC, 0, 0, 32).next_offset == 8
            assert way(TOPIC, 0, 0, 32).skipped_entries == 0
        properties = [one.properties for one in store.get(TOPIC, 0, 0, 32).messages]
        assert [one.get("TAGS", one.get("a")) for one in properties] == ["t\0"] * 4 + ["b\0\0"] * 4
    assert verify_store(tmp_path, CONFIG).findings == []


@pytest.mark.parametrize("block", [b"a\x01\xff", b"no name", b"\0\0"])
def test_properties_that_every_reader_would_call_damage_are_refused(tmp_path, block):
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        with pytest.raises(RefusedMessageError, match="not UTF-8, or name nothing"):
            store.put_client_batch(TOPIC, 0, encode_client_batch([(0, b"", block)]))
        batch = encode_client_batch([(0, b"", b"")])
        with pytest.raises(RefusedMessageError, match="not UTF-8, or name nothing"):
            store.put_client_batch(TOPIC, 0, batch, properties=block)
        with pytest.raises(RefusedMessageError, match="not UTF-8, or name nothing"):
            store.put_prepared(PreparedMessage(TOPIC, b"", block))
        assert store.max_offset(TOPIC, 0) == 0


@pytest.mark.parametrize("policy", ["salvage", "compatible"])
@pytest.mark.parametrize("cut", [1, 10, 17, 19, 27])
def test_repair_makes_no_message_of_a_record_that_was_cut_off(tmp_path, policy, cut):
    """The file grows by zeros; lengths, address and checksum of the body are all right."""
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        for tag in ("first", "created-in-a-shop"):
            result = store.put(Message(topic=TOPIC, body=b"body", tags=tag))
    path = tmp_path / "commitlog" / file_name(0)
    os.truncate(path, result.physical_offset + result.size - cut)
    (tmp_path / "abort").touch()
    repair_store(tmp_path, config=CONFIG, policy=policy, now_ms=1_800_000_000_000)
    assert path.stat().st_size == LOG_FILE_BYTES
    kinds = {finding.kind for finding in verify_store(tmp_path, CONFIG).findings}
    # 4.9.3, which "compatible" follows, takes the record for one: its bytes stay, unread.
    assert kinds <= ({"queue-kept"} if policy == "salvage" else {"log-tail"})
    with MessageStore.open(tmp_path, CONFIG, read_only=True) as reader:
        assert [one.properties for one in reader.get(TOPIC, 0, 0).messages] == [{"TAGS": "first"}]


def test_records_without_properties_are_intact_at_every_place_in_a_sector(tmp_path):
    """One that ends a byte or two after a sector's edge has only zeros in the last sector."""
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        offsets = []
        for number in range(513):
            # One byte more than a sector: each record begins and ends at another place in it.
            body = b"b" * (513 - 91 - len(TOPIC))
            result = store.put(Message(topic=TOPIC, body=body), queue_id=0)
            assert result.size == 513
            assert result.queue_offset == number
            offsets.append(result.physical_offset)
        assert len({offset % 512 for offset in offsets}) == 512
        assert store.wait_dispatched()
        with MessageStore.open(tmp_path, CONFIG, read_only=True) as reader:
            for one in (store, reader):
                for number, offset in enumerate(offsets):
                    assert [m.physical_offset for m in one.get(TOPIC, 0, number, 1).messages] == [
                        offset
                    ]
                    assert len(one.get_views(TOPIC, 0, number, 1).records) == 1
                    assert one.get_raw(TOPIC, 0, number, 1).message_count == 1
                    assert one.by_id(f"7F00000100002A9F{offset:016X}") is not None
    rows = list(LogScan(tmp_path, CONFIG, None, None).rows())
    assert [row["physicalOffset"] for row in rows] == offsets
    assert verify_store(tmp_path, CONFIG).findings == []


def test_a_topic_of_more_than_127_bytes_is_no_record_for_any_reader(tmp_path):
    """Its length would be negative for 4.9, which reads a signed byte."""
    topic = "t" * 130
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        offsets = filled(store, 3)
    queues = tmp_path / "consumequeue"
    shutil.copytree(queues / TOPIC, queues / topic)
    odd = Odd(b"", topic=topic.encode())
    overwrite(tmp_path, offsets[1], forged(odd, offsets[1], 1, 1_700_000_000_000))
    with MessageStore.open(tmp_path, CONFIG, read_only=True) as reader:
        assert reader.get_raw(topic, 0, 1, 1).message_count == 0
        assert reader.get(topic, 0, 1, 1).messages == []
    with MessageStore.open(tmp_path, CONFIG, threads=False) as store:
        assert store.max_offset(topic, 0) > 1
        assert store.get_raw(TOPIC, 0, 0, 1).message_count == 1  # the file is at hand from here on
        assert store.get_raw(topic, 0, 1, 1).message_count == 0
        assert store.get_views(topic, 0, 1, 1).records == []
        assert store.get(topic, 0, 1, 1).messages == []
