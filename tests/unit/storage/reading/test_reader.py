"""What a get answers, over memory maps and over files read with pread."""

import itertools
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstore.errors import FieldRangeError, InvalidFilterError
from rocketstore.format.file_name import file_name
from rocketstore.format.host import encode_message_id
from rocketstore.native.page import MESSAGES, RECORDS, VIEWS
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.pages import PageLimits, page_without_entry
from rocketstore.storage.reading.reader import Reader
from rocketstore.storage.results import GetMessageStatus
from rocketstore.units import QueueKey
from support.mapped_reader import mapped_reader
from support.store_files import HOST, StoreFiles
from support.synthetic_log import record_bytes

OpenReader = Callable[..., Reader]


QUEUE = QueueKey("TopicTest", 0)
LIMITS = PageLimits(1_000, 5, 500, 3, 2_000)
"""Small ones: 1000 bytes or 5 messages, beyond 2000 bytes from the end 500 or 3."""


@pytest.fixture
def files(tmp_path):
    return StoreFiles(tmp_path)


@pytest.fixture(params=["mapped", "pread"])
def open_reader(request, files):
    def opened(limits: PageLimits | None = None) -> Reader:
        is_mapped = request.param == "mapped"
        reader = (
            mapped_reader(files.root, end=files.end) if is_mapped else ReadOnlyStore(files.root)
        )
        if limits is not None:
            reader._pages.limits = limits
        return reader

    return opened


def bodies(reader: Reader, offset: int, count: int = 32, tags: str | None = None) -> list[bytes]:
    """Bodies of a page, after all three kinds of get were held against each other."""
    page = reader.get(*QUEUE, offset, count, tags)
    views = reader.get_views(*QUEUE, offset, count, tags)
    raw = reader.get_raw(*QUEUE, offset, count, tags)
    assert page[0] is views[0] is raw[0]
    assert page[2:] == views[2:] == raw[3:]
    assert raw.message_count == len(views.records) == len(page.messages)
    assert raw.records == b"".join(views.records)
    assert [len(view) for view in views.records] == [message.size for message in page.messages]
    return [message.body for message in page.messages]


# --- statuses -------------------------------------------------------------------------------------


def test_statuses_outside_the_queue(files, open_reader):
    files.fill(QUEUE, 3)
    for number in range(4):
        files.put(body=b"%d" % number)
    reader = open_reader()
    expected = {
        -1: (GetMessageStatus.OFFSET_TOO_SMALL, 3),
        2: (GetMessageStatus.OFFSET_TOO_SMALL, 3),
        3: (GetMessageStatus.FOUND, 7),
        7: (GetMessageStatus.OFFSET_OVERFLOW_ONE, 7),
        8: (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 7),
        10**9: (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 7),
    }
    for offset, (status, following) in expected.items():
        for method in (reader.get, reader.get_raw, reader.get_views):
            page = method(*QUEUE, offset)
            assert (page.status, page.next_offset) == (status, following), (method, offset)
            assert (page.min_offset, page.max_offset) == (3, 7)


def test_an_unknown_queue_has_its_own_status_and_leaves_no_trace(files, open_reader):
    files.put()
    reader = open_reader()
    before = sorted(path for path in files.root.rglob("*"))
    for topic, queue_id in (
        ("absent", 0),
        ("TopicTest", 9),
        ("../x", 0),
        ("", 0),
        ("a\0b", 1),
        ("x" * 300, 0),
    ):
        for method in (reader.get, reader.get_raw, reader.get_views):
            page = method(topic, queue_id, 5)
            assert page.status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
            assert page.next_offset == 0
        assert reader.max_offset(topic, queue_id) == reader.min_offset(topic, queue_id) == 0
        assert reader.offset_at(topic, queue_id, 0) == 0
        assert reader.earliest_timestamp(topic, queue_id) is None
    assert sorted(path for path in files.root.rglob("*")) == before
    assert reader.queues() == [QUEUE]


def test_delay_queues_exist_without_a_directory(files, open_reader):
    files.put()
    page = open_reader().get("SCHEDULE_TOPIC_XXXX", 3, 0)
    assert page.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_k_c1_a_queue_that_java_shifted_is_read_as_it_is(files, open_reader):
    files.put(body=b"first")
    files.put(body=b"without an entry", dispatch=False)
    late = files.put(body=b"late", dispatch=False)
    files.write_entry(QUEUE, 1, late, files.end - late)
    reader = open_reader()
    assert bodies(reader, 0) == [b"first", b"late"]
    assert [one.queue_offset for one in reader.get(*QUEUE, 0).messages] == [0, 2]
    assert reader.max_offset(*QUEUE) == 2


