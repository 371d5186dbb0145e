"""Small stores with queue extensions, and the golden one."""

import shutil
from pathlib import Path

import msgspec

from rocketstore import MessageStore, StoreConfig
from rocketstore.format.queue_extension import ExtensionUnit
from rocketstore.storage.files.disk import Disk
from rocketstore.storage.read_only import ReadOnlyStore
from rocketstore.storage.reading.reader import Reader
from support.clock import Clock
from support.golden_stores import golden_root, golden_store
from support.small_store import CONFIG
from support.trees import tree

EXT_FILE_BYTES = 512

EXTENDED = msgspec.structs.replace(
    CONFIG, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=EXT_FILE_BYTES
)


def open_extended(
    root: Path, clock: Clock, config: StoreConfig = EXTENDED, disk: Disk | None = None
) -> MessageStore:
    """Open without threads."""
    return MessageStore.open(root, config, clock=clock, disk=disk, threads=False)


def units_of(store: Reader, topic: str, queue_id: int = 0) -> list[ExtensionUnit | None]:
    """Return the unit of each entry of a queue, None where an entry refers to none."""
    return [
        store.extension_unit(topic, queue_id, entry.tags_code)
        for _, entry in store.queue_entries(topic, queue_id)
    ]


def units_on_disk(root: Path, topic: str) -> list[ExtensionUnit | None]:
    """Return the unit of each entry as another process reads them."""
    with ReadOnlyStore.open(root) as store:
        return units_of(store, topic)


def files_below(root: Path, *directories: str) -> dict[str, bytes]:
    """Return the files of some directories of a store."""
    return {
        f"{directory}/{name}": content
        for directory in directories
        for name, content in tree(root / directory).items()
    }


def queue_files(root: Path) -> dict[str, bytes]:
    """Return the files of all queues and their extensions."""
    return files_below(root, "consumequeue", "consumequeue_ext")


def golden_log(root: Path) -> dict[bytes, bytes]:
    """Make a store of the log of ``cqext`` alone; return its bit maps."""
    shutil.copytree(golden_root("cqext") / "commitlog", root / "commitlog")
    return golden_bit_maps()


def golden_bit_maps() -> dict[bytes, bytes]:
    """Return the bit maps of ``cqext``, by properties."""
    _, manifest = golden_store("cqext")
    stored = {
        (record["queueId"], record["queueOffset"]): record["propertiesRaw"].encode()
        for record in manifest["records"]
        if record["type"] == "msg"
    }
    return {
        stored[int(queue), unit[0]]: bytes.fromhex(unit[4])
        for queue, found in manifest["consumeQueues"]["ExtTopic"].items()
        for unit in found["ext"]
    }
