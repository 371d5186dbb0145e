"""Pages are those of the rules, entry by entry, whatever stands in log and queue."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstore import GetMessageStatus
from rocketstore.format.java_hash import string_hash
from rocketstore.format.queue_entry import FILLER
from rocketstore.native.decode import LogAtHand
from rocketstore.native.page import MESSAGES, RECORDS, VIEWS, QueuePages
from rocketstore.rules.extra_queues import may_stand_in
from rocketstore.storage.reading.pages import page_without_entry
from support.guarded_memory import guarded
from support.leaks import assert_keeps_nothing
from support.oracle.codecs import encode_entries
from support.oracle.page import LOST, UNWANTED, page
from support.scan_strategies import CHOICES, damaged_logs
from support.synthetic_log import MAGIC_V1, MAGIC_V2, SyntheticLog

TOPICS = ("TopicA", "TopicB", "Thema-ä")
ASKED = ("TopicA",) * 4
"""Most records are of the queue and the tag that is asked for: else pages are nearly empty."""
TAGS = ("TagA", "TagB", "Aa", "BB", "标签", "x")
"""``Aa`` and ``BB`` hash alike."""
STATUSES = ("found", LOST, UNWANTED)
SPAN = 1000


class Log:
    """One stretch of bytes; a file of it is remembered only where it is mapped."""

    is_mapped = False

    def __init__(self, log: SyntheticLog, max_offset: int, *, whole: bool) -> None:
        self.data, self.base, self.max_offset = bytes(log.data), log.base, max_offset
        self.whole = whole
        self.buffer = guarded(self.data)

    def bytes_at(self, offset: int, size: int):
        at = offset - self.base
        if not 0 <= at < len(self.data):
            return None
        if self.whole:
            return self.buffer, self.base, len(self.data), None
        part = guarded(self.data[at : at + size])
        return part, offset, len(part), None


class Queue:
    min_offset = 0
    extension = None

    def __init__(self, entries: bytes, first: int) -> None:
        self.entries, self.first = entries, first
        self.max_offset = first + len(entries) // 20

    def bytes_at(self, start: int, limit: int):
        part = self.entries[20 * (start - self.first) :][: 20 * limit]
        return guarded(part), 20 * start, len(part), None


PARTS = (
    *(f"TAGS\x01{tag}" for tag in ("TagA",) * 6 + TAGS), "KEYS\x01k", "TAGS\x01", "T",
    "INNER_MULTI_DISPATCH\x01TopicA,%LMQ%x", "INNER_MULTI_DISPATCH\x01TopicB",
)  # fmt: skip
CODES = (*map(string_hash, ("TagA",) * 6 + TAGS), 0, -(2**31) - 5, 2**40)
STRANGE = (tuple(FILLER), (0, 0, 0), (-(2**63), 5, 0), (2**63 - 1, 91, 0))


@st.composite
def healthy_logs(draw: st.DrawFn) -> SyntheticLog:
    count, chosen = draw(st.integers(1, 20)), draw(CHOICES)
    log = SyntheticLog(base=chosen.choice((0, 4096)))
    for _ in range(count):
        log.add(
            topic=chosen.choice((*TOPICS, *ASKED)).encode(),
            queue_id=chosen.choice((0, 0, 0, 1)),
            properties="\x02".join(chosen.choices(PARTS, k=chosen.randrange(5))).encode(),
            body=chosen.randbytes(chosen.choice((0, chosen.randint(0, 60)))),
            crc=chosen.choice((None, None, None, 7)),
            sys_flag=chosen.choice((0, 0, 0x10, 0x20, 0x30)),
            magic=chosen.choice((MAGIC_V1, MAGIC_V1, MAGIC_V2)),
        )
    return log


LOGS = healthy_logs() | damaged_logs()


def entries_for(log: SyntheticLog, chosen: random.Random) -> bytes:
    """Entries of the log's records, with every way of being wrong among them."""
    entries = []
    for _ in range(chosen.choice((chosen.randint(1, 9), chosen.randint(1, 60)))):
        at, size = chosen.choice(log.records or [(0, 100)])
        right = (log.base + at, size, chosen.choice(CODES))
        offset = chosen.choice((right[0], chosen.randint(-50, 5000)))
        wrong_size = chosen.choice((chosen.randint(-5, 400), 0x7FFFFFFF, -(2**31)))
        wrong = (offset, wrong_size, chosen.choice(CODES))
        entries.append(chosen.choice((right, right, right, wrong, chosen.choice(STRANGE))))
    return encode_entries(entries)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_page_is_what_the_rules_say(data):
    log = data.draw(LOGS)
    entries = entries_for(log, data.draw(CHOICES))
    topic = data.draw(st.sampled_from([*ASKED, *TOPICS, "TopicTest", "%LMQ%x"]))
    queue_id = data.draw(st.sampled_from([0, 0, 1]))
    some_tags = st.lists(st.sampled_from(TAGS), max_size=3, unique=True).map(tuple)
    tags = data.draw(some_tags | st.just(("TagA",)))
    limits = data.draw(
        st.tuples(st.integers(0, 2000), st.integers(0, 10), st.integers(0, 500), st.integers(0, 4))
        | st.just((2**40, 2**40, 2**40, 2**40))
    )
    most = data.draw(st.integers(-1, 12) | st.sampled_from([50, 2**70]))
    in_disk_below = data.draw(st.sampled_from([0, log.base + 300, 2**61]))
    source = Log(log, in_disk_below + SPAN, whole=data.draw(st.booleans()))
    queue = Queue(entries, 7)
    pages = QueuePages(
        LogAtHand(source), topic, queue_id, (*limits, SPAN), tags, STATUSES, lambda *_: None,
        may_stand_in,
    )  # fmt: skip
    skip = data.draw(st.integers(0, len(entries) // 20 - 1))
    for kind in (RECORDS, MESSAGES, VIEWS):
        status, messages, scanned, skipped = page(
            source.data, log.base, entries[20 * skip :], (topic, queue_id), limits, tags, most,
            in_disk_below, crc=kind == MESSAGES,
        )  # fmt: skip
        sizes = [(one.physical_offset - log.base, one.size) for one in messages]
        records = [source.data[at : at + size] for at, size in sizes]
        found = pages.read(kind, queue, 7 + skip, most)
        tail = (7 + skip + scanned, 0, queue.max_offset, skipped)
        if kind == RECORDS:
            assert found == (status, b"".join(records), len(records), *tail)
            assert type(found[1]) is bytes
        elif kind == VIEWS:
            assert found == (status, found[1], *tail)
            assert [bytes(view) for view in found[1]] == records
        else:
            assert found == (status, messages, *tail)


def test_pages_leave_nothing_behind():
    log = SyntheticLog()
    for number in range(50):
        log.add(topic=b"TopicA", queue_id=0, body=b"%d" % number * 10, properties=b"K\x01v")
    source = Log(log, 0, whole=True)
    queue = Queue(encode_entries([(at, size, 0) for at, size in log.records]), 0)
    pages = QueuePages(
        LogAtHand(source),
        "TopicA",
        0,
        (1 << 20, 100, 1 << 20, 100, 0),
        (),
        STATUSES,
        print,
        may_stand_in,
    )

    def read() -> None:
        for kind in (RECORDS, MESSAGES, VIEWS):
            for offset in (0, 40):
                pages.read(kind, queue, offset, 40)

    assert_keeps_nothing(read, 40, source.buffer)


class GrowingQueue(Queue):
    """A queue that has one more message each time it is asked for its end."""

    asked = 0
    entries_per_file = 10

    @property
    def max_offset(self) -> int:
        self.asked += 1
        return self.asked

    @max_offset.setter
    def max_offset(self, _: int) -> None: ...


@pytest.mark.parametrize("kind", [RECORDS, MESSAGES, VIEWS])
def test_a_reader_at_the_end_of_a_queue_that_grows_stays_there(kind):
    log = SyntheticLog().add(topic=b"TopicA", queue_id=0)
    queue = GrowingQueue(encode_entries([(0, log.records[0][1], 0)]), 0)
    at_hand = LogAtHand(Log(log, 0, whole=True))
    pages = QueuePages(at_hand, "TopicA", 0, (1, 1, 1, 1, 0), (), STATUSES, page_without_entry,
                       may_stand_in)  # fmt: skip
    status, *_, following, minimum, maximum, _ = pages.read(kind, queue, 1, 1)
    assert (status, following) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 1)
    assert (minimum, maximum) == (0, 1)


@pytest.mark.parametrize("odd", ["x", None, 0.5, object()])
def test_odd_questions_are_errors_of_python(odd):
    log = SyntheticLog().add(topic=b"TopicA", queue_id=0)
    queue = Queue(encode_entries([(0, log.records[0][1], 0)]), 0)
    pages = QueuePages(
        LogAtHand(Log(log, 0, whole=True)),
        "TopicA",
        0,
        (1, 1, 1, 1, 0),
        (),
        STATUSES,
        print,
        may_stand_in,
    )
    for arguments in ((RECORDS, odd or "", 0, 1), (RECORDS, queue, odd, 1)):
        with pytest.raises((TypeError, AttributeError)):
            pages.read(*arguments)
