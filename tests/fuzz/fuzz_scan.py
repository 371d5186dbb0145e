"""scan: any bytes are accounted for, byte by byte, and no kernel looks outside of them."""

import os
import sys
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rocketstore.scan import kernels
from rocketstore.scan.arrow import to_arrow
from rocketstore.scan.columns import new_columns
from rocketstore.scan.scanner import scan_window
from support.guarded_memory import guarded
from support.oracle import resync as reference_resync
from support.oracle import walk as reference_walk
from support.oracle.record import decode_record
from support.python_process import run_python
from support.scan_strategies import damaged_logs, stored_record
from support.synthetic_log import SyntheticLog
from support.vectors import vector

BASE = 847067
"""Physical offset of the golden record of spec F17."""


def golden_log() -> bytes:
    """Return records of every kind with damage between them and a blank at the end."""
    log = SyntheticLog(BASE)
    log.garbage(vector("record/one-message")).garbage(b"\xda" * 13)
    for flag in (0, 0x10, 0x20, 0x30):
        log.add(sys_flag=flag, body=b"b" * 90, properties="TAGS\x01中文\x02KEYS\x01a b".encode())
    log.zeros(40).add(magic=0xDAA320AB, topic=b"t" * 200, properties=b"UNIQ_KEY\x01u\x02DELAY\x013")
    return bytes(log.blank(50).data)


CHECKED: set[tuple[int, bytes, bytes]] = set()

GOLDEN = (golden_log(), golden_log()[:-60], vector("record/one-message") + bytes(70))
COUNT = 2_500  # a millisecond each
ANY = st.binary(max_size=400)


def check(data: bytes) -> None:
    expected = answers(np.frombuffer(data, np.uint8), reference_resync, reference_walk)
    for at_end in (True, False):
        array = guarded(data, at_end=at_end)
        check_accounting(array, check_crc=at_end, missing=0)
        check_accounting(array, check_crc=at_end, missing=77)
        assert answers(array, kernels, kernels) == expected


def check_accounting(array: np.ndarray, *, check_crc: bool, missing: int) -> None:
    """Each byte is in one piece, also of a file that lacks some at its end."""
    pieces, unwritten, damaged = [], [], []
    size = len(array) + missing
    for batch in scan_window(
        array, base=BASE, check_crc=check_crc, batch_records=3, file_size=size
    ):
        unwritten.append(batch.unwritten_at)
        columns = batch.columns
        for row in range(len(columns)):
            start, size = int(columns.physical_offset[row]), int(columns.size[row])
            pieces.append((start, start + size))
            check_decodes(array, start - BASE, columns, row, check_crc=check_crc)
        pieces += [(blank.physical_offset, BASE + len(array)) for blank in batch.blanks]
        damaged += [damage.range for damage in batch.damage]
        if check_crc and len(columns):
            check_arrow(columns)
    reached = BASE
    for start, stop in sorted(pieces + damaged):
        assert start == reached
        assert stop > start
        reached = stop
    assert not array[reached - BASE :].any()
    has_tail = reached < BASE + len(array) or reached in (stop for _, stop in damaged)
    tail = reached if has_tail else None
    assert unwritten == [None] * (len(unwritten) - 1) + [tail]


def check_arrow(columns):
    """What was checked once, at the same distance from forbidden memory, is so for good."""
    records = b"".join(stored_record(columns, row) for row in range(len(columns)))
    batch = len(columns.buffer), columns.cols.tobytes(), records
    if batch not in CHECKED:
        to_arrow(columns).validate(full=True)
        CHECKED.add(batch)


def check_decodes(array, position, columns, row, *, check_crc):
    """What the scan calls a record, the codec of one record reads alike."""
    message = decode_record(array.data, position, base=BASE, check_crc=check_crc)
    assert message.size == columns.size[row]
    assert message.topic == columns.topic(row)
    assert message.raw_body == columns.body(row)
    assert message.raw_properties == columns.properties(row)
    assert message.queue_offset == columns.queue_offset[row]
    assert message.store_timestamp_ms == columns.store_timestamp[row]
    assert message.prepared_transaction_offset == columns.prepared_offset[row]
    assert (message.tags is not None) == (columns.tags_size[row] > 0)


def answers(array: np.ndarray, resyncs: Any, walks: Any) -> tuple[object, ...]:
    """Return where the first record is, and what a walk from there finds in four rows."""
    size = len(array)
    found = resyncs.resync(array, 0, size, BASE, size)
    columns = new_columns(4)
    count, position, code = walks.walk(array, max(found, 0), size, BASE, size, True, columns)  # noqa: FBT003
    return found, count, position, code, columns[:count].tolist()


def claiming(body_size: int) -> SyntheticLog:
    """Return a log of one record that says so of its body."""
    log = SyntheticLog(BASE).add(body=b"b" * 90)
    log.data[84:88] = body_size.to_bytes(4, "big")
    return log


@given(damaged_logs())
@example(claiming(400))
@example(claiming(1 << 30))
def test_damaged_logs_are_accounted_for(log):
    check(bytes(log.data))


def test_the_golden_logs_are_found():
    (batch,) = scan_window(GOLDEN[0], base=BASE)
    assert len(batch.columns) == 6
    assert len(batch.blanks) == 1
    assert [damage.reason.name for damage in batch.damage] == ["BAD_MAGIC", "UNWRITTEN_HOLE"]


def test_the_guard_ends_a_process_that_reads_outside():
    code = (
        "from support.guarded_memory import guarded; import ctypes; a = guarded(b'abc');"
        "ctypes.string_at(a.ctypes.data, 3); print('inside', flush=True);"
        "ctypes.string_at(a.ctypes.data, 4)"
    )
    path = os.pathsep.join(path for path in sys.path if path)
    done = run_python("-c", code, env={"PYTHONPATH": path})
    assert done.stdout == "inside\n"
    assert done.returncode < 0
