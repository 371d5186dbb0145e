"""A store of any size on hardly any disk: files of a few records and a BLANK to the end each."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from rocketstore.format.file_name import file_name
from rocketstore.format.host import encode_host
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.format.record import encode_blank
from rocketstore.units import QueueKey
from support.oracle.codecs import encode_entry
from support.record_encoder import encode_record

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
HOST = encode_host("127.0.0.1:10911")
QUEUE_FILE_SIZE = 6_000_000
BEGIN_MS = 1_700_000_000_000
FILE_MS = 60_000
"""From the first record of a file to that of the next one."""


def make_sparse_log(
    root: Path,
    file_count: int,
    *,
    records_per_file: int = 3,
    file_size: int = GIB,
    topics: tuple[str, ...] = ("TopicA", "TopicB", "TopicC"),
    body: bytes = b"body",
    queues: bool = True,
) -> list[int]:
    """Make a store that was closed in order, and return where its records are.

    20,480 files of 1 GiB take some seconds and 0.2 GB. Record n is of topic ``n % len(topics)``,
    queue 0; `queues` says whether there are entries for them.
    """
    log = root / "commitlog"
    log.mkdir(parents=True)
    offsets = []
    entries: dict[str, list[bytes]] = defaultdict(list)
    for number in range(file_count):
        base = at = number * file_size
        data = b""
        for place in range(records_per_file):
            topic = topics[len(offsets) % len(topics)]
            record = encode_record(
                topic=topic.encode(),
                body=body,
                properties=b"",
                queue_id=0,
                queue_offset=len(entries[topic]),
                physical_offset=at,
                born_timestamp_ms=1,
                born_host=HOST,
                store_timestamp_ms=BEGIN_MS + number * FILE_MS + place,
                store_host=HOST,
            )
            entries[topic].append(encode_entry(at, len(record), 0))
            offsets.append(at)
            data += record
            at += len(record)
        blank = encode_blank(file_size - (at - base))
        write_sparse(log / file_name(base), file_size, data + blank)
    for topic in topics if queues else ():
        written = b"".join(entries[topic])
        directory = root / "consumequeue" / QueueKey(topic, 0).topic / "0"
        directory.mkdir(parents=True)
        assert QUEUE_FILE_SIZE % ENTRY_SIZE_BYTES == 0
        for base in range(0, len(written), QUEUE_FILE_SIZE):
            piece = written[base : base + QUEUE_FILE_SIZE]
            write_sparse(directory / file_name(base), QUEUE_FILE_SIZE, piece)
    return offsets


def write_sparse(path: Path, size: int, data: bytes) -> None:
    """Make a file of `size` bytes that begins with `data` and takes no more room than that."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.truncate(descriptor, size)
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)