def test_k_c9_a_missing_queue_file_leads_to_the_next_one_within_the_queue(files, open_reader):
    for number in range(25):
        files.put(body=b"%d" % number)
    (files.queue_directory(QUEUE) / file_name(200)).unlink()
    reader = open_reader()
    for offset in (10, 15, 19):
        for method in (reader.get, reader.get_raw, reader.get_views):
            page = method(*QUEUE, offset)
            assert page.status is GetMessageStatus.OFFSET_FOUND_NULL
            assert page.next_offset == 20  # Java: the start of the next file, whatever the end is
    assert bodies(reader, 20) == [b"20", b"21", b"22", b"23", b"24"]


def test_k_c9_nobody_is_sent_beyond_the_queue_after_whose_end_a_missing_file_would_go_on():
    queue: Any = SimpleNamespace(entries_per_file=10)
    for kind, messages in ((MESSAGES, []), (VIEWS, []), (RECORDS, b"")):
        page = page_without_entry(kind, queue, "TopicTest", 21, 3, 25)
        assert page[:2] == (GetMessageStatus.OFFSET_FOUND_NULL, messages)
        assert page[-4:] == (25, 3, 25, 0)
        assert page_without_entry(kind, queue, "TopicTest", 11, 3, 25)[-4:] == (20, 3, 25, 0)


def test_a_page_ends_with_the_file_of_the_queue(files, open_reader):
    for number in range(25):
        files.put(body=b"%d" % number)
    reader = open_reader()
    assert len(bodies(reader, 7)) == 3
    assert reader.get(*QUEUE, 7).next_offset == 10
    assert len(bodies(reader, 20)) == 5


# --- limits ---------------------------------------------------------------------------------------


def test_the_first_message_comes_whatever_its_size(files, open_reader):
    files.put(body=b"x" * 3000)
    files.put(body=b"small")
    reader = open_reader(LIMITS)
    assert bodies(reader, 0) == [b"x" * 3000]
    assert bodies(reader, 1) == [b"small"]


def test_a_page_ends_at_the_count_and_at_the_bytes(files, open_reader):
    for number in range(9):
        files.put(body=bytes([number]) * 10)
    reader = open_reader(LIMITS)
    assert len(bodies(reader, 0)) == 5
    assert len(bodies(reader, 0, 2)) == 2
    assert len(bodies(reader, 0, 100)) == 5
    assert len(bodies(reader, 0, 0)) == 1  # Compatible: the first one always


def test_bytes_of_a_page_are_limited(files, open_reader):
    for number in range(9):
        files.put(body=bytes([number]) * 300)
    # Each record has 400 bytes: two fit into 1000.
    assert len(bodies(open_reader(LIMITS), 5)) == 2


def test_old_messages_come_in_smaller_pages(files, open_reader):
    for number in range(9):
        files.put(body=bytes([number]) * 10)
    for _ in range(20):
        files.put(queue_id=1, body=b"y" * 500)
    assert len(bodies(open_reader(LIMITS), 0)) == 3


def test_each_message_of_a_page_is_judged_old_or_new_by_its_own_place(files, open_reader):
    for number in range(2):
        files.put(body=bytes([number]) * 10)
    for _ in range(8):
        files.put(queue_id=1, body=b"y" * 150)
    for number in range(2, 9):
        files.put(body=bytes([number]) * 10)
    # Two old ones, and the others up to the limit of new ones; the last three are all new.
    assert len(bodies(open_reader(LIMITS), 0)) == 5
    assert len(bodies(open_reader(PageLimits(1_000, 5, 500, 3, 100)), 0)) == 3


def test_a_get_looks_at_800_entries_and_no_more(tmp_path):
    files = StoreFiles(tmp_path / "wide", log_file_size=1 << 20, queue_file_size=2000 * 20)
    for _ in range(900):
        files.put(tags="a")
    files.put(tags="b")
    for reader in (mapped_reader(files.root, end=files.end), ReadOnlyStore(files.root)):
        page = reader.get(*QUEUE, 0, 32, "b")
        assert (page.status, page.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 800)
        assert bodies(reader, 800, tags="b") == [b"body"]
        assert reader.get(*QUEUE, 0, 900, "b").next_offset == 900


