"""A lookup by key finds what the rules say, item by item, whatever stands in log and index."""

import random
from collections.abc import Iterator
from enum import StrEnum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore.format.index_file import IndexLayout, decode_header
from rocketstore.format.java_hash import key_hash, string_hash
from rocketstore.format.stored_message import StoredMessage
from rocketstore.native.decode import LogAtHand
from rocketstore.native.log_end import LogEnd
from rocketstore.native.lookup import KeySearch
from support.guarded_memory import guarded
from support.leaks import assert_keeps_nothing
from support.oracle.index import find_items, positive_hash, put_item
from support.oracle.page import message_or_none
from support.scan_strategies import damaged_logs
from support.synthetic_log import MAGIC_V1, MAGIC_V2, SyntheticLog

LAYOUT = IndexLayout(4, 60)
TOPICS = ("AaTopic", "BBTopic", "T")
KEYS = ("Aa", "BB", "k1", "k2")
NO_END = (1 << 63) - 1


class Part:
    """One file of a log."""

    def __init__(self, data: bytes, base: int, written: int | None = None) -> None:
        self.data = data
        self.array = guarded(data)
        self.base = base
        self.write_position = len(data) if written is None else written


class Log:
    """Files that are remembered, as memory maps are, or one that is read bit by bit."""

    is_mapped = True

    def __init__(self, *files: Part, whole: bool = True) -> None:
        self.files = files
        self.whole = whole
        self.end = LogEnd(b"")
        self.max_offset = max((part.base + part.write_position for part in files), default=0)
        self.end.max_offset = self.max_offset

    def bytes_at(self, offset: int, size: int):
        for part in self.files:
            at = offset - part.base
            if not 0 <= at < len(part.data):
                continue
            if self.whole:
                return part.array, part.base, part.write_position, part
            read = guarded(part.data[: part.write_position][at : at + size])
            return read, offset, len(read), None
        return None


class IndexPart:
    def __init__(self) -> None:
        self.file = self
        self.array = self.mapping = guarded(bytes(LAYOUT.size_bytes))

    def put(self, name: str, offset: int, stored: int, *, slot_mate: bool = False) -> None:
        hashed = positive_hash(string_hash(name)) + (LAYOUT.slot_count if slot_mate else 0)
        put_item(self.array, *LAYOUT, hashed, offset, stored)


class Index:
    """An index in memory maps, or one that only names candidates."""

    layout = LAYOUT

    def __init__(self, *files: IndexPart, is_mapped: bool = True) -> None:
        self.is_mapped = is_mapped
        self.files = files

    def candidates(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int | None
    ) -> Iterator[int]:
        offsets = np.zeros(LAYOUT.item_count + 1, np.int64)
        assert end_ms is not None
        for file in reversed(self.files):
            header = decode_header(file.array.data)
            if header.begin_timestamp_ms <= end_ms and header.end_timestamp_ms >= begin_ms:
                hashed = key_hash(topic, key)
                find_items(file.array, *LAYOUT, hashed, begin_ms, end_ms, 0, offsets)
                yield from offsets[: offsets[-1]].tolist()


def expected_messages(
    parts: list[Part], index: Index, question: tuple[str, str, int, int], most: int
) -> list[StoredMessage]:
    """Return what is to be found: each candidate decoded by the plain codec, and compared."""
    topic, key, begin, end = question
    found: dict[int, StoredMessage] = {}
    for offset in index.candidates(topic, key, begin_ms=begin, end_ms=end):
        for part in parts:
            size = int.from_bytes(part.data[offset - part.base :][:4], "big", signed=True)
            data = part.data[: part.write_position]
            message = message_or_none(data, part.base, offset, size, crc=True)
            if (
                message is not None
                and (message.topic, True) == (topic, begin <= message.store_timestamp_ms <= end)
                and (key in message.keys or key == message.unique_key)
                and len(found) < most
            ):
                found.setdefault(offset, message)
    return list(found.values())


def properties_of(chosen: random.Random) -> bytes:
    parts = []
    for _ in range(chosen.randrange(4)):
        words = " ".join(chosen.choices([*KEYS, ""], k=chosen.randrange(5)))
        odd = ["TAGS\x01k1", "XKEYS\x01k1", "KEYS", "UNIQ_KEZ\x01k2", "a\x01" + "\0" * 600]
        unique = f"UNIQ_KEY\x01{chosen.choice(KEYS)}"
        parts.append(chosen.choice([f"KEYS\x01{words}", unique, chosen.choice(odd)]))
    return "\x02".join(parts).encode()


