"""Small stores for tests of recovery, repair and verify: written by our writer, without threads."""

from collections.abc import Iterable
from pathlib import Path

from rocketstore import Message, MessageStore
from rocketstore.format.file_name import file_name
from rocketstore.storage.files.disk import Disk
from support.clock import Clock
from support.configured_store import small_config
from support.reading import all_messages
from support.trees import copy_tree

LOG_FILE_BYTES = 16_384

CONFIG = small_config(
    mapped_file_size_commit_log=LOG_FILE_BYTES, max_hash_slot_num=100, max_index_num=400
)
QUEUE_FILE_BYTES = CONFIG.mapped_file_size_consume_queue


def messages(count: int, *, first: int = 0, body_size: int = 200) -> list[Message]:
    """Return messages whose content follows from their number."""
    return [
        Message(
            topic=f"Topic{number % 2}",
            body=(f"{number:06d}-" * (body_size // 7 + 1))[:body_size].encode(),
            keys=(f"key-{number}",),
            tags=f"Tag{number % 3}",
        )
        for number in range(first, first + count)
    ]


def open_store(root: Path, clock: Clock, *, disk: Disk | None = None) -> MessageStore:
    """Open without threads; everything happens on the calling thread."""
    return MessageStore.open(root, CONFIG, clock=clock, disk=disk, threads=False)


def put_all(store: MessageStore, wanted: Iterable[Message], clock: Clock) -> list[int]:
    """Put messages, a millisecond apart, and return their physical offsets."""
    offsets = []
    for message in wanted:
        clock.now_ms += 1
        offsets.append(store.put(message, queue_id=0).physical_offset)
    assert store.wait_dispatched()
    return offsets


def build_store(root: Path, count: int, clock: Clock, *, body_size: int = 200) -> list[int]:
    """Make a store with `count` messages and stop it in order; return their offsets."""
    with open_store(root, clock) as store:
        return put_all(store, messages(count, body_size=body_size), clock)


def crashed(root: Path) -> None:
    """Make a stopped store look as if its writer had been killed."""
    (root / "abort").touch()


def log_path(root: Path, physical_offset: int) -> Path:
    """Return the log file that holds an offset."""
    return root / "commitlog" / file_name(physical_offset // LOG_FILE_BYTES * LOG_FILE_BYTES)


def overwrite(root: Path, physical_offset: int, content: bytes) -> None:
    """Damage the log in place."""
    with log_path(root, physical_offset).open("r+b") as file:
        file.seek(physical_offset % LOG_FILE_BYTES)
        file.write(content)


def read_log(root: Path, physical_offset: int, size: int) -> bytes:
    """Return bytes of one log file."""
    with log_path(root, physical_offset).open("rb") as file:
        file.seek(physical_offset % LOG_FILE_BYTES)
        return file.read(size)


def flip_body(root: Path, physical_offset: int) -> None:
    """Flip a bit that the checksum of a record's body covers."""
    (byte,) = read_log(root, physical_offset + 90, 1)
    overwrite(root, physical_offset + 90, bytes([byte ^ 1]))


def bodies(store: MessageStore, topic: str) -> dict[int, bytes]:
    """Return body by queue offset of everything that a consumer gets from queue 0."""
    return {message.queue_offset: message.body for message in all_messages(store, topic)}


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store that nobody has open."""
    copy_tree(source, target)
    return target
