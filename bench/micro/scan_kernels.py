"""How fast the scan kernels are: CRC, walk, resynchronisation, one core, everything in memory.

``PYTHONPATH=tests python bench/micro/scan_kernels.py [--log-mb 512]`` prints one line per case: the
best of several runs in process CPU time, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import numpy as np

from rocketstore.scan import kernels
from rocketstore.scan.columns import new_columns
from rocketstore.scan.scanner import scan_window
from support.synthetic_log import record_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1_000_000
BASE = 1 << 32
PROPERTIES = b"\x02".join(
    (b"KEYS\x01order-%08d customer-%06d", b"UNIQ_KEY\x017F00000100002A9F0000%012X",
     b"CLUSTER\x01DefaultCluster", b"TAGS\x01Tag%c")
)  # fmt: skip
HOST = bytes((10, 0, 0, 1)) + (10911).to_bytes(4, "big")


def log_bytes(size: int, body_size: int) -> np.ndarray:
    """Return a CommitLog file of 20 topics times 8 queues with a zero tail of some bytes."""
    log = np.zeros(size, dtype=np.uint8)
    body = np.random.default_rng(7).integers(0, 256, body_size + 256, dtype=np.uint8).tobytes()
    position, number = 0, 0
    while True:
        record = record_bytes(
            BASE + position,
            body=body[number % 256 : number % 256 + body_size],
            topic=b"BenchTopic%02d" % (number % 20),
            properties=PROPERTIES % (number, number % 999_999, number, 65 + number % 5),
            queue_id=number % 8,
            queue_offset=number // 160,
            store_timestamp_ms=1_700_000_000_000 + number,
        )
        if position + len(record) + 8 > size:
            return log[:position].copy()
        log[position : position + len(record)] = np.frombuffer(record, dtype=np.uint8)
        position += len(record)
        number += 1


def best_seconds(run: Callable[[], object], repeat: int = 5) -> float:
    """Return the least CPU time of several runs."""
    times = []
    for _ in range(repeat):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def report(case: str, seconds: float, byte_count: int, record_count: int = 0) -> None:
    rate = f"{record_count / seconds / 1e6:7.2f} M records/s" if record_count else ""
    print(f"{case:<38}{byte_count / seconds / 1e9:8.2f} GB/s {rate}", flush=True)


def bench_crc() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8)
    for size in (100, 1024, 4096, 65536):
        calls = (1 << 20) // size
        at, sizes = np.arange(calls) * size, np.full(calls, size)
        sums = np.empty(calls, np.int64)
        seconds = best_seconds(lambda a=at, s=sizes, t=sums: kernels.slice_crcs(data, a, s, t))
        report(f"crc of {size} B", seconds, size * calls)


def bench_scan(log_size: int) -> None:
    for body_size in (100, 1024, 4096):
        log = log_bytes(log_size, body_size)
        cols = new_columns(8192)

        def walk_all(log: np.ndarray = log, cols: np.ndarray = cols, *, check_crc: bool) -> int:
            position = count = 0
            while position < len(log):
                found, position, _ = kernels.walk(
                    log, position, len(log), BASE, len(log), check_crc, cols
                )
                count += found
            return count

        count = walk_all(check_crc=False)
        for check_crc in (False, True):
            label = f"walk {body_size} B{', crc' if check_crc else ''}"
            seconds = best_seconds(lambda check_crc=check_crc: walk_all(check_crc=check_crc))
            report(label, seconds, len(log), count)
        seconds = best_seconds(lambda log=log: sum(1 for _ in scan_window(log, base=BASE)))
        report(f"scan_window {body_size} B, crc", seconds, len(log), count)
        seconds = best_seconds(lambda log=log: kernels.resync(log, 0, len(log), 1, len(log)))
        report(f"resync over foreign records {body_size} B", seconds, len(log))


def bench_resync(log_size: int) -> None:
    generator = np.random.default_rng(3)
    cases = {
        # Filled: untouched zeros are one page of memory that every address shows.
        "zeros": np.full(log_size, 0, dtype=np.uint8),
        "random bytes": generator.integers(0, 256, log_size, dtype=np.uint8),
        "text": generator.integers(32, 127, log_size, dtype=np.uint8),
    }
    for name, data in cases.items():
        data[-1] = 1  # touched, and the last byte is what the search from behind finds
        seconds = best_seconds(lambda data=data: kernels.resync(data, 0, len(data), 0, len(data)))
        report(f"resync over {name}", seconds, log_size)
    zeros = cases["zeros"]
    zeros[0], zeros[-1] = 1, 0
    seconds = best_seconds(lambda: kernels.last_nonzero(zeros, 0, log_size))
    report("last_nonzero over zeros", seconds, log_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log-mb", type=int, default=512, help="size of each synthetic log")
    log_size = parser.parse_args().log_mb * MB
    bench_crc()
    bench_scan(log_size)
    bench_resync(log_size)


if __name__ == "__main__":
    main()