def keyed_log(chosen: random.Random, topic: str) -> SyntheticLog:
    log = SyntheticLog(base=chosen.choice([0, 4096]))
    for _ in range(chosen.randrange(1, 13)):
        log.add(
            topic=chosen.choice([topic, topic, *TOPICS]).encode(),
            properties=properties_of(chosen),
            sys_flag=chosen.choice([0, 0, 0x10, 0x20, 0x30]),
            magic=chosen.choice([MAGIC_V1] * 5 + [MAGIC_V2]),
            store_timestamp_ms=chosen.choice([1_000, 1_999, 2_000, 5_500]),
            body=chosen.choice([b"", b"body", b"x" * 700]),
            crc=chosen.choice([None] * 6 + [7]),
        )
    for _ in range(chosen.choice([0, 0, 1, 2])):
        log.data[chosen.randrange(len(log.data))] ^= chosen.randrange(1, 256)
    return log


def keyed_index(chosen: random.Random, name: str, offsets: list[int]) -> IndexPart:
    index = IndexPart()
    index.put(name, chosen.choice(offsets), 1_000)
    for _ in range(chosen.randrange(30)):
        stored, slot_mate = chosen.choice([1_000, 2_000, 5_500]), chosen.randrange(4) == 0
        index.put(name, chosen.choice(offsets), stored, slot_mate=slot_mate)
    if chosen.randrange(4) == 0:  # a writer that has not yet counted its last item, or damage
        field, change = chosen.choice([(36, -1), (36, 1), (36, 40), (0, 1), (8, -1)])
        view = index.array[field : field + 4].view(">i4")
        view += change
    if chosen.randrange(8) == 0:
        at = chosen.choice([0, 8, 16])
        index.array[at : at + 8].view(">i8")[0] = chosen.choice([-(2**63), 2**60, 2**63 - 1])
    for _ in range(chosen.choice([0, 0, 1, 6])):
        index.array[40 + chosen.randrange(400)] = chosen.choice([0, 1, 2, 5, 9, 127, 255])
    return index


def compare_lookups(chosen: random.Random, log: SyntheticLog, topic: str) -> int:
    """Ask one question in all ways; return how many messages were found."""
    key = chosen.choice(KEYS)
    size = len(log.data)
    written = chosen.choice([size, size, chosen.randrange(size + 1)])
    elsewhere = SyntheticLog(base=1 << 20)
    for _ in range(2):
        elsewhere.add(topic=topic.encode(), properties=f"KEYS\x01{key}".encode())
    parts = [Part(bytes(log.data), log.base, written)]
    if chosen.randrange(4) > 0:
        parts.append(Part(bytes(elsewhere.data), elsewhere.base))
    records = [source.base + at for source in (log, elsewhere) for at, _ in source.records]
    nowhere = [chosen.randrange(-100, 9000), 2**62, -(2**63), 2**63 - 1]
    name = f"{topic}#{key}"
    indexes = [
        keyed_index(chosen, name, records * 4 + nowhere) for _ in range(chosen.randrange(1, 3))
    ]
    begin = chosen.choice([0, 0, 1_000, 1_500, 1_999, 2_999, 6_000, -(2**63)])
    end = chosen.choice([NO_END, NO_END, 5_499, 1_999, 999])
    most = chosen.choice([64, 64, 1, 2])
    question = (topic, key, begin, end)
    expected = expected_messages(parts, Index(*indexes), question, most)
    for is_mapped in (True, False):
        log_at_hand = LogAtHand(Log(*parts, whole=is_mapped))
        index = Index(*indexes, is_mapped=is_mapped)
        search = KeySearch(log_at_hand, index, chosen.choice([0, 1_000, 2**62]))
        found = search.find(topic, key, begin, end, most)
        assert found == expected
    return len(expected)


@pytest.mark.parametrize("seed", range(8))
def test_a_lookup_is_what_the_rules_say(seed):
    chosen = random.Random(seed)
    found = 0
    for _ in range(400):
        topic = chosen.choice(TOPICS)
        found += compare_lookups(chosen, keyed_log(chosen, topic), topic)
    assert found > 60


@settings(max_examples=150, deadline=None)
@given(damaged_logs(), st.integers(0, 1 << 32))
def test_a_lookup_in_a_damaged_log_is_what_the_rules_say(log, seed):
    compare_lookups(random.Random(seed), log, TOPICS[seed % len(TOPICS)])


def keyed_store(count: int, *, span: int = 1 << 30) -> tuple[KeySearch, SyntheticLog]:
    """Return a store of messages with one key."""
    log, index = SyntheticLog(), IndexPart()
    for _ in range(count):
        log.add(topic=b"T", properties=b"KEYS\x01k1")
        index.put("T#k1", log.records[-1][0], 1_600_000_000_123)
    return KeySearch(LogAtHand(Log(Part(bytes(log.data), 0))), Index(index), span), log


def offsets_of(messages: list[StoredMessage]) -> list[int]:
    return [message.physical_offset for message in messages]


