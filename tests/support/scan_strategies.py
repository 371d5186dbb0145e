"""Hypothesis strategies for CommitLog bytes: healthy, damaged, and hostile.

Hypothesis draws how many records there are and what they are chosen by: to draw each field takes
ten times as long as the test.
"""

import functools
import random

from hypothesis import strategies as st

from rocketstore.scan.columns import RecordColumns
from support.synthetic_log import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SyntheticLog,
    blank_bytes,
    record_bytes,
)

# Made once: to make and check a strategy takes longer than to draw from it.
CHOICES = st.integers(0, 2**32).map(random.Random)
_COUNTS = st.integers(0, 6)
_TEXT = st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace"))
_CHARACTERS = "\0\1\2 aZ0\x7f\x80ß\u07ff\u0800中\ud7ff\ue000\uffff\U00010000😀\U0010ffff"
_UTF8_PIECES = (
    *(b"a", b" ", b"\x80", b"\xc1", b"\xc3", b"\xe0\x80", b"\xe4\xb8", b"\xed\xa0\x80"),
    *(b"\xf0\x9f", b"\xf0\x90\x80", b"\xf4\x90\x80\x80", b"\xf5", b"\xff"),
    *("中".encode(), "😀".encode()),
)
_BROKEN_UTF8 = st.lists(st.sampled_from(_UTF8_PIECES), max_size=8).map(b"".join)
_NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"TAG", b"UNIQ_KEZ", b"XELAY", b"", b"a")


@functools.cache
def texts_or_noise() -> st.SearchStrategy[bytes]:
    return _TEXT | _BROKEN_UTF8 | st.binary(max_size=20)


def stored_record(columns: RecordColumns, row: int) -> bytes:
    begin = int(columns.physical_offset[row]) - columns.base
    return columns.buffer[begin : begin + int(columns.size[row])].tobytes()


def _text(chosen: random.Random) -> bytes:
    some = (*_CHARACTERS, chr(chosen.randrange(0xD800)))
    return "".join(chosen.choices(some, k=chosen.randint(0, 12))).encode()


def _text_or_noise(chosen: random.Random) -> bytes:
    kind = chosen.randrange(3)
    if kind == 0:
        return _text(chosen)
    if kind == 1:
        return b"".join(chosen.choices(_UTF8_PIECES, k=chosen.randint(0, 8)))
    return chosen.randbytes(chosen.randint(0, 20))


def _properties(chosen: random.Random, *, is_whole: bool) -> bytes:
    names = (*_NAMES, b"\xc3\x9f" if is_whole else b"\xff")
    parts = []
    for _ in range(chosen.randint(0, 6)):
        text = _text(chosen) if is_whole else _text_or_noise(chosen)
        number = b"%d" % (chosen.getrandbits(33) >> chosen.randrange(33))
        value = chosen.choice((text, text, text, number, number, b""))
        parts.append(chosen.choice(names) + chosen.choice((b"\x01", b"\x01\x01", b"")) + value)
    block = b"\x02".join((*parts, *chosen.choice(((), (b"",)))))
    if not is_whole:
        return block
    if block and b"\x01" not in block:
        block = b"a\x01b\x02" + block
    return block + b"\x02" * block.endswith(b"\0")


def whole_properties() -> st.SearchStrategy[bytes]:
    """Blocks as clients and brokers of 4.9 can write them, odd values and separators included."""
    return properties_blocks(is_whole=True)


@functools.cache
def properties_blocks(*, is_whole: bool = False) -> st.SearchStrategy[bytes]:
    """Blocks of properties, with every way of being malformed, or with those that are no damage."""
    return CHOICES.map(functools.partial(_properties, is_whole=is_whole))


def _fields(chosen: random.Random, *, is_whole: bool = False) -> dict[str, object]:
    magic = chosen.choice((MAGIC_V1, MAGIC_V1, MAGIC_V1, MAGIC_V2))
    long = b"t" * (127 if magic == MAGIC_V1 else 300)
    texts = (_text_or_noise(chosen), b"TopicTest", long)
    topic = chosen.choices(texts, (3, 1, 1))[0]
    size = chosen.choice((0, chosen.randint(0, 40), chosen.randint(60, 200)))
    return {
        "body": chosen.randbytes(size),
        "topic": topic.rstrip(b"\0") if is_whole else topic,
        "properties": _properties(chosen, is_whole=is_whole),
        "magic": magic,
        "sys_flag": chosen.choice((0, 0, 0x10, 0x20, 0x30, 0x4, 0xC, 0x1)),
        "queue_id": chosen.randint(0, 7),
        "queue_offset": chosen.choice((0, chosen.randint(0, 2**40), 2**40)),
        "flag": chosen.choice((0, chosen.randint(-(2**31), 2**31 - 1), -(2**31), 2**31 - 1)),
        "reconsume_times": chosen.randint(0, 16),
        "prepared_transaction_offset": chosen.choice((0, chosen.randint(0, 2**40))),
    }