# --- tags -----------------------------------------------------------------------------------------


def test_tags_are_compared_exactly_and_not_only_by_hash(files, open_reader):
    for tags in ("Aa", "BB", "created", None, "paid", "Aa"):
        files.put(body=str(tags).encode(), tags=tags)
    reader = open_reader()
    assert bodies(reader, 0, tags="Aa") == [b"Aa", b"Aa"]
    assert bodies(reader, 0, tags="BB") == [b"BB"]
    assert bodies(reader, 0, tags="created || paid") == [b"created", b"paid"]
    assert bodies(reader, 0, tags=" created||") == [b"created"]
    assert len(bodies(reader, 0, tags="*")) == len(bodies(reader, 0, tags="")) == 6
    assert bodies(reader, 0, tags="none") == []
    page = reader.get(*QUEUE, 0, 32, "none")
    assert (page.status, page.next_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 6)
    assert page.skipped_entries == 0


def test_tags_outside_ascii_are_found(files, open_reader):
    for tags in ("送達", "bezahlt-ß", "𝄞"):
        files.put(body=tags.encode(), tags=tags)
    for tags in ("送達", "bezahlt-ß", "𝄞"):
        assert bodies(open_reader(), 0, tags=tags) == [tags.encode()]


def test_an_expression_without_a_tag_is_an_error(files, open_reader):
    files.put()
    with pytest.raises(InvalidFilterError, match="names no tag"):
        open_reader().get(*QUEUE, 0, 32, "||")


def test_many_long_expressions_of_tags_take_no_memory_in_the_end(files, open_reader):
    """Clients of a broker choose them, another one each time if they like."""
    files.put(tags="paid")
    reader = open_reader()
    tags = "||".join(["paid", *(f"{number:x}" for number in range(2000))])
    with pytest.raises(InvalidFilterError, match="more than 65536"):
        reader.get(*QUEUE, 0, 32, tags * 10)
    tracemalloc.start()
    try:
        for number in range(20):
            assert len(reader.get(*QUEUE, 0, 32, f"{tags}||+{number}").messages) == 1
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * len(tags)


def test_an_entry_with_an_extension_address_is_judged_by_its_record(files, open_reader):
    offset = files.put(tags="paid", dispatch=False)
    files.next_offsets.clear()
    files.enter(QUEUE, offset, files.end - offset, -(2**63) + 40)
    assert bodies(open_reader(), 0, tags="paid") == [b"body"]
    assert bodies(open_reader(), 0, tags="other") == []


# --- lost records ---------------------------------------------------------------------------------


def damage(files: StoreFiles, offset: int, at: int, data: bytes) -> None:
    files.write_log(offset + at, data)


@pytest.mark.parametrize(
    ("at", "data"),
    [(0, b"\0\0\0\x7b"), (4, b"\1\2\3\4"), (28, b"\7"), (84, b"\xff" * 4), (84, b"\0\0\1\0")],
    ids=["length", "magic", "address", "body-size-negative", "body-size-long"],
)
def test_an_entry_whose_record_is_broken_is_stepped_over_and_counted(files, open_reader, at, data):
    offsets = [files.put(body=b"%d" % number) for number in range(5)]
    damage(files, offsets[2], at, data)
    reader = open_reader()
    assert bodies(reader, 0) == [b"0", b"1", b"3", b"4"]
    assert reader.get(*QUEUE, 0).skipped_entries == 1
    assert reader.get(*QUEUE, 0).next_offset == 5
    page = reader.get(*QUEUE, 2, 1)
    assert [message.body for message in page.messages] == [b"3"]
    assert reader.at_physical_offset(offsets[2]) is None


def test_a_body_with_a_wrong_checksum_is_no_message_but_raw_bytes_are_not_checked(
    files, open_reader
):
    offsets = [files.put(body=b"%d" % number, keys="k") for number in range(3)]
    items = [("TopicTest", "k", offset, 1_000) for offset in offsets]
    files.index("20231114221320000", items, begin_ms=1_000, end_ms=1_000)
    damage(files, offsets[1], 88, b"X")
    reader = open_reader()
    assert [message.body for message in reader.get(*QUEUE, 0).messages] == [b"0", b"2"]
    assert reader.get(*QUEUE, 0).skipped_entries == 1
    assert reader.get_raw(*QUEUE, 0).message_count == 3
    assert [message.body for message in reader.find("TopicTest", "k")] == [b"2", b"0"]
    ids = [encode_message_id(HOST, offset) for offset in offsets]
    assert [reader.by_id(one) is None for one in ids] == [False, True, False]


