"""A store directory made file by file for a test of reading, without the code that writes one."""

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from rocketstore.format.file_name import file_name
from rocketstore.format.host import encode_host
from rocketstore.format.index_file import IndexHeader, IndexLayout, encode_header
from rocketstore.format.java_hash import key_hash, tags_code
from rocketstore.format.properties import encode_properties
from rocketstore.format.queue_entry import ENTRY_SIZE_BYTES, FILLER
from rocketstore.format.record import encode_blank
from rocketstore.units import QueueKey
from support.oracle.codecs import IndexItem, encode_entry, encode_item
from support.synthetic_log import record_bytes

HOST = encode_host("127.0.0.1:10911")
INDEX_LAYOUT = IndexLayout(16, 64)


@dataclass
class StoreFiles:
    """Appends messages to files as a store would.

    `put` returns the physical offset. Nothing closes anything: each byte is on disk at once.
    """

    root: Path
    log_file_size: int = 4096
    queue_file_size: int = 10 * ENTRY_SIZE_BYTES
    end: int = 0
    next_offsets: dict[QueueKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "commitlog").mkdir(parents=True)

    def put(
        self,
        topic: str = "TopicTest",
        body: bytes = b"body",
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | None = None,
        properties: dict[str, str] | None = None,
        store_timestamp_ms: int = 1_000,
        dispatch: bool = True,
    ) -> int:
        key = QueueKey(topic, queue_id)
        pairs = dict(properties or {})
        pairs |= {"KEYS": keys} if keys else {}
        pairs |= {"TAGS": tags} if tags else {}
        record = self._record(key, body, pairs, store_timestamp_ms)
        free = self.log_file_size - self.end % self.log_file_size
        if len(record) + 8 > free:
            self.write_log(self.end, encode_blank(free))
            self.end += free
            record = self._record(key, body, pairs, store_timestamp_ms)
        offset = self.end
        self.write_log(offset, record)
        self.end += len(record)
        if dispatch:
            self.enter(key, offset, len(record), tags_code(tags))
        else:
            self.next_offsets[key] = self.next_offsets.get(key, 0) + 1
        return offset

    def _record(
        self, key: QueueKey, body: bytes, properties: dict[str, str], store_timestamp_ms: int
    ) -> bytes:
        return record_bytes(
            topic=key.topic.encode(),
            body=body,
            properties=encode_properties(properties),
            queue_id=key.queue_id,
            queue_offset=self.next_offsets.get(key, 0),
            physical_offset=self.end,
            store_timestamp_ms=store_timestamp_ms,
            store_host=HOST,
        )

    def enter(self, key: QueueKey, physical_offset: int, size: int, code: int) -> None:
        """Write the next entry of a queue."""
        offset = self.next_offsets.get(key, 0)
        self.write_entry(key, offset, physical_offset, size, code)
        self.next_offsets[key] = offset + 1

    def write_entry(
        self, key: QueueKey, queue_offset: int, physical_offset: int, size: int, code: int = 0
    ) -> None:
        position = queue_offset * ENTRY_SIZE_BYTES
        base = position - position % self.queue_file_size
        path = f"{self.root}/consumequeue/{key.topic}/{key.queue_id}/{file_name(base)}"
        write_at(
            path, position - base, encode_entry(physical_offset, size, code), self.queue_file_size
        )

    def fill(self, key: QueueKey, count: int) -> None:
        """Write fillers, as where a queue begins late."""
        for _ in range(count):
            self.enter(key, *FILLER)

    def write_log(self, offset: int, data: bytes) -> None:
        base = offset - offset % self.log_file_size
        path = f"{self.root}/commitlog/{file_name(base)}"
        write_at(path, offset - base, data, self.log_file_size)

    def log_path(self, base: int) -> Path:
        return self.root / "commitlog" / file_name(base)

    def queue_directory(self, key: QueueKey) -> Path:
        return self.root / "consumequeue" / key.topic / str(key.queue_id)

    def index(
        self,
        name: str,
        items: list[tuple[str, str, int, int]],
        *,
        begin_ms: int,
        end_ms: int,
        first_difference_s: int = 0,
    ) -> None:
        """Write an index file of (topic, key, physical offset, store time)."""
        layout = INDEX_LAYOUT
        data = bytearray(layout.size_bytes)
        slots: dict[int, int] = {}
        for number, (topic, key, offset, stored) in enumerate(items, 1):
            hashed = key_hash(topic, key)
            slot = hashed % layout.slot_count
            seconds = first_difference_s if number == 1 else max(0, stored - begin_ms) // 1000
            item = encode_item(IndexItem(hashed, offset, seconds, slots.get(slot, 0)))
            at = layout.item_position(number)
            data[at : at + len(item)] = item
            slots[slot] = number
            data[layout.slot_position(slot) : layout.slot_position(slot) + 4] = number.to_bytes(
                4, "big"
            )
        header = IndexHeader(
            begin_ms, end_ms, items[0][2], items[-1][2], len(slots), len(items) + 1
        )
        data[:40] = encode_header(header)
        (self.root / "index").mkdir(exist_ok=True)
        (self.root / "index" / name).write_bytes(data)


def overwrite_file(path: Path, position: int, content: bytes) -> None:
    """Damage a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garble(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])


def write_at(path: str, position: int, data: bytes, file_size: int) -> None:
    """Write into a file that has its full size from the start.

    By plain calls of the system: tests write tens of thousands of records and entries.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(descriptor, file_size)
        os.pwrite(descriptor, data, position)
    finally:
        os.close(descriptor)


def made_again(files: StoreFiles) -> list[int]:
    """Put into a topic, delete it, and make it again, as a 4.9 broker does; return the new ones."""
    for topic in [*["again"] * 9, "other"]:
        files.put(topic)
    shutil.rmtree(files.root / "consumequeue" / "again")
    files.next_offsets.clear()
    return [files.put("again") for _ in range(5)]