@functools.cache
def record_fields(*, is_whole: bool = False) -> st.SearchStrategy[dict[str, object]]:
    return CHOICES.map(functools.partial(_fields, is_whole=is_whole))


def _noise(chosen: random.Random, log: SyntheticLog) -> bytes:
    """Something that is no record of this place, the nastier the better."""
    here = log.base + len(log.data)
    magic = chosen.choice((MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
    length = chosen.choice((*(chosen.randint(-5, 300) for _ in range(3)), 2**31 - 1))
    return chosen.choice(
        (
            bytes(chosen.randint(1, 200)),
            record_bytes(here + chosen.randint(1, 5000), body=b"not here"),
            length.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big") + b"\x01" * 40,
            record_bytes(here, body=record_bytes(7, body=b"inner"))[:-1] + b"\x00\x01",
            blank_bytes(chosen.randint(0, 400)),
            record_bytes(here, body=b"x" * 50)[: chosen.randint(1, 140)],
            chosen.randbytes(chosen.randint(1, 80)),
        )
    )


@st.composite
def damaged_logs(draw: st.DrawFn) -> SyntheticLog:
    """A log of records with noise between some, flipped bytes, and a tail of any kind."""
    count, chosen = draw(_COUNTS), draw(CHOICES)
    log = SyntheticLog(base=chosen.choice((0, 65536, 1 << 40)))
    for _ in range(count):
        if chosen.randrange(4) == 0:
            log.garbage(_noise(chosen, log))
        fields = _fields(chosen)
        if chosen.randrange(5) == 0:
            # A body that carries a whole record, one of elsewhere or one that states its place.
            inside = log.base + len(log.data) + 88 + chosen.choice((0, 0, 1000))
            fields |= {"body": record_bytes(inside, body=b"hidden"), "sys_flag": 0}
        log.add(**fields)
    tail = chosen.choice(("none", "zeros", "blank", "noise", "hole"))
    if tail == "zeros":
        log.zeros(chosen.randint(1, 300))
    elif tail == "blank":
        log.blank(chosen.randint(8, 200))
    elif tail == "noise":
        log.garbage(_noise(chosen, log))
    elif tail == "hole":
        log.zeros(chosen.randint(1, 200)).garbage(b"\x01").zeros(chosen.randint(0, 99))
    for _ in range(chosen.randrange(3) if log.data else 0):
        log.data[chosen.randrange(len(log.data))] ^= chosen.randint(1, 255)
    return log


KEYED_TOPICS = (
    b"TopicA", b"AaTopic", b"BBTopic", "Thema-ä".encode(), b"\xff\xfe", b"SCHEDULE_TOPIC_XXXX"
)  # fmt: skip
KEYS = (b"k1", b"k2", b"Aa", b"BB", "schlüssel".encode(), "😀".encode(), b"")
NAME = b"INNER_MULTI_DISPATCH"
FURTHER = (
    b"UNIQ_KEY\x01u1", b"TAGS\x01t", b"DELAY\x012", b"DELAY\x0199", NAME + b"\x01%LMQ%a",
    b"X" + NAME + b"\x01a", NAME + b"X\x01a", NAME, NAME[:-3] + NAME + b"\x01a",
    b"TAGS\x01" + NAME, b"I" * 40,
)  # fmt: skip


@st.composite
def keyed_logs(draw: st.DrawFn, *, in_order: bool) -> SyntheticLog:
    """Records of queues whose topics share hashes, with keys of all kinds.

    Queue offsets are `in_order`, or rise, repeat, jump and collide.
    """
    log = SyntheticLog(base=draw(st.sampled_from([0, 65536])))
    chosen = draw(CHOICES)
    for number in range(draw(st.integers(0, 30))):
        parts = [b"KEYS\x01" + b" ".join(chosen.choices(KEYS, k=chosen.randint(0, 4)))]
        parts += chosen.choices(FURTHER, k=chosen.randint(0, 3))
        chosen.shuffle(parts)
        jumping = chosen.choice([*range(13), *range(13), -1, 10**6, 2**62])
        log.add(
            topic=chosen.choice(KEYED_TOPICS),
            queue_id=chosen.randint(0, 1),
            queue_offset=number if in_order else jumping,
            properties=b"\x02".join(parts),
            sys_flag=chosen.choice([0, 0, 0, 0x4, 0x8, 0xC, 0x10]),
            store_timestamp_ms=chosen.choice([0, 999, 10_000, 20_500, 2**40]),
            body=b"",
        )
    return log