def test_only_lost_records_give_a_status_of_their_own_and_a_way_on(files, open_reader):
    offsets = [files.put(body=b"%d" % number) for number in range(4)]
    for offset in offsets[:3]:
        damage(files, offset, 4, b"\0\0\0\0")
    reader = open_reader()
    for method in (reader.get, reader.get_raw, reader.get_views):
        page = method(*QUEUE, 0, 32, "other")
        assert page.status is GetMessageStatus.NO_MATCHED_MESSAGE
    assert bodies(reader, 0) == [b"3"]
    damage(files, offsets[3], 4, b"\0\0\0\0")
    mapped = mapped_reader(files.root, end=files.end)
    for method in (mapped.get, mapped.get_raw, mapped.get_views):
        page = method(*QUEUE, 0)
        assert page.status is GetMessageStatus.MESSAGE_WAS_REMOVING
        assert (page.next_offset, page.skipped_entries) == (4, 4)


def test_a_lost_record_does_not_hide_later_ones_of_its_file(files, open_reader):
    # Java goes on with the next CommitLog file after a record it cannot read.
    offsets = [files.put(body=b"%d" % number) for number in range(8)]
    files.write_entry(QUEUE, 2, offsets[2], 150)
    reader = open_reader()
    assert len(bodies(reader, 0)) == 7
    # A length that alone fills a page ends this one, and is stepped over by the next.
    files.write_entry(QUEUE, 2, offsets[2], 10**6)
    assert len(bodies(reader, 0)) == 2
    assert len(bodies(reader, 2)) == 5


def test_fillers_in_the_middle_are_stepped_over(files, open_reader):
    files.put(body=b"0")
    files.fill(QUEUE, 2)
    files.put(body=b"3")
    reader = open_reader()
    assert bodies(reader, 0) == [b"0", b"3"]
    assert reader.get(*QUEUE, 0).skipped_entries == 2
    assert [entry.is_filler for _, entry in reader.queue_entries(*QUEUE)] == [
        False,
        True,
        True,
        False,
    ]


def test_a_missing_log_file_loses_its_messages_only(files, open_reader):
    for number in range(9):
        files.put(body=b"%d" % number * 1000)
    files.log_path(4096).unlink()
    reader = open_reader()
    found = bodies(reader, 0)
    assert [body[:1] for body in found] == [b"0", b"1", b"2", b"6", b"7", b"8"]
    assert reader.get(*QUEUE, 0).skipped_entries == 3


def test_a_record_of_another_topic_or_queue_is_never_returned(files, open_reader):
    first = files.put(body=b"mine")
    size = files.end - first
    other_topic = files.put("TopicTesu", body=b"other")
    other_queue = files.put(queue_id=1, body=b"another")
    for offset in (other_topic, other_queue):
        files.enter(QUEUE, offset, size + len("other") - len("mine"), 0)
    files.write_entry(QUEUE, 2, other_queue, files.end - other_queue, 0)
    reader = open_reader()
    assert bodies(reader, 0) == [b"mine"]
    assert reader.get(*QUEUE, 0).skipped_entries == 2


def test_a_multi_dispatched_record_is_read_in_every_queue_it_names(files, open_reader):
    names = {"INNER_MULTI_DISPATCH": "%LMQ%a,copies", "INNER_MULTI_QUEUE_OFFSET": "0,0"}
    offset = files.put(queue_id=3, body=b"shared", properties=names, tags="t")
    size = files.end - offset
    for key in (QueueKey("%LMQ%a", 0), QueueKey("copies", 3), QueueKey("copies", 0)):
        files.enter(key, offset, size, 0)
    files.enter(QueueKey("%LMQ%b", 0), offset, size, 0)
    reader = open_reader()
    for key, count in {
        QueueKey("TopicTest", 3): 1, QueueKey("%LMQ%a", 0): 1, QueueKey("copies", 3): 1,
        QueueKey("copies", 0): 0, QueueKey("%LMQ%b", 0): 0,
    }.items():  # fmt: skip
        assert len(reader.get(*key, 0).messages) == count, key
        assert reader.get_raw(*key, 0).message_count == count, key
        assert len(reader.get_views(*key, 0).records) == count, key


