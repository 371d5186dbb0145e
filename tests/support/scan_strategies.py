"""Hypothesis strategies for CommitLog bytes: healthy, damaged, and hostile."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from support.synthetic_log import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SyntheticLog,
    blank_bytes,
    record_bytes,
)

_TEXT = st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace"))
_UTF8_PIECES = (
    *(b"a", b" ", b"\x80", b"\xc1", b"\xc3", b"\xe0\x80", b"\xe4\xb8", b"\xed\xa0\x80"),
    *(b"\xf0\x9f", b"\xf0\x90\x80", b"\xf4\x90\x80\x80", b"\xf5", b"\xff"),
    *("中".encode(), "😀".encode()),
)
_BROKEN_UTF8 = st.lists(st.sampled_from(_UTF8_PIECES), max_size=8).map(b"".join)


@functools.cache
def texts_or_noise() -> st.SearchStrategy[bytes]:
    return _TEXT | _BROKEN_UTF8 | st.binary(max_size=20)


def whole_properties() -> st.SearchStrategy[bytes]:
    """Blocks as clients and brokers of 4.9 can write them, odd values and separators included."""
    return properties_blocks(is_whole=True)


def _made_whole(block: bytes) -> bytes:
    if block and b"\x01" not in block:
        block = b"a\x01b\x02" + block
    return block + b"\x02" * block.endswith(b"\0")


@functools.cache
def properties_blocks(*, is_whole: bool = False) -> st.SearchStrategy[bytes]:
    """Blocks of properties, with every way of being malformed, or with those that are no damage."""
    names = st.sampled_from(
        [
            b"TAGS",
            b"KEYS",
            b"UNIQ_KEY",
            b"DELAY",
            b"TAG",
            b"UNIQ_KEZ",
            b"XELAY",
            b"",
            b"a",
            b"\xc3\x9f" if is_whole else b"\xff",
        ]
    )
    texts = _TEXT if is_whole else texts_or_noise()
    values = texts | st.integers(0, 2**33).map(lambda n: str(n).encode()) | st.just(b"")
    part = st.tuples(names, st.sampled_from([b"\x01", b"\x01\x01", b""]), values).map(b"".join)
    lists = st.tuples(st.lists(part, max_size=6), st.sampled_from(((), (b"",))))
    blocks = lists.map(lambda drawn: b"\x02".join((*drawn[0], *drawn[1])))
    return blocks.map(_made_whole) if is_whole else blocks


# Made once: to make and check a strategy takes longer than to draw from it.
_MAGICS = st.sampled_from((MAGIC_V1, MAGIC_V1, MAGIC_V1, MAGIC_V2))
_TOPICS = {
    magic: texts_or_noise() | st.just(b"TopicTest") | st.just(b"t" * limit)
    for magic, limit in ((MAGIC_V1, 127), (MAGIC_V2, 300))
}
_BODIES = st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
_SYS_FLAGS = st.sampled_from((0, 0, 0x10, 0x20, 0x30, 0x4, 0xC, 0x1))
_QUEUE_IDS, _OFFSETS = st.integers(0, 7), st.integers(0, 2**40)
_FLAGS, _TIMES = st.integers(-(2**31), 2**31 - 1), st.integers(0, 16)
_KINDS = st.sampled_from(("bytes", "zeros", "foreign", "magic", "hidden", "blank", "torn"))
_LENGTHS = st.integers(-5, 300) | st.just(2**31 - 1)
_MAGICS_OF_NOISE = st.sampled_from((MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
_BASES = st.sampled_from((0, 65536, 1 << 40))
_TAILS = st.sampled_from(("none", "zeros", "blank", "noise", "hole"))
_DISTANCES = st.sampled_from((0, 0, 1000))


@st.composite
def record_fields(draw: st.DrawFn, *, is_whole: bool = False) -> dict[str, object]:
    magic = draw(_MAGICS)
    topic = draw(_TOPICS[magic])
    return {
        "body": draw(_BODIES),
        "topic": topic.rstrip(b"\0") if is_whole else topic,
        "properties": draw(properties_blocks(is_whole=is_whole)),
        "magic": magic,
        "sys_flag": draw(_SYS_FLAGS),
        "queue_id": draw(_QUEUE_IDS),
        "queue_offset": draw(_OFFSETS),
        "flag": draw(_FLAGS),
        "reconsume_times": draw(_TIMES),
        "prepared_offset": draw(_OFFSETS),
    }


_RECORDS = record_fields()


def _noise(draw: st.DrawFn, log: SyntheticLog) -> bytes:  # noqa: PLR0911 - one per kind
    """Something that is no record of this place, the nastier the better."""
    here = log.base + len(log.data)
    kind = draw(_KINDS)
    if kind == "zeros":
        return bytes(draw(st.integers(1, 200)))
    if kind == "foreign":
        return record_bytes(here + draw(st.integers(1, 5000)), body=b"not here")
    if kind == "magic":
        magic = draw(_MAGICS_OF_NOISE)
        length = draw(_LENGTHS)
        return length.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big") + b"\x01" * 40
    if kind == "hidden":
        return record_bytes(here, body=record_bytes(7, body=b"inner"))[:-1] + b"\x00\x01"
    if kind == "blank":
        return blank_bytes(draw(st.integers(0, 400)))
    if kind == "torn":
        return record_bytes(here, body=b"x" * 50)[: draw(st.integers(1, 140))]
    return draw(st.binary(min_size=1, max_size=80))


@st.composite
def damaged_logs(draw: st.DrawFn) -> SyntheticLog:
    """A log of records with noise between some, flipped bytes, and a tail of any kind."""
    log = SyntheticLog(base=draw(_BASES))
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.integers(0, 3)) == 0:
            log.garbage(_noise(draw, log))
        fields = draw(_RECORDS)
        if draw(st.integers(0, 4)) == 0:
            # A body that carries a whole record, one of elsewhere or one that states its place.
            inside = log.base + len(log.data) + 88 + draw(_DISTANCES)
            fields |= {"body": record_bytes(inside, body=b"hidden"), "sys_flag": 0}
        log.add(**fields)
    tail = draw(_TAILS)
    if tail == "zeros":
        log.zeros(draw(st.integers(1, 300)))
    elif tail == "blank":
        log.blank(draw(st.integers(8, 200)))
    elif tail == "noise":
        log.garbage(_noise(draw, log))
    elif tail == "hole":
        log.zeros(draw(st.integers(1, 200))).garbage(b"\x01").zeros(draw(st.integers(0, 99)))
    for at in draw(st.lists(st.integers(0, max(len(log.data) - 1, 0)), max_size=2)):
        if log.data:
            log.data[at] ^= draw(st.integers(1, 255))
    return log