def test_an_item_that_came_back_late_gives_no_second_message():
    log, index = SyntheticLog(), IndexPart()
    for _ in range(3):
        log.add(topic=b"T", properties=b"KEYS\x01other k1")
    first, second, third = (at for at, _ in log.records)
    for offset in (third, first, second, first, third, second):
        index.put("T#k1", offset, 1_600_000_000_123)
    search = KeySearch(LogAtHand(Log(Part(bytes(log.data), 0))), Index(index, index), 0)
    found = search.find("T", "k1", 0, None, 9)
    assert offsets_of(found) == [second, third, first]


@pytest.mark.parametrize("span", [1 << 30, 0], ids=["in memory", "on disk"])
@pytest.mark.parametrize("most", [1, 31, 32, 33, 50, 1000])
def test_more_hits_than_one_call_returns_come_newest_first(span, most):
    search, log = keyed_store(50, span=span)
    found = search.find("T", "k1", 0, None, most)
    assert offsets_of(found) == [at for at, _ in reversed(log.records)][:most]


def test_a_hit_after_more_items_than_are_looked_at_with_the_lock_held():
    log = SyntheticLog().add(topic=b"T", properties=b"KEYS\x01k1")
    log.add(topic=b"T", properties=b"KEYS\x01k1")
    file = IndexPart()
    layout = IndexLayout(1, 400)
    file.array = file.mapping = guarded(bytes(layout.size_bytes))
    put_item(file.array, *layout, key_hash("T", "k1"), 0, 1_600_000_000_123)
    for other in range(300):
        # Named by no item of its key, so its record is not looked at.
        put_item(file.array, *layout, other, log.records[1][0], 1_600_000_000_123)
    index = Index(file)
    index.layout = layout
    search = KeySearch(LogAtHand(Log(Part(bytes(log.data), 0))), index, 1 << 30)
    assert offsets_of(search.find("T", "k1", 0, None, 9)) == [0]


def test_a_long_topic_is_no_negative_length():
    for size in (127, 128, 200):
        topic, index = "t" * size, IndexPart()
        log = SyntheticLog().add(topic=topic.encode(), properties=b"KEYS\x01k1")
        index.put(f"{topic}#k1", 0, 1_600_000_000_123)
        search = KeySearch(LogAtHand(Log(Part(bytes(log.data), 0))), Index(index), 0)
        found = search.find(topic, "k1", 0, None, 9)
        assert len(found) == (size <= 127)


def test_times_and_numbers_of_any_size_are_compared_as_they_are():
    search, log = keyed_store(3)

    def count(key: object = "k1", begin: float = 0, end: float | None = None, most: int = 9) -> int:
        return len(search.find("T", key, begin, end, most))  # type: ignore[arg-type]

    assert count(begin=0.5, most=2**70) == len(log.records)
    assert count(begin=-(2**70), end=2**70) == len(log.records)
    assert count(begin=2**70) == count(end=-(2**70)) == count(begin=1, end=0) == 0
    stored = 1_700_000_000_000
    assert count(begin=0, end=float(stored)) == count(begin=0, end=2e12)
    assert count("k\u00df") == count("\ud800") == count(b"k1") == count("") == count(most=0) == 0


def test_odd_layouts_find_nothing_and_odd_bytes_are_errors_of_python():
    search, log = keyed_store(3)
    at_hand, part = LogAtHand(Log(Part(bytes(log.data), 0))), IndexPart()
    for layout in ((0, 60), (-1, 60), (4, -1), (4, 61), (2**40, 2**40), (2**62, 1)):
        index = Index(part)
        index.layout = IndexLayout(*layout)
        assert KeySearch(at_hand, index, 0).find("T", "k1", 0, None, 9) == []
    for odd in (None, "x", object()):
        part.mapping = odd  # type: ignore[assignment]
        with pytest.raises((TypeError, BufferError)):
            KeySearch(at_hand, Index(part), 0).find("T", "k1", 0, None, 9)
        with pytest.raises(TypeError):
            search.find("T", "k1", 0, None, odd)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            search.find("T", "k1", odd, None, 9)  # type: ignore[arg-type]


def test_texts_of_a_class_of_their_own_are_texts():
    search, log = keyed_store(3)
    kind = StrEnum("Name", {"TOPIC": "T", "KEY": "k1"})
    assert len(search.find(kind.TOPIC, kind.KEY, 0, None, 9)) == len(log.records)


def test_lookups_leave_nothing_behind():
    log, index = SyntheticLog(), IndexPart()
    for _ in range(40):
        log.add(topic=b"T", properties=b"KEYS\x01k1")
        index.put("T#k1", log.records[-1][0], 1_600_000_000_123)
    part = Part(bytes(log.data), 0)
    search = KeySearch(LogAtHand(Log(part)), Index(index), 1 << 30)

    def look() -> None:
        for most in (1, 40, 64):
            search.find("T", "k1", 0, None, most)
        search.find("T", "k2", 0, None, 9)
        search.find("T", "k\u00df", 0, None, 9)

    assert_keeps_nothing(look, 40, part.array)
