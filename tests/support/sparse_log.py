"""A store of any size on hardly any disk: files of a few records and a BLANK to the end each."""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from rocketstore.format.file_name import file_name
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES
from rocketstore.format.record import encode_blank
from rocketstore.units import QueueKey
from support.oracle.codecs import encode_entry
from support.synthetic_log import record_bytes

GIB = 1 << 30
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
    number_of: Callable[[int], int] = int,
) -> list[int]:
    """Make a store that was closed in order, and return where its records are.

    20,480 files of 1 GiB take some seconds and 0.2 GB. Record n is of topic ``n % len(topics)``,
    queue 0; `queues` says whether there are entries for them. The nth record of a topic has the
    queue offset `number_of` n: where these are apart, the queue's files are holes in between.
    """
    log = root / "commitlog"
    log.mkdir(parents=True)
    offsets = []
    entries: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for file_number in range(file_count):
        base = at = file_number * file_size
        data = bytearray()
        for place in range(records_per_file):
            topic = topics[len(offsets) % len(topics)]
            number = number_of(len(entries[topic]))
            record = record_bytes(
                at,
                topic=topic.encode(),
                body=body,
                queue_offset=number,
                store_timestamp_ms=BEGIN_MS + file_number * FILE_MS + place,
            )
            entries[topic].append((number, encode_entry(at, len(record), 0)))
            offsets.append(at)
            data += record
            at += len(record)
        blank = encode_blank(file_size - (at - base))
        write_sparse(log / file_name(base), file_size, data + blank)
    for topic in topics if queues else ():
        directory = root / "consumequeue" / QueueKey(topic, 0).topic / "0"
        directory.mkdir(parents=True)
        _write_queue(directory, entries[topic])
    return offsets


def far_apart(messages: int, records: int) -> Callable[[int], int]:
    """Return the queue offsets of some records of a queue that shows about so many messages.

    Its last file, in which readers look for its end, has entries without a hole.
    """
    stride = messages // records
    per_file = QUEUE_FILE_SIZE // ENTRY_SIZE_BYTES
    base = messages // per_file * per_file
    first = min(records - 1, -(-base // stride))
    return lambda number: number * stride if number < first else base + number - first


def _write_queue(directory: Path, entries: list[tuple[int, bytes]]) -> None:
    pieces: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for number, entry in entries:
        base, at = divmod(number * ENTRY_SIZE_BYTES, QUEUE_FILE_SIZE)
        pieces[base].append((at, entry))
    for base in range(max(pieces, default=-1) + 1):
        path = directory / file_name(base * QUEUE_FILE_SIZE)
        write_sparse(path, QUEUE_FILE_SIZE, b"")
        with path.open("r+b") as file:
            for at, entry in pieces[base]:
                file.seek(at)
                file.write(entry)


def write_sparse(path: Path, size: int, data: bytes) -> None:
    """Make a file of `size` bytes that begins with `data` and takes no more room than that."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.truncate(descriptor, size)
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)