def test_pages_cross_log_files(files, open_reader):
    for number in range(10):
        files.put(body=b"%d" % number * 900)
    reader = open_reader()
    assert [body[:1] for body in bodies(reader, 0)] == [b"%d" % number for number in range(10)]


def test_random_places_between_files_do_not_matter_to_raw_pages(files, open_reader):
    for number in range(30):
        files.put(body=b"%d" % number * 300)
    reader = open_reader()
    for first, second in itertools.permutations((0, 4, 9, 11, 19, 20, 29), 2):
        for offset in (first, second):
            assert bodies(reader, offset)[0] == b"%d" % offset * 300


# --- by id ----------------------------------------------------------------------------------------


def test_a_message_is_found_by_its_id_whatever_the_host(files, open_reader):
    files.put(body=b"0")
    offset = files.put(body=b"1")
    reader = open_reader()
    message = reader.by_id(encode_message_id(HOST, offset))
    assert message is not None
    assert (message.body, message.physical_offset) == (b"1", offset)
    assert reader.by_id(encode_message_id(b"\x0a\0\0\1" + b"\0\0\0\1", offset)) == message
    assert reader.by_id(encode_message_id(bytes(20), offset)) == message


def test_an_id_that_points_into_a_record_or_nowhere_finds_nothing(files, open_reader):
    offset = files.put(body=record_bytes(0))
    reader = open_reader()
    for wrong in (offset + 1, offset + 88, files.end, 4096 - 8, 10**12, 2**63 - 1):
        assert reader.by_id(encode_message_id(HOST, wrong)) is None, wrong
    assert reader.at_physical_offset(-5) is None


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (4, b"\0"), (8, b"\xff"), (28 + 7, b"\x01"), (3, b"\x05"), (88, b"X"), (84, b"\x01"),
        (100, b"\x01"),
    ],
    ids=["magic", "checksum", "address", "length", "body", "body length", "properties length"],
)  # fmt: skip
def test_an_id_finds_nothing_where_a_record_contradicts_itself(files, open_reader, at, change):
    offsets = [files.put(body=b"%d" % number) for number in range(2)]
    damage(files, offsets[0], at, change)
    reader = open_reader()
    assert reader.by_id(encode_message_id(HOST, offsets[0])) is None
    assert reader.by_id(encode_message_id(HOST, offsets[1])) is not None


@pytest.mark.parametrize("text", ["", "xyz", "0" * 31, "G" * 32, "0" * 16 + "F" * 16])
def test_a_malformed_id_is_an_error(files, open_reader, text):
    files.put()
    with pytest.raises(FieldRangeError):
        open_reader().by_id(text)


# --- entries --------------------------------------------------------------------------------------


def test_entries_are_listed_as_stored_and_bounded(files, open_reader):
    files.fill(QUEUE, 2)
    offsets = [files.put(body=b"%d" % number) for number in range(20)]
    reader = open_reader()
    listed = list(reader.queue_entries(*QUEUE))
    assert [offset for offset, _ in listed] == list(range(22))
    assert [entry.physical_offset for _, entry in listed[2:]] == offsets
    assert [offset for offset, _ in reader.queue_entries(*QUEUE, 8, 5)] == [8, 9, 10, 11, 12]
    assert list(reader.queue_entries(*QUEUE, 50)) == []
    assert list(reader.queue_entries("absent", 0)) == []
    assert reader.message_count(*QUEUE) == 20
    assert reader.store_timestamp(*QUEUE, 2) == 1000
    assert reader.store_timestamp(*QUEUE, 0) is None
    assert reader.store_timestamp(*QUEUE, 99) is None


def test_a_record_whose_properties_a_power_cut_left_unwritten_is_no_message(files, open_reader):
    # No checksum covers topic and properties: a sector of zeros is all that tells.
    wide = {"filling": "x" * 1500}
    offsets = [files.put(body=b"%d" % number, properties=wide) for number in range(2)]
    sector = (offsets[0] + 200) // 512 * 512 + 512
    files.write_log(sector, bytes(512))
    reader = open_reader()
    assert bodies(reader, 0) == [b"1"]
    assert reader.get(*QUEUE, 0).skipped_entries == 1
    assert reader.at_physical_offset(offsets[0]) is None
