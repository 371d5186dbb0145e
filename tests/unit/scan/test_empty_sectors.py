"""Records of which a power cut left a sector unwritten: no checksum covers topic and properties."""

import numpy as np
import pytest

from rocketstore.native import index as compiled_index
from rocketstore.native import walk as compiled
from rocketstore.scan.columns import COLUMN_COUNT, StopReason
from rocketstore.scan.scanner import scan_window
from support.oracle import index as reference_index
from support.oracle import walk as reference
from support.oracle.properties import SECTOR_SIZE_BYTES
from support.synthetic_log import SyntheticLog

BASE = 1 << 20
BODY = b"b" * 300


def walk(log, flavour):
    data = np.frombuffer(bytes(log.data), np.uint8)
    cols = np.empty((8, COLUMN_COUNT), np.int64)
    count, _, reason = flavour.walk(data, 0, len(data), BASE, len(data), True, cols)  # noqa: FBT003
    return count, StopReason(reason)


def torn(*, topic=b"orders", properties=b"TAGS\x01created", body=BODY, from_sector=1, to_sector=99):
    """Return a log of one record whose sectors from one to another are zeros."""
    log = SyntheticLog(BASE)
    log.add(topic=topic, properties=properties, body=body)
    start = from_sector * SECTOR_SIZE_BYTES
    stop = min(to_sector * SECTOR_SIZE_BYTES, len(log.data))
    log.data[start:stop] = bytes(stop - start)
    return log


def body_up_to(edge):
    """Return a body with which the properties' byte number `edge` is the first of a sector."""
    return b"b" * (SECTOR_SIZE_BYTES - (91 + 6) - edge)


@pytest.mark.parametrize("flavour", [compiled, reference])
class TestEmptySectors:
    def test_properties_that_end_in_an_empty_sector_are_damage(self, flavour):
        log = torn(body=body_up_to(9))
        assert walk(log, flavour) == (0, StopReason.BAD_FIELDS)

    def test_one_byte_in_an_empty_sector_is_damage(self, flavour):
        log = torn(body=body_up_to(11))
        assert len(log.data) == SECTOR_SIZE_BYTES + 1
        assert walk(log, flavour) == (0, StopReason.BAD_FIELDS)

    def test_an_empty_sector_between_written_ones_is_damage(self, flavour):
        properties = b"padding\x01" + b"p" * 2000
        log = torn(properties=properties, from_sector=2, to_sector=3)
        assert walk(log, flavour) == (0, StopReason.BAD_FIELDS)

    def test_a_topic_that_turns_to_zeros_is_damage_although_lengths_add_up(self, flavour):
        log = torn(body=b"b" * (SECTOR_SIZE_BYTES - 89 - 3), properties=b"")
        assert walk(log, flavour) == (0, StopReason.BAD_FIELDS)

    def test_zeros_that_begin_inside_a_sector_are_somebodys_value(self, flavour):
        log = SyntheticLog(BASE)
        log.add(properties=b"TAGS\x01" + bytes(60) + b"\x02", body=b"b")
        log.add(properties=b"a\x01" + bytes(500) + b"z", body=b"")
        assert walk(log, flavour) == (2, StopReason.END)

    @pytest.mark.parametrize("edge", range(-8, 2))
    def test_no_properties_are_no_empty_sector(self, flavour, edge):
        log = SyntheticLog(BASE)
        log.add(topic=b"orders", body=b"b" * (SECTOR_SIZE_BYTES - 97 - edge))
        log.add(topic=b"orders", body=b"")
        assert walk(log, flavour) == (2, StopReason.END)

    def test_zeros_of_a_body_are_a_body(self, flavour):
        log = SyntheticLog(BASE)
        log.add(body=bytes(3000), properties=b"TAGS\x01created")
        assert walk(log, flavour) == (1, StopReason.END)


def test_the_evidence_names_text_that_was_cut_off():
    log = SyntheticLog(BASE).add(properties=b"TAGS\x01cre\0\0\0")
    (damage,) = next(scan_window(bytes(log.data), base=BASE)).damage
    assert "topic or properties were cut off" in damage.evidence


SLOTS, ITEMS = 16, 64
ITEMS_AT = 40 + 4 * SLOTS


def index_of(count, *, first_offset=70_000):
    data = np.zeros(ITEMS_AT + 20 * ITEMS, np.uint8)
    for number in range(count):
        offset = first_offset + 300 * number
        reference_index.put_item(data, SLOTS, ITEMS, 1000 + number, offset, 5000 + 2000 * number)
    return data


def offsets_of(data, count):
    items = [bytes(data[ITEMS_AT + 20 * n : ITEMS_AT + 20 * n + 20]) for n in range(1, count)]
    return [int.from_bytes(item[4:12], "big") for item in items]


@pytest.mark.parametrize("flavour", [compiled_index, reference_index])
class TestEmptySectorsOfTheIndex:
    def test_an_item_whose_offset_was_cut_off_is_dropped_with_those_after_it(self, flavour):
        # Item 20 begins 8 bytes before a sector's edge: half of its offset is behind it.
        assert (ITEMS_AT + 20 * 20) % SECTOR_SIZE_BYTES == SECTOR_SIZE_BYTES - 8
        data = index_of(30)
        data[SECTOR_SIZE_BYTES:] = 0
        kept = flavour.rebuild_slots(data, SLOTS, ITEMS, 1 << 40)
        assert kept == 20
        assert offsets_of(data, kept) == [70_000 + 300 * number for number in range(19)]

    def test_it_is_dropped_also_where_later_items_were_written(self, flavour):
        data = index_of(60)
        data[SECTOR_SIZE_BYTES : 2 * SECTOR_SIZE_BYTES] = 0
        kept = flavour.rebuild_slots(data, SLOTS, ITEMS, 1 << 40)
        offsets = offsets_of(data, kept)
        assert set(offsets) < {70_000 + 300 * number for number in range(60)}
        assert len(offsets) == 60 - 26

    @pytest.mark.parametrize("slots", [14, 15, 17])
    def test_an_item_whose_beginning_was_cut_off_is_dropped(self, flavour, slots):
        items_at = 40 + 4 * slots
        data = np.zeros(items_at + 20 * ITEMS, np.uint8)
        for number in range(60):
            # One chain: the last field, which survives, is never zero.
            reference_index.put_item(data, slots, ITEMS, 7 * slots, 70_000 + 300 * number, 5000)
        data[items_at + 20 : 2 * SECTOR_SIZE_BYTES] = 0
        kept = flavour.rebuild_slots(data, slots, ITEMS, 1 << 40)
        first_whole = -(-(2 * SECTOR_SIZE_BYTES - items_at) // 20)
        offsets = [
            int.from_bytes(bytes(data[items_at + 20 * n + 4 : items_at + 20 * n + 12]), "big")
            for n in range(1, kept)
        ]
        assert offsets == [70_000 + 300 * (number - 1) for number in range(first_whole, 61)]

    def test_the_item_of_a_logs_first_record_may_end_in_zeros(self, flavour):
        slots = (SECTOR_SIZE_BYTES - 60 - 4) // 4
        data = np.zeros(40 + 4 * slots + 20 * 8, np.uint8)
        reference_index.put_item(data, slots, 8, 1000, 0, 5000)
        assert flavour.rebuild_slots(data, slots, 8, 100) == 2
