"""``known-ends`` counts as far as it is tied to the log."""

import zlib
from types import SimpleNamespace

import msgspec
import pytest

from rocketstore.format.known_ends import KnownEnds, decode_known_ends, encode_known_ends, tie_at

LOG = bytes(20) + b"first record".ljust(200, b".") + b"second record".ljust(200, b".")


def read(offset: int, size: int) -> bytes | None:
    return LOG[offset : offset + size] if 0 <= offset < len(LOG) else None


def ends_of(*ties: tuple[int, int], log_end: int = 420) -> KnownEnds:
    return KnownEnds(1, is_closed=True, log_end=log_end, queues=[], index_files=None, ties=[*ties])


FIRST, SECOND = ((at, tie_at(read, at)) for at in (20, 220))


@pytest.mark.parametrize(
    ("ends", "tied"),
    [
        (ends_of(FIRST, SECOND), 220),
        (ends_of(FIRST, (220, 7)), 20),
        (ends_of((20, 7), SECOND), 220),
        (ends_of((20, 7), (220, 7)), None),
        (ends_of(FIRST, (10_000, 7)), 20),
        (ends_of((0, zlib.crc32(bytes(88)))), None),
        (ends_of(), None),
        (ends_of(log_end=0), 0),
    ],
    ids=[
        "whole",
        "shortened",
        "the last tie is enough",
        "another log",
        "past its end",
        "zeros tie nothing",
        "without ties",
        "nothing was in it",
    ],
)
def test_a_log_is_the_one_meant_up_to_the_last_tie_that_it_has(ends, tied):
    assert ends.tied_up_to(read) == tied


@pytest.mark.parametrize(
    ("log_end", "last_base", "goes_on"),
    [(220, 0, True), (5, 0, False), (420, 0, False), (420, 512, True), (420, 420, False)],
)
def test_a_log_goes_on_where_a_record_or_a_later_file_follows(log_end, last_base, goes_on):
    assert ends_of(log_end=log_end).goes_on(read, [SimpleNamespace(base=last_base)]) is goes_on


@pytest.mark.parametrize(
    ("is_closed", "ended", "log_end", "by_others"),
    [
        (True, False, 220, True),
        (False, True, 220, True),
        (False, False, 220, False),
        (True, True, 420, False),
    ],
)
def test_a_log_goes_on_by_others_where_an_end_in_order_came_before(
    is_closed, ended, log_end, by_others
):
    known = msgspec.structs.replace(ends_of(log_end=log_end), is_closed=is_closed)
    assert known.is_by_others(read, [SimpleNamespace(base=0)], ended=ended) is by_others


def test_what_was_written_is_read_and_what_is_not_whole_is_not():
    ends = ends_of(FIRST)
    assert decode_known_ends(encode_known_ends(ends)) == ends
    for stop in range(len(encode_known_ends(ends))):
        assert decode_known_ends(encode_known_ends(ends)[:stop]) is None
